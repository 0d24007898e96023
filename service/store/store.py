"""Predictions, units and outcomes in a database: written, listed, judged once, purged.

Calls block, so only threads may make them. Processes share the database: only one counts a prediction against
an outcome, because one statement marks and reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from time import time
from typing import Any, Final, Self

from sqlalchemy import Select, Table, delete, exists, func, insert, select, text, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DataError, IntegrityError

from model.domain import LARGEST_CYCLE
from service.store.database import Database, engine_of, take_turns
from service.store.fleet import read_fleet, read_summary
from service.store.judgement import (
    Accuracy,
    Outcome,
    OutcomeKind,
    OutcomeResult,
    Receipt,
    VersionJudgement,
    accuracy_of,
    judge_unit,
)
from service.store.readings import PURGE_ROWS, Readings
from service.store.rows import (
    MOST_JUDGED,
    READINGS_PER_UNIT,
    DeletedRows,
    FleetFilter,
    FleetRow,
    History,
    ModelVersion,
    Place,
    Row,
    RowsRefused,
    Summary,
    UnitKey,
)
from service.store.schema import (
    OUTCOMES,
    PREDICTIONS,
    READINGS,
    UNITS,
    VERSIONS,
    Upserts,
    of_unit,
    same_unit,
)

_TABLES: Final = (UNITS, PREDICTIONS, OUTCOMES, READINGS)
"""Tables with rows of a unit; `units` first, in the lock order of `Store.write`."""
_JOINED: Final = PREDICTIONS.join(VERSIONS, VERSIONS.c.id == PREDICTIONS.c.version_id).join(
    OUTCOMES,
    (OUTCOMES.c.tenant == PREDICTIONS.c.tenant)
    & (OUTCOMES.c.model == VERSIONS.c.model)
    & (OUTCOMES.c.unit == PREDICTIONS.c.unit),
)
_WITH_LATE_PREDICTIONS: Final = (
    select(OUTCOMES)
    .distinct()
    .select_from(_JOINED)
    .where(PREDICTIONS.c.scored.is_(False), PREDICTIONS.c.last_cycle <= OUTCOMES.c.cycle)
)
LATE_ROWS: Final = 100_000
"""Predictions before the last poll that the next one reads again, in some 20 ms.

