"""Types and pure functions of remaining useful life.

This module knows only numpy and the standard library, not how data is stored, trained on or served.

Shape letters, used everywhere: B batch, T cycles in a window, F columns, N cycles in a
trajectory, W windows, H attention heads, C classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

Role = Literal["setting", "sensor"]

HEALTH_STATES: Final = ("healthy", "degrading", "critical")
MEAN_HEAD: Final = "mean"
"""Name of the output `attention`; heads are named by their number."""
HEALTH_LABELS: Final = (*HEALTH_STATES, "unknown")
"""Labels of answers; `unknown` is that of readings unlike the training data."""

MODEL_NAME: Final = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
"""Names of models and of their bundles."""
LONGEST_CONTEXT: Final = 100_000
"""Maximum cycles that a model may read."""
LARGEST_CYCLE: Final = 2**24
"""Networks read cycle numbers as float32, which holds every whole number up to here."""


class RulError(Exception):
    """Base of every error that this project raises on purpose."""


class InvalidData(RulError):
    """Readings, their files or the description of a fleet are invalid."""


def printable(text: str, width: int | None = None) -> str:
    r"""Make foreign text safe for a terminal: no control characters, one line, at most `width` letters.

    >>> printable("pump\x1b[2J", 7)
    'pump?..'
    """
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if width is None or len(plain) <= width else plain[: width - 2] + ".."


class RulState(StrEnum):
    """Interpretation of a predicted RUL.

    `estimated`: the number itself. `at_least_cap`: the RUL is the model's cap or more.
    `out_of_distribution`: readings unlike those of training, so the number is not reliable.
    `insufficient_history`: fewer cycles than the model's `min_cycles`, and no `last_cycle` that shows
    that they are the unit's whole life. If several apply, the last of these four is given.
    """

    ESTIMATED = "estimated"
    AT_LEAST_CAP = "at_least_cap"
    INSUFFICIENT_HISTORY = "insufficient_history"
    OUT_OF_DISTRIBUTION = "out_of_distribution"


LONGEST_GAP_SHARE: Final = 0.5
"""Maximum gap in a window, as a share of the context."""


def longest_gap(context: int) -> int:
    """Return the maximum number of missing cycles between two readings of one window.

    After a longer gap the window of a unit begins anew: most of it would be missing.

    >>> longest_gap(60)
    30
    """
    return int(LONGEST_GAP_SHARE * context)


NOVELTY_LIMIT: Final = 2.0
"""Novelty above which an answer is out of distribution. 1 is the 99.5 % quantile of training windows, so
one good window in 200 is above 1 by chance; chance is an unlikely reason for twice that distance."""


BEYOND_OLDEST: Final = 1.25  # Times the oldest of training; a cycle number beyond it counts as unknown
NEAR_CAP: Final = 0.98
"""Share of the cap from which an answer is "at least the cap". Every RUL above the cap has the label cap,
so the network's answers for new units scatter just below it, and their digits mean nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """One setting or sensor, with the engineering unit of its readings."""

    name: str
    role: Role
    unit: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of a fleet's readings, in the model's order.

    Raises:
        InvalidData: there is no column, or two share a name.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if not names:
            raise InvalidData("a schema needs at least one column, got none")
        if repeated:
            raise InvalidData(f"a schema names each column once, got {', '.join(repeated)} more than once")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the column names, in order."""
        return tuple(column.name for column in self.columns)

    def indices(self, role: Role) -> tuple[int, ...]:
        """Return the indices of the columns of one role, in order."""
        return tuple(i for i, column in enumerate(self.columns) if column.role == role)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """All readings of one unit.

    Raises:
        InvalidData: shapes disagree, there is no cycle, or cycles do not increase.
    """

    unit: str  # The unit's name
    cycles: IntArray  # int64 [N], strictly increasing cycle numbers
    readings: FloatArray  # float32 [N, F], schema order and engineering units, NaN = missing
    failed: bool  # The last cycle is the failure; False: censored, the record ends earlier, without RUL label
    weight: float = 1.0  # Weight of a failed unit; above 1 if units were censored at a lower age
    group: str = ""  # Its units are held out and resampled together; empty: the unit alone is

    def __post_init__(self) -> None:
        if self.cycles.ndim != 1 or self.readings.ndim != 2 or len(self.cycles) != len(self.readings):
            raise InvalidData(
                f"unit {self.unit}: expected cycles [N] and readings [N, F], "
                f"got {self.cycles.shape} and {self.readings.shape}"
            )
        if len(self.cycles) == 0:
            raise InvalidData(f"unit {self.unit}: expected at least one cycle, got none")
        not_after = np.flatnonzero(np.diff(self.cycles) <= 0)
        if len(not_after):
            i = int(not_after[0])
            raise InvalidData(
                f"unit {self.unit}: cycles must increase, "
                f"but cycle {self.cycles[i]} is followed by {self.cycles[i + 1]}"
            )

    def __len__(self) -> int:
        return len(self.cycles)


@dataclass(frozen=True, slots=True, eq=False)
class WindowSet:
    """Windows with their labels, for training or evaluation."""

    readings: FloatArray  # float32 [W, T, F]; rows past a window's length are NaN
    lengths: IntArray  # int64 [W], valid cycles of each window, 1..T
    last_cycle: FloatArray  # float32 [W], the unit's cycle number at each window's last reading
    rul: FloatArray  # float32 [W], cycles left at the last reading, not capped; censored: NaN or lower bound
    unit: NDArray[np.str_]  # str [W], the unit of each window
    group: NDArray[np.str_]  # str [W], the group of each unit, or the unit
    weight: FloatArray  # float32 [W], weight of the unit

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, which: IntArray | BoolArray) -> WindowSet:
        """Select windows by indices or by a mask."""
        return WindowSet(*(getattr(self, field.name)[which] for field in fields(self)))

    def batches(self, size: int) -> Iterator[WindowSet]:
        """Yield the windows in order, at most `size` at once."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))


