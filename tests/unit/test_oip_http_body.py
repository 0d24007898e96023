"""Bodies of the Open Inference Protocol: whatever is right comes through, whatever is not is refused."""

import asyncio
import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.core.queries import ModelName
from service.errors import InvalidRequest, InvalidTensor, MalformedBody, status_of
from service.http import oip_body
from service.http.oip import encoded
from service.http.oip_body import Form
from service.oip.tensors import TensorSpec, array_of
from tests.examples import json_values
from tests.oip import arrays_of, binary_request, described, json_request

DTYPES = {"<f4": "FP32", "<i8": "INT64"}
ANY_SHAPE = arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)
NUMBERS = st.sampled_from(list(DTYPES)).flatmap(
    lambda dtype: arrays.arrays(
        dtype, ANY_SHAPE, elements=st.floats(width=32, allow_infinity=False) if dtype == "<f4" else None
    )
)
TENSORS = st.dictionaries(st.text(min_size=1, max_size=8), NUMBERS, min_size=1, max_size=4)
MODEL = ModelName("m", "1", "0")
READINGS = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def decoded(body, header):
    """A body as the service reads it: in one call, or else in slices."""
    return oip_body.decoded(body, header) or asyncio.run(oip_body.decoded_in_slices(body, header))


def read(body, header=b""):
    """The arrays of a body, each taken at its own word."""
    query, _ = decoded(body, header)
    return {
        tensor.name: array_of(tensor, TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)))
        for tensor in query.inputs
    }


def assert_equal(got, expected):
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def one(**changed):
    """A request for READINGS with one thing changed."""
    return json.dumps(
        {"inputs": [described("readings", READINGS, data=READINGS.ravel().tolist()) | changed]}
    ).encode()


def status_or_answer(call):
    """What a call answers, or the status of its refusal; anything else that it raises is a defect."""
    try:
        return call()
    except InvalidRequest as error:
        return status_of(error).http


# What is right


@given(TENSORS)
def test_any_tensors_come_through_as_binary(given_arrays):
    body, size = binary_request(given_arrays)

    assert_equal(read(body, str(size).encode()), given_arrays)


@given(TENSORS)
def test_any_tensors_come_through_as_json(given_arrays):
    body = json.dumps(json_request(given_arrays)).encode()

    assert_equal(read(body), given_arrays)


@given(TENSORS, st.sets(st.integers(0, 3)), st.booleans())
def test_any_outputs_come_back_as_they_were_wanted(given_arrays, as_json, binary):
    arrays = {name: a.astype("<f4") for name, a in given_arrays.items() if not np.isnan(a).any()}
    specs = [TensorSpec(name, "FP32", array.shape) for name, array in arrays.items()]
    wanted = [
        {"name": name} | ({"parameters": {"binary_data": False}} if i in as_json else {})
        for i, name in enumerate(arrays)
    ]
    body = {"inputs": [], "outputs": wanted, "parameters": {"binary_data_output": binary}}
    _, form = decoded(json.dumps(body).encode(), b"")

    answer, size = encoded(MODEL, "", specs, [*arrays.values()], form, written={})

    assert (size is None) == (not binary or set(range(len(specs))) <= as_json)
    assert_equal(arrays_of(answer, size), arrays)


def test_contents_that_lie_unaligned_are_read_aligned():
    for spaces in range(8):
        body, size = binary_request({"lengths": np.array([1, 2], dtype=np.int64)}, id=" " * spaces)
        (array,) = read(body, str(size).encode()).values()

        assert array.flags.aligned
        assert array.tolist() == [1, 2]


def test_aligned_contents_are_not_copied():
    body, size = binary_request({"readings": READINGS})
    padded = b" " * (-size % 16) + body  # JSON may begin with spaces

    (array,) = read(padded, str(size + -size % 16).encode()).values()

    assert np.shares_memory(array, np.frombuffer(padded, np.uint8))


def test_unknown_fields_and_parameters_are_let_through():
    body = json.dumps({"model_name": "m", "inputs": [], "parameters": {"priority": 1, "mine": "x"}}).encode()

    assert decoded(body, b"")[0].inputs == []


@pytest.mark.parametrize(
    ("parameters", "seconds"), [({}, math.inf), ({"timeout": 0}, math.inf), ({"timeout": 1500}, 0.0015)]
)
def test_a_timeout_is_in_microseconds(parameters, seconds):
    body = json.dumps({"inputs": [], "parameters": parameters}).encode()

    assert decoded(body, b"")[0].timeout_seconds == seconds


def test_a_missing_output_value_is_null():
    form = Form(is_binary=False, by_name={})

    body, _ = encoded(
        MODEL, "", [TensorSpec("rul", "FP32", (1,))], [np.array([np.nan], "<f4")], form, written={}
    )

    assert json.loads(body)["outputs"][0]["data"] == [None]


# What is not


@given(TENSORS, st.data())
def test_a_truncated_body_is_refused(given_arrays, data):
    body, size = binary_request(given_arrays)
    cut = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises(InvalidRequest) as caught:
        decoded(body[:cut], str(size).encode())

    assert status_of(caught.value).http == 400


@given(TENSORS, st.data())
def test_a_header_that_lies_is_refused(given_arrays, data):
    body, size = binary_request(given_arrays)
    lie = data.draw(st.integers(0, len(body) + 10).filter(lambda n: n != size))

    # Wherever JSON ends, the sizes of its tensors no longer add up to what is behind it.
    assert status_or_answer(lambda: decoded(body, str(lie).encode())) == 400


