"""`PredictStream` of the real process, behind both front ends: equal to Predict, and gone without a trace."""

import asyncio
import signal

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.asking import Stream
from tests.examples import examples
from tests.golden.comparison import differences
from tests.integration.conftest import ANSWER_SECONDS, FRONT_ENDS, STOP_SECONDS, metric, running
from tests.tiny_bundle import COLUMNS, FLEET
from tests.waiting import wait_until

CLOSER = 1e-5
MANY = 200


@st.composite
def lives(draw, columns: int):
    """Readings of a unit, some missing, what the stream knows before it begins, and its first cycle."""
    cycles = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    readings = random.normal(50, 20, (cycles, columns)).astype(np.float32)
    readings[random.random(readings.shape) < draw(st.sampled_from([0.0, 0.2]))] = np.nan
    return readings, draw(st.integers(0, cycles - 1)), draw(st.none() | st.integers(0, 300))


@given(life=lives(len(COLUMNS)))
@examples(8)
def test_each_answer_of_a_stream_is_that_of_predict_on_the_last_context_readings(life, stub):
    readings, before, first = life
    history = pb.Readings(values=readings[:before].ravel().tolist()) if before else None
    known = {} if first is None else {"first_cycle": first}
    try:
        stream = Stream(stub, unit="7", readings=history, explain=pb.EXPLAIN_FULL, **known)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017
        whole = pb.PredictRequest(windows=[pb.Window(readings=history)], partial=True)
        assert stub.Predict(whole).predictions[0].HasField("error")  # too much of it is missing
        return
    for end in range(before + 1, len(readings) + 1):
        last = {} if first is None else {"last_cycle": first + end - 1}
        window = pb.Window(
            unit="7",
            readings=pb.Readings(values=readings[max(0, end - FLEET.context) : end].ravel().tolist()),
            **last,
        )
        request = pb.PredictRequest(windows=[window], explain=pb.EXPLAIN_FULL, partial=True)

        answer = stream.ask(readings[end - 1].tolist())

        (alone,) = stub.Predict(request).predictions
        if alone.HasField("error"):
            assert [p.code for p in answer.error.errors] == [p.code for p in alone.error.errors]
        else:
            got, expected = MessageToDict(answer.prediction), MessageToDict(alone)
            assert differences(got, expected, tolerance=CLOSER) == []
    stream.close()


async def test_many_streams_of_one_connection_answer_for_their_own_unit(server, golden):
    row = golden.readings[0][0].tolist()

    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        units = await asyncio.gather(*(ask_thrice(stub, str(i), row) for i in range(MANY)))

    assert units == [{str(i)} for i in range(MANY)]


async def ask_thrice(stub, unit: str, row: list[float]) -> set[str]:
    call = stub.PredictStream()
    await call.write(pb.StreamRequest(open=pb.StreamOpen(unit=unit, explain=pb.EXPLAIN_NONE)))
    await call.read()
    units = set()
    for _ in range(3):
        await call.write(pb.StreamRequest(reading=pb.Reading(values=row)))
        units.add((await call.read()).prediction.unit)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    return units


@pytest.mark.parametrize("how", ["cancels", "closes its connection"])
def test_the_streams_of_a_disconnected_caller_end(server, golden, how):
    row = golden.readings[0][0].tolist()
    gone = {"code": "CANCELLED", "protocol": "grpc", "route": "rul.v1.RulService/PredictStream"}
    wait_until(
        lambda: metric(server, "rul_open_streams") == 0, ANSWER_SECONDS, what="those of other tests gone"
    )
    before = metric(server, "rul_requests_total", **gone)
    with grpc.insecure_channel(server.grpc) as channel:
        streams = [Stream(rul_v1_pb2_grpc.RulServiceStub(channel)) for _ in range(5)]
        for stream in streams:
            stream.ask(row)
            stream.send(row)
        if how == "cancels":
            for stream in streams:
                stream.call.cancel()
            wait_until(lambda: metric(server, "rul_open_streams") == 0, ANSWER_SECONDS, what="streams gone")

    wait_until(lambda: metric(server, "rul_open_streams") == 0, ANSWER_SECONDS, what="streams gone")
    wait_until(lambda: metric(server, "rul_inflight_requests") == 1, ANSWER_SECONDS, what="idleness")
    assert metric(server, "rul_requests_total", **gone) == before + 5


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_open_streams_end_when_the_service_stops_and_do_not_delay_it(
    front_end, tiny_bundle, tmp_path, golden
):
    row = golden.readings[0][0].tolist()
    with running(tmp_path, str(tiny_bundle.path), front_end=front_end, drain_seconds="25") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            streams = [Stream(rul_v1_pb2_grpc.RulServiceStub(channel)) for _ in range(20)]
            for stream in streams:
                stream.ask(row)

            server.process.send_signal(signal.SIGTERM)

            ends = [ending(stream) for stream in streams]
        assert server.process.wait(STOP_SECONDS) == 0

    assert {code for code, _ in ends} == {grpc.StatusCode.UNAVAILABLE}
    assert {"shutting down" in details for _, details in ends} == {True}


def ending(stream: Stream) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        next(stream.call)
    return caught.value.code(), caught.value.details()
