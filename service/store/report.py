"""Accuracy of stored predictions against all known outcomes, for each model version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from sqlalchemy import RowMapping, and_, func, select
from sqlalchemy.engine import Connection

from model.domain import FloatArray, IntArray
from model.evaluation import bootstrapped, mean_of
from service.store.database import Database, check_revision
from service.store.judgement import Judgement, OutcomeKind, accuracy_of, judge
from service.store.schema import OUTCOMES, PREDICTIONS, VERSIONS

RESAMPLES: Final = 500
PART_ROWS: Final = 10_000
"""Predictions that are objects of Python at a time; as numbers they need a tenth of that memory."""


def report(database: Database, *, since: float | None = None) -> list[dict[str, Any]]:
    """Report on every model version: the fields of `Accuracy` and more.

    `failed` and `removed` count units with predictions. `coverage_low` and `coverage_high` are the 95 %
    interval of the coverage, by bootstrap over failed units; None for fewer than two.

    `since` excludes outcomes that happened (or, if that is unknown, were recorded) earlier.

    Raises:
        StoreUnavailable: the database does not answer, or has tables of another release.
    """
    with database.reading() as connection:
        check_revision(connection)
        versions = connection.execute(select(VERSIONS).order_by(VERSIONS.c.model, VERSIONS.c.id)).mappings()
        return [_of_version(connection, version, since) for version in versions.all()]


def _of_version(connection: Connection, version: RowMapping, since: float | None) -> dict[str, Any]:
    owned = and_(*(PREDICTIONS.c[key] == OUTCOMES.c[key] for key in ("tenant", "unit")))
    judged = and_(owned, PREDICTIONS.c.last_cycle <= OUTCOMES.c.cycle)
    owner_and_unit = (PREDICTIONS.c.tenant + "/" + PREDICTIONS.c.unit).label("unit")
    numbers = (PREDICTIONS.c[name] for name in ("last_cycle", "rul", "lower", "upper"))
    query = (
        select(owner_and_unit, OUTCOMES.c.kind, OUTCOMES.c.cycle, *numbers)
        .join_from(OUTCOMES, PREDICTIONS, judged)
        .where(OUTCOMES.c.model == version["model"], PREDICTIONS.c.version_id == version["id"])
    )
    if since is not None:
        query = query.where(func.coalesce(OUTCOMES.c.happened_at, OUTCOMES.c.recorded_at) >= since)
    units: dict[str, int] = {}
    parts = connection.execute(query.execution_options(yield_per=PART_ROWS)).partitions()
    table = np.concatenate([np.empty((0, 7)), *(_as_numbers(rows, units) for rows in parts)])
    in_order = np.unique([*units], return_inverse=True)[1]  # rows have no order, and draws need one
    unit, has_failed = in_order[table[:, 0].astype(np.int64)], table[:, 1] > 0
    found = judge(
        table[:, 3:], failed=has_failed, outcome_cycle=table[:, 2].astype(np.int64), cap=version["cap"]
    )
    failed = len(np.unique(unit[has_failed]))
    low, high = _coverage_interval(found, unit) if failed > 1 else (None, None)
    return {
        **{name: version[name] for name in ("model", "version", "nominal_coverage")},
        **asdict(accuracy_of(found)),
        "failed": failed,
        "removed": len(units) - failed,
        "coverage_low": low,
        "coverage_high": high,
    }


def _as_numbers(rows: Sequence[Sequence[Any]], units: dict[str, int]) -> FloatArray:
    """Number the units in `units`: number, whether it failed, cycle of the outcome, columns, [n, 7]."""
    return np.array(
        [(units.setdefault(row[0], len(units)), row[1] == OutcomeKind.FAILED, *row[2:]) for row in rows]
    )


def _coverage_interval(judgement: Judgement, unit: IntArray) -> tuple[float, float]:
    """Resample whole units, because predictions of one unit depend on each other."""
    covered = mean_of(judgement.covered[judgement.failed])
    figure = bootstrapped({"coverage": covered}, unit[judgement.failed], resamples=RESAMPLES)["coverage"]
    return figure.low, figure.high
