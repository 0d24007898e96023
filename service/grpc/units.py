"""`rul.v1.RulService/AppendCycles`: the messages of `POST /v1/units/{unit}/cycles`."""

from __future__ import annotations

from time import perf_counter

from service.core.queries import Explain
from service.core.turns import LARGE_BYTES
from service.edge.exchange import Desk, Exchange, Limit
from service.errors import TooLarge
from service.grpc.call import parsed
from service.grpc.predict import costs_of, explain_of, fill, fill_error, model_reference, stored
from service.labels import Stage
from service.proto import rul_v1_pb2 as pb
from service.units import CyclesReply, given_rows


async def append(desk: Desk, raw: bytes, exchange: Exchange, _limit: Limit) -> bytes:
    """Store the readings of a message, and answer with the unit's prediction."""
    if len(raw) > LARGE_BYTES:  # a Python object for each value
        raise TooLarge(f"expected at most {LARGE_BYTES} bytes, got {len(raw)}; send readings in parts")
    start = perf_counter()
    request = parsed(pb.AppendCyclesRequest, raw)
    model = desk.predictor.model(request.model or None)
    rows = [
        (reading.cycle if reading.HasField("cycle") else None, reading.values, reading.columns)
        for reading in request.readings
    ]
    given = given_rows(rows, model.rules, "/readings/{}".format)
    exchange.stages.append((Stage.DECODE, start, perf_counter()))
    exchange.windows = 1
    reply = await desk.units.append(
        model,
        request.unit,
        given,
        explain=explain_of(request.explain) if request.explain else Explain.NONE,
        store=stored(request),
        costs=costs_of(request),
        stages=exchange.stages,
        tenant=exchange.caller.tenant,
    )
    start = perf_counter()
    encoded = append_reply(reply)
    exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    return encoded


def append_reply(reply: CyclesReply) -> bytes:
    """A `CyclesReply` on the wire."""
    message = pb.AppendCyclesReply(
        unit=reply.unit,
        model=model_reference(reply.model),
        stored=reply.stored,
        repeated=reply.repeated,
        last_cycle=reply.last_cycle,
    )
    if reply.prediction is not None:
        fill(message.prediction, reply.prediction)
    if reply.refusal is not None:
        fill_error(message.refusal, reply.refusal)
    return message.SerializeToString()