Transactions commit out of order, and a process that ended may have left its last rows.
"""
_JUDGED_COLUMNS: Final = tuple(PREDICTIONS.c[name] for name in ("last_cycle", "rul", "lower", "upper"))


class Store(Database):
    """The open store. Every method raises StoreUnavailable if the database does not answer."""

    def __init__(self, engine: Engine, *, readings_per_unit: int = READINGS_PER_UNIT) -> None:
        super().__init__(engine)
        self._upserts: Final = Upserts(engine.dialect)
        self.readings: Final = Readings(self, most=readings_per_unit)
        self._versions: Sequence[ModelVersion] = ()
        self._ids: Final[dict[tuple[str, str], int]] = {}
        self._looked_until = sys.maxsize  # id of a prediction

    @classmethod
    def open(
        cls, url: str, versions: Sequence[ModelVersion] = (), *, readings_per_unit: int = READINGS_PER_UNIT
    ) -> Self:
        """Connect, create or migrate the tables, and register the model versions."""
        store = cls(engine_of(url), readings_per_unit=readings_per_unit)
        try:
            store.upgrade()
            store._versions = versions
            store._register_versions()
        except BaseException:
            store.close()
            raise
        return store

    def _register_versions(self) -> None:
        for version in [*self._versions]:
            key = version.model, version.version
            if key not in self._ids:
                self._ids[key] = self._register(version)

    def _register(self, version: ModelVersion) -> int:
        where = (VERSIONS.c.model == version.model) & (VERSIONS.c.version == version.version)
        figures = {"cap": version.cap, "nominal_coverage": version.nominal_coverage}
        with self.locked() as connection:
            found = connection.scalar(select(VERSIONS.c.id).where(where))
            if found is not None:
                connection.execute(update(VERSIONS).where(where).values(**figures))
                return found
            row = {"model": version.model, "version": version.version, **figures}
            return connection.execute(insert(VERSIONS).values(row).returning(VERSIONS.c.id)).scalar_one()

    def write(self, rows: Sequence[Row]) -> None:
        """Write predictions, all or none; each replaces the older one of its unit and cycle.

        Raises:
            RowsRefused: the database rejects a row.
        """
        # Sorted, and units first as in `take_outcome`: other lock orders would deadlock.
        ordered = sorted(rows, key=lambda row: (*row[:4], row[9]))
        ids = self._ids
        if any((row[0], row[-1]) not in ids for row in rows):
            self._register_versions()
        # Of predictions by two versions, the later one is shown for the unit.
        latest = {row[:3]: row for row in ordered}
        predictions = [
            (ids[row[0], row[-1]], row[1], *row[3:-3], row[-2], row[2], row[-3]) for row in ordered
        ]
        units = [
            (row[0], row[1], ids[row[0], row[-1]], *row[3:-3], row[2], row[-3]) for row in latest.values()
        ]
        try:
            with self.writing() as connection:
                self._upserts.units(connection, units)
                self._upserts.predictions(connection, predictions)
        except (DataError, IntegrityError, ValueError, OverflowError) as error:
            raise RowsRefused(f"the database rejects at least one of {len(rows)} predictions") from error

    def purge(self, before: float) -> Iterator[None]:
        """Delete what is before this time, outcomes with their unit; yield after each transaction."""
        self.analyze()
        with self.writing() as connection:
            connection.execute(delete(UNITS).where(UNITS.c.predicted_at < before))
            alone = ~exists().where(same_unit(UNITS, OUTCOMES))
            connection.execute(delete(OUTCOMES).where(OUTCOMES.c.recorded_at < before, alone))
        yield
        yield from self.readings.purge(before)
        start, p = 0, PREDICTIONS.c
        while True:
            rest = select(p.id, p.predicted_at).where(p.id > start)
            chunk = rest.order_by(p.id).limit(PURGE_ROWS).subquery().c
            with self.writing() as connection:
                end, at = connection.execute(select(func.max(chunk.id), func.max(chunk.predicted_at))).one()
                if end is None:
                    return
                old = p.id.between(start, end) & (p.predicted_at < before)
                count = connection.execute(delete(PREDICTIONS).where(old)).rowcount
            # Rows are in order of arrival, so the rest is younger, unless a clock was ahead.
            if not count and at <= time():
                return
            start = end
            yield

    def fleet(self, chosen: FleetFilter, *, limit: int, after: Place | None = None) -> list[FleetRow]:
        """List the latest prediction of each chosen unit, smallest lower bound first."""
        with self.reading() as connection:
            return read_fleet(connection, chosen, limit=limit, after=after)

    def summary(self, chosen: FleetFilter) -> Summary:
        """Count the chosen units by state, and those expected to fail, by model and horizon."""
        with self.reading() as connection:
            return read_summary(connection, chosen)

    def history(
        self, key: UnitKey, *, columns: tuple[str, ...] = (), limit: int, before: int | None
    ) -> History | None:
        """Read one page of a unit's predictions and readings, its outcome and accuracy; None if unknown.

        A page has predictions and readings of cycles before `before`: `limit` of each, and more if there are.
        """
        until = LARGEST_CYCLE if before is None else before - 1
        with self.reading() as connection:
            readings = self.readings.read(connection, key, columns, most=limit + 1, until=until)
            versions = _versions(connection, key)
            outcome = _known_outcome(connection, key)
            # A version has one prediction per cycle: one extra row shows whether another page follows.
            page = _newest(connection, versions, key, most=limit + 1, until=until)
            if not (outcome or versions or readings.cycles):
                return None
            accuracy = {} if outcome is None else _accuracy(connection, versions, outcome)
        return History(outcome, versions, page, readings, accuracy)

    def delete(self, key: UnitKey, *, until: float | None = None) -> DeletedRows | None:
        """Delete a unit with its rows, or its predictions until a time; return None if there are none."""
        rows = {table: of_unit(table, key) for table in _TABLES}
        if until is not None:
            rows = {table: rows[table] & (table.c.predicted_at <= until) for table in (UNITS, PREDICTIONS)}
        with self.writing() as connection:
            _exclude(connection, key.unit)
            counts = {of: connection.execute(delete(of).where(rows[of])).rowcount for of in rows}
        deleted = DeletedRows(readings=counts.get(READINGS, 0), predictions=counts[PREDICTIONS])
        return deleted if any(counts.values()) else None

    def rename(self, key: UnitKey, to: str) -> bool | None:
        """Rename a unit, also to its own name; return False if another unit has it, None if unknown."""
        new = key._replace(unit=to)
        with self.writing() as connection:
            _exclude(connection, key.unit, to)
            if new != key and any(_has(connection, of, new) for of in _TABLES):
                return False
            done = [connection.execute(update(of).where(of_unit(of, key)).values(unit=to)) for of in _TABLES]
            return True if any(result.rowcount for result in done) else None

    def take_outcome(self, outcome: Outcome, *, replace: bool) -> Receipt | None:
        """Store an outcome and judge its predictions; None if the unit is unknown.

        A different outcome is a conflict, unless `replace` is true. A repeated one adds a missing time.
        """
        key = _key(outcome)
        with self.writing() as connection:
            take_turns(connection, [key.unit])  # concurrent outcomes of a unit take turns
            # The lock stops new predictions while the stored ones are judged.
            predicted = select(UNITS.c.unit).where(of_unit(UNITS, key)).with_for_update()
            if connection.execute(predicted).first() is None and not _has(connection, READINGS, key):
                return None
            known = _known_outcome(connection, key)
            if known is not None:
                differs = bool(known.differences(outcome))
                adds_time = outcome.happened_at is not None and known.happened_at is None
                if not (differs or adds_time):
                    return Receipt(OutcomeResult.UNCHANGED, known)
                if differs and not replace:
                    return Receipt(OutcomeResult.CONFLICT, known)
            connection.execute(delete(OUTCOMES).where(of_unit(OUTCOMES, key)))
            row = asdict(outcome) | {"kind": outcome.kind.value}
            connection.execute(insert(OUTCOMES).values(row))
            result = OutcomeResult.CREATED if known is None else OutcomeResult.REPLACED
            return Receipt(result, outcome, _judge_once(connection, outcome))

    def judge_late_predictions(self) -> Iterator[VersionJudgement]:
        """Judge new predictions that came after the outcome of their unit; yield what is committed."""
        with self.reading() as connection:
            newest = connection.scalar(select(func.max(PREDICTIONS.c.id))) or 0
            since = min(self._looked_until, newest) - LATE_ROWS
            late = _WITH_LATE_PREDICTIONS.where(PREDICTIONS.c.id > since)
            outcomes = [_outcome(row) for row in connection.execute(late)]
        for outcome in outcomes:
            with self.writing() as connection:
                take_turns(connection, [outcome.unit])
                known = _known_outcome(connection, _key(outcome))  # it may be corrected meanwhile
                judgements = [] if known is None else _judge_once(connection, known)
            yield from judgements
        self._looked_until = newest


def _exclude(connection: Connection, *names: str) -> None:
    """Let no other transaction write predictions, or anything of these units, before this one ends.

    A first prediction between two statements would part the tables: no row of `units` could be locked.
    """
    take_turns(connection, names)
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {UNITS.name} IN SHARE ROW EXCLUSIVE MODE"))


def _has(connection: Connection, table: Table, key: UnitKey) -> bool:
    return connection.scalar(select(1).where(of_unit(table, key)).limit(1)) is not None


def _versions(connection: Connection, key: UnitKey) -> dict[int, dict[str, Any]]:
    """Read the versions of the model that predicted this unit."""
    p = PREDICTIONS.c
    predicted = exists().where(p.version_id == VERSIONS.c.id, p.tenant == key.tenant, p.unit == key.unit)
    rows = connection.execute(select(VERSIONS).where(VERSIONS.c.model == key.model, predicted))
    return {row.id: row._asdict() for row in rows}


def _newest(
    connection: Connection, versions: Iterable[int], key: UnitKey, *, most: int, until: int
) -> list[dict[str, Any]]:
    """Read at most this many predictions of each version up to a cycle, newest first."""
    queries = (_of_version(version, key, most=most, until=until) for version in versions)
    found = [row._asdict() for query in queries for row in connection.execute(query)]
    return sorted(found, key=lambda row: (-row["last_cycle"], -row["predicted_at"]))


def _of_version(version: int, key: UnitKey, *, most: int, until: int) -> Select[Any]:
    """Select the newest predictions of one version; the table's unique key serves as index."""
    p = PREDICTIONS.c
    wanted = p.version_id == version, p.tenant == key.tenant, p.unit == key.unit, p.last_cycle <= until
    return select(PREDICTIONS).where(*wanted).order_by(p.last_cycle.desc()).limit(most)


