"""The door from a declared tensor to an array: sizes are looked at before anything is made."""

import tracemalloc

import numpy as np
import pytest

from service.errors import InvalidTensor
from service.oip.tensors import GivenTensor, Signature, TensorSpec, array_of
from tests.fakes import make_manifest

SIGNATURE = Signature.of(make_manifest())
SPEC = SIGNATURE.inputs[0]  # readings, FP32 [-1, -1, 3]
HUGE = 2**62


def readings(shape=(1, 2, 3), *, name="readings", datatype="FP32", contents=None):
    return GivenTensor(name, datatype, shape, np.zeros(6, "<f4").tobytes() if contents is None else contents)


def test_raw_and_single_numbers_make_the_same_array():
    values = [0.5, None, 2.0, 3.0, 4.0, 5.0]
    raw = np.array(values, dtype="<f4").tobytes()

    by_number, by_byte = array_of(readings(contents=values), SPEC), array_of(readings(contents=raw), SPEC)

    np.testing.assert_array_equal(by_number, by_byte)
    assert by_number.dtype == by_byte.dtype == np.float32
    assert by_number.shape == by_byte.shape == (1, 2, 3)


def test_raw_contents_are_little_endian_wherever_it_runs():
    spec = TensorSpec("lengths", "INT64", (-1,))

    assert array_of(GivenTensor("lengths", "INT64", [1], b"\1" + b"\0" * 7), spec).tolist() == [1]


@pytest.mark.parametrize(
    "shape",
    [
        (HUGE, HUGE, 3),
        (HUGE, 1, 3),
        (1, 2**64, 3),
        (-1, 2, 3),
        (-1, -2, 3),
        (0, 2, 3),
        (1, 0, 3),
        (1, 2, 4),
        (1, 2, -3),
        (6,),
        (1, 1, 2, 3),
        (),
        (1,) * 100_000,
    ],
)
@pytest.mark.parametrize("contents", [b"\0" * 24, [0.0] * 6], ids=["raw", "numbers"])
def test_a_hostile_shape_is_refused_before_anything_is_made(shape, contents):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTensor, match="input readings: ") as caught:
            array_of(readings(shape, contents=contents), SPEC)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000
    assert len(str(caught.value)) < 300


def test_a_wrong_size_says_what_the_shape_takes_and_what_came():
    with pytest.raises(InvalidTensor, match=r"shape \[1, 3, 3\] of FP32 takes 36 bytes, got 24"):
        array_of(readings((1, 3, 3)), SPEC)
    with pytest.raises(InvalidTensor, match=r"shape \[1, 3, 3\] takes 9 values, got 6"):
        array_of(readings((1, 3, 3), contents=[0.0] * 6), SPEC)


@pytest.mark.parametrize("datatype", ["FP64", "fp32", "", "INT32", "BYTES", "x" * 1000])
def test_another_datatype_is_refused(datatype):
    with pytest.raises(InvalidTensor, match="input readings: expected datatype FP32, got") as caught:
        array_of(readings(datatype=datatype), SPEC)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [2**70, 1.5, None])
def test_a_number_that_is_none_of_its_datatype_is_refused(value):
    with pytest.raises(InvalidTensor, match="input lengths: a value is not a number of INT64"):
        array_of(GivenTensor("lengths", "INT64", [1], [value]), TensorSpec("lengths", "INT64", (-1,)))


def test_the_readings_are_all_that_is_needed():
    assert list(SIGNATURE.read([readings()])) == ["readings"]


def test_an_unknown_input_is_refused_with_the_known_ones():
    with pytest.raises(InvalidTensor, match="expected the inputs readings, lengths, last_cycle, got 'x'"):
        SIGNATURE.read([readings(), readings(name="x")])


def test_an_input_that_comes_twice_is_refused():
    with pytest.raises(InvalidTensor, match="input readings: expected once, got twice"):
        SIGNATURE.read([readings(), readings()])


def test_without_readings_there_is_nothing_to_answer():
    with pytest.raises(InvalidTensor, match="expected the input readings, got none"):
        SIGNATURE.read([])


def test_outputs_are_wanted_by_name_and_in_order():
    assert [spec.name for spec in SIGNATURE.wanted(["novelty", "rul"])] == ["novelty", "rul"]
    assert [*SIGNATURE.wanted([])] == [*SIGNATURE.outputs]


@pytest.mark.parametrize("names", [["x"], ["rul", "rul"], ["head_attention"]])
def test_outputs_that_are_unknown_or_named_twice_are_refused(names):
    with pytest.raises(InvalidTensor):
        SIGNATURE.wanted(names)


def test_a_network_with_heads_also_gives_their_attention():
    outputs = Signature.of(make_manifest(heads=4)).outputs

    assert TensorSpec("head_attention", "FP32", (-1, 4, -1)) in outputs
