"""What the head of a request says, worked out once: clients send the same head again and again.

A head is everything of a request but its numbers. Where one was read with care, and its windows let in, a
plan says where in such a request the numbers lie and how its answer is written; the next request with this
head is read by the plan. It asks of the numbers what `checked_group` asks, of one full window in fewer
steps, and leaves the wording of what is wrong to it. This module must not know how heads are written.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from service.core.predictor import LoadedModel
from service.core.window import LARGEST_CYCLE, Window
from service.oip.rows import Form
from service.oip.tensors import DTYPES, LAST_CYCLE, LENGTHS, PACKED, READINGS, GivenTensor, aligned
from service.oip.windows import Group, checked_group

Key = TypeVar("Key")
Value = TypeVar("Value")
Asked = TypeVar("Asked")

MAX_HEAD_BYTES: Final = 4096
"""Heads longer than this are read with care each time: all that are kept must stay small."""

MAX_HEADS: Final = 128
"""Heads that are kept, and as many that came once."""

FLOAT: Final[np.dtype[np.float32]] = np.dtype("<f4")
_LENGTH: Final = struct.Struct("<q").unpack_from
_CYCLE: Final = struct.Struct("<f").unpack_from


class Kept(dict[Key, Value]):
    """What was worked out of the last `MAX_HEADS` heads."""

    def keep(self, key: Key, value: Value) -> None:
        """Keep one more; the oldest goes where there are too many."""
        if len(self) >= MAX_HEADS and key not in self:
            del self[next(iter(self))]
        self[key] = value


class Plans(Generic[Key, Value]):
    """Plans by their heads.

    One is worth making when its head comes a second time: callers who number their requests send none twice,
    and drive out nobody's.
    """

    __slots__ = ("_kept", "_seen", "get")

    def __init__(self) -> None:
        self._kept: Final[Kept[Key, Value]] = Kept()
        self._seen: Final[Kept[Key, None]] = Kept()
        self.get: Final = self._kept.get

    def __len__(self) -> int:
        return len(self._kept)

    def due(self, head: Key, *, size: int) -> bool:
        """Whether a head of so many bytes has come before; from now on it has."""
        if size > MAX_HEAD_BYTES:
            return False
        seen = head in self._seen
        self._seen.keep(head, None)
        return seen

    def keep(self, head: Key, plan: Value) -> None:
        """Keep a plan."""
        self._kept.keep(head, plan)


class Placed(NamedTuple):
    """Where the contents of an input lie in a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def placed(inputs: Sequence[GivenTensor], start: int) -> tuple[list[Placed], int]:
    """Inputs that were let in, their raw contents one behind the other from `start`, and where they end."""
    places: list[Placed] = []
    for name, datatype, shape, _ in inputs:
        stop = start + math.prod(shape) * DTYPES[datatype].itemsize
        places.append(Placed(name, datatype, tuple(shape), start, stop))
        start = stop
    return places, start


class Plan(Generic[Asked]):
    """How requests with one head are read and answered.

    Attributes:
        model: The model that is asked.
        asked: What the head asks, as its protocol has it.
        form: How the answer to the one window is written; None: with care.
    """

    __slots__ = (
        "_cycles", "_fixed", "_full", "_inputs", "_last_cycle", "_lengths", "_readings", "_size", "_starts",
        "_stops", "asked", "form", "model",
    )  # fmt: skip

    def __init__(
        self,
        model: LoadedModel,
        asked: Asked,
        inputs: Sequence[Placed],
        *,
        size: int,
        fixed: Sequence[tuple[int, bytes]] = (),
        form: Form | None = None,
    ) -> None:
        """Plan requests.

        Args:
            model: The model that is asked.
            asked: What the head asks.
            inputs: The inputs, of which readings are one; each was let in.
            size: How many bytes such a request has.
            fixed: What else stands in each, and where.
            form: How the answer is written where there is one window.
        """
        where = {each.name: each for each in inputs}
        self._readings: Final = where[READINGS]
        count, self._cycles, _ = self._readings.shape
        lengths, last_cycle = where.get(LENGTHS), where.get(LAST_CYCLE)
        self._lengths: Final = None if lengths is None else lengths.start
        self._last_cycle: Final = None if last_cycle is None else last_cycle.start
        self._full: Final = count == 1 and self._cycles <= min(model.rules.context, model.rules.max_cycles)
        self._starts: Final = np.zeros(1, np.int64)
        self._stops: Final = np.full(1, self._cycles, np.int64)
        self._inputs: Final = inputs
        self._size: Final = size
        self._fixed: Final = fixed
        self.model: Final = model
        self.asked: Final = asked
        self.form: Final = form if self._full else None

    @property
    def layouts(self) -> list[str]:
        """The contents of each input, as `struct` has them."""
        return [f"{math.prod(each.shape)}{PACKED[each.datatype]}" for each in self._inputs]

    def read(self, body: bytes) -> Group | None:
        """The windows of a request that begins with the head; None where it is not as long as it should be.

        Raises:
            InvalidTensor: a window cannot be read.
        """
        if len(body) != self._size:
            return None
        for start, expected in self._fixed:
            if not body.startswith(expected, start):
                return None
        window = self._window(body) if self._full else None
        if window is not None:
            return Group([window], self._cycles, self._starts, self._stops)
        behind = memoryview(body)
        arrays = {
            name: aligned(behind[start:stop], datatype).reshape(shape)
            for name, datatype, shape, start, stop in self._inputs
        }
        return checked_group(arrays, self.model.rules)

    def _window(self, body: bytes) -> Window | None:
        """The one window where nothing about it is unusual."""
        cycles = self._cycles
        if self._lengths is not None and _LENGTH(body, self._lengths)[0] != cycles:
            return None
        last_cycle, first_cycle = math.nan, 1
        if self._last_cycle is not None:
            (last_cycle,) = _CYCLE(body, self._last_cycle)
            if cycles - 1 <= last_cycle <= LARGEST_CYCLE and last_cycle == int(last_cycle):
                first_cycle = int(last_cycle) - cycles + 1
            elif not math.isnan(last_cycle):
                return None
        readings = self._readings
        # What a slice of bytes begins with is aligned. To look for a zero is quicker than `all`.
        values = np.frombuffer(body[readings.start : readings.stop], FLOAT)
        if b"\0" in np.isfinite(values).tobytes():
            return None
        return Window(None, values.reshape(readings.shape[1:]), last_cycle, first_cycle, 0.0, ())
