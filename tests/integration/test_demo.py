"""`rul demo` and `make demo` against a real service."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rul_client.api import Client
from tests.environments import clean_environment
from tests.integration.conftest import RUL, free_port, rul, running
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FLEET = ("--units", "12", "--seed", "7", "--speed", "100")


@pytest.fixture(scope="module")
def url(tiny_bundle, tmp_path_factory):
    with running(tmp_path_factory.mktemp("served"), str(tiny_bundle.path)) as served:
        yield served.http


def test_units_of_the_demo_age_fail_and_are_replaced_and_the_service_knows(url):
    done = rul("demo", "--url", url, *FLEET, "--seconds", "2")

    assert (done.returncode, done.stderr) == (0, "")
    failed = int(re.search(r"(\d+) failed", done.stdout)[1])
    assert failed > 0
    with Client(url) as client:
        # The recorder writes predictions behind the answers.
        wait_until(lambda: len(client.fleet(limit=1000).units) == 12, 60, what="units of the demo")
        assert all(unit.unit.startswith("0007-") for unit in client.fleet(limit=1000).units)
        assert len(client.fleet(state="failed", limit=1000).units) == failed


def test_a_second_demo_with_the_same_seed_repeats_the_first(url):
    found = []

    with Client(url) as client:
        for seconds in ("2", "0.2"):
            done = rul("demo", "--url", url, *FLEET, "--seed", "8", "--seconds", seconds)
            assert done.returncode == 0, done.stderr
            found.append({unit.unit for unit in client.fleet(q="0008-", limit=1000).units})

    first, second = found
    assert len(first) == 12
    assert second == first


def test_an_interrupt_ends_the_demo_in_order(url):
    command = [RUL, "demo", "--url", url, *FLEET, "--seed", "9"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with Client(url) as client:
        wait_until(lambda: client.fleet(q="0009-").units != [], 60, what="units of the demo")

    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    assert "12 units, " in printed


def test_make_demo_starts_a_service_where_none_answers_and_ends_it(tiny_bundle, tmp_path):
    settings = {"RUL_BUNDLES": str(tiny_bundle.path), "RUL_WORKERS": "1", "XDG_STATE_HOME": str(tmp_path)}
    settings |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # nothing listens there
    port = free_port()

    done = subprocess.run(
        [ROOT / "tools" / "demo", Path(sys.executable).parent, str(port), "1"],
        env=clean_environment(**settings), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "50 units, " in done.stdout
    assert done.stdout.endswith("\n")
    assert "cannot be reached" in rul("models", "list", "--url", f"http://127.0.0.1:{port}").stderr
