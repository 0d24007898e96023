"""Types of rows and results of the store; needs no database library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from export.arrays import one_line
from model.domain import FloatArray, RulError
from service.errors import StoreUnavailable
from service.store.judgement import Accuracy, Judgement, Outcome, OutcomeKind, OutcomeResult

Row = tuple[str, str, str, int, float, float, float, str, str, float, str | None, str | None, str]
"""Model, unit, tenant, last cycle, RUL, lower, upper, both states, time, failure probabilities, explanation,
model version."""

NO_ANSWER: Final = "the store of predictions does not answer; try again later"
"""Detail of the error while the store is unavailable."""

MOST_JUDGED: Final = 1000
"""Maximum predictions per version for a unit's accuracy, so that a query is bounded."""

Place = tuple[float, str, str]
"""Position after a page of the fleet: lower bound of the RUL, model, unit."""

READINGS_PER_UNIT: Final = 10_000
"""Default maximum of kept readings per unit."""

FleetRow = Mapping[str, Any]
"""Latest prediction of a unit: the columns of `units`, with `version`, `nominal_coverage`, `kind` and
`cycle` of its outcome, `last_reading_at`, `last_reading_cycle`, RULs of the `recent` predictions and their
`trend`."""


def reason_of(error: Exception) -> str:
    """Return why the store does not answer, in one line for operators; callers get `NO_ANSWER`."""
    cause = error.__cause__ or error
    return one_line(getattr(cause, "orig", None) or cause)


def cause_of(error: Exception | None) -> str | None:
    """Return why the open store did not answer a request, as `reason_of` does; None for other errors."""
    return reason_of(error) if isinstance(error, StoreUnavailable) and error.__cause__ else None


def place_of(row: FleetRow) -> Place:
    """Return the position of a unit in the fleet's order."""
    return row["lower"], row["model"], row["unit"]


class FleetFilter(NamedTuple):
    """Filter of a fleet: models, tenant, state, part of the name, predicted after a time.

    Ended units are left out, unless `state` is `failed` or `removed`.
    """

    models: Sequence[str]
    tenant: str = ""
    state: str | None = None
    name: str | None = None
    changed_since: float | None = None


class Summary(NamedTuple):
    """Figures of a fleet: units, units by state, and expected failures by model and horizon."""

    units: int
    states: dict[str, int]
    fails_within: dict[str, dict[str, float]]


class UnitKey(NamedTuple):
    """A unit of one tenant."""

    tenant: str
    model: str
    unit: str


class Stretch(NamedTuple):
    """Some readings of a unit: cycle numbers [N], ascending, and float32 [N, F], NaN = missing."""

    cycles: list[int]
    values: FloatArray


class DeletedRows(msgspec.Struct, frozen=True):
    """Numbers of rows deleted with a unit."""

    readings: int
    predictions: int


class Given(NamedTuple):
    """Readings of a request, in the model's order.

    Attributes:
        cycles: Cycle number of each; None: the next one.
        values: float32 [N, F], NaN = missing.
        pointer: Makes the JSON pointer of a value from the reading's index and the column; None: of its
            cycle.
    """

    cycles: Sequence[int | None]
    values: FloatArray
    pointer: Callable[[int, str | None], str]


class Append(NamedTuple):
    """A request to store readings.

    Attributes:
        columns: The names of the readings' F columns.
        context: Maximum cycles of the window to return.
    """

    key: UnitKey
    columns: tuple[str, ...]
    context: int
    given: Given


class Appended(NamedTuple):
    """Committed readings: how many are new or repeated, and the unit's newest readings."""

    stored: int
    repeated: int
    newest: Stretch


@dataclass(frozen=True, slots=True)
class History:
    """Everything stored of one unit, one page.

    Attributes:
        versions: Versions of its model, by the id that predictions carry.
        predictions: Rows of `predictions`, newest first: the requested number and, if there are more, at
            least one of them.
        readings: As many of the newest stored readings, ascending.
        accuracy: Accuracy of each version's last `MOST_JUDGED` predictions up to the outcome, by version id.
    """

    outcome: Outcome | None
    versions: Mapping[int, Mapping[str, Any]]
    predictions: Sequence[Mapping[str, Any]]
    readings: Stretch
    accuracy: Mapping[int, Accuracy]


class RowsRefused(RulError):
    """The database rejects at least one of the rows, and a retry would not help; none was written."""


class Drop(StrEnum):
    """Reason why a prediction was not stored."""

    FULL = "full"
    REFUSED = "refused"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A model version and the figures that judge its predictions."""

    model: str
    version: str
    cap: float
    nominal_coverage: float


class StoreObserver(Protocol):
    """Receives events of the store, from any thread; `service.metrics.store.StoreMetrics` is one."""

    def wrote(self, rows: int) -> None:
        """Count committed predictions."""

    def ingested(self, rows: int) -> None:
        """Count committed readings."""

    def dropped(self, reason: Drop, rows: int) -> None:
        """Count predictions that will not be stored."""

    def up(self, *, up: bool) -> None:
        """Note whether the database is available."""

    def taken(self, kind: OutcomeKind, result: OutcomeResult) -> None:
        """Count a committed outcome: created or replaced."""

    def scored(self, model: str, judgement: Judgement, *, is_late: bool) -> None:
        """Count newly judged predictions of one unit by the loaded version of a model.

        `is_late`: whether they were written after its outcome, with which the unit was counted.
        """
