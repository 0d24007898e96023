"""`--ray`: a cluster of three nodes gives the results of one machine, also when a node dies."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model.checkpoint import Checkpoint
from model.cluster import ClusterFailed, connected, mapped
from model.domain import InvalidData
from model.fleet import Fleet, fleet_named
from rul_client.answers import ModelName
from rul_client.commands.score.job import Job
from rul_client.commands.score.plan import Part
from rul_client.commands.score.runners import on_nodes, score_on_node
from tests import commands, scoring
from tests.integration.conftest import COMMAND_SECONDS, RUL
from tests.tiny_bundle import pumps
from tests.waiting import wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rulserve[ray]'")

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SMALL = ("--set", "hidden=4", "--set", "batch=8", "--folds", "2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU each, on this machine."""
    from ray.cluster_utils import Cluster

    three = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    for _ in range(2):
        three.add_node(**NODE)
    yield three
    three.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options that read simulated pumps."""
    readings, fleet = commands.write_pumps(tmp_path_factory.mktemp("data"), units=12, seed=4)
    return ("--data", str(readings), "--fleet", str(fleet))


def rul(*arguments: object) -> str:
    done = subprocess.run(
        [RUL, *map(str, arguments)], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def connection_of(cluster: Any) -> int:
    """Connect to a cluster, and return the number that it gives to this connection."""
    import ray

    with connected(cluster.address, threads=1, start=int):
        return int.from_bytes(bytes.fromhex(ray.get_runtime_context().get_job_id()), "little")


def rul_on(cluster: Any, *arguments: object) -> str:
    """Run a command that connects to the cluster."""
    before = connection_of(cluster)
    said = rul(*arguments, "--ray", cluster.address)
    assert connection_of(cluster) == before + 2
    return said


def test_a_cluster_gives_results_in_order_and_errors_as_they_are_raised(cluster):
    results: list[Fleet] = []

    # A function of a light module: each process of the cluster imports it.
    with connected(cluster.address, threads=1, start=int) as connection:
        with pytest.raises(InvalidData, match="no fleet 'none'"):
            results.extend(mapped(fleet_named, ["battery_xjtu", "cmapss", "none"], connection))
        first = next(mapped(fleet_named, ["cmapss", "battery_xjtu"], connection))

    assert [fleet.name for fleet in (*results, first)] == ["battery_xjtu", "cmapss", "cmapss"]


def without_times(table: str) -> list[str]:
    """Rows without their last two columns, which are times."""
    return [line.rsplit("|", 3)[0] for line in table.splitlines()]


@pytest.mark.long
def test_rul_experiment_prints_the_same_table_from_a_cluster(cluster, data):
    command = ("experiment", "--row", "flagship", *SMALL, "--set", "noise=0.1,0.3", "--search", 2, *data)

    here, there = rul(*command), rul_on(cluster, *command)

    assert len(here.splitlines()) == 3
    assert without_times(there) == without_times(here)


@pytest.mark.long
def test_rul_train_leaves_the_same_network_from_a_cluster(cluster, data, tmp_path):
    command = ("train", "--name", "pumps", "--steps", 12, *SMALL, *data)

    rul(*command, "--output", tmp_path / "here")
    rul_on(cluster, *command, "--output", tmp_path / "there")

    here, there = (Checkpoint.load(tmp_path / folder) for folder in ("here", "there"))
    assert there.digest() == here.digest()
    assert there.facts == here.facts


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet of 100 pumps: five parts of a thousand readings."""
    file = tmp_path_factory.mktemp("fleet") / "pumps.parquet"
    scoring.write_pumps(file, pumps(units=100, seed=7))
    return file


def test_a_bundle_that_differs_on_a_node_is_not_used(readings, tiny_bundle, tmp_path):
    job = scoring.make_job(tiny_bundle, readings, tmp_path)
    other = ModelName("tiny", "1.0.0", "0" * 64)

    with pytest.raises(ClusterFailed, match="a node has"):
        score_on_node(job, other, Part(0, (), 0))


def test_what_has_the_name_of_a_shipped_fleet_or_bundle_but_is_none_is_not_taken_for_it(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("cmapss").mkdir()
    Path("fd001").touch()
    job = Job("fd001", "in", "out", "cmapss", every=1, part_readings=1)

    [sent] = on_nodes(SimpleNamespace(map=lambda work, _parts: [work.args[0]]), job, [])

    assert (sent.bundle, sent.fleet) == ("fd001", "cmapss")


def scoring_of(readings: Path, bundle: Path, folder: Path) -> tuple[object, ...]:
    """The arguments that score into a folder."""
    parts = ("--windows", "all", "--part-readings", 1000)
    return "score", "--bundle", bundle, "--input", readings, *parts, "--output", folder


@pytest.fixture(scope="module")
def here(readings, tiny_bundle, tmp_path_factory) -> Path:
    """What one machine writes."""
    folder = tmp_path_factory.mktemp("here") / "scored"
    assert commands.rul(*scoring_of(readings, tiny_bundle.path, folder)).exit_code == 0
    return folder


def test_rul_score_writes_the_same_files_from_a_cluster(cluster, here, readings, tiny_bundle, tmp_path):
    there = tmp_path / "there"

    rul_on(cluster, *scoring_of(readings, tiny_bundle.path, there))

    assert scoring.tree(there) == scoring.tree(here)


@pytest.mark.long
def test_rul_score_writes_the_same_files_from_a_cluster_of_which_a_node_is_killed(
    cluster, here, readings, tiny_bundle, tmp_path
):
    there = tmp_path / "there"
    arguments = scoring_of(readings, tiny_bundle.path, there)
    with subprocess.Popen([RUL, *map(str, arguments), "--ray", cluster.address]) as running:
        wait_until(lambda: any(there.glob("part-*.parquet")), seconds=COMMAND_SECONDS)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        finished = len([*there.glob("part-*.parquet")])

    assert running.returncode == 0
    assert finished < len([*here.glob("part-*.parquet")]), "the node was killed after the last part"
    assert scoring.tree(there) == scoring.tree(here)
