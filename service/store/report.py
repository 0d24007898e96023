"""How stored predictions fared against the outcomes that are known, a row for each model version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import and_, func, select
from sqlalchemy.engine import Connection

from model.domain import IntArray
from model.evaluation import bootstrapped
from service.store.database import Store
from service.store.judgement import Fared, Judged, OutcomeKind, fared, judged
from service.store.schema import OUTCOMES, PREDICTIONS, VERSIONS

RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class VersionReport:
    """What is known of one model version.

    Attributes:
        failed: Outcomes of this kind whose units it predicted.
        removed: The same.
        coverage_low: Of the 95 % interval of the coverage, by bootstrap over units that failed; none with
            fewer than two.
    """

    model: str
    version: str
    nominal_coverage: float
    failed: int
    removed: int
    figures: Fared
    coverage_low: float | None = None
    coverage_high: float | None = None


def report(store: Store, *, since: float | None = None) -> list[VersionReport]:
    """Every model version that has predicted something.

    Args:
        store: An open store.
        since: Only outcomes that happened at this time or later, where the time is known, else were recorded.

    Raises:
        StoreUnavailable: the database is away.
    """
    with store.reading() as connection:
        versions = connection.execute(select(VERSIONS).order_by(VERSIONS.c.model, VERSIONS.c.id)).mappings()
        return [_of_version(connection, version, since) for version in versions.all()]


def _of_version(connection: Connection, version: Any, since: float | None) -> VersionReport:  # noqa: ANN401 a row
    met = and_(PREDICTIONS.c.unit == OUTCOMES.c.unit, PREDICTIONS.c.last_cycle <= OUTCOMES.c.cycle)
    query = (
        select(
            PREDICTIONS.c.unit,
            OUTCOMES.c.kind,
            OUTCOMES.c.cycle,
            PREDICTIONS.c.last_cycle,
            PREDICTIONS.c.rul,
            PREDICTIONS.c.lower,
            PREDICTIONS.c.upper,
        )
        .join_from(OUTCOMES, PREDICTIONS, met)
        .where(OUTCOMES.c.model == version["model"], PREDICTIONS.c.version_id == version["id"])
    )
    if since is not None:
        query = query.where(func.coalesce(OUTCOMES.c.happened_at, OUTCOMES.c.recorded_at) >= since)
    rows = connection.execute(query).all()
    kinds = {row.unit: row.kind for row in rows}
    failed = sum(kind == OutcomeKind.FAILED for kind in kinds.values())
    found = _judged(rows, cap=version["cap"])
    low, high = _coverage_interval(found, [row.unit for row in rows]) if failed > 1 else (None, None)
    return VersionReport(
        version["model"],
        version["version"],
        version["nominal_coverage"],
        failed,
        len(kinds) - failed,
        fared(found),
        low,
        high,
    )


def _judged(rows: Sequence[Any], *, cap: float) -> Judged:
    numbers = np.array([row[2:] for row in rows], dtype=np.float64).reshape(-1, 5)
    cycle, last_cycle, rul, lower, upper = numbers.T
    return judged(
        failed=np.array([row.kind == OutcomeKind.FAILED for row in rows], dtype=bool),
        outcome_cycle=cycle.astype(np.int64),
        last_cycle=last_cycle.astype(np.int64),
        rul=rul,
        lower=lower,
        upper=upper,
        cap=cap,
    )


def _coverage_interval(found: Judged, units: Sequence[str]) -> tuple[float, float]:
    """By resampling whole units, because predictions of one unit hold or fail together."""
    names, which = np.unique(np.array(units)[found.failed], return_inverse=True)
    trials = np.bincount(which)
    hits = np.bincount(which, weights=found.covered[found.failed])

    def coverage(rows: IntArray) -> float:
        return float(hits[rows].sum() / trials[rows].sum())

    figure = bootstrapped({"coverage": coverage}, names, resamples=RESAMPLES)["coverage"]
    return figure.low, figure.high
