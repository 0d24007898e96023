"""What an operator reads as the service starts; each test in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
import pytest

from service.core.providers import CPU, CUDA
from service.processes.control import WorkerSpec
from tests.environments import clean_environment
from tests.integration.conftest import RUL, running

SECONDS = 60
# A machine with an NVIDIA driver, whose ONNX Runtime has no use for it.
START = """
import asyncio, pathlib, service.core.runtime
service.core.runtime.NVIDIA_DRIVER = pathlib.Path("/")
from service import logs
from service.assembly import build
from service.processes.control import WorkerSpec
from service.settings import Settings

async def start_and_stop():
    parts = build(Settings.read(), worker=WorkerSpec.read() or WorkerSpec())
    await parts.start()
    await parts.stop()

logs.configure()
asyncio.run(start_and_stop())
"""

pytestmark = pytest.mark.skipif(
    CUDA in onnxruntime.get_available_providers(), reason="this ONNX Runtime would use a GPU"
)


def warnings(bundle, folder, **settings):
    """What a start warns of."""
    given = {"RUL_BUNDLES": str(bundle.path), "RUL_STORE": "false"} | settings
    done = subprocess.run(
        [sys.executable, "-c", START], env=clean_environment(**given), cwd=folder,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return [line for line in lines if line["level"] == "warning"]


NAMING_NOTHING = {"RUL_BUNDLE": "fd001", "RUL_COSTS": "tiny=1:10,pumps=1:10,1:5", "RUL_BUNDLES_WATCH": "none"}


@pytest.fixture(scope="module")
def warned(tiny_bundle, tmp_path_factory):
    """The warnings of a start beside a GPU, with settings that name nothing, by event."""
    found = warnings(tiny_bundle, tmp_path_factory.mktemp("warned"), **NAMING_NOTHING)
    by_event = {warning["event"]: warning for warning in found}
    assert len(by_event) == len(found), "a warning stands twice"
    return by_event


def test_a_service_on_the_cpu_beside_a_gpu_warns_once_of_what_serves_and_why(warned):
    warning = warned["provider fallback"]

    assert (warning["asked"], warning["provider"]) == ("auto", CPU)
    assert warning["reason"] == f"this ONNX Runtime was built without {CUDA}"
    assert warning["models"] == ["tiny"]


def test_each_setting_that_names_nothing_is_warned_of_once(warned):
    expected = {
        "unknown setting": {"variable": "RUL_BUNDLE"},
        "costs unused": {"models": ["pumps"]},
        "watched folder missing": {"folder": "none"},
    }
    assert warned.keys() == {*expected, "provider fallback"}
    for event, fields in expected.items():
        assert warned[event] | fields == warned[event]


def test_the_other_workers_do_not_say_it_again(tiny_bundle, tmp_path):
    assert warnings(tiny_bundle, tmp_path, **NAMING_NOTHING, **WorkerSpec(index=1).as_environment()) == []


def test_a_service_starts_without_standard_streams(tiny_bundle, tmp_path):
    command = ("bash", "-c", f'exec "{RUL}" serve <&- >&- 2>&-')

    with running(tmp_path, str(tiny_bundle.path), command=command) as server:
        assert server.ask("GET", "/metrics").is_success
        assert server.stop() == 0


def test_bentomls_server_listens_on_a_name_and_starts_for_a_user_without_a_home(tiny_bundle, tmp_path):
    command = ("env", "--unset=BENTOML_HOME", "HOME=/dev/null", RUL, "serve")
    given = {"host": "localhost", "front_end": "uvicorn", "store": "false"}

    with running(tmp_path, str(tiny_bundle.path), command=command, **given) as server:
        assert server.ask("GET", "/readyz").is_success


def test_on_a_terminal_the_start_ends_with_the_address_and_closing_it_ends_the_service_as_ctrl_c_does(
    tiny_bundle, tmp_path
):
    ours, theirs = pty.openpty()
    settings = {
        "RUL_BUNDLES": str(tiny_bundle.path), "RUL_HOST": "127.0.0.1", "RUL_PORT": "0", "RUL_WORKERS": "1"
    }  # fmt: skip
    homes = {"XDG_STATE_HOME": str(tmp_path), "BENTOML_HOME": str(tmp_path), "TERM": "dumb"}
    with TemporaryDirectory(prefix="rul-") as folder:  # a socket's path has at most 107 bytes
        serving = subprocess.Popen(
            [RUL, "serve"],
            env=clean_environment(**settings, **homes, TMPDIR=folder),
            cwd=tmp_path,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),  # noqa: PLW1509 no threads here
        )
        os.close(theirs)
        with os.fdopen(ours, encoding="utf-8") as terminal:
            *log, line = until_address(terminal)

        assert serving.wait(SECONDS) == 0
        assert not [*Path(folder).iterdir()]

    url = re.escape("http://localhost:") + r"\d+"
    assert "rulserve answers HTTP and gRPC (models: tiny)\n" in log
    assert re.fullmatch(rf"{url}  page; rul demo \(or make demo\) sends a simulated fleet", line.strip())
    assert not any(line.startswith("{") for line in log)
    assert not any("alembic" in line for line in log)


def until_address(terminal):
    """The lines of a start."""
    for line in terminal:
        yield line
        if line.startswith("http"):
            return
