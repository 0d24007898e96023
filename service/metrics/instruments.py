"""Counters, gauges and histograms that add up over workers on the board.

The multi-process mode of `prometheus_client` is slower: values are keyed by text, each increment packs two of
them, and its histogram walks the buckets under a lock for every observation. Here all children exist from
the start, so a value is one place on the board; observations are appended to lists, which are counted when a
worker is scraped or publishes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final, Generic, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from model.domain import FloatArray
from service.metrics.board import Board, Slots
from service.metrics.buckets import Buckets

C = TypeVar("C")
F = TypeVar("F", bound="Counter | Histogram")
Key = tuple[str, ...]
"""Label values of one child."""
STARTED: Final = "process_start_time_seconds"


class Shared:
    """Declares metrics on a Prometheus registry, and adds them up over workers.

    A family has a child for each combination of label values. A family with the label `model` has children
    of the loaded models; labels without values get them from each model.

    Attributes:
        counters, histograms: By name.
    """

    def __init__(self, registry: CollectorRegistry, board: Board | None = None) -> None:
        self.registry: Final = registry
        self.board: Final = board or Board()
        self.counters: Final[dict[str, Counter]] = {}
        self.histograms: Final[dict[str, Histogram]] = {}
        self._gauges: Final[list[Gauge]] = []
        self._of_models: Final[list[tuple[Mapping[str, Sequence[str]], Counter | Histogram]]] = []

    def counter(self, name: str, documentation: str, **labels: Sequence[str]) -> Counter:
        """Declare a counter."""
        self.counters[name] = made = Counter(self, name, documentation, labels)
        return self._declared(made, labels)

    def histogram(
        self, name: str, documentation: str, buckets: Buckets, **labels: Sequence[str]
    ) -> Histogram:
        """Declare a histogram."""
        self.histograms[name] = made = Histogram(self, name, documentation, labels, buckets)
        return self._declared(made, labels)

    def _declared(self, made: F, labels: Mapping[str, Sequence[str]]) -> F:
        if "model" in labels:
            self._of_models.append((labels, made))
        else:
            made.add(product(*labels.values()))
        return made

    def add_model(self, name: str, **given: Sequence[str]) -> None:
        """Make the children of a model for the values of other labels; drop those of an old version."""
        for labels, made in self._of_models:
            values = {"model": [name], **given}
            keys = [*product(*(values.get(label) or of_all for label, of_all in labels.items()))]
            made.remove(name, but=keys)
            made.add(keys)

    def remove_model(self, name: str) -> None:
        """Drop the children of a model; their counts stay on the board."""
        for _, made in self._of_models:
            made.remove(name)

    def gauge(
        self,
        name: str,
        documentation: str,
        now: Callable[[], float],
        *,
        of_all: Callable[[float], float] = float,
    ) -> None:
        """Declare a gauge: `now` returns this worker's value, `of_all` converts the sum of living workers."""
        self._gauges.append(Gauge(self, name, documentation, now, of_all))

    def publish(self) -> None:
        """Write waiting observations and current values to the board, where other workers see them."""
        for instrument in (*self.histograms.values(), *self._gauges):
            instrument.publish()


class Labelled(Collector, Generic[C]):
    """A family of children by label values; each child has places on the board."""

    def __init__(self, slots: Callable[[Key], Slots], child: Callable[[Slots], C]) -> None:
        self._slots: Final = slots
        self._child: Final = child
        self._children: Final[dict[Key, C]] = {}

    def add(self, keys: Iterable[Key]) -> None:
        """Add children."""
        for key in keys:
            if key not in self._children:
                self._children[key] = self._child(self._slots(key))

    def remove(self, model: str, *, but: Sequence[Key] = ()) -> None:
        """Drop the children whose first label is this model, after counting their observations."""
        self.publish()
        for key in [key for key in self._children if key[0] == model and key not in but]:
            del self._children[key]

    def publish(self) -> None:
        """Write waiting observations to the board."""

    def labels(self, *values: str) -> C:
        """Return the child of these label values.

        Raises:
            KeyError: a label value was not declared.
        """
        return self._children[values]


class CounterChild:
    """This worker's part of one counter series; usable from any thread."""

    __slots__ = ("_lock", "_slots")

    def __init__(self, slots: Slots) -> None:
        self._slots: Final = slots
        self._lock: Final = threading.Lock()

    def inc(self, by: float = 1) -> None:
        """Add to the count."""
        with self._lock:
            self._slots.own[0] += by

    def total(self) -> float:
        """Return the sum over all workers."""
        return float(self._slots.total()[0])


