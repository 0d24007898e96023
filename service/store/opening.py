"""The store with everything that can be asked of it, for whoever must not load a database library early."""

from __future__ import annotations

from collections.abc import Sequence

from service.store.database import Store
from service.store.judgement import Outcome, Report, Scored
from service.store.outcomes import settle, take_outcome
from service.store.rows import FleetRow, History, Place
from service.store.units import fleet, history


class OpenStore(Store):
    """`service.store.questions.UnitStore`, on a database."""

    def take_outcome(self, outcome: Outcome, *, replace: bool) -> Report:
        """See `store_outcomes.take_outcome`."""
        return take_outcome(self, outcome, replace=replace)

    def settle(self, *, recorded_after: float) -> list[Scored]:
        """See `store_outcomes.settle`."""
        return settle(self, recorded_after=recorded_after)

    def fleet(
        self, models: Sequence[str], *, state: str | None, limit: int, after: Place | None
    ) -> list[FleetRow]:
        """See `store_units.fleet`."""
        return fleet(self, models, state=state, limit=limit, after=after)

    def history(self, model: str, unit: str, *, limit: int, before: int | None) -> History | None:
        """See `store_units.history`."""
        return history(self, model, unit, limit=limit, before=before)
