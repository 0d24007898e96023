"""Tensors become windows by the rules of one door; each answer comes back to its own place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.core.answers import Asked, Piece
from service.core.lifecycle import Lifecycle
from service.core.predictor import LoadedModel, Predictor
from service.core.window import WindowInput
from service.errors import InvalidTensor
from service.oip.inference import Inference, InferQuery
from service.oip.tensors import GivenTensor
from tests.examples import examples
from tests.fakes import COLUMNS, FakeRuntime, fake_answers, joined, make_manifest
from tests.oip import NAMES

CONTEXT = 4
MOST_WINDOWS = 20
MANIFEST = make_manifest(context=CONTEXT, heads=2, explains_readings=True)
ODD = st.sampled_from([np.nan, np.nan, np.inf, -np.inf, 3.4e38, 1.0, 50.0])
CYCLES = st.sampled_from([np.nan, 0.0, 2.0, 100.0, -1.0, 1.5, np.inf, 2.0**24, 2.0**25])


class Batches:
    """A batcher that answers windows in the batches that it is told of, each `width` cycles wide."""

    def __init__(self, *batches, width=CONTEXT):
        self.batches = batches
        self.width = width

    async def submit(self, windows):
        return [self._piece(windows, places) for places in self.batches]

    def _piece(self, windows, places):
        rows = [0, *places]  # the first window of each batch is another caller's
        readings = np.full((len(rows), self.width, len(COLUMNS)), np.nan, np.float32)
        lengths = np.array([windows.lengths[i] for i in rows])
        for row, i in zip(readings, rows, strict=True):
            row[: windows.lengths[i]] = windows.readings[i, : windows.lengths[i]]
        asked = Asked(readings, lengths, np.array([windows.last_cycle[i] for i in rows], np.float32))
        return Piece(fake_answers(asked, MANIFEST), 1, places)


def inference(batcher=None):
    model = LoadedModel.of(FakeRuntime(MANIFEST), batcher, max_window_cycles=6)
    predictor = Predictor({"fake": model}, max_request_windows=MOST_WINDOWS)
    return Inference(predictor, Lifecycle(lambda: True)), model


INFERENCE, MODEL = inference()
SPECS = {spec.name: spec for spec in INFERENCE.signature(MODEL).outputs}


def query(asked):
    tensors = [
        GivenTensor(name, NAMES[array.dtype], array.shape, array.tobytes()) for name, array in asked.items()
    ]
    return InferQuery(tensors)


def read(asked):
    return INFERENCE.read(MODEL, query(asked))


# From tensors to windows


@st.composite
def requests(draw):
    """Readings, and lengths and last cycles or none."""
    count, cycles = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    shape = (count, cycles, len(COLUMNS))
    asked = {"readings": draw(arrays.arrays(np.float32, shape, elements=ODD, fill=st.just(1.0)))}
    if draw(st.booleans()):
        asked["lengths"] = draw(arrays.arrays(np.int64, count, elements=st.integers(1, cycles)))
    if draw(st.booleans()):
        asked["last_cycle"] = draw(arrays.arrays(np.float32, count, elements=CYCLES))
    return asked


def by_rows(asked):
    """The same windows by rows, as `POST /v1/predict` has them; None where one of them is refused."""
    count, cycles, _ = asked["readings"].shape
    if cycles > MODEL.rules.max_cycles:
        return None
    lengths = asked.get("lengths", np.full(count, cycles))
    last = asked.get("last_cycle", np.full(count, np.nan))
    given_windows = [
        WindowInput(None, float(last[i]), None, asked["readings"][i, : lengths[i]]) for i in range(count)
    ]
    windows, problems = joined(*given_windows, rules=MODEL.rules)
    return None if problems else windows


@examples(300)
@given(requests())
def test_tensors_are_let_in_as_the_same_windows_by_rows_are(asked):
    expected = by_rows(asked)

    if expected is None:
        with pytest.raises(InvalidTensor):
            read(asked)
        return
    windows = read(asked).windows
    assert (windows.lengths, windows.sent) == (expected.lengths, expected.sent)
    np.testing.assert_equal(windows.last_cycle, expected.last_cycle)
    np.testing.assert_allclose(windows.imputed_fraction, expected.imputed_fraction)
    for i, length in enumerate(windows.lengths):
        np.testing.assert_array_equal(windows.readings[i, :length], expected.readings[i, :length])
    assert windows.readings.dtype == np.float32


def test_whole_windows_are_views_of_what_came():
    contents = memoryview(np.ones((2, 3, 3), np.float32).tobytes())
    tensor = GivenTensor("readings", "FP32", (2, 3, 3), contents)

    windows = INFERENCE.read(MODEL, InferQuery([tensor])).windows

    assert np.shares_memory(windows.readings, np.frombuffer(contents, np.uint8))


def test_the_first_bad_readings_are_named_and_the_others_counted():
    readings = np.ones((3, 3, 3), np.float32)
    readings[1, 2] = np.inf
    readings[2, 0, 1:] = -np.inf

    with pytest.raises(InvalidTensor, match=r"for setting_1, got inf, at \[1, 2, 0\], .* and 2 more$"):
        read({"readings": readings})


def test_too_much_missing_is_said_of_the_window():
    readings = np.ones((2, 3, 3), np.float32)
    readings[1, :, :2] = np.nan

    with pytest.raises(InvalidTensor, match=r"at most 50% of the readings missing, got 66.67%.*, at \[1\]"):
        read({"readings": readings})


# From answers to tensors


def asked_for(lengths, cycles, step):
    """Windows whose RUL is `step`, twice and three times as much, ..."""
    readings = np.zeros((len(lengths), cycles, 3), np.float32)
    readings[:, :, 1] = np.arange(1, len(lengths) + 1)[:, None] * step
    return {"readings": readings, "lengths": np.array(lengths)}


async def answered(lengths, cycles, *batches, width=CONTEXT, step=10):
    """The outputs for such windows, answered in these batches."""
    served, model = inference(Batches(*batches, width=width))
    ask = served.read(model, query(asked_for(lengths, cycles, step)))
    _, values = await served.answer(model, ask, [])
    return {spec.name: value for spec, value in zip(ask.wanted, values, strict=True)}


@pytest.mark.parametrize(
    "batches",
    [
        [range(4)],
        [[0, 1, 2, 3]],
        [[3, 1], [2, 0]],
        [range(2), range(2, 4)],
        [range(2, 3), [0], [1], range(3, 4)],
    ],
)
async def test_rows_come_back_in_the_order_of_the_request(batches):
    outputs = await answered([2, 3, 4, 1], 4, *batches)

    assert outputs["rul"].tolist() == [10, 20, 30, 40]
    assert np.count_nonzero(outputs["attention"], axis=1).tolist() == [2, 3, 4, 1]


@pytest.mark.parametrize("batches", [[range(2)], [[0], [1]]])
async def test_every_output_has_the_shape_that_its_metadata_announces(batches):
    outputs = await answered([2, 3], 3, *batches)

    assert list(outputs) == list(SPECS)
    for name, values in outputs.items():
        assert values.shape == SPECS[name].sized(windows=2, cycles=3)
        assert values.dtype == np.float32


@pytest.mark.parametrize("width", [4, 9])
@pytest.mark.parametrize("batch", [range(2), [0, 1]])
async def test_attention_stands_at_its_cycles_and_padding_and_cycles_before_the_context_weigh_nothing(
    batch, width
):
    outputs = await answered([6, 3], 6, batch, width=width)

    np.testing.assert_allclose(outputs["attention"][0], [0, 0, 0.25, 0.25, 0.25, 0.25])
    np.testing.assert_allclose(outputs["attention"][1], [1 / 3, 1 / 3, 1 / 3, 0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(outputs["head_attention"][:, 0], outputs["attention"])


@pytest.mark.parametrize("width", [4, 9])
@pytest.mark.parametrize("batch", [range(2), [0, 1]])
async def test_contributions_of_readings_stand_at_their_cycles(width, batch):
    outputs = await answered([6, 3], 6, batch, width=width)

    last = np.array([[0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(outputs["evidence"], last)
    np.testing.assert_array_equal(outputs["sensor_contribution"].any(axis=2), last)
    assert outputs["window_contribution"].tolist() == [-70, -70]


@pytest.mark.parametrize("batch", [range(4), [0, 1, 2, 3]])
async def test_a_rul_near_the_cap_is_the_cap_as_everywhere(batch):
    outputs = await answered([2] * 4, 2, batch, width=2, step=31)

    assert outputs["rul"].tolist() == [31, 62, 93, 125]  # the network says 124
