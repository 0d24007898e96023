"""Drift gauges, and a log warning, once an hour, while a column drifts.

Both are made at a scrape. Workers share counts and times of warnings, so value and warning are the same
whichever worker is scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final
from zlib import crc32

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from export.drift_reference import DriftReference
from service import logs
from service.core.runtime import Runtime
from service.drift.counts import BLOCKS, DriftCounts, block_size
from service.drift.monitor import Drift, drift_of
from service.metrics.board import Slots
from service.metrics.instruments import Shared

QUIET_SECONDS: Final = 3600.0
"""Minimum seconds between two warnings of one column."""


class ModelDrift:
    """Drift of one model over all workers.

    Attributes:
        count: Counts windows of this worker; see `DriftCounts.count`.
    """

    def __init__(self, reference: DriftReference, counts: Slots, warned: Slots, *, workers: int) -> None:
        """Count in `counts`; `warned` has the time of each column's last warning, 0: never."""
        self._reference: Final = reference
        self._counts: Final = counts
        self._warned: Final = warned
        self.count: Final = DriftCounts(counts.own, reference, workers=workers).count

    def read(self) -> Drift:
        """Compute drift from the counts of all living workers."""
        return drift_of(self._counts.total_of_living(), self._reference)

    def unwarned(self, drift: Drift, now: float) -> Iterator[str]:
        """Return the drifting columns without a recent warning, and note that they are warned of now."""
        latest = self._warned.latest()
        for column in drift.drifting:
            place = self._reference.names.index(column)
            if not latest[place] or now - latest[place] >= QUIET_SECONDS:
                self._warned.own[place] = now
                yield column


class DriftCollector(Collector):
    """Drift gauges, computed at a scrape; 0 (not NaN) until there is enough data.

    Args:
        clock: Seconds on a clock that all workers share, above 0.

    Attributes:
        models: Drift of each model, by its name.
    """

    def __init__(self, shared: Shared, *, clock: Callable[[], float] = monotonic) -> None:
        self._board: Final = shared.board
        self._clock: Final = clock
        self.models: Final[dict[str, ModelDrift]] = {}
        shared.registry.register(self)

    def add(self, model: Runtime) -> ModelDrift:
        """Count drift of a model; drop the counts of another version."""
        board, name, reference = self._board, model.manifest.name, model.drift_reference
        counts = board.slots(f"drift of {name}", BLOCKS * block_size(reference))
        warned = board.slots(f"columns of {name} that drift", len(reference.names))
        version = board.slots(f"version that {name} drifts from", 1).own
        digest = crc32(model.sha256.encode())
        if version[0] != digest:
            counts.own[:] = warned.own[:] = 0.0
            version[0] = digest
        self.models[name] = made = ModelDrift(reference, counts, warned, workers=len(board.pids()))
        return made

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the families with a sample for each model, column and head."""
        families = {
            name: GaugeMetricFamily(f"rul_{name}", text, labels=labels)
            for name, (labels, text) in _FAMILIES.items()
        }
        for name, model in self.models.items():
            drift = model.read()
            for column in model.unwarned(drift, self._clock()):
                index, windows = drift.columns[column], drift.windows
                psi, limit = round(index.psi, 3), round(index.limit, 3)
                logs.logger().warning(
                    "column drifts", model=name, column=column, psi=psi, limit=limit, windows=windows
                )
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
