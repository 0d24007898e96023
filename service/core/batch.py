"""One batch: the windows of some requests as the graph takes them, and as metrics count them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from model.domain import FloatArray
from service.core.answers import Answers, Asked, Piece
from service.core.ports import BatchReport, Submission
from service.core.window import Windows


class Caller(msgspec.Struct, eq=False):
    """A request in the batcher.

    Attributes:
        windows: What it asks.
        order: The order in which batches take its windows.
        trace: The request's trace, where it is recorded.
        arrived, taken_at, done_at: Seconds of `perf_counter`: submitted, first window taken, last window
            answered; 0 where it has not come to that.
        missing: Windows without an answer.
        next: Windows that batches have taken.
        pieces: What has been answered.
    """

    windows: Windows
    order: Sequence[int]
    future: asyncio.Future[list[Piece]]
    trace: Submission | None
    arrived: float
    missing: int
    next: int = 0
    taken_at: float = 0.0
    done_at: float = 0.0
    pieces: list[Piece] = msgspec.field(default_factory=list[Piece])


class Share(NamedTuple):
    """The windows of one caller in a batch, by their places in the request."""

    caller: Caller
    places: Sequence[int]


class Batch(NamedTuple):
    """What the graph is asked at once; `queued` has the wait of each request that it begins."""

    shares: list[Share]
    size: int
    queued: list[float]


class Run(NamedTuple):
    """What became of a batch."""

    answers: Answers
    seconds: float


def take(callers: deque[Caller], size: int, now: float) -> Batch:
    """Take up to `size` windows, every caller in turn; the rest of a caller waits at the end of the line."""
    batch, left = Batch([], size, []), size
    while left and callers:
        share = max(1, left // len(callers))
        caller = callers.popleft()
        start = caller.next
        if start == 0:
            caller.taken_at = now
            batch.queued.append(now - caller.arrived)
        caller.next = stop = min(start + share, len(caller.windows))
        batch.shares.append(Share(caller, caller.order[start:stop]))
        left -= stop - start
        if stop < len(caller.windows):
            callers.append(caller)
    return batch


def hand_back(batch: Batch, answers: Answers, now: float) -> list[float]:
    """Give each caller its rows; the seconds that each request took that has all of them now."""
    took: list[float] = []
    row = 0
    for caller, places in batch.shares:
        caller.pieces.append(Piece(answers, row, places))
        row += len(places)
        caller.missing -= len(places)
        if not caller.missing and not caller.future.done():  # the caller may have left
            caller.done_at = now
            took.append(now - caller.taken_at)
            caller.future.set_result(caller.pieces)
    return took


def stacked(shares: Sequence[Share]) -> Asked:
    """The windows of a batch as the graph takes them."""
    lengths: list[int] = []
    last_cycle: list[float] = []
    parts: list[FloatArray] = []
    for caller, places in shares:
        windows = caller.windows
        if len(places) == len(windows.lengths) and isinstance(places, range):  # the whole request
            lengths += windows.lengths
            last_cycle += windows.last_cycle
            parts.append(windows.readings)
        else:
            lengths += [windows.lengths[i] for i in places]
            last_cycle += [windows.last_cycle[i] for i in places]
            at = slice(places.start, places.stop) if isinstance(places, range) else places
            parts.append(windows.readings[at])
    readings = _padded(parts, max(lengths))
    return Asked(readings, np.array(lengths, np.int64), np.array(last_cycle, np.float32))


def _padded(parts: Sequence[FloatArray], cycles: int) -> FloatArray:
    """Requests' windows [B_i, T_i, F] as float32 [B, T, F], NaN past their ends."""
    if all(part.shape[1] == cycles for part in parts):
        return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])
    padded = np.full((sum(map(len, parts)), cycles, parts[0].shape[2]), np.nan, np.float32)
    row = 0
    for part in parts:
        width = min(part.shape[1], cycles)
        padded[row : row + len(part), :width] = part[:, :width]
        row += len(part)
    return padded


def report(batch: Batch, run: Run | None, took: Sequence[float]) -> BatchReport:
    """A batch as it is counted: probes are no predictions, and would look like failing sensors."""
    if run is None:
        return BatchReport(batch.size, batch.queued, (), None, None, (), ())
    imputed: list[float] = []
    units: list[str | None] = []
    asked: list[bool] = []
    for share in batch.shares:
        windows, places = share.caller.windows, share.places
        asked += [not windows.is_probe] * len(places)
        if not windows.is_probe:
            imputed += [windows.imputed_fraction[i] for i in places]
            units += [windows.units[i] for i in places]
    answers: Answers | None = run.answers
    if len(units) < batch.size:
        answers = run.answers.only(np.array(asked)) if units else None
    return BatchReport(batch.size, batch.queued, took, run.seconds, answers, imputed, units)
