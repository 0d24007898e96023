"""The gauges of drift, and a warning in the log when a column begins to drift.

Both are made at a scrape. Workers share their counts and the times of their warnings: one value and one
warning, whichever worker is scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Final
from zlib import crc32

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from service import logs
from service.core.runtime import Runtime
from service.drift.counts import BLOCKS, block_size
from service.drift.monitor import Drift, DriftMonitor
from service.metrics.board import Slots
from service.metrics.instruments import Shared

QUIET_SECONDS: Final = 3600.0
"""Between two warnings of one column."""


class DriftWarnings:
    """Logs a column that begins to drift, and at most once an hour while it does.

    Args:
        log: The service's log.
        said: The time of each column's last warning, on a clock that all workers share; 0: never.
        columns: The columns of the places of `said`.
        clock: That clock.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        said: Slots,
        columns: Sequence[str],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._log: Final = log
        self._said: Final = said
        self._places: Final = {column: place for place, column in enumerate(columns)}
        self._clock: Final = clock

    def read(self, name: str, drift: Drift) -> None:
        """Log the columns of one model that drift and were not logged lately."""
        if not drift.drifting:
            return
        now, latest = self._clock(), self._said.latest()
        for column in drift.drifting:
            place = self._places[column]
            if not latest[place] or now - latest[place] >= QUIET_SECONDS:
                self._said.own[place] = now
                index = drift.columns[column]
                self._log.warning(
                    "column drifts",
                    model=name,
                    column=column,
                    psi=round(index.psi, 3),
                    limit=round(index.limit, 3),
                    windows=drift.windows,
                )


class DriftCollector(Collector):
    """The gauges of drift, computed when they are scraped; never NaN: 0 until there is enough data.

    Attributes:
        monitors: Monitor and warnings of each model, by its name.
    """

    def __init__(self, shared: Shared) -> None:
        self._board: Final = shared.board
        self.monitors: Final[dict[str, tuple[DriftMonitor, DriftWarnings]]] = {}
        shared.registry.register(self)

    def add(self, model: Runtime) -> DriftMonitor:
        """Make the monitor of a model; what was counted of another version is forgotten."""
        board, name, reference = self._board, model.manifest.name, model.drift_reference
        counts = board.slots(f"drift of {name}", BLOCKS * block_size(reference))
        said = board.slots(f"columns of {name} that drift", len(reference.names))
        version = board.slots(f"version that {name} drifts from", 1).own
        digest = crc32(model.sha256.encode())
        if version[0] != digest:
            counts.own[:] = said.own[:] = 0.0
            version[0] = digest
        monitor = DriftMonitor(reference, counts.own, counts.total_of_living, workers=len(board.pids()))
        self.monitors[name] = monitor, DriftWarnings(logs.logger(), said, reference.names)
        return monitor

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families with a sample for each model, column and head."""
        families = {
            name: GaugeMetricFamily(f"rul_{name}", text, labels=labels)
            for name, (labels, text) in _FAMILIES.items()
        }
        for name, (monitor, warnings) in self.monitors.items():
            drift = monitor.read()
            warnings.read(name, drift)
            for column, index in drift.columns.items():
                families["column_drift_psi"].add_metric([name, column], index.psi)
            families["column_drift_windows"].add_metric([name], drift.windows)
            families["column_drifting"].add_metric([name], len(drift.drifting))
            families["prediction_drift_psi"].add_metric([name], drift.prediction.psi)
            families["prediction_drift_limit_psi"].add_metric([name], drift.prediction.limit)
            for head, index in drift.entropy.items():
                families["entropy_drift_psi"].add_metric([name, head], index.psi)
                families["entropy_drift_limit_psi"].add_metric([name, head], index.limit)
            families["regime_unseen_ratio"].add_metric([name], drift.unseen)
        yield from families.values()

    describe = collect  # when it is registered, there is no model


_FAMILIES: Final = {
    "column_drift_psi": (
        ("model", "column"),
        "Population stability index of a column against training, in its worst operating regime.",
    ),
    "column_drift_windows": (("model",), "Windows in the sliding window that drift is computed from."),
    "column_drifting": (
        ("model",),
        "Columns whose drift is above its limit: more than chance and the fleet's ages explain.",
    ),
    "prediction_drift_psi": (
        ("model",),
        "Population stability index of predicted RULs against training's lives at the same ages.",
    ),
    "prediction_drift_limit_psi": (
        ("model",),
        "Limit of rul_prediction_drift_psi: above it is drift, not chance. It falls as windows arrive.",
    ),
    "entropy_drift_psi": (
        ("model", "head"),
        "Population stability index of the attention entropy ratio against its reference band.",
    ),
    "entropy_drift_limit_psi": (
        ("model", "head"),
        "Limit of rul_entropy_drift_psi: above it is drift, not chance. It falls as windows arrive.",
    ),
    "regime_unseen_ratio": (("model",), "Share of last readings that are far from every operating regime."),
}
