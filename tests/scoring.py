"""Fleets of pumps in Parquet, and runs of `rul score` in this process."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model.domain import Schema, Trajectory
from model.fleet import fleet_of_schema
from model.writers import write_parquet
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.locations import Location
from rul_client.commands.score.plan import Plan, make_plan
from rul_client.commands.score.run import score
from rul_client.commands.score.scorer import Scorer, score_part
from rul_client.unit_windows import LAST
from tests.tiny_bundle import COLUMNS, FLEET, pumps


def write_pumps(path: Path, units: list[Trajectory] | None = None) -> pa.Table:
    """Write pumps, by default five; return the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, pumps(units=5, seed=21) if units is None else units, Schema(COLUMNS))
    return pq.read_table(path)


def make_job(bundle: Any, source: object, output: object, **options: Any) -> Job:
    """Describe a run with these options, by default over all windows."""
    given = {"fleet": None, "every": 1, "part_readings": 65_536, **options}
    return Job(str(bundle.path), str(source), str(output), **given)


def score_here(bundle: Any, source: object, output: object, **options: Any) -> dict[str, Any]:
    """Score in this process; return the summary."""
    return score(make_job(bundle, source, output, **options), in_this_process)


def in_this_process(job: Job, parts: Any) -> Generator[Tally]:
    """Score parts one after the other."""
    scorer = Scorer(job)
    yield from (score_part(part, scorer) for part in parts)


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of each file by its name."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def scored(folder: Path, name: str = "part-*.parquet") -> list[dict[str, Any]]:
    """Return the rows of an output."""
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob(name))).to_pylist()


def refused(folder: Path) -> list[dict[str, Any]]:
    """Return what an output says of refused readings and windows."""
    return scored(folder, "_refused/*.parquet")


def plan_of(source: object, *, part_readings: int = 65_536) -> Plan:
    """Divide files of pumps into parts."""
    fleet = fleet_of_schema("pumps", FLEET.schema)
    where = source if isinstance(source, Location) else Location.of(str(source))
    return make_plan(where, fleet, every=1, part_readings=part_readings, allow_absent=False)


LAST_ONLY = {"every": LAST}
