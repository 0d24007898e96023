"""A killed supervisor leaves no process, and its folder goes with the next start."""

import os
import signal

import psutil

from tests.integration.conftest import RUL, running
from tests.waiting import wait_until

PATIENCE = 60


def test_workers_end_with_their_supervisor_and_the_next_start_removes_its_folder(
    tiny_bundle, tmp_path, monkeypatch
):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with running(tmp_path, str(tiny_bundle.path), workers="2") as server:
        supervisor = psutil.Process(server.process.pid)
        wait_until(lambda: len(supervisor.children()) == 2, PATIENCE, what="two workers")
        workers = supervisor.children()
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
        (left,) = temporary.glob("rulserve-*")
    with running(tmp_path, str(tiny_bundle.path)):
        remains = left.exists()

    assert len(workers) == 2
    assert alive == []
    assert not remains


def test_a_service_starts_where_the_working_folder_was_removed(tiny_bundle, tmp_path):
    command = ("sh", "-c", f"mkdir gone; cd gone; rmdir ../gone; exec {RUL} serve")
    with running(tmp_path, str(tiny_bundle.path), command=command) as server:
        assert server.stop() == 0
