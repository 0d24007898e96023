"""Histograms that cost next to nothing where the work is done.

`prometheus_client` walks a histogram's buckets under a lock for every observation, some two
microseconds each; with half a dozen values a window that is a tenth of the inference. Here an
observation is appended to a list, a batch's array to another, and both are counted when somebody
looks, or when enough have gathered to bound the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from model.domain import FloatArray
from service.metrics.board import Board, Slots

MOST_WAITING: Final = 4096
MOST_ARRAYS: Final = 256
"""Of a batch each: an array takes as much room as a dozen numbers, and may hold on to a larger one."""


class HistogramChild:
    """One series: observations of one set of label values.

    On the board it has a place for each bucket, one for what is above them, and one for the sum.
    """

    def __init__(self, bounds: FloatArray, slots: Slots) -> None:
        self._bounds: Final = bounds
        self._slots: Final = slots
        self._lock: Final = threading.Lock()
        self._values: list[float] = []
        self._arrays: list[FloatArray] = []

    def observe(self, value: float) -> None:
        """Count one value."""
        values = self._values
        values.append(value)
        if len(values) >= MOST_WAITING:
            self.count()

    def observe_each(self, values: Sequence[float]) -> None:
        """Count every value of a list."""
        self._values.extend(values)
        if len(self._values) >= MOST_WAITING:
            self.count()

    def observe_many(self, values: FloatArray) -> None:
        """Count every value of an array but NaN, which means that there is none."""
        arrays = self._arrays
        arrays.append(values)
        if len(arrays) >= MOST_ARRAYS:
            self.count()

    def snapshot(self) -> tuple[list[float], float]:
        """Cumulative counts up to each bound and to infinity, and the sum, of all workers."""
        self.count()
        total = self._slots.total()
        return np.cumsum(total[:-1]).tolist(), float(total[-1])

    def count(self) -> None:
        """Put on the board what has gathered here."""
        if not (self._values or self._arrays):
            return
        with self._lock:
            # Whoever appends meanwhile holds the old list: what was copied is cut from its front.
            values, arrays = self._values[:], self._arrays[:]
            del self._values[: len(values)]
            del self._arrays[: len(arrays)]
            flat = np.concatenate([np.asarray(values, dtype=np.float64), *(a.ravel() for a in arrays)])
            flat = flat[~np.isnan(flat)]
            # side="left": a value that equals a bound belongs below it, as `le` says.
            where = np.searchsorted(self._bounds, flat, side="left")
            own = self._slots.own
            own[:-1] += np.bincount(where, minlength=len(own) - 1)
            own[-1] += flat.sum()


class Histogram(Collector):
    """A histogram whose label values are all known at the start."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        combinations: Sequence[tuple[str, ...]] | None = None,
        buckets: Sequence[float],
        registry: CollectorRegistry,
        board: Board | None = None,
    ) -> None:
        """Create one child for each combination of `labels`, or for each of `combinations`."""
        labels = labels or {}
        self._name: Final = name
        self._documentation: Final = documentation
        self._label_names: Final = tuple(labels)
        self._bounds: Final = np.asarray(buckets, dtype=np.float64)
        self._le: Final = [*(floatToGoString(bound) for bound in self._bounds), "+Inf"]
        keys = list(product(*labels.values())) if combinations is None else combinations
        board, size = board or Board(), len(self._bounds) + 2
        self._children: Final = {
            key: HistogramChild(self._bounds, board.slots(f"{name}{key}", size)) for key in keys
        }
        registry.register(self)

    def labels(self, *values: str) -> HistogramChild:
        """The child of these label values; it exists already.

        Raises:
            KeyError: there is none: a label value that was not declared.
        """
        return self._children[values]

    def publish(self) -> None:
        """Put on the board what has gathered here, so that other workers see it."""
        for child in self._children.values():
            child.count()

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The family without samples: a registry asks for it to find names that collide."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family with every child's samples."""
        family = self._family()
        for values, child in self._children.items():
            counts, total = child.snapshot()
            family.add_metric(values, list(zip(self._le, counts, strict=True)), total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._label_names)
