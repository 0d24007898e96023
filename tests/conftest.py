"""Fixtures for all folders of tests, such as a tiny bundle, really trained and exported."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings
from prometheus_client import CollectorRegistry

from export.bundle import BundleFolder

# What the collection of tests makes stays to the end: Python looks for garbage in it neither then nor later.
gc.disable()

# With it, gRPC's threads run in a forked child and may abort it before it executes its program: 550 of 1,500
# children of a process that asks by gRPC, none without.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Services of tests are on this machine: no proxy that the environment names reaches them.
os.environ["no_proxy"] = ",".join(
    [os.environ.get("no_proxy") or os.environ.get("NO_PROXY", ""), "localhost", "127.0.0.1", "::1"]
)

# What a command prints does not depend on the terminal that runs the tests.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

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


TESTS: Final = Path(__file__).parent
LONG: Final = (
    "contract/test_readme.py",
    "integration/test_page_unit.py",
    "integration/test_models_page.py",
    "integration/test_page_try.py",
    "contract/test_training.py",  # once test_readme has compiled torch, else each worker does
    "contract/test_train_command.py",
    "integration/test_ray.py",
    "integration/test_predict.py",
    "integration/test_page_shell.py",
    "integration/test_hostile.py",
    "integration/test_page_fleet.py",
    "integration/test_golden_record.py",
    "integration/test_battery.py",
    "integration/test_stores.py",
    "integration/test_life.py",
    "contract/test_observability.py",
    "integration/test_tls.py",
    "integration/test_oip_clients.py",
    "integration/test_prometheus.py",
    "contract/test_walkthroughs.py",
    "integration/test_units.py",
    "integration/test_keys.py",
    "integration/test_demo.py",
    "integration/test_page_news.py",
    "integration/test_page_models.py",
    "contract/test_planted.py",
    "integration/test_evaluate_command.py",
    "integration/test_workers.py",
    "integration/test_slow_clients.py",
    "contract/test_attention_alerts.py",
    "contract/test_experiments.py",
    "integration/test_bentoml.py",
    "contract/test_export.py",
    "integration/test_score.py",
    "integration/test_bench.py",
    "hostile/test_rolling.py",
    "contract/test_packaging.py",
    "integration/test_wheel.py",
    "hostile/test_replicas.py",
    "hostile/test_pauses.py",
)
"""Files of slow tests. They run first, because a slow file at the end keeps one process busy alone. The
others run by name, whatever their folder, so tests that wait for a service run beside tests that compute."""

SERVED: Final = {
    "integration/test_bench.py",
    "integration/test_bentoml.py",
    "integration/test_client.py",
    "integration/test_grpc.py",
    "integration/test_oip_clients.py",
    "integration/test_pages.py",
    "integration/test_predict.py",
    "integration/test_predictions.py",
    "integration/test_streams.py",
    "integration/test_top.py",
    "integration/test_undecodable.py",
}
"""Files that ask the services of the session: one process runs them, so that each service starts once."""


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, default=200, help="inputs for each fuzzed door (tests/hostile)")
    parser.addoption(
        "--tiny-bundles",
        type=lambda folder: Path(folder).resolve(),
        help="folder of the tiny bundles, which several runs share; by default a temporary one",
    )


def pytest_configure() -> None:
    """One thread: small operations gain nothing from more, because tests keep all cores busy."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Logs as of the service. By default structlog draws a frame of local variables around each traceback.
    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, plain])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if missing := [name for name in LONG if not (TESTS / name).is_file()]:
        raise pytest.UsageError(f"tests/conftest.py: LONG names files that do not exist: {missing}")
    rank = {TESTS / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: (rank.get(item.path, len(LONG)), item.path.name))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Deal out files, those of `SERVED` as one."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "served" if file.removeprefix("tests/") in SERVED else file

    return Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """Restore Ctrl+C: a suite started in the background ignores it, and its child processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_bundles(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], BundleFolder]:
    """Make a bundle of a network by its name, trained for a moment; once for all parallel workers."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    return partial(_made_once, pytestconfig.getoption("--tiny-bundles") or root)


@pytest.fixture(scope="session")
def tiny_bundle(tiny_bundles: Callable[[str], BundleFolder]) -> BundleFolder:
    """A tiny bundle of the flagship."""
    return tiny_bundles("flagship")


def _made_once(root: Path, network: str) -> BundleFolder:
    from tests.tiny_bundle import make_tiny_bundle

    root.mkdir(parents=True, exist_ok=True)
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
    """Ignore the variables and the .env file of the user."""
    for name in list(os.environ):
        if name.startswith("RUL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 bytes: a `tmp_path` may be longer."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of metrics for one test."""
    return CollectorRegistry(auto_describe=True)


@pytest.fixture
def copied(tiny_bundle: BundleFolder, tmp_path: Path) -> BundleFolder:
    """A bundle that a test may change."""
    return BundleFolder(shutil.copytree(tiny_bundle.path, tmp_path / "copy"))


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Torch with one thread: small tensors gain nothing from more, and results stay equal to the bit."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pumps.csv, of twelve worn pumps, and pumps.toml, the fleet that reads it."""
    from tests.fleets import PUMPS, worn_pumps, write_fleet

    folder = tmp_path_factory.mktemp("data")
    write_fleet(folder, worn_pumps(units=12, seed=4), PUMPS)
    return folder
