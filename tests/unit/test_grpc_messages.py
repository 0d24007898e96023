"""What is read and written on the wire: protobuf itself must find there what it would have put there."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, to_builtins

from model.domain import RulState
from service.core.queries import (
    Attention,
    Caution,
    Clause,
    Explanation,
    HealthState,
    Interval,
    ModelName,
    Prediction,
    PredictReply,
    Refused,
    Together,
    Trust,
    UsualRange,
    WindowError,
)
from service.errors import MalformedBody, Problem, TooLarge
from service.grpc.call import parsed
from service.grpc.fields import MOST_FIELDS, check_fields
from service.grpc.oip import query_of
from service.grpc.predict import (
    floats,
    packed,
    predict_query,
    predict_reply,
    tag,
    window_input,
)
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as pb
from tests.fakes import RULES

numbers = st.lists(st.floats(width=32), max_size=80)
NAME = ModelName("fd001", "1", "f" * 64)


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


def test_fields_of_a_tensor_that_are_not_known_harm_no_number():
    contents = oip.InferTensorContents(fp32_contents=[1.5, 2.5]).SerializeToString() + b"\x98\x06\x02"
    tensor = oip.ModelInferRequest.InferInputTensor(name="readings", datatype="FP32", shape=[1, 1, 2])
    tensor.contents.MergeFromString(contents)

    (given,) = query_of(oip.ModelInferRequest(inputs=[tensor])).inputs

    assert given.contents.tolist() == [1.5, 2.5]


def test_a_message_has_at_most_the_fields_that_its_refusal_names():
    check_fields(pb.PredictRequest.DESCRIPTOR, b"\x0a\x00" * MOST_FIELDS)

    with pytest.raises(TooLarge, match=f"at most {MOST_FIELDS} fields"):
        check_fields(pb.PredictRequest.DESCRIPTOR, b"\x0a\x00" * (MOST_FIELDS + 1))


number = st.floats(width=32)
texts = st.text(max_size=150)
CAUTION_CODES = ("out_of_range", "last_cycle_unknown")


@st.composite
def attentions(draw):
    """Of any number of cycles, and with or without an entropy."""
    weights = draw(numbers)
    first, ratio = draw(st.integers(1, 2**24 - 100)), draw(st.none() | number)
    cycles = [*range(first, first + len(weights))]
    return Attention(
        cycles,
        weights,
        weights[::-1],
        draw(number),
        ratio,
        draw(number),
        draw(numbers | st.just(UNSET)),
        draw(number | st.just(UNSET)),
    )


@st.composite
def explanations(draw):
    """Of any sensors and cycles, with and without clauses and an agreement."""
    by_name = draw(st.dictionaries(texts, numbers, max_size=3))
    clause = st.builds(
        Clause, texts, st.sampled_from(["above", "below"]), st.integers(0, 2**24), number, number, texts
    )
    together = st.builds(
        Together, st.lists(texts, max_size=3), st.lists(st.integers(0, 99), max_size=3), number, number, texts
    )
    return Explanation(
        [*by_name],
        draw(st.lists(st.integers(0, 2**24), max_size=5)),
        by_name,
        {name: UsualRange(values, values[::-1]) for name, values in by_name.items()},
        draw(texts),
        draw(st.lists(clause, max_size=2)),
        draw(together | st.none()),
        draw(number | st.none()),
        draw(number),
        draw(st.integers(0, 2**20)),
        draw(number),
        draw(number),
    )


@st.composite
def predictions(draw):
    """Whatever a model may be called to say, with each part that may be left out."""
    return Prediction(
        draw(st.none() | texts),
        draw(number),
        draw(st.sampled_from(RulState)),
        Interval(draw(number), draw(number), draw(number)),
        draw(st.dictionaries(st.integers(0, 2**32 - 1).map(str), number, max_size=5)),
        HealthState(draw(texts), draw(st.dictionaries(texts, number, max_size=5))),
        draw(number),
        draw(
            st.lists(st.builds(Caution, st.sampled_from(CAUTION_CODES), texts, st.none() | texts), max_size=2)
        ),
        draw(attentions() | st.just(UNSET)),
        draw(st.dictionaries(texts, number, max_size=3) | st.just(UNSET)),
        draw(st.sampled_from(Trust) | st.just(UNSET)),
        draw(explanations() | st.just(UNSET)),
    )


def message_of(prediction):
    """A prediction as a message, by its fields alone."""
    fields = to_builtins(prediction)
    fields["failure_probability"] = {int(key): value for key, value in prediction.failure_probability.items()}
    if "explanation" in fields:
        given = fields["explanation"]
        given["contributions"] = {n: pb.Series(values=values) for n, values in given["contributions"].items()}
        given["usual"] = {n: pb.UsualRange(**limits) for n, limits in given["usual"].items()}
    return pb.Prediction(**fields)


def canonical(message):
    """One order of maps, and NaN as it was written."""
    return message.SerializeToString(deterministic=True)


@given(st.lists(predictions(), max_size=3))
def test_a_reply_holds_its_model_and_every_prediction_in_order(given_predictions):
    reply = pb.PredictReply.FromString(predict_reply(PredictReply(NAME, given_predictions)))

    assert reply.model == pb.ModelReference(name="fd001", version="1", sha256="f" * 64)
    assert [*map(canonical, reply.predictions)] == [*map(canonical, map(message_of, given_predictions))]


def rules_of(columns):
    """The rules of a model with so many columns."""
    return replace(RULES, names=tuple(map(str, range(columns))))


@given(st.none() | texts, st.none() | number, numbers.filter(bool), st.integers(1, 5))
def test_a_window_by_rows_is_read_exactly(unit, last_cycle, values, columns):
    window = pb.Window(unit=unit, last_cycle=last_cycle, readings=pb.Readings(values=values))

    found = window_input(pb.Window.FromString(window.SerializeToString()), rules_of(columns))

    assert (found.unit, str(found.last_cycle)) == (unit, str(last_cycle))
    assert found.columns is None
    assert len(found.readings) == (len(values) // columns if len(values) % columns == 0 else 1)
    np.testing.assert_array_equal(np.ravel(found.readings), np.array(values, dtype=np.float32))


@given(st.dictionaries(texts, numbers, max_size=3))
def test_a_window_by_columns_is_read_exactly(columns):
    series = {name: pb.Series(values=values) for name, values in columns.items()}

    found = window_input(
        pb.Window(columns=pb.Columns(columns=series)), replace(RULES, known=frozenset(columns))
    )

    assert found.readings is None
    assert found.columns.keys() == columns.keys()
    for name, values in columns.items():
        np.testing.assert_array_equal(found.columns[name], np.array(values, dtype=np.float32))


@given(st.binary(max_size=200), st.integers(1, 5))
def test_any_bytes_are_refused_or_read(raw, columns):
    try:
        query = predict_query(parsed(pb.PredictRequest, raw), rules_of(columns))
    except MalformedBody:
        return
    assert isinstance(query.windows, list)


@given(st.integers(1, 2000), numbers)
def test_packed_numbers_are_on_the_wire_what_protobuf_makes_of_them(size, values):
    assert packed(1, values) == (pb.Series(values=values).SerializeToString() or tag(1, 0))
    assert tag(1, size) + b"a" * size == pb.GetModelRequest(name="a" * size).SerializeToString()


def replied(*predictions_or_refusals):
    return pb.PredictReply.FromString(predict_reply(PredictReply(NAME, [*predictions_or_refusals])))


def test_a_refused_window_carries_its_error():
    error = WindowError("The window cannot be read", "why", [Problem("/windows/0", "empty", "none")])

    (message,) = replied(Refused("7", error)).predictions

    assert message.unit == "7"
    assert message.error == pb.WindowError(
        title=error.title,
        detail="why",
        errors=[pb.Problem(pointer="/windows/0", code="empty", detail="none")],
    )
