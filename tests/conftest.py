"""What tests of several folders share: a tiny bundle, truly trained and truly exported."""

from __future__ import annotations

import fcntl
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from export.bundle import BundleFolder

# No time limits: the time of an example depends on the other load of the machine. Examples of a test share
# fixtures. `repeatable` tries the same examples each time; `long` (make test-long) 20 times as many new ones.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "long", settings.get_profile("repeatable"), derandomize=False, max_examples=2000, print_blob=True
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, default=200, help="inputs for each fuzzed door (tests/hostile)")


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """A suite that a shell started in the background ignores Ctrl+C, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> BundleFolder:
    """A bundle of a network that was trained for a moment; made once, also for parallel workers."""
    return _made_once(tmp_path_factory, "flagship")


@pytest.fixture(scope="session")
def tiny_bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], BundleFolder]:
    """The same for any network, by its name; each is made when it is first asked for."""
    return partial(_made_once, tmp_path_factory)


def _made_once(tmp_path_factory: pytest.TempPathFactory, network: str) -> BundleFolder:
    from tests.tiny_bundle import make_tiny_bundle

    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / f"tiny-bundle-{network}"
    with (root / f"tiny-bundle-{network}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the exporter: here the bundle is a means
                made = make_tiny_bundle(folder, network=network)
            (folder / "done").write_text(str(made), encoding="utf-8")
    return BundleFolder(Path((folder / "done").read_text(encoding="utf-8")))


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor an .env file of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("RUL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
