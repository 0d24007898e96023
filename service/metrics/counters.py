"""Counters and gauges that add up over the workers of a service.

`prometheus_client` has a multi-process mode of its own: its values are keyed by text, each increment
packs two of them, and what it counts must be known before it is imported. Here all children exist
from the start, so a value is one place on the board.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from model.domain import FloatArray
from service.metrics.board import Board

Labels = tuple[str, ...]


class Child:
    """One series, as this worker counts it."""

    __slots__ = ("_lock", "_own", "_place")

    def __init__(self, own: FloatArray, place: int, lock: threading.Lock) -> None:
        self._own: Final = own
        self._place: Final = place
        self._lock: Final = lock

    def inc(self, by: float = 1) -> None:
        """Count so many more."""
        with self._lock:
            self._own[self._place] += by


class Counter(Collector):
    """Counts what only grows."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        combinations: Sequence[Labels] | None = None,
        when_counted: Collection[Labels] = (),
        registry: CollectorRegistry,
        board: Board | None = None,
    ) -> None:
        """Create one child for each combination of `labels`, or for each of `combinations`.

        Args:
            name: Of the metric.
            documentation: Its help.
            labels: The values of each label.
            combinations: Those that there are, where not all are.
            when_counted: More of them, which nobody is shown before they are counted.
            registry: Where it is collected.
            board: Where it is counted; None: here alone.
        """
        labels = labels or {}
        keys = list(product(*labels.values())) if combinations is None else list(combinations)
        self._name: Final = name
        self._documentation: Final = documentation
        self._label_names: Final = tuple(labels)
        self._shown: Final = len(keys)
        self._keys: Final[list[Labels]] = [*keys, *when_counted]
        self._slots: Final = (board or Board()).slots(name, len(self._keys))
        own, lock = self._slots.own, threading.Lock()
        self._children: Final = {key: Child(own, place, lock) for place, key in enumerate(self._keys)}
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """The child of these label values; it exists already.

        Raises:
            KeyError: there is none: a label value that was not declared.
        """
        return self._children[values]

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The family without samples: a registry asks for it to find names that collide."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The family with the sum over all workers of every child."""
        family = self._family()
        for place, (values, total) in enumerate(zip(self._keys, self._slots.total().tolist(), strict=True)):
            if place < self._shown or total:
                family.add_metric(values, total)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._documentation, labels=self._label_names)


class Gauge(Collector):
    """Shows what is so now, added over the workers."""

    def __init__(
        self,
        name: str,
        documentation: str,
        now: Callable[[], float],
        *,
        registry: CollectorRegistry,
        board: Board | None = None,
    ) -> None:
        """Ask `now` for this worker's value whenever somebody looks, and whenever `publish` is called."""
        self._name: Final = name
        self._documentation: Final = documentation
        self._now: Final = now
        self._slots: Final = (board or Board()).slots(name, 1)
        registry.register(self)

    def publish(self) -> None:
        """Put this worker's value on the board, so that other workers see it."""
        self._slots.own[0] = self._now()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The family without samples: a registry asks for it to find names that collide."""
        yield GaugeMetricFamily(self._name, self._documentation)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The sum over the workers that live."""
        self.publish()
        yield GaugeMetricFamily(
            self._name, self._documentation, value=float(self._slots.total_of_living()[0])
        )
