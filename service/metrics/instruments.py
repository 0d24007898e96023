"""Counters, gauges and histograms whose values the workers of a service add up on the board.

`prometheus_client` has a multi-process mode of its own: its values are keyed by text, each increment packs
two of them, and its histogram walks the buckets under a lock for every observation. Here all children exist
from the start, so a value is one place on the board; an observation is appended to a list, and lists are
counted when a worker is scraped or publishes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
Key = tuple[str, ...]
"""The values of one child's labels."""


class Shared:
    """Declares metrics on a Prometheus registry, and adds them up over the workers on the board.

    A family with the label `model` has the children of the models that are loaded; labels that are declared
    without values take them from each model.
    """

    def __init__(self, registry: CollectorRegistry, board: Board | None = None) -> None:
        self.registry: Final = registry
        self.board: Final = board or Board()
        self._published: Final[list[Histogram | Gauge]] = []
        self._of_models: Final[list[tuple[Mapping[str, Sequence[str]], Counter | Histogram]]] = []

    def counter(
        self,
        name: str,
        documentation: str,
        *,
        keys: Iterable[Key] | None = None,
        when_counted: Collection[Key] = (),
        **labels: Sequence[str],
    ) -> Counter:
        """Declare what only grows: a child for each combination of `labels`, or for each of `keys`.

        Those of `when_counted` are shown once they are counted.
        """
        made = Counter(self, name, documentation, labels)
        self._declare(made, keys, labels)
        if when_counted:
            made.add([*when_counted], shown=False)
        return made

    def histogram(
        self,
        name: str,
        documentation: str,
        buckets: Buckets,
        *,
        keys: Iterable[Key] | None = None,
        **labels: Sequence[str],
    ) -> Histogram:
        """Declare a histogram: a child for each combination of `labels`, or for each of `keys`."""
        made = Histogram(self, name, documentation, labels, buckets)
        self._declare(made, keys, labels)
        self._published.append(made)
        return made

    def _declare(
        self, made: Counter | Histogram, keys: Iterable[Key] | None, labels: Mapping[str, Sequence[str]]
    ) -> None:
        if keys is None and "model" in labels:
            self._of_models.append((labels, made))
        else:
            made.add([*(product(*labels.values()) if keys is None else keys)])

    def add_model(self, name: str, **given: Sequence[str]) -> None:
        """Make the children of a model, by the values of its other labels; drop those of an old version."""
        for labels, made in self._of_models:
            values = {"model": [name], **given}
            keys = [*product(*(values.get(label) or of_all for label, of_all in labels.items()))]
            made.remove(name, but=keys)
            made.add(keys)

    def remove_model(self, name: str) -> None:
        """Drop the children of a model; what they have counted stays on the board."""
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
        """Declare what `now` says of this worker, added over the workers that live, as `of_all` shows it."""
        self._published.append(Gauge(self, name, documentation, now, of_all))

    def publish(self) -> None:
        """Put on the board what other workers do not see yet: waiting observations, and current values."""
        for instrument in self._published:
            instrument.publish()


class Instrument(Collector):
    """A family of metrics."""

    def describe(self) -> Iterable[Metric]:
        """Return the family when it is registered: a registry finds names that collide by it."""
        return self.collect()


class Labelled(Instrument, Generic[C]):
    """A family whose children are known by the values of their labels."""

    def __init__(self) -> None:
        self._children: Final[dict[Key, C]] = {}

    def labels(self, *values: str) -> C:
        """Return the child of these label values.

        Raises:
            KeyError: a label value was not declared.
        """
        return self._children[values]


class Child:
    """One series of a counter, as this worker counts it; from any thread."""

    __slots__ = ("_lock", "_own", "_place")

    def __init__(self, own: FloatArray, place: int, lock: threading.Lock) -> None:
        self._own: Final = own
        self._place: Final = place
        self._lock: Final = lock

    def inc(self, by: float = 1) -> None:
        """Count so many more."""
        with self._lock:
            self._own[self._place] += by


