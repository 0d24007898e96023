"""`POST /v1/predict` and `/v1/explain`: decode the body to a query or problems, encode the reply.

This module knows JSON and the shape of a query; it must not know what a model reads.
"""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter

import msgspec
import orjson

from service.core.queries import Explain, PredictQuery, PredictReply
from service.core.turns import AT_ONCE, LARGE_BYTES, in_slices, is_large
from service.http.careful import Careful
from service.http.problem import UNREADABLE
from service.http.shell import Call, Reply, encode
from service.labels import Stage


def explain(call: Call) -> Awaitable[Reply]:
    """Answer windows with full explanations, whatever the body asks for."""
    return predict(call, explain=Explain.FULL)


async def predict(call: Call, explain: Explain | None = None) -> Reply:
    """Answer windows."""
    exchange, start = call.exchange, perf_counter()
    query, model, parts = decode(call.body), None, None
    exchange.stages.append((Stage.DECODE, start, perf_counter()))
    if query is None:  # in slices that let other requests run: no stage
        async with call.desk.large_requests:
            query, model, parts = await Careful(call.desk.predictor).read(call.body)
    query.explain = explain or query.explain
    exchange.windows = len(query.windows)
    reply = await call.desk.predictor.predict(
        query, model=model, parts=parts, stages=exchange.stages, tenant=exchange.caller.tenant
    )
    if len(reply.predictions) > AT_ONCE:
        return Reply(await _encoded_in_slices(reply))
    start = perf_counter()
    body = encode(reply)
    exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    return Reply(body)


def decode(body: bytes) -> PredictQuery | None:
    """Read a body at once; return None if it is large or wrong.

    `orjson` decodes it, because `msgspec` takes 10 µs instead of 30 ns for numbers at the ends of float64.
    """
    if len(body) > LARGE_BYTES and is_large(body):
        return None
    try:
        return msgspec.convert(orjson.loads(body), PredictQuery)
    except UNREADABLE:
        return None


async def _encoded_in_slices(reply: PredictReply) -> bytes:
    """Encode a large reply in slices that let other requests run: these are no stage."""
    head = encode(PredictReply(reply.model, [])).removesuffix(b"]}")
    lists = await in_slices(reply.predictions, AT_ONCE, encode)
    return head + b",".join(memoryview(part)[1:-1] for part in lists) + b"]}"
