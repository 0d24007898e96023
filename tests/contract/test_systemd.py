"""The systemd unit fits the settings of the service, and systemd accepts it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from service.processes.envoy_server import STOP_SECONDS
from service.processes.tuning import RESERVED
from service.settings import Settings
from tests.programs import ROOT, output_of, program

UNIT = ROOT / "deploy" / "systemd" / "rulserve.service"
PAGE = (ROOT / "docs" / "install.md").read_text("utf-8")
MOST_EXPOSURE = 20
"""Of 100 in the judgement of `systemd-analyze security`, which calls it OK."""

pytestmark = pytest.mark.usefixtures("no_settings")


def directives() -> dict[str, list[str]]:
    """The values of each directive, in order."""
    found = defaultdict(list)
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE):
        found[name].append(value)
    return found


def test_the_service_is_killed_only_after_lame_duck_drain_and_last_writes():
    defaults = Settings()
    longest = defaults.lame_duck_seconds + defaults.drain_seconds + 1 + STOP_SECONDS

    [seconds] = directives()["TimeoutStopSec"]

    assert float(seconds) > longest


def test_only_rul_gets_the_signal_to_stop():
    assert directives()["KillMode"] == ["mixed"]


def test_a_worker_may_hold_as_many_connections_as_the_settings_allow():
    [files] = directives()["LimitNOFILE"]

    assert int(files) >= Settings().max_connections + RESERVED


def test_the_store_is_in_the_state_directory():
    [variables], [folder] = directives()["Environment"], directives()["StateDirectory"]

    assert "XDG_STATE_HOME=%S" in variables.split()
    assert f"/var/lib/{folder}" in PAGE


def test_the_page_installs_what_the_unit_runs_and_reads():
    [command], [settings], [user] = (directives()[name] for name in ("ExecStart", "EnvironmentFile", "User"))

    environment = command.removesuffix("/bin/rul serve")
    assert f"python3 -m venv {environment}\n" in PAGE
    assert f"/dev/stdin {settings.removeprefix('-')} " in PAGE
    assert re.search(rf"^useradd .* {user}$", PAGE, re.MULTILINE)


@pytest.mark.system
def test_systemd_accepts_the_unit_and_calls_its_exposure_ok(tmp_path):
    analyze = program("systemd-analyze")
    unit = tmp_path / UNIT.name
    installed = str(Path(sys.executable).parent)  # the program must exist
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/rulserve/bin", installed), "utf-8")

    said = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=True).stderr
    of_unit = [line for line in said.splitlines() if UNIT.name in line]  # others are about the machine's
    assert of_unit == []
    output_of(analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSURE}", unit)
