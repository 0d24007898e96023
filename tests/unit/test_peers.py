"""The report of peers: figures where there are some, and a reason where there are none."""

import subprocess

import pytest
import typer
from typer.testing import CliRunner

from tests.benchmarks import front_ends, gpu, memory, outages, versions
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.__main__ import Result
from tests.benchmarks.peers.environment import PeerFailed, installed
from tests.benchmarks.peers.peer import PEERS, loads_of


def test_a_peer_that_cannot_be_installed_is_in_the_report_with_the_reason():
    loads = loads_of("json")
    figures = {f"{load}: {name}": [0.5] for load in loads for name, _ in front_ends.COLUMNS}
    of_all = ("ceiling windows/s", "ceiling cpu s per 1000", "alone ms", "ready s", "memory MiB")
    ours = Result("ours", loads, figures | {name: [1.0] for name in of_all})
    peer = Result("peer", loads, failure="cannot be installed: no such package")

    assert "| json, 1 a call, 64 callers | 0 | 0.50 | 0.50 |" in ours.markdown()
    assert peer.markdown() == "### peer\n\nNot measured: cannot be installed: no such package"


def test_what_pip_says_last_is_the_reason(tmp_path, monkeypatch):
    def refuse(command, **_options):
        raise subprocess.CalledProcessError(1, command, stderr="looking\nERROR: no matching distribution\n")

    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(subprocess, "run", refuse)

    with pytest.raises(PeerFailed, match="cannot be installed: ERROR: no matching distribution"):
        installed("fastapi", PEERS["fastapi"])


@pytest.mark.parametrize(
    ("main", "options", "refused"),
    [
        (peers.main, ["--seconds", "0.3"], "--seconds"),
        (front_ends.main, ["--seconds", "0.3"], "--seconds"),
        (outages.main, ["--data", "none", "--folds", "1"], "--folds"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_measured(main, options, refused):
    command = typer.Typer(rich_markup_mode=None)
    command.command()(main)

    done = CliRunner().invoke(command, options)

    assert done.exit_code == 2
    assert refused in done.output


@pytest.mark.parametrize("main", [peers.main, front_ends.main, gpu.main, memory.main, versions.main])
def test_missing_load_generators_are_named_before_anything_is_measured(main, monkeypatch):
    monkeypatch.setenv("PATH", "")
    command = typer.Typer(rich_markup_mode=None)
    command.command()(main)
    options = ["--checkout", "."] if main is versions.main else []

    done = CliRunner().invoke(command, options)

    assert done.exit_code == 2
    assert "wrk and h2load missing" in done.output
