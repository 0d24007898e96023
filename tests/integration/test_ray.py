"""`--ray`: a cluster of three nodes gives the results of one machine, also when a node dies."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from model.checkpoint import Checkpoint
from tests.commands import write_pumps
from tests.integration.conftest import COMMAND_SECONDS, RUL

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rulserve[ray]'")

SMALL = ("--set", "hidden=4", "--set", "batch=8", "--folds", "2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU each, on this machine."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    three = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(2):
        three.add_node(**node)
    yield three
    three.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options that read simulated pumps."""
    readings, fleet = write_pumps(tmp_path_factory.mktemp("data"), units=12, seed=4)
    return ("--data", str(readings), "--fleet", str(fleet))


def rul(*arguments: object) -> str:
    done = subprocess.run(
        [RUL, *map(str, arguments)], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_times(table: str) -> list[str]:
    """Rows without their last two columns, which are times."""
    return [line.rsplit("|", 3)[0] for line in table.splitlines()]


def test_rul_experiment_prints_the_same_table_from_a_cluster(cluster, data):
    command = ("experiment", "--row", "flagship", *SMALL, "--set", "noise=0.1,0.3", "--search", 3, *data)

    here, there = (rul(*command, *ray) for ray in ((), ("--ray", cluster.address)))

    assert len(here.splitlines()) == 4
    assert without_times(there) == without_times(here)


def test_rul_train_leaves_the_same_network_from_a_cluster(cluster, data, tmp_path):
    command = ("train", "--name", "pumps", "--steps", 12, *SMALL, *data)

    for folder, ray in (("here", ()), ("there", ("--ray", cluster.address))):
        rul(*command, "--out", tmp_path / folder, *ray)

    here, there = (Checkpoint.load(tmp_path / folder) for folder in ("here", "there"))
    assert there.digest() == here.digest()
    assert there.facts == here.facts
