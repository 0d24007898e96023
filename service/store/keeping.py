"""Predictions kept and met with outcomes, joined together: what starts with the service and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic, time
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from service.store.questions import OutcomeObserver, Units, UnitStore
from service.store.recorder import FLUSH_SECONDS, Recorder
from service.store.rows import ModelVersion, StoreObserver

DAY_SECONDS: Final = 86_400
PURGE_SECONDS: Final = 3600.0
SETTLE_SECONDS: Final = 600.0
"""How long after an outcome predictions of its unit may still arrive from a process that could not write."""


class KeepingObserver(StoreObserver, OutcomeObserver, Protocol):
    """What is told of both; `service.metrics.store.StoreMetrics` counts it."""


class Keeping:
    """The recorder and what can be asked of its store.

    Args:
        url: The database; None: nothing is kept.
        versions: The models that are loaded.
        most_rows: How many predictions may wait to be written.
        retention_days: After how long they are forgotten.
    """

    def __init__(
        self,
        url: str | None,
        versions: Sequence[ModelVersion],
        *,
        most_rows: int,
        retention_days: float,
        observer: KeepingObserver,
        log: FilteringBoundLogger,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._retention_seconds: Final = retention_days * DAY_SECONDS
        self._purge_at = 0.0

        def connect() -> UnitStore:
            from service.store.opening import OpenStore  # noqa: PLC0415 loaded by the thread that may wait

            return OpenStore.open(url or "", versions)

        self.recorder: Final[Recorder[UnitStore] | None] = (
            None
            if url is None
            else Recorder(
                connect,
                most_rows=most_rows,
                observer=observer,
                log=log,
                chore=self._chore,
                flush_seconds=flush_seconds,
            )
        )
        self.units: Final = Units(
            self.recorder,
            versions={known.model: known.version for known in versions},
            observer=observer,
            lag_seconds=2 * flush_seconds,
        )

    def start(self) -> None:
        """Open the store, beside everything else."""
        if self.recorder is not None:
            self.recorder.start()

    async def close(self, seconds: float) -> None:
        """Write what waits, for so long at most."""
        self.units.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close, seconds)

    def _chore(self, store: UnitStore) -> None:
        self.units.count(store.settle(recorded_after=time() - SETTLE_SECONDS))
        if monotonic() >= self._purge_at:
            store.purge(time() - self._retention_seconds)
            self._purge_at = monotonic() + PURGE_SECONDS
