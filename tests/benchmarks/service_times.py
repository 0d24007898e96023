"""Service times of a worker: measured batches, and the pace at which a busy worker replays them.

Times are in seconds. `lone_worker` measures them.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from service.settings import Settings

MOST_WINDOWS: Final[int] = Settings.model_fields["max_batch_windows"].default


class Batch(NamedTuple):
    """Seconds from the start of a batch to its first and to its last answer."""

    first: float
    last: float


class Pace:
    """Speed of a busy worker over time: measured batches one after the other, again and again.

    A batch that took twice the median of its size is a time of half the speed. So a pause lasts as long as it
    was measured, whatever batches it meets.
    """

    def __init__(self, batches: Sequence[tuple[float, float]]) -> None:
        """Take the seconds of each batch, and the median of its size."""
        self._ends: Final = [0.0, *accumulate(seconds for seconds, _ in batches)]
        self._work: Final = [0.0, *accumulate(work for _, work in batches)]
        self.length: Final = self._ends[-1]

    def seconds(self, now: float, work: float) -> float:
        """Return how long work takes from now on that takes `work` seconds at the median speed."""
        rounds, within = divmod(now, self.length)
        done = _interpolated(within, self._ends, self._work) + work
        more, left = divmod(done, self._work[-1])
        return max(0.0, (rounds + more) * self.length + _interpolated(left, self._work, self._ends) - now)


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    place = min(bisect_right(xs, x), len(xs) - 1)  # numpy's `interp` takes time in proportion to all points
    share = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
    return ys[place - 1] + share * (ys[place] - ys[place - 1])


class ServiceTimes:
    """Measured batches by number of windows, in the order of measurement.

    Attributes:
        read_seconds: Part of a batch's time in which one request is received and decoded. Requests that
            arrive meanwhile join the batch.
        arrival_seconds: Extra time of a request that arrives during a batch: it wakes threads, which are
            already awake while answers are sent.
        backlog: By requests that are held, how many times longer a full batch takes: their data leave the
            caches.
        pace: Speed of a worker that has no pause between batches.
    """

    def __init__(
        self,
        measured: Mapping[int, Sequence[Batch]],
        *,
        read_seconds: float = 0.0,
        arrival_seconds: float = 0.0,
        after: Mapping[int, float] | None = None,
        backlog: Mapping[int, float] | None = None,
    ) -> None:
        """Take batches by number of windows, and the seconds of work after each one's last answer."""
        self.read_seconds: Final = read_seconds
        self.arrival_seconds: Final = arrival_seconds
        self.measured: Final = measured
        self.backlog: Final = dict(backlog or {})
        self._sizes: Final = sorted(measured)
        self._means: Final = [statistics.mean(each.last for each in measured[n]) for n in self._sizes]
        self._medians: Final = [
            [statistics.median(each[end] for each in measured[n]) for n in self._sizes] for end in (0, 1)
        ]
        self._after: Final = [after[n] if after else 0.0 for n in self._sizes]
        last = dict(zip(self._sizes, self._medians[1], strict=True))
        busy = [n for n in self._sizes if n > 1] or self._sizes  # one window is measured on an idle worker
        self.pace: Final = Pace([(each.last, last[n]) for n in busy for each in measured[n]])

    def mean_seconds(self, windows: int) -> float:
        """Interpolate the mean time of a batch, to its last answer."""
        return float(np.interp(windows, self._sizes, self._means))

    def typical(self, windows: int) -> Batch:
        """Interpolate the median batch."""
        first, last = (float(np.interp(windows, self._sizes, medians)) for medians in self._medians)
        return Batch(first, last)

    def after(self, windows: int) -> float:
        """Interpolate the time after a batch's last answer in which the core is still busy."""
        return float(np.interp(windows, self._sizes, self._after))

    def longer(self, held: int) -> float:
        """Interpolate how many times longer a batch takes while so many requests are held."""
        known = {MOST_WINDOWS: 1.0} | self.backlog
        return float(np.interp(held, list(known), list(known.values())))

    def most_per_second(self) -> float:
        """Return the throughput of a worker with a backlog, in windows per second."""
        return MOST_WINDOWS / (self.mean_seconds(MOST_WINDOWS) + self.after(MOST_WINDOWS))
