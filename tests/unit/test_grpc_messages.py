"""Arrays go through the wire format: protobuf itself must find there what it would have put there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from model.domain import RulState
from service.errors import Problem
from service.grpc_messages import fill_prediction, floats, predict_reply, window_input
from service.messages import (
    Attention,
    HealthState,
    Interval,
    ModelName,
    Prediction,
    PredictReply,
    Refused,
    WindowError,
)
from service.proto import rul_v1_pb2 as pb
from service.window import Caution

numbers = st.lists(st.floats(width=32), max_size=80)
NAME = ModelName("fd001", "1", "f" * 64)


@given(numbers)
def test_the_numbers_of_a_message_are_read_exactly(values):
    message = pb.Readings.FromString(pb.Readings(values=values).SerializeToString())

    np.testing.assert_array_equal(floats(message), np.array(values, dtype=np.float32))


@pytest.mark.parametrize("count", [0, 1, 31, 32, 4095, 4096, 600_000])
def test_a_length_of_any_size_is_read(count):
    values = np.arange(count, dtype=np.float32)

    np.testing.assert_array_equal(floats(pb.Readings(values=values.tolist())), values)


def test_numbers_that_a_client_did_not_pack_are_read_too():
    raw = b"".join(b"\x0d" + np.float32(value).tobytes() for value in (1.5, 2.5))

    assert floats(pb.Series.FromString(raw)).tolist() == [1.5, 2.5]


def test_fields_that_are_not_known_harm_no_number():
    raw = b"\x98\x06\x01" + pb.Series(values=[1.5, 2.5]).SerializeToString() + b"\x98\x06\x02"

    assert floats(pb.Series.FromString(raw)).tolist() == [1.5, 2.5]


@given(numbers, st.sampled_from([None, 0.5]))
def test_an_attention_of_any_size_is_what_protobuf_writes(values, entropy):
    cycles = [*range(len(values))]
    message = pb.Prediction()

    fill_prediction(message, answer(Attention(cycles, values, values[::-1], 70.0, entropy, 1.5)))

    wanted = pb.Attention(
        cycles=cycles,
        weights=values,
        contributions=values[::-1],
        baseline=70.0,
        entropy_ratio=entropy,
        effective_cycles=1.5,
    )
    assert message.attention.SerializeToString() == wanted.SerializeToString()


def answer(attention):
    interval, health = Interval(0.5, 0.0, 0.0), HealthState("healthy", {})
    return Prediction(None, 0.0, RulState.ESTIMATED, interval, {}, health, 0.0, [], attention, UNSET)


def test_values_that_fill_no_whole_rows_stay_one_row():
    given_window = window_input(pb.Window(readings=pb.Readings(values=[1.0, 2.0, 3.0])), 2)

    assert given_window.readings == [[1.0, 2.0, 3.0]]
    assert (given_window.unit, given_window.last_cycle) == (None, None)


def test_every_field_of_a_prediction_is_in_its_message():
    attention = Attention([1, 2], [0.25, 0.75], [-3.5, 4.0], 70.0, 0.5, 1.5)
    answered = Prediction(
        "7",
        38.25,
        RulState.ESTIMATED,
        Interval(0.5, 27.0, 51.0),
        {"10": 0.125, "30": 0.25},
        HealthState("degrading", {"healthy": 0.25, "degrading": 0.5, "critical": 0.25}),
        0.125,
        [Caution("out_of_range", "high", "sensor_1"), Caution("truncated_to_context", "cut")],
        attention,
        {"sensor_1": -1.5},
    )

    reply = pb.PredictReply.FromString(predict_reply(PredictReply(NAME, [answered])).SerializeToString())

    assert reply == pb.PredictReply(
        model=pb.ModelReference(name="fd001", version="1", sha256="f" * 64),
        predictions=[
            pb.Prediction(
                unit="7",
                rul=38.25,
                rul_state="estimated",
                interval=pb.Interval(coverage=0.5, lower=27.0, upper=51.0),
                failure_probability={10: 0.125, 30: 0.25},
                health_state=pb.HealthState(
                    label="degrading", probabilities={"healthy": 0.25, "degrading": 0.5, "critical": 0.25}
                ),
                attention=pb.Attention(
                    cycles=[1, 2],
                    weights=[0.25, 0.75],
                    contributions=[-3.5, 4.0],
                    baseline=70.0,
                    entropy_ratio=0.5,
                    effective_cycles=1.5,
                ),
                imputed_fraction=0.125,
                warnings=[
                    pb.Warning(code="out_of_range", column="sensor_1", detail="high"),
                    pb.Warning(code="truncated_to_context", detail="cut"),
                ],
                sensor_contributions={"sensor_1": -1.5},
            )
        ],
    )


def test_what_was_not_asked_for_and_what_is_not_known_is_left_out():
    short = Attention([1], [1.0], [0.0], 70.0, None, 1.0)
    plain, of_one_cycle = answer(UNSET), answer(short)

    first, second = predict_reply(PredictReply(NAME, [plain, of_one_cycle])).predictions

    assert not first.HasField("unit")
    assert not first.HasField("attention")
    assert not first.HasField("error")
    assert second.HasField("attention")
    assert not second.attention.HasField("entropy_ratio")


def test_a_refused_window_carries_its_error():
    error = WindowError("The window cannot be read", "why", [Problem("/windows/0", "empty", "none")])

    (message,) = predict_reply(PredictReply(NAME, [Refused("7", error)])).predictions

    assert message.unit == "7"
    assert message.error == pb.WindowError(
        title=error.title,
        detail="why",
        errors=[pb.Problem(pointer="/windows/0", code="empty", detail="none")],
    )
