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


def readings(shape=(1, 2, 3), *, datatype="FP32", contents=None):
    return GivenTensor(
        "readings", datatype, shape, np.zeros(6, "<f4").tobytes() if contents is None else contents
    )


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


def test_an_input_that_comes_twice_is_refused():
    with pytest.raises(InvalidTensor, match="input readings: expected once, got twice"):
        SIGNATURE.read([readings(), readings()])


def test_a_network_with_heads_also_gives_their_attention():
    outputs = Signature.of(make_manifest(heads=4)).outputs

    assert TensorSpec("head_attention", "FP32", (-1, 4, -1)) in outputs
