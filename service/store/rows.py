"""What goes to the store: rows, and what may become of them. Needs no database library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from model.domain import RulError
from service.store.judgement import Fared, Outcome

Row = tuple[str, str, int, float, float, float, str, str, float]
"""A prediction: model, unit, last cycle, RUL, lower, upper, RUL state, health state, time."""

MOST_JUDGED: Final = 1000
"""Of a unit's predictions, those that a history judges, of each version: however long the unit has lived, a
question reads no more."""

Place = tuple[float, str, str]
"""Where a page of the fleet ends: RUL, model, unit."""

FleetRow = Mapping[str, Any]
"""A unit's latest prediction: the columns of `units`, with `version`, `nominal_coverage`, and `kind` and
`cycle` of its outcome."""


@dataclass(frozen=True, slots=True)
class History:
    """What is known of one unit.

    Attributes:
        versions: Each version of its model by the number that its predictions carry.
        predictions: The columns of `predictions`, newest first: as many as were asked for and, where there
            are more, at least one of them.
        fared: How each version's last predictions before the outcome were, at most `MOST_JUDGED` of them.
    """

    outcome: Outcome | None
    versions: Mapping[int, Mapping[str, Any]]
    predictions: Sequence[Mapping[str, Any]]
    fared: Mapping[int, Fared]


class RowsRefused(RulError):
    """Rows of which at least one cannot be kept, however often it is tried; none of them was."""


class Drop(StrEnum):
    """Why a prediction was not kept."""

    FULL = "full"
    REFUSED = "refused"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A model as the store knows it: what its predictions are to be judged by."""

    model: str
    version: str
    cap: float
    nominal_coverage: float


class RowStore(Protocol):
    """What rows are written to; `service.store.database.Store` is one."""

    def write(self, rows: Sequence[Row]) -> None:
        """Keep rows, all or none.

        Raises:
            StoreUnavailable: the database is away.
            RowsRefused: a row cannot be kept.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class StoreObserver(Protocol):
    """What writing tells of itself, on the writing thread but for what is dropped as there is no room."""

    def wrote(self, rows: int) -> None:
        """So many predictions are committed."""
        ...

    def dropped(self, reason: Drop, rows: int) -> None:
        """So many predictions will never be."""
        ...

    def up(self, *, up: bool) -> None:
        """Whether the database answers."""
        ...