class Counter(Labelled[Child]):
    """Counts what only grows; children that are added together share a place on the board."""

    def __init__(self, shared: Shared, name: str, documentation: str, labels: Iterable[str]) -> None:
        super().__init__()
        self._family: Final = partial(CounterMetricFamily, name, documentation, labels=tuple(labels))
        self._board, self._name = shared.board, name
        self._lock: Final = threading.Lock()
        self._groups: Final[dict[tuple[Key, ...], tuple[Slots, bool]]] = {}
        shared.registry.register(self)

    def add(self, keys: Sequence[Key], *, shown: bool = True) -> None:
        """Add children; those that are not `shown` are once they are counted."""
        slots = self._board.slots(f"{self._name}{keys}", len(keys))
        self._groups[*keys,] = slots, shown
        for place, key in enumerate(keys):
            self._children.setdefault(key, Child(slots.own, place, self._lock))

    def remove(self, model: str, *, but: Sequence[Key] = ()) -> None:
        """Drop the children whose first label is this model."""
        for keys in [keys for keys in self._groups if keys[0][0] == model and keys != (*but,)]:
            del self._groups[keys]
            for key in keys:
                del self._children[key]

    def total(self, *values: str) -> float:
        """Return the sum over all workers of one child; 0 of one that was not declared."""
        for keys, (slots, _) in self._groups.items():
            if values in keys:
                return float(slots.total()[keys.index(values)])
        return 0.0

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the sum over all workers of every child."""
        family = self._family()
        for keys, (slots, shown) in self._groups.items():
            for key, total in zip(keys, slots.total().tolist(), strict=True):
                if shown or total:
                    family.add_metric(key, total)
        yield family


class Gauge(Instrument):
    """Shows a current value."""

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
        self._now: Final = now
        self._of_all: Final = of_all
        shared.registry.register(self)

    def publish(self) -> None:
        """Put this worker's value on the board."""
        self._slots.own[0] = self._now()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return what the workers that live say together."""
        self.publish()
        yield self._family(value=float(self._of_all(float(self._slots.total_of_living()[0]))))


class HistogramChild:
    """One series of a histogram: on the board a place for each bucket, one above them, and the sum.

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
        """Put on the board what waits; on the event loop."""
        if self._values:
            values = np.array(self._values, dtype=np.float64)
            del self._values[: len(values)]
            self.observe_array(values)

    def observe_array(self, values: FloatArray) -> None:
        """Count every value of an array at once, on the event loop; NaN says that there is no value."""
        values = values[~np.isnan(values)]
        # side="left": a value that equals a bound belongs below it, as `le` says.
        where = np.searchsorted(self._bounds, values, side="left")
        self._own[:-1] += np.bincount(where, minlength=len(self._own) - 1)
        self._own[-1] += values.sum(dtype=np.float64)


class Histogram(Labelled[HistogramChild]):
    """Counts values in buckets."""

    def __init__(
        self, shared: Shared, name: str, documentation: str, labels: Iterable[str], buckets: Buckets
    ) -> None:
        super().__init__()
        self._family: Final = partial(HistogramMetricFamily, name, documentation, labels=tuple(labels))
        self._board, self._name = shared.board, name
        self._bounds: Final = np.array(buckets.bounds, dtype=np.float64)
        self._le: Final = [*map(floatToGoString, buckets.bounds), "+Inf"]
        shared.registry.register(self)

    def add(self, keys: Sequence[Key]) -> None:
        """Add children."""
        for key in keys:
            if key not in self._children:
                slots = self._board.slots(f"{self._name}{key}", len(self._bounds) + 2)
                self._children[key] = HistogramChild(self._bounds, slots)

    def remove(self, model: str, *, but: Sequence[Key] = ()) -> None:
        """Drop the children whose first label is this model; what they have observed is counted."""
        for key in [key for key in self._children if key[0] == model and key not in but]:
            self._children.pop(key).publish()

    def publish(self) -> None:
        """Put on the board what waits."""
        for child in self._children.values():
            child.publish()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return every child's samples, of all workers."""
        self.publish()
        family = self._family()
        for key, child in self._children.items():
            total = child.total()
            counts: list[float] = np.cumsum(total[:-1]).tolist()
            family.add_metric(key, list(zip(self._le, counts, strict=True)), float(total[-1]))
        yield family


class Processes(Collector):
    """`process_*` of every worker that lives, under its number: memory, CPU, open files."""

    def __init__(self, shared: Shared) -> None:
        self._board: Final = shared.board
        shared.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Return one family for each number that the operating system knows, with a sample a worker."""
        families: dict[str, Metric] = {}
        for worker, pid in enumerate(self._board.pids()):
            for found in _of_process(pid) if pid else ():
                kind = CounterMetricFamily if found.type == "counter" else GaugeMetricFamily
                made = kind(found.name, found.documentation, labels=["worker"])
                family = families.setdefault(found.name, made)
                for sample in found.samples:
                    family.add_sample(sample.name, {"worker": str(worker)}, sample.value)
        yield from families.values()


def _of_process(pid: int) -> Iterator[Metric]:
    yield from ProcessCollector(pid=lambda: pid, registry=CollectorRegistry()).collect()
