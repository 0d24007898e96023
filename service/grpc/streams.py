"""`PredictStream`: one reading in, one prediction out; the stream keeps the unit's window.

A reading that cannot be answered gets an error in place of its prediction, and the stream continues: one bad
reading must not lose the window. An invalid message, a drain, a revoked key, the caller's deadline or a long
silence ends a stream. This module knows messages; `window` keeps windows, and `life` ends streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from msgspec import to_builtins

from model.decision import Costs
from service.core.predictor import LoadedModel
from service.core.queries import Explain
from service.core.window import WindowInput
from service.edge.exchange import Desk, Exchange
from service.edge.keys import KeyScope
from service.errors import (
    Disconnected,
    MalformedBody,
    NotReady,
    Problem,
    listed,
    public,
    status_of,
)
from service.grpc.call import Context, caller_of, finish, parsed
from service.grpc.predict import costs_of, explain_of, fill, model_reference, stored, window_input
from service.labels import Route, Stage, Transport
from service.proto import rul_v1_pb2 as pb
from service.streams.life import Inbox
from service.streams.window import StreamWindow, reading_values
from service.units import check_name


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """The settings of a stream, from its first message."""

    model: LoadedModel
    unit: str | None
    explain: Explain
    window: StreamWindow
    store: bool
    costs: Costs | None


async def predict_stream(desk: Desk, messages: AsyncIterator[bytes], context: Context) -> None:
    """Answer one stream until its end."""
    inbox = Inbox(
        messages, idle_seconds=desk.streams.idle_seconds, remaining_seconds=context.time_remaining()
    )
    try:
        await _exchanged(desk, inbox, context)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if inbox.gone and task is not None and task.uncancel() == 0:
            raise Disconnected from None
        raise
    finally:
        inbox.close()


async def _exchanged(desk: Desk, inbox: Inbox, context: Context) -> None:
    metadata: dict[str, Any] = dict(context.invocation_metadata())
    given_id = metadata.get("x-request-id")
    with Exchange(desk, Transport.GRPC, Route.GRPC_STREAM, given_id, metadata) as exchange:
        exchange.caller = caller_of(desk.credentials, KeyScope.INGEST, metadata)
        may_stay = partial(desk.credentials.holds, exchange.caller, KeyScope.INGEST)
        with desk.streams.admitted(inbox, may_stay):
            opened = _open(desk, await inbox.take())
            reply = pb.StreamOpened(model=model_reference(opened.model.name), cycles=opened.window.cycles)
            await context.write(pb.StreamReply(opened=reply).SerializeToString())
            # A separate task: waking a task resumes every nested call in it, and there are many between here
            # and the server.
            await asyncio.ensure_future(_answer_all(desk, inbox, opened, context, exchange))
    if inbox.expired:
        raise TimeoutError
    finish(exchange, context)


async def _answer_all(desk: Desk, inbox: Inbox, opened: Opened, context: Context, stream: Exchange) -> None:
    while (raw := await inbox.take()) is not None:
        await context.write(await _answer(desk, raw, opened, context, stream))
        stream.windows += 1
        del raw  # it may be large, and the next one late


def _open(desk: Desk, raw: bytes | None) -> Opened:
    if raw is None:
        raise MalformedBody("expected a first message with `open`, got none")
    given: pb.StreamOpen = _part(raw, "open", "the first message")
    model = desk.predictor.model(given.model or None)
    explain = explain_of(given.explain, "/open/explain")
    unit = given.unit if given.HasField("unit") else None
    if unit is not None:
        check_name(unit, "/open/unit")
    window = StreamWindow(model.rules)
    first_cycle = given.first_cycle if given.HasField("first_cycle") else None
    window.begin(_history(given, model), first_cycle=first_cycle)
    costs = costs_of(given, "/open/costs")
    return Opened(model, unit, explain, window, stored(given), costs)


async def _answer(desk: Desk, raw: bytes, opened: Opened, context: Context, stream: Exchange) -> bytes:
    kept, reply = False, b""
    # An invalid message is an error of the stream and is counted once.
    reading: pb.Reading = _part(raw, "reading", "each message after the first")
    with Exchange(desk, Transport.GRPC, Route.GRPC_READING, stream.request_id) as exchange:
        start = perf_counter()
        values = reading_values(reading.values, reading.columns, opened.model.rules)
        opened.window.add(values, cycle=reading.cycle if reading.HasField("cycle") else None)
        kept, exchange.windows = True, 1
        window = opened.window.checked(opened.unit)
        exchange.stages.append((Stage.DECODE, start, perf_counter()))
        # The inbox notices a disconnect.
        with desk.limit(context.time_remaining(), None) as limit:
            await exchange.begin(len(raw), limit)
            _, (prediction,) = await desk.predictor.answer(
                opened.model,
                window,
                opened.explain,
                exchange.stages,
                stream.caller.tenant,
                store=opened.store,
                costs=opened.costs,
            )
        start = perf_counter()
        message = pb.StreamReply()
        fill(message.prediction, prediction)
        reply = message.SerializeToString()
        exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    error = exchange.error
    if error is None:
        return reply
    if isinstance(error, NotReady):
        raise error
    return pb.StreamReply(error=_error(error, kept=kept)).SerializeToString()


def _part(raw: bytes, name: str, where: str) -> Any:  # noqa: ANN401 one of the parts of the message
    message: Any = parsed(pb.StreamRequest, raw)
    if message.WhichOneof("message") != name:
        detail = f"expected `{name}` in {where}"
        raise MalformedBody(detail, [Problem(f"/{name}", "missing", detail)])
    return getattr(message, name)


def _history(given: pb.StreamOpen, model: LoadedModel) -> WindowInput | None:
    which: Any = given.WhichOneof("history")
    return which and window_input(pb.Window(**{which: getattr(given, which)}), model.rules)


def _error(error: Exception, *, kept: bool) -> pb.StreamError:
    shown, status = public(error), status_of(error)
    problems = to_builtins(listed(shown.problems))
    return pb.StreamError(code=status.grpc, title=status.title, detail=str(shown), errors=problems, kept=kept)
