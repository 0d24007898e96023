"""A killed supervisor leaves no process, and its folder goes with the next start."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.integration.conftest import RUL, running
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path: that of a socket has at most 108 characters."""
    with TemporaryDirectory(prefix="rul-") as folder:
        yield Path(folder)


def pair_of_workers(supervisor: psutil.Process) -> list[psutil.Process]:
    """Both workers; empty until there are two."""
    found = [child for child in supervisor.children() if child.name() == "envoy"]
    return found if len(found) == 2 else []


def test_workers_end_with_their_supervisor_and_the_next_start_removes_its_folder(
    tiny_bundle, tmp_path, monkeypatch, short_folder
):
    monkeypatch.setenv("TMPDIR", str(short_folder))
    with running(tmp_path, str(tiny_bundle.path), workers="2") as server:
        supervisor = psutil.Process(server.process.pid)
        workers = wait_until(lambda: pair_of_workers(supervisor), PATIENCE, what="two workers")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
        (left,) = short_folder.glob("rulserve-*")
    with running(tmp_path, str(tiny_bundle.path)):
        remains = left.exists()

    assert len(workers) == 2
    assert alive == []
    assert not remains


def test_a_service_starts_where_the_working_folder_was_removed(tiny_bundle, tmp_path):
    command = ("sh", "-c", f"mkdir gone; cd gone; rmdir ../gone; exec {RUL} serve")
    with running(tmp_path, str(tiny_bundle.path), command=command) as server:
        assert server.stop() == 0