class Counter(Labelled[CounterChild]):
    """A counter."""

    def __init__(self, shared: Shared, name: str, documentation: str, labels: Iterable[str]) -> None:
        super().__init__(lambda key: shared.board.slots(f"{name}{key}", 1), CounterChild)
        self._family: Final = partial(CounterMetricFamily, name, documentation, labels=tuple(labels))
        self._rare: Final[set[Key]] = set()
        shared.registry.register(self)

    def add_rare(self, keys: Sequence[Key]) -> None:
        """Add children that are shown only after their first count."""
        self._rare.update(keys)
        self.add(keys)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return every child's sum over all workers."""
        family = self._family()
        for key, child in self._children.items():
            if (total := child.total()) or key not in self._rare:
                family.add_metric(key, total)
        yield family


class Gauge(Collector):
    """A gauge of a current value."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        documentation: str,
        now: Callable[[], float],
        of_all: Callable[[float], float],
    ) -> None:
        self._family: Final = partial(GaugeMetricFamily, name, documentation)
        self._slots: Final = shared.board.slots(name, 1)
        self._slots.own[0] = 0.0  # the value of the worker before this one has ended with it
        self._now: Final = now
        self._of_all: Final = of_all
        shared.registry.register(self)

    def publish(self) -> None:
        """Put this worker's value on the board."""
        self._slots.own[0] = self._now()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the value over all living workers."""
        self.publish()
        yield self._family(value=float(self._of_all(float(self._slots.total_of_living()[0]))))


class HistogramChild:
    """One series of a histogram: places for each bucket, for larger values, and for the sum.

    Attributes:
        observe: Counts one value, in the unit of the metric; from any thread.
        observe_each: Counts every value of a list; from any thread.
    """

    def __init__(self, bounds: FloatArray, slots: Slots) -> None:
        self._bounds: Final = bounds
        self._own: Final = slots.own
        self._values: Final[list[float]] = []
        self.total: Final = slots.total
        self.observe: Final = self._values.append
        self.observe_each: Final = self._values.extend

    def publish(self) -> None:
        """Write waiting observations to the board, on the event loop."""
        if self._values:
            values = np.array(self._values, dtype=np.float64)
            del self._values[: len(values)]
            self.observe_array(values)

    def observe_array(self, values: FloatArray) -> None:
        """Count all values of an array, on the event loop; NaN means no value."""
        values = values[~np.isnan(values)]
        # side="left": a value that equals a bound belongs below it, as `le` says.
        where = np.searchsorted(self._bounds, values, side="left")
        self._own[:-1] += np.bincount(where, minlength=len(self._own) - 1)
        self._own[-1] += values.sum(dtype=np.float64)


class Histogram(Labelled[HistogramChild]):
    """A histogram."""

    def __init__(
        self, shared: Shared, name: str, documentation: str, labels: Iterable[str], buckets: Buckets
    ) -> None:
        bounds, size = np.array(buckets.bounds, dtype=np.float64), len(buckets.bounds) + 2
        super().__init__(
            lambda key: shared.board.slots(f"{name}{key}", size), partial(HistogramChild, bounds)
        )
        self._family: Final = partial(HistogramMetricFamily, name, documentation, labels=tuple(labels))
        self._le: Final = [*map(floatToGoString, buckets.bounds), "+Inf"]
        shared.registry.register(self)

    def publish(self) -> None:
        """Write waiting observations to the board."""
        for child in self._children.values():
            child.publish()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return every child's samples, summed over all workers."""
        self.publish()
        family = self._family()
        for key, child in self._children.items():
            total = child.total()
            counts: list[float] = np.cumsum(total[:-1]).tolist()
            family.add_metric(key, list(zip(self._le, counts, strict=True)), float(total[-1]))
        yield family


class Processes(Collector):
    """`process_*` of every living worker, by number: memory, CPU, open files.

    A worker notes its start once: Linux counts it from the boot, whose time changes with the clock.
    """

    def __init__(self, shared: Shared) -> None:
        self._board: Final = shared.board
        self._started: Final = shared.board.slots(STARTED, 1)
        own = [metric.samples[0] for metric in ProcessCollector(registry=None).collect()]
        self._started.own[:] = [sample.value for sample in own if sample.name == STARTED] or 0.0
        shared.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Return one family per figure of the operating system, with a sample per worker."""
        families: dict[str, Metric] = {}
        started: list[float] = self._started.each_living()[:, 0].tolist()
        for worker, pid in enumerate(self._board.pids()):
            process = ProcessCollector(pid=partial(int, pid), registry=None)
            for found in process.collect() if pid else ():
                kind = CounterMetricFamily if found.type == "counter" else GaugeMetricFamily
                made = kind(found.name, found.documentation, labels=["worker"])
                family = families.setdefault(found.name, made)
                noted = started[worker] if found.name == STARTED else 0.0
                for sample in found.samples:
                    family.add_sample(sample.name, {"worker": str(worker)}, noted or sample.value)
        yield from families.values()
