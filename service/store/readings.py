"""Readings of units in the database: appended once, never changed, read as windows and pages.

Requests that are appended together share a transaction but are independent: one that conflicts stores nothing
and does not affect the others. Calls block; this module must not know models or protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Select, bindparam, delete, insert, select, tuple_
from sqlalchemy.engine import Connection

from model.domain import LARGEST_CYCLE, FloatArray
from service.errors import (
    MAX_PROBLEMS,
    CycleConflict,
    InvalidRequest,
    Problem,
    RuntimeFailed,
    ServiceError,
    StoreUnavailable,
    listed,
)
from service.store.database import Database, take_turns
from service.store.rows import READINGS_PER_UNIT, Append, Appended, Stretch, UnitKey
from service.store.schema import COLUMN_LISTS, READING_KEY, READINGS

FLOAT32: Final = np.dtype("<f4")
PURGE_ROWS: Final = 5000
"""Rows per transaction of a purge: other writers get a turn in between."""

Stored = tuple[int, bytes]
"""Column list and values of a reading."""


_KEY: Final[tuple[ColumnElement[bool], ...]] = tuple(
    READINGS.c[name] == bindparam(name) for name in UnitKey._fields
)
_KEY_COLUMNS: Final = tuple(READINGS.c[name] for name in READING_KEY)
_ROW: Final = select(READINGS.c.cycle, READINGS.c.columns_id, READINGS.c["values"])
_NEWEST: Final = (
    _ROW.where(*_KEY, READINGS.c.cycle <= bindparam("until"))
    .order_by(READINGS.c.cycle.desc())
    .limit(bindparam("most"))
)
_BETWEEN: Final = _ROW.where(*_KEY, READINGS.c.cycle.between(bindparam("first"), bindparam("last")))
_KEPT_SINCE: Final = (
    select(READINGS.c.cycle)
    .where(*_KEY)
    .order_by(READINGS.c.cycle.desc())
    .limit(1)
    .offset(bindparam("most"))
    .scalar_subquery()
)
_TRIM: Final = delete(READINGS).where(*_KEY, READINGS.c.cycle <= _KEPT_SINCE).returning(READINGS.c.cycle)


class Readings:
    """Readings of all units in one database; keeps at most the `most` newest cycles of each."""

    def __init__(self, database: Database, *, most: int = READINGS_PER_UNIT) -> None:
        self._database: Final = database
        self._most: Final = most
        self._ids: Final[dict[tuple[str, ...], int]] = {}
        self._names: Final[dict[int, tuple[str, ...]]] = {}

    def append(self, requests: Sequence[Append], *, at: float) -> list[Appended | ServiceError]:
        """Commit the readings of all requests together; return a result for each.

        If the database is lost during the commit, the readings may be stored: the result is RuntimeFailed for
        a request with a reading without a cycle, because a retry could store it twice.

        Raises:
            StoreUnavailable: the database does not answer; nothing is stored.
        """
        for columns in {request.columns for request in requests}:
            self._register(columns)
        results: list[Appended | ServiceError] = []
        try:
            with self._database.writing() as connection:
                take_turns(connection, [request.key.unit for request in requests])
                results = self._append(connection, requests, at)
        except StoreUnavailable as error:
            if not results:
                raise
            lost = RuntimeFailed("the store was lost during the commit")
            lost.__cause__ = error
            return [lost if None in request.given.cycles else error for request in requests]
        return results

    def newest(
        self, key: UnitKey, columns: tuple[str, ...], *, most: int, until: int = LARGEST_CYCLE
    ) -> Stretch:
        """Read the last readings up to a cycle, in the order of these columns."""
        with self._database.reading() as connection:
            return self.read(connection, key, columns, most=most, until=until)

    def read(
        self, connection: Connection, key: UnitKey, columns: tuple[str, ...], *, most: int, until: int
    ) -> Stretch:
        """Read what `newest` reads, as this transaction sees it."""
        rows = _read(connection, _NEWEST, key, most=most, until=until)
        return self._stretch(connection, rows, columns)

    def purge(self, before: float) -> Iterator[None]:
        """Delete readings received before this time; yield after each transaction."""
        old = select(*_KEY_COLUMNS).where(READINGS.c.received_at < before)
        while True:
            with self._database.writing() as connection:
                part = delete(READINGS).where(tuple_(*_KEY_COLUMNS).in_(old.limit(PURGE_ROWS)))
                deleted = connection.execute(part).rowcount
            yield
            if deleted < PURGE_ROWS:
                return

    def _append(
        self, connection: Connection, requests: Sequence[Append], at: float
    ) -> list[Appended | ServiceError]:
        given: dict[UnitKey, dict[int, Stored]] = {}  # new in this transaction
        full: set[UnitKey] = set()
        taken: list[tuple[Append, Mapping[int, Stored], Stretch] | ServiceError] = []
        for request in requests:
            new = given.setdefault(request.key, {})
            try:
                fresh, newest = self._take(connection, request, new)
            except ServiceError as error:
                taken.append(error)
                continue
            new |= fresh
            taken.append((request, fresh, newest))
            if newest.cycles[-1] >= self._most:
                full.add(request.key)
        rows = [
            {**key._asdict(), "cycle": cycle, "columns_id": columns_id, "values": values, "received_at": at}
            for key, new in given.items()
            for cycle, (columns_id, values) in new.items()
        ]
        if rows:
            connection.execute(insert(READINGS), rows)
        gone = {key: {*connection.scalars(_TRIM, {**key._asdict(), "most": self._most})} for key in full}
        return [
            each if isinstance(each, ServiceError) else _appended(*each, gone.get(each[0].key, set()))
            for each in taken
        ]

    def _take(
        self, connection: Connection, request: Append, new: Mapping[int, Stored]
    ) -> tuple[dict[int, Stored], Stretch]:
        """Return the new readings of a request by cycle, and the unit's newest readings with them.

        `new` readings of earlier requests are not in the database yet.

        Raises:
            CycleConflict: a cycle has another reading.
            InvalidRequest: there is no next cycle.
        """
        context = min(request.context, self._most)
        newest = _read(connection, _NEWEST, request.key, most=context, until=LARGEST_CYCLE)
        known = {**newest, **new}
        cycles = _numbered(request, max(known, default=0))
        since = min(newest) if len(newest) == context else 0
        if (first := min(cycles)) < since:
            known |= _read(connection, _BETWEEN, request.key, first=first, last=max(cycles))
        fresh: dict[int, Stored] = {}
        problems: list[Problem] = []
        columns_id, size = self._ids[request.columns], FLOAT32.itemsize * len(request.columns)
        block = request.given.values.astype(FLOAT32, copy=False).tobytes()
        for i, cycle in enumerate(cycles):
            given = columns_id, block[size * i : size * (i + 1)]
            stored = fresh.get(cycle) or known.get(cycle)
            if stored is None:
                fresh[cycle] = given
            elif stored != given and len(problems) <= MAX_PROBLEMS:
                values = self._values(connection, stored, request.columns)
                problems += _differences(request, i, cycle, values)
        if problems:
            raise CycleConflict(f"{problems[0].pointer}: {problems[0].detail}", listed(problems))
        known |= fresh
        last = {cycle: known[cycle] for cycle in sorted(known)[-context:]}
        return fresh, self._stretch(connection, last, request.columns)

    def _stretch(
        self, connection: Connection, rows: Mapping[int, Stored], columns: tuple[str, ...]
    ) -> Stretch:
        cycles = sorted(rows)
        ordered = [rows[cycle] for cycle in cycles]
        if {columns_id for columns_id, _ in ordered} == {self._ids.get(columns)}:
            values = np.frombuffer(b"".join([values for _, values in ordered]), FLOAT32)
            return Stretch(cycles, values.reshape(-1, len(columns)))
        values = np.empty((len(cycles), len(columns)), np.float32)
        for to, row in zip(values, ordered, strict=True):
            to[:] = self._values(connection, row, columns)
        return Stretch(cycles, values)

    def _values(self, connection: Connection, row: Stored, columns: tuple[str, ...]) -> FloatArray:
        """Bring a reading, float32 [F], into the order of these columns; absent ones are NaN."""
        columns_id, values = row
        if columns_id not in self._names:
            names = select(COLUMN_LISTS.c.names).where(COLUMN_LISTS.c.id == columns_id)
            text = connection.execute(names).scalar_one()
            self._names[columns_id] = msgspec.json.decode(text, type=tuple[str, ...])
        by_name = dict(zip(self._names[columns_id], np.frombuffer(values, FLOAT32), strict=True))
        return np.array([by_name.get(name, np.nan) for name in columns], np.float32)

    def _register(self, columns: tuple[str, ...]) -> None:
        """Find or create the id of a column list."""
        if columns in self._ids:
            return
        names = msgspec.json.encode(columns).decode()
        with self._database.locked() as connection:
            known = select(COLUMN_LISTS.c.id).where(COLUMN_LISTS.c.names == names)
            row = insert(COLUMN_LISTS).values(names=names).returning(COLUMN_LISTS.c.id)
            found = connection.scalar(known) or connection.execute(row).scalar_one()
        self._ids[columns], self._names[found] = found, columns


def _read(
    connection: Connection, query: Select[int, int, bytes], key: UnitKey, **given: int
) -> dict[int, Stored]:
    rows = connection.execute(query, {**key._asdict(), **given}).all()
    return {cycle: (columns_id, values) for cycle, columns_id, values in rows}


def _appended(request: Append, fresh: Mapping[int, Stored], newest: Stretch, gone: set[int]) -> Appended:
    """Count stored and repeated readings of a request; those beyond the kept number count as neither."""
    return Appended(len(fresh.keys() - gone), len(request.given.cycles) - len(fresh), newest)


def _numbered(request: Append, last: int) -> list[int]:
    """Number the readings without a cycle: each follows the unit's last one so far."""
    cycles: list[int] = []
    for i, cycle in enumerate(request.given.cycles):
        number = last + 1 if cycle is None else cycle
        if number > LARGEST_CYCLE:
            detail = f"expected a cycle number, got none, and no cycle follows {last}, the largest number"
            pointer = request.given.pointer(i, None)
            raise InvalidRequest(f"{pointer}: {detail}", [Problem(pointer, "bad_cycle", detail)])
        last = max(last, number)
        cycles.append(number)
    return cycles


def _differences(request: Append, i: int, cycle: int, stored: FloatArray) -> Iterable[Problem]:
    """Compare a reading with the stored one, column by column; missing equals missing."""
    given = request.given.values[i]
    for f in np.flatnonzero((given != stored) & ~(np.isnan(given) & np.isnan(stored))).tolist():
        name = request.columns[f]
        detail = f"cycle {cycle} has {name} = {_shown(stored[f])}, got {_shown(given[f])}"
        yield Problem(request.given.pointer(i, name), "cycle_conflict", detail)


def _shown(value: np.float32) -> str:
    return "none" if np.isnan(value) else str(value)
