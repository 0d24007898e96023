"""The service as deploy/kubernetes runs it: no capabilities, and nothing to write to but /tmp."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from export.bundle import find_bundle
from export.seal import read_bundle
from tests.asking import golden_windows
from tests.integration.conftest import RUL, running

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
