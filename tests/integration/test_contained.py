"""The service as deploy/kubernetes runs it: no capabilities, and nothing to write to but /tmp."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from export.bundle import find_bundle
from export.seal import read_bundle
from tests.asking import golden_windows
from tests.integration.conftest import RUL, Server, running, workers_of

CONTAINED = """
set -e
mount --make-rprivate /
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /tmp
cd /tmp
touch /var/lib/written && exit 1
export HOME=/tmp BENTOML_HOME=/tmp/bentoml XDG_STATE_HOME=/var/lib
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
"""Runs a command with a root file system that is read-only for it alone."""


@pytest.fixture
def contained() -> list[str]:
    """What to put before a command that is to run so."""
    if not shutil.which("setpriv") or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs setpriv and the right to mount file systems")
    return ["unshare", "--mount", "sh", "-c", CONTAINED, "contained"]


def test_the_service_answers_with_a_read_only_root_and_no_capabilities(contained, tmp_path):
    window = golden_windows(read_bundle(find_bundle("fd001")).golden)[0].json()

    with running(tmp_path, "fd001", command=[*contained, RUL, "serve"], store="false") as server:
        answer = server.predict(window)
        status = server.stop()

    assert answer.status_code == 200, server.output()
    assert status == 0
    assert "Read-only file system" in server.output()


def event_loops(server: Server) -> int:
    """The number of event loops that the front end has in its only worker."""
    (worker,) = workers_of(server)
    tasks = Path(f"/proc/{worker.pid}/task").glob("*/comm")
    return sum(task.read_text().startswith("wrk:worker_") for task in tasks)


def test_a_worker_alone_has_one_event_loop_of_the_front_end_for_each_core_it_may_use(
    behind_envoy, tiny_bundle, tmp_path
):
    first, *others = sorted(os.sched_getaffinity(0))
    pinned = ["taskset", "--cpu-list", str(first), RUL, "serve"]

    with running(tmp_path, str(tiny_bundle.path), command=pinned, workers="1", store="false") as server:
        assert event_loops(server) == 1

    assert event_loops(behind_envoy) == 1 + len(others)
