"""The supervisor and its workers understand each other."""

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from service.core.changes import Action, Candidate, Change, Changed
from service.core.queries import ModelName
from service.processes.admin import count_refusals
from service.processes.changes import WorkerChanges
from service.processes.control import VARIABLE, Control, WorkerSpec, send

SECONDS = 10


@pytest.fixture
async def worker(short_path):
    async def drain():
        return "drained"

    control = Control({"drain": drain})
    await control.open(short_path / "worker")
    yield short_path / "worker"
    control.close()


async def test_a_command_is_answered_with_its_result(worker):
    assert await send(worker, "drain") == "drained"


async def test_a_word_that_is_not_known_is_answered_with_those_that_are(worker):
    assert await send(worker, "dance") == "expected drain"


async def test_lines_have_room_for_hundreds_of_models(short_path):
    async def prepare(change):
        return change

    control, line = Control({"prepare": prepare}), "x" * 1_000_000
    await control.open(short_path / "models")

    reply = await send(short_path / "models", f"prepare {line}")
    control.close()

    assert reply == line


async def test_a_supervisor_that_disconnects_has_no_effect(worker):
    _, writer = await asyncio.open_unix_connection(worker)
    writer.close()
    await writer.wait_closed()

    assert await send(worker, "drain") == "drained"


async def test_where_nobody_listens_it_is_an_error(short_path):
    with pytest.raises(FileNotFoundError):
        await send(short_path / "worker", "drain")


async def test_what_envoy_refuses_is_counted_by_reason_as_it_grows(short_path):
    shown = iter([(3, 0), (3, 0), (10, 1)])
    seen, found = asyncio.Event(), []

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        connections, denied = next(shown, (10, 1))
        counters = f"listener.[__]_3000.downstream_global_cx_overflow: {connections}\r\n"
        writer.write(f"{counters}http.ingress_http.rbac.denied: {denied}\n".encode())
        writer.close()

    def count(reason, more):
        found.append((reason, more))
        if len(found) == 3:
            seen.set()

    async with await asyncio.start_unix_server(answer, short_path / "admin"):
        counting = asyncio.ensure_future(count_refusals(short_path / "admin", count, seconds=0))
        await asyncio.wait_for(seen.wait(), SECONDS)
        counting.cancel()
        await asyncio.wait({counting})

    assert found == [("connections", 3), ("connections", 7), ("invalid", 1)]


async def test_a_worker_that_ends_before_it_answers_is_an_error(short_path):
    async def hang_up(_reader, writer):
        writer.close()

    server = await asyncio.start_unix_server(hang_up, short_path / "worker")

    with pytest.raises((EOFError, ConnectionError)):
        await send(short_path / "worker", "ready")
    server.close()


def test_a_worker_reads_what_its_supervisor_wrote(monkeypatch, short_path):
    candidate = Candidate(Change(Action.CANARY, "fd001", "a"), ModelName("fd001", "2", "f"))
    serving = Changed(bundles={"fd001": "a"}, candidates={"fd001": candidate})
    spec = WorkerSpec(index=1, board=short_path / "board", control=short_path / "worker-1", serving=serving)
    for name, value in spec.as_environment().items():
        monkeypatch.setenv(name, value)

    assert WorkerSpec.read() == spec


def test_a_process_without_a_supervisor_has_no_description(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)

    assert WorkerSpec.read() is None


class BrokenCatalog:
    async def prepare(self, _change):
        raise ValueError("a surprise")

    def commit(self):
        raise ValueError("a surprise")


@pytest.mark.parametrize("command", [("prepare", '{"action": "unload"}'), ("commit",)])
async def test_a_change_that_fails_in_a_worker_is_answered_and_logged(command):
    name, *argument = command
    commands = WorkerChanges(BrokenCatalog(), supervisor=None).commands()

    with capture_logs() as said:
        reply = await commands[name](*argument)

    assert msgspec.json.decode(reply, type=Changed).error == "internal"
    assert [line["event"] for line in said] == ["change of models failed"]
