"""The table of peers: figures where there are some, and a reason where there are none."""

import subprocess

import pytest
import typer
from typer.testing import CliRunner

from tests.benchmarks import front_ends
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.environment import PeerFailed, installed
from tests.benchmarks.peers.peer import PEERS
from tests.benchmarks.peers.report import HEADINGS, Result, markdown


def figures(protocol, ratio):
    names = ("over ceiling", "p50 ms", "p99 ms", "failed", "cpu s per 1000")
    loads = ("1 a call, 64 callers", "64 a call, 8 callers")
    found = {f"{protocol}, {load}: {name}": [ratio] for load in loads for name in names}
    return found | {"ceiling windows/s": [5000.0], "ready s": [1.0], "memory MiB": [512.0]}


def rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]


def test_a_peer_that_cannot_be_installed_is_in_the_table_with_the_reason():
    results = {
        "ours": Result("ours", ("json",), figures("json", 0.5)),
        "peer": Result("peer", ("json",), failure="cannot be installed: no such package"),
    }

    heading, _, ours, peer = rows(markdown(results))

    assert len(heading) == len(ours) == len(peer) == len(HEADINGS)
    assert ours[1] == "0.50"
    assert ours[-1] == "0.50 GiB"
    assert peer[:2] == ["peer: json", "not measured: cannot be installed: no such package"]


def test_what_pip_says_last_is_the_reason(tmp_path, monkeypatch):
    def refuse(command, **_options):
        raise subprocess.CalledProcessError(1, command, stderr="looking\nERROR: no matching distribution\n")

    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(subprocess, "run", refuse)

    with pytest.raises(PeerFailed, match="cannot be installed: ERROR: no matching distribution"):
        installed("fastapi", PEERS["fastapi"])


@pytest.mark.parametrize("main", [peers.main, front_ends.main])
def test_a_time_that_the_load_generators_cannot_count_is_refused_before_anything_is_measured(main):
    command = typer.Typer()
    command.command()(main)

    done = CliRunner().invoke(command, ["--seconds", "0.3"])

    assert done.exit_code == 2
    assert "--seconds" in done.output
