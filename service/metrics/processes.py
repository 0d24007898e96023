"""What the operating system knows of each worker: memory, CPU, open files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.metrics.board import Board


class Processes(Collector):
    """`process_*` of every worker that lives, under its number."""

    def __init__(self, registry: CollectorRegistry, board: Board) -> None:
        """Look at the processes whose numbers stand on the board."""
        self._board: Final = board
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: the names depend on the operating system, and no other collector has them."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family for each thing known, with a sample for each worker."""
        families: dict[str, Metric] = {}
        for worker, pid in enumerate(self._board.pids()):
            for found in _of(pid) if pid else ():
                kind = CounterMetricFamily if found.type == "counter" else GaugeMetricFamily
                family = families.setdefault(
                    found.name, kind(found.name, found.documentation, labels=["worker"])
                )
                for sample in found.samples:
                    family.add_sample(sample.name, {"worker": str(worker)}, sample.value)
        yield from families.values()


def _of(pid: int) -> Iterator[Metric]:
    yield from ProcessCollector(pid=lambda: pid, registry=CollectorRegistry()).collect()
