"""One window's answer as the bytes that travel, cut from those of its whole batch.

What a batch answered is laid out once for all who wait on it: a row a window, output behind output, each
behind the bytes that a protocol puts before it. What is sent is a head, which every answer of one form
shares, and a row. This module must not know what those bytes mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from model.domain import FloatArray
from service.core.answers import Answers, WindowOutputs
from service.oip.outputs import values_of
from service.oip.tensors import Tensor, TensorSpec


class Form(Protocol):
    """How the answers to requests of one window are written that differ in their numbers alone."""

    def written(self, outputs: WindowOutputs) -> tuple[bytes, bytes] | None:
        """An answer in two parts; None where its batch is of other cycles than the request."""
        ...


class Rows(NamedTuple):
    """A batch's answers in one layout; each row has `size` bytes."""

    data: bytes
    size: int


class RowForm:
    """Raw values behind a head.

    Args:
        head: What stands before the first output.
        wanted: The outputs, in their order.
        before: What stands before each output's values.
        cycles: T of the requests.
    """

    __slots__ = ("_cycles", "_head", "_layout", "_wanted")

    def __init__(
        self, head: bytes, wanted: Sequence[TensorSpec], before: Sequence[bytes], *, cycles: int
    ) -> None:
        self._head: Final = head
        self._wanted: Final = wanted
        self._cycles: Final = cycles
        self._layout: Final = tuple(zip(_names(wanted), before, strict=True))

    def written(self, outputs: WindowOutputs) -> tuple[bytes, bytes] | None:
        """The head and the row of an answer; None where its batch is of other cycles than the request."""
        answers = outputs.answers
        if answers.outputs.attention.shape[1] != self._cycles:
            return None
        rows: Rows | None = answers.kept.get(self._layout)
        if rows is None:
            rows = answers.kept[self._layout] = self._laid_out(answers)
        start = outputs.row * rows.size
        return self._head, rows.data[start : start + rows.size]

    def _laid_out(self, answers: Answers) -> Rows:
        windows = len(answers.outputs.rul)
        parts: list[Any] = []
        for spec, (_, before) in zip(self._wanted, self._layout, strict=True):
            if before:
                parts.append(np.broadcast_to(np.frombuffer(before, np.uint8), (windows, len(before))))
            parts.append(_matrix(spec, answers).view(np.uint8))
        data = np.concatenate(parts, axis=1)
        return Rows(data.tobytes(), data.shape[1])


class TextForm:
    """Values as text, between what is always the same.

    Args:
        around: What stands before each output's values, and what behind the last.
        wanted: The outputs, in their order.
        cycles: T of the requests.
        encode: Writes numbers.
    """

    __slots__ = ("_cuts", "_cycles", "_encode", "_layout", "_tail", "_wanted")

    def __init__(
        self,
        around: Sequence[bytes],
        wanted: Sequence[TensorSpec],
        *,
        cycles: int,
        encode: Callable[[list[float]], bytes],
    ) -> None:
        sizes = [math.prod(spec.sized(windows=1, cycles=cycles)) for spec in wanted]
        stops = list(accumulate(sizes))
        starts = [stop - size for stop, size in zip(stops, sizes, strict=True)]
        *before, self._tail = around
        self._cuts: Final = list(zip(before, starts, stops, strict=True))
        self._wanted: Final = wanted
        self._cycles: Final = cycles
        self._encode: Final = encode
        self._layout: Final = _names(wanted)

    def written(self, outputs: WindowOutputs) -> tuple[bytes, bytes] | None:
        """Nothing, and the whole of an answer; None where its batch is of other cycles than the request."""
        answers = outputs.answers
        if answers.outputs.attention.shape[1] != self._cycles:
            return None
        values: FloatArray | None = answers.kept.get(self._layout)
        if values is None:
            values = np.concatenate([_matrix(spec, answers) for spec in self._wanted], axis=1)
            answers.kept[self._layout] = values
        row: list[float] = values[outputs.row].tolist()
        parts: list[bytes] = []
        for before, start, stop in self._cuts:
            parts += (before, self._encode(row[start:stop]))
        parts.append(self._tail)
        return b"", b"".join(parts)


def _names(wanted: Sequence[TensorSpec]) -> tuple[str, ...]:
    return tuple(spec.name for spec in wanted)


def _matrix(spec: TensorSpec, answers: Answers) -> FloatArray:
    """What a batch answered of one output, float32 [B, all of a window's values]."""
    values = values_of(spec, answers)
    return np.ascontiguousarray(values.reshape(len(values), -1))


def blank(wanted: Sequence[TensorSpec], *, cycles: int) -> list[Tensor]:
    """An answer to one window of so many cycles, all zeros: to see how such an answer is written."""
    return [
        Tensor(spec.name, spec.datatype, np.zeros(spec.sized(windows=1, cycles=cycles), np.float32))
        for spec in wanted
    ]
