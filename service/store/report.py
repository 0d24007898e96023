"""Accuracy of stored predictions against all known outcomes, for each model version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from sqlalchemy import RowMapping, and_, func, select
from sqlalchemy.engine import Connection

from model.evaluation import bootstrapped, mean_of
from service.store.database import Database
from service.store.judgement import Judgement, OutcomeKind, accuracy_of, judge
from service.store.schema import OUTCOMES, PREDICTIONS, VERSIONS

RESAMPLES: Final = 500


def report(database: Database, *, since: float | None = None) -> list[dict[str, Any]]:
    """Report on every model version: the fields of `Accuracy` and more.

    `failed` and `removed` count units with predictions. `coverage_low` and `coverage_high` are the 95 %
    interval of the coverage, by bootstrap over failed units; None for fewer than two.

    `since` excludes outcomes that happened (or, if that is unknown, were recorded) earlier.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with database.reading() as connection:
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
    rows = connection.execute(query).all()
    kinds = {row.unit: row.kind for row in rows}
    failed = sum(kind == OutcomeKind.FAILED for kind in kinds.values())
    found = judge(
        [row[3:] for row in rows],
        failed=np.array([row.kind == OutcomeKind.FAILED for row in rows], dtype=bool),
        outcome_cycle=np.array([row.cycle for row in rows], dtype=np.int64),
        cap=version["cap"],
    )
    low, high = _coverage_interval(found, [row.unit for row in rows]) if failed > 1 else (None, None)
    return {
        **{name: version[name] for name in ("model", "version", "nominal_coverage")},
        **asdict(accuracy_of(found)),
        "failed": failed,
        "removed": len(kinds) - failed,
        "coverage_low": low,
        "coverage_high": high,
    }


def _coverage_interval(judgement: Judgement, units: Sequence[str]) -> tuple[float, float]:
    """Resample whole units, because predictions of one unit depend on each other."""
    covered = mean_of(judgement.covered[judgement.failed])
    names = np.array(units)[judgement.failed]
    figure = bootstrapped({"coverage": covered}, names, resamples=RESAMPLES)["coverage"]
    return figure.low, figure.high