def mean_of_known(values: FloatArray) -> FloatArray:
    """Compute the mean of the known values of each column, [N, F] -> [F]; 0 without any."""
    known = ~np.isnan(values)
    counts = np.maximum(known.sum(axis=0), 1).astype(values.dtype)
    return np.where(known, values, 0.0).sum(axis=0) / counts


def concatenated(parts: Sequence[Record]) -> Record:
    """Join dataclasses of arrays field by field, in order; a field is None if it is None in the first."""
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(parts[0])}
    return type(parts[0])(
        **{name: None if each[0] is None else np.concatenate(each) for name, each in columns.items()}
    )


def cycles_left(trajectory: Trajectory) -> IntArray:
    """Compute RUL, by its only definition: cycles left after each cycle, int64 [N].

    The last cycle of a failed unit has RUL 0, as in C-MAPSS ("operational cycles after the last cycle
    that the engine will continue to operate").

    Raises:
        InvalidData: the unit is censored, so its RUL is unknown.

    >>> cycles_left(Trajectory("1", np.array([1, 2, 5]), np.zeros((3, 1)), failed=True)).tolist()
    [4, 3, 0]
    """
    if not trajectory.failed:
        raise InvalidData(f"unit {trajectory.unit} did not run to failure: its RUL is unknown")
    return cycles_until(int(trajectory.cycles[-1]), trajectory.cycles)


def cycles_until(last_cycle: int | IntArray, cycles: IntArray) -> IntArray:
    """Compute the cycles from each cycle to `last_cycle`, int64 [N].

    This is the RUL if the unit failed at that cycle, and a lower bound of the RUL otherwise.

    >>> cycles_until(5, np.array([1, 2, 5])).tolist()
    [4, 3, 0]
    """
    return np.asarray(last_cycle - cycles, dtype=np.int64)


def capped_rul(rul: ArrayLike, *, cap: float) -> FloatArray:
    """Cap RUL in cycles: a RUL above the cap is reported as "at least cap".

    >>> capped_rul([200, 80], cap=125).tolist()
    [125.0, 80.0]
    """
    return np.minimum(np.asarray(rul, dtype=np.float32), np.float32(cap))


def tail_scale(width: float, *, tail: float) -> float:
    """Compute the scale of the logistic distribution with probability `tail` beyond `width` of its median.

    The RUL below its interval has this distribution, because held-out errors are too few for rare failures.
    """
    return width / math.log((1.0 - tail) / tail)