def _accuracy(
    connection: Connection, versions: Mapping[int, Mapping[str, Any]], outcome: Outcome
) -> dict[int, Accuracy]:
    found: dict[int, Accuracy] = {}
    for number, version in versions.items():
        until = _of_version(number, _key(outcome), most=MOST_JUDGED, until=outcome.cycle)
        rows = connection.execute(until.with_only_columns(*_JUDGED_COLUMNS)).all()
        if rows:
            found[number] = accuracy_of(judge_unit([tuple(row) for row in rows], outcome, cap=version["cap"]))
    return found


def _known_outcome(connection: Connection, key: UnitKey) -> Outcome | None:
    row = connection.execute(select(OUTCOMES).where(of_unit(OUTCOMES, key))).first()
    return None if row is None else _outcome(row)


def _key(outcome: Outcome) -> UnitKey:
    return UnitKey(outcome.tenant, outcome.model, outcome.unit)


def _outcome(row: Iterable[Any]) -> Outcome:
    model, unit, kind, cycle, happened_at, recorded_at, tenant = row
    return Outcome(model, unit, OutcomeKind(kind), cycle, happened_at, recorded_at, tenant)


def _judge_once(connection: Connection, outcome: Outcome) -> list[VersionJudgement]:
    """Mark and judge the predictions that no outcome has judged yet."""
    versions = _versions(connection, _key(outcome))
    marked = connection.execute(
        update(PREDICTIONS)
        .where(
            of_unit(PREDICTIONS, _key(outcome)),
            PREDICTIONS.c.last_cycle <= outcome.cycle,
            PREDICTIONS.c.scored.is_(False),
        )
        .values(scored=True)
        .returning(PREDICTIONS.c.version_id, *_JUDGED_COLUMNS)
    ).all()
    judgements: list[VersionJudgement] = []
    for number, version in versions.items():
        rows = [row[1:] for row in marked if row.version_id == number]
        if rows:
            judgement = judge_unit(rows, outcome, cap=version["cap"])
            judgements.append(VersionJudgement(outcome.model, version["version"], judgement))
    return judgements
