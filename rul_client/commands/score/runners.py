"""Runners of `rul score`: processes of this machine, one per core, or nodes of a Ray cluster.

On a cluster a part is a task, not the call of an actor: a lost task runs again on the next free node, but a
lost call waits until a node has room for its actor again. The processes of Ray keep their session between
tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from model.cluster import Cluster, ClusterFailed
from model.domain import RulError
from rul_client.answers import ModelName
from rul_client.commands.processes import process_pool
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.plan import Part
from rul_client.commands.score.scorer import Scorer, score_part


class WorkerDied(RulError):
    """A process ended without an answer."""


def in_processes(count: int, job: Job, parts: Sequence[Part]) -> Generator[Tally]:
    """Score parts in some processes; yield the counts of each part when it ends.

    Raises:
        WorkerDied: a process died; finished parts are kept.
        RulError: as `score_part` says, for the first part that fails.
    """
    try:
        with process_pool(min(count, len(parts)), _begin) as pool:
            for ended in as_completed(pool.submit(_score, job, part) for part in parts):
                yield ended.result()
    except BrokenProcessPool as error:
        raise WorkerDied(
            "a process of this run was killed, perhaps for its memory: run the same command again, "
            "finished parts are kept; fewer --workers need less memory"
        ) from error


def on_nodes(cluster: Cluster, job: Job, parts: Sequence[Part]) -> Generator[Tally]:
    """Score parts on a cluster with shared files; yield the counts in the order of parts.

    Raises:
        ClusterFailed: a node has another bundle of this name, or the cluster fails.
        RulError: as `score_part` says, for the first part that fails.
    """
    # Other places are URLs and names of shipped bundles and fleets.
    kinds = {"bundle": Path.is_dir, "source": Path.exists, "output": Path.exists, "fleet": Path.is_file}
    places = {name: Path(place) for name in kinds if (place := getattr(job, name))}
    found: dict[str, Any] = {
        name: str(place.absolute()) for name, place in places.items() if kinds[name](place)
    }
    yield from cluster.map(partial(score_on_node, replace(job, **found), scorer_of(job).name), parts)


def score_on_node(job: Job, bundle: ModelName, part: Part) -> Tally:
    """Score one part on its node.

    Raises:
        ClusterFailed: the node has another bundle.
        RulError: as `score_part` says.
    """
    scorer = scorer_of(job)
    if scorer.name != bundle:
        raise ClusterFailed(f"{job.bundle}: a node has {scorer.name}, this machine {bundle}: copy one to all")
    return score_part(part, scorer)


@cache
def scorer_of(job: Job) -> Scorer:
    """Open a job once in this process."""
    return Scorer(job)


def _score(job: Job, part: Part) -> Tally:
    return score_part(part, scorer_of(job))


def _begin() -> None:
    """Prepare a process: it repeats no warning of its parent."""
    logging.disable(logging.WARNING)
    pa.set_cpu_count(1)