def attention_entropy_ratio(attention: FloatArray, lengths: IntArray) -> FloatArray:
    """Compute the Shannon entropy of each window's attention over its maximum, ln n.

    [..., T] and [...] -> [...], in 0..1: 0 when one cycle has all the weight, 1 when all n valid
    cycles have equal weight. NaN if n = 1.

    >>> attention_entropy_ratio(np.array([[0.5, 0.5, 0.0]]), np.array([2])).tolist()
    [1.0]
    """
    entropy = attention_entropy(attention)
    most = np.log(np.maximum(lengths, 1).astype(np.float64))
    ratio = np.minimum(entropy / np.where(lengths > 1, most, 1.0), 1.0)  # rounding adds 1e-8 to even weights
    return np.where(lengths > 1, ratio, np.nan)


def attention_entropy(attention: FloatArray) -> FloatArray:
    """Compute the Shannon entropy of attention in nats, [..., T] -> [...]."""
    a = attention.astype(np.float64)
    return -(a * np.log(np.where(a > 0, a, 1.0))).sum(axis=-1)


def attention_lag(attention: FloatArray, lengths: IntArray) -> FloatArray:
    """Compute the mean lag of the attention behind the last cycle, in cycles, [W, T] and [W] -> [W].

    >>> attention_lag(np.array([[0.5, 0.5, 0.0]]), np.array([2])).tolist()
    [0.5]
    """
    return lengths - 1 - attention.astype(np.float64) @ np.arange(attention.shape[1])


def edge_weights(attention: FloatArray, lengths: IntArray) -> tuple[FloatArray, FloatArray]:
    """Add the weights of the first and of the last tenth of each window's cycles, [W, T] -> [W], [W].

    A tenth is rounded up to whole cycles. Even attention has 0.1 on each, and more on a rounded one.

    >>> [part.tolist() for part in edge_weights(np.array([[0.75, 0.25, 0.0]]), np.array([2]))]
    [[0.75], [0.25]]
    """
    place = np.arange(attention.shape[1])
    tenth = -(-lengths // 10)
    first, last = place < tenth[:, None], place >= (lengths - tenth)[:, None]
    return (attention * first).sum(axis=1), (attention * last).sum(axis=1)


def heads_by_name(attention: FloatArray, head_attention: FloatArray | None) -> dict[str, FloatArray]:
    """Name the attention `mean` and each head by its number, [W, T] and [W, H, T] -> [W, T] each."""
    heads = {} if head_attention is None else {str(h): w for h, w in enumerate(head_attention.swapaxes(0, 1))}
    return {MEAN_HEAD: attention, **heads}


def head_similarity(head_attention: FloatArray) -> FloatArray:
    """Compute the mean cosine similarity of each two heads' attention, [W, H, T] -> [W]; NaN for one head.

    >>> head_similarity(np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])).round(3).tolist()
    [0.333]
    """
    heads = head_attention.shape[1]
    if heads < 2:
        return np.full(len(head_attention), np.nan)
    a = head_attention.astype(np.float64)
    unit = a / np.sqrt((a**2).sum(axis=2, keepdims=True))
    return ((unit.sum(axis=1) ** 2).sum(axis=1) - heads) / (heads * (heads - 1))


def effective_cycles(attention: FloatArray) -> FloatArray:
    """Compute exp(entropy): the number of equal weights with this entropy, [..., T] -> [...]."""
    return np.exp(attention_entropy(attention))


def pad_windows(windows: Sequence[FloatArray], *, length: int | None = None) -> FloatArray:
    """Stack ragged windows [T_i, F] into float32 [W, T, F], NaN past each one's end.

    T is the longest window, or `length` if it is given.

    >>> pad_windows([np.ones((1, 2)), np.ones((3, 2))]).shape
    (2, 3, 2)
    """
    sizes = {len(window) for window in windows}
    longest = max(sizes) if length is None else length
    if sizes == {longest}:  # nothing to pad
        return np.concatenate(windows, dtype=np.float32).reshape(len(windows), *windows[0].shape)
    padded = np.full((len(windows), longest, windows[0].shape[1]), np.nan, dtype=np.float32)
    for row, window in zip(padded, windows, strict=True):
        row[: len(window)] = window
    return padded
