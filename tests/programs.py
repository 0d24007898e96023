"""Facts about the machine: its programs outside pip, which `tools/install-system` installs, and IPv6."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.environments import clean_environment

ROOT: Final = Path(__file__).parents[1]
REQUIRED: Final = "REQUIRE_SYSTEM_PROGRAMS"
PASTED_SECONDS: Final = 200
PLUGIN_FOLDERS: Final = tuple(
    Path(folder) / "docker" / "cli-plugins"
    for folder in ("/usr/local/lib", "/usr/local/libexec", "/usr/lib", "/usr/libexec")
)


def program(name: str) -> str:
    """Return the path of a program; if it is missing, skip the test, or fail where all are required."""
    # Debian has a folder of PostgreSQL programs for each version.
    beside = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    return (
        shutil.which(name)
        or shutil.which(name, path=os.pathsep.join([*beside, "/usr/sbin"]))
        or _missing(name)
    )


def compose() -> list[str]:
    """Return the command of docker compose, which checks files without an engine."""
    docker = shutil.which("docker")
    if (
        docker
        and not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
    ):
        return [docker, "compose"]
    for folder in PLUGIN_FOLDERS:
        if (folder / "docker-compose").is_file():
            return [str(folder / "docker-compose")]
    return [_missing("docker compose")]


def output_of(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return the output of a program; its exit status must be 0."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def bash_blocks(page: Path) -> list[str]:
    """Return the shell blocks of a document."""
    return re.findall(r"^```bash\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def pasted(text: str, folder: Path, **environment: str) -> str:
    """Run a block in a shell in this folder, with `rul` and only these settings; return its output."""
    clean = {
        name: value
        for name, value in clean_environment().items()
        if not name.startswith("PYTEST_") and "proxy" not in name.lower()
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder, env=clean | {"PATH": path} | environment,
        capture_output=True, text=True, check=False, timeout=PASTED_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _missing(name: str) -> NoReturn:
    reason = f"{name} is not installed: tools/install-system installs it"
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)


def has_ipv6() -> bool:
    """Whether this machine has the address ::1, which many containers lack."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