@given(
    st.binary(max_size=200),
    st.one_of(st.just(b""), st.integers(0, 250).map(lambda n: b"%d" % n), st.binary(max_size=8)),
)
def test_any_bytes_are_refused_or_read(body, header):
    answer = status_or_answer(lambda: decoded(body, header))

    assert answer == 400 or isinstance(answer, tuple)


@given(
    json_values(
        "inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "id", "binary_data_size"
    )
)
def test_any_json_is_refused_or_read(value):
    answer = status_or_answer(lambda: read(json.dumps(value).encode()))

    assert answer == 400 or isinstance(answer, dict)


@pytest.mark.parametrize(
    "header", [b"-1", b"1e3", b"0x10", b" 5", b"9" * 30, "²".encode("latin-1"), b"99999"]
)
def test_a_header_that_is_no_size_of_this_body_is_refused(header):
    with pytest.raises(MalformedBody, match="inference-header-content-length: expected a number up to"):
        decoded(one(), header)


@pytest.mark.parametrize("size", [-1, 2**80, 23, 25, 24.0, "24", True, [24]])
def test_a_binary_size_that_is_not_the_contents_is_refused(size):
    head = json.dumps(
        {"inputs": [described("readings", READINGS, parameters={"binary_data_size": size})]}
    ).encode()

    with pytest.raises((InvalidTensor, MalformedBody)):
        read(head + READINGS.tobytes(), str(len(head)).encode())


def test_bytes_behind_the_last_tensor_are_refused():
    body, size = binary_request({"readings": READINGS})

    with pytest.raises(InvalidTensor, match=r"expected 24 bytes after the JSON.*, got 25"):
        read(body + b"0", str(size).encode())


@pytest.mark.parametrize(
    "data",
    [
        ["1", 2, 3, 4, 5, 6],
        [True, 2, 3, 4, 5, 6],
        {},
        "AAAA",
        7,
        None,
        [[0, 1, 2], [3, 4]],
        [[[0, 1], [2, 3], [4, 5]]],
    ],
)
def test_data_that_are_not_numbers_of_the_shape_are_refused(data):
    with pytest.raises(InvalidTensor, match="'readings'"):
        read(one(data=data))


@pytest.mark.parametrize("count", [6, 99_999])
def test_the_place_of_a_value_that_is_no_number_is_named(count):
    data = [1.5] * count
    data[count - 2] = "high"

    with pytest.raises(InvalidTensor, match=rf"'readings': data/{count - 2}: Expected .* got `str`"):
        read(one(data=data, shape=[1, count // 3, 3]))


def test_the_place_of_a_size_that_is_no_number_is_named():
    with pytest.raises(MalformedBody, match=r"^/inputs/0/shape/1: Expected `int`, got `str`"):
        read(one(shape=[1, "two", 3]))


@pytest.mark.parametrize("missing", [None, math.nan])
@pytest.mark.parametrize("cycles", [2, 40_000])
def test_lists_of_lists_of_the_shape_are_read(cycles, missing):
    rows = [[[0.5, missing, 2.0]] * cycles]

    (array,) = read(one(data=rows, shape=[1, cycles, 3])).values()

    np.testing.assert_array_equal(array, np.array([[[0.5, math.nan, 2.0]] * cycles], "<f4"))


def test_nan_is_read_wherever_a_large_body_is_cut():
    count, draw = 300_000, random.Random(1)
    values = draw.choices(["NaN", " NaN", "NaN \n", "\t NaN\r\n ", "1.5", " -2"], k=count)
    text = one(data=[0.0], shape=[1, count // 3, 3]).decode().replace("[0.0]", f"[{','.join(values)}]")

    (array,) = read(text.encode()).values()

    np.testing.assert_array_equal(array.ravel(), np.array([float(value) for value in values], "<f4"))


@pytest.mark.parametrize("value", ["-NaN", "1NaN", "NaNs", "Na"])
def test_what_only_resembles_nan_is_refused_wherever_it_stands(value):
    values = ",".join(["NaN"] * 90_000 + [value] * 3)
    text = one(data=[0.0], shape=[1, 30_001, 3]).decode().replace("[0.0]", f"[{values}]")

    with pytest.raises(InvalidRequest):
        read(text.encode())


@pytest.mark.parametrize("data", [[1.5, 2], [None, 1], [2**63, 1], ["1", 1]])
def test_lengths_are_whole_numbers(data):
    tensor = described("lengths", np.array([1, 2], dtype=np.int64), data=data)

    with pytest.raises((InvalidTensor, MalformedBody)):
        read(json.dumps({"inputs": [tensor]}).encode())


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({"inputs": [{"name": "x"}]}, "/inputs/0"),
        ({"inputs": [], "id": 3}, "/id"),
        ({"inputs": [], "outputs": [{"name": 1}]}, "/outputs/0/name"),
        ({"inputs": [], "parameters": []}, "/parameters"),
        (
            {"inputs": [], "parameters": {"timeout": "soon"}},
            "timeout: expected whole microseconds, got 'soon'",
        ),
        ({"inputs": [], "parameters": {"timeout": -5}}, "timeout"),
        (
            {"inputs": [], "parameters": {"binary_data_output": 1}},
            "binary_data_output to be true or false, got 1",
        ),
        ({"inputs": [], "outputs": [{"name": "rul", "parameters": {"binary_data": "yes"}}]}, "output 'rul'"),
        ({"inputs": [], "outputs": [{"name": "rul"}] * 1000}, "at most 32"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(body, match):
    with pytest.raises(MalformedBody, match=match):
        decoded(json.dumps(body).encode(), b"")
