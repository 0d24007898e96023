"""A killed supervisor leaves no process, and its folder goes with the next start."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.integration.conftest import running, workers_of

PATIENCE = 60


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path: that of a socket has at most 107 bytes."""
    with TemporaryDirectory(prefix="rul-") as folder:
        yield Path(folder)


def test_workers_end_with_their_supervisor_and_the_next_start_removes_its_folder(
    tiny_bundle, tmp_path, monkeypatch, short_folder
):
    monkeypatch.setenv("TMPDIR", str(short_folder))
    with running(tmp_path, str(tiny_bundle.path), workers="2") as server:
        workers = workers_of(server)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
        (left,) = short_folder.glob("rulserve-*")
    with running(tmp_path, str(tiny_bundle.path)):
        remains = left.exists()

    assert len(workers) == 2
    assert alive == []
    assert not remains
