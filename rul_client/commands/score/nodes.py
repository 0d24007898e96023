"""Scores parts on the nodes of a Ray cluster.

A part is a task, not the call of an actor: a lost task runs again on the next free node, but a lost call
waits until a node has room for its actor again. The processes of Ray keep their session between tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from model.cluster import Cluster, ClusterFailed
from rul_client.answers import ModelName
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.plan import Part
from rul_client.commands.score.processes import scorer_of
from rul_client.commands.score.scorer import Watch, score_part


class Nodes:
    """Scores parts on a cluster whose nodes see the same files; `score` calls it as its runner."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Final = cluster

    def __call__(self, job: Job, parts: Sequence[Part], watch: Watch) -> None:
        """Score parts.

        Raises:
            ClusterFailed: a node has another bundle of this name, or the cluster fails.
            RulError: as `score_part` says, for the first part that fails.
        """
        places = {name: getattr(job, name) for name in ("bundle", "source", "output", "fleet")}
        found = {name: str(Path(place).absolute()) for name, place in places.items() if _is_here(place)}
        work = partial(score_on_node, replace(job, **found), scorer_of(job).name)
        for tally in self._cluster.map(work, parts):
            watch(tally.windows)


def _is_here(place: str | None) -> bool:
    """Tell whether this is a path, and not a URL or the name of a shipped bundle or fleet."""
    return place is not None and Path(place).exists()


def score_on_node(job: Job, bundle: ModelName, part: Part) -> Tally:
    """Score one part on its node.

    Raises:
        ClusterFailed: the node has another bundle.
        RulError: as `score_part` says.
    """
    scorer = scorer_of(job)
    if scorer.name != bundle:
        raise ClusterFailed(f"{job.bundle}: a node has {scorer.name}, this machine {bundle}: copy one to all")
    return score_part(part, scorer, lambda _windows: None)
