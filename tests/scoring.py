"""Fleets of pumps in Parquet, and runs of `rul score` in this process."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model.domain import Schema, Trajectory
from model.writers import write_parquet
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.run import score
from rul_client.commands.score.scorer import Scorer, score_part
from rul_client.unit_windows import LAST
from tests.tiny_bundle import COLUMNS, pumps


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


LAST_ONLY = {"every": LAST}
