"""The service from its settings: its bundles, and a start or a task that fails."""

import asyncio
import shutil
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from service.assembly import build
from service.core.changes import Changed
from service.core.lifecycle import Phase
from service.errors import FrontEndFailed, RuntimeFailed
from service.processes.control import WorkerSpec
from service.processes.workers import Workers
from service.settings import Settings
from tests.fakes import FakeRuntime
from tests.in_process import until

ERROR = RuntimeError("can't start new thread")


@pytest.fixture
async def parts(short_path):
    """The first worker of a service."""
    spec = WorkerSpec(control=short_path / "worker-0")
    made = build(Settings.model_construct(store=False), worker=spec, runtimes=[FakeRuntime()])
    yield made
    await made.stop()


async def test_a_worker_serves_the_bundles_of_its_description_whatever_their_paths(tiny_bundle, tmp_path):
    folder = str(shutil.copytree(tiny_bundle.path, tmp_path / "a,b"))
    spec = WorkerSpec(serving=Changed(bundles={"tiny": folder}))

    made = build(Settings.model_construct(store=False, bundles=("fd001",)), worker=spec)
    await made.stop()

    assert made.catalog.bundles == {"tiny": folder}


def failing(*_, **__):
    raise ERROR


async def test_a_store_that_cannot_start_keeps_the_service_from_becoming_ready(parts, monkeypatch):
    monkeypatch.setattr(parts.store, "start", failing)

    with pytest.raises(RuntimeError):
        await parts.become_ready(settle=lambda **_: None)

    assert parts.lifecycle.phase is Phase.STARTING


async def test_a_first_worker_that_fails_to_become_ready_logs_why_and_ends_the_service(
    parts, short_path, monkeypatch
):
    monkeypatch.setattr(parts.catalog, "restore", failing)
    settings = SimpleNamespace(worker_count=lambda: 2)
    supervisor = Workers(settings, short_path, address=("127.0.0.1", 1), ready=print)

    with capture_logs() as logged:
        await parts.start()
        with pytest.raises(FrontEndFailed, match="its log has the reason"):
            await supervisor._start_others()

    (failed,) = [event for event in logged if event["log_level"] == "error"]
    assert (failed["reason"], failed["exc_info"]) == (str(ERROR), ERROR)


async def test_a_service_is_not_alive_once_a_task_that_it_needs_has_failed(parts, monkeypatch):
    async def wait(*_):
        await asyncio.Event().wait()

    async def fail():
        raise ERROR

    monkeypatch.setattr(parts.catalog, "restore", wait)
    monkeypatch.setattr(parts.desk.credentials, "watch", fail)

    with capture_logs() as logged:
        await parts.start()
        parts.lifecycle.check_alive()
        await until(lambda: "background task failed" in [event["event"] for event in logged])

    (failed,) = (event for event in logged if event["event"] == "background task failed")
    assert (failed["log_level"], failed["exc_info"]) == ("error", ERROR)
    with pytest.raises(RuntimeFailed):
        parts.lifecycle.check_alive()
