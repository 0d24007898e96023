"""A window's attention entropy is judged by the band of its length."""

import json

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from export.bundle import METADATA_KEY, EntropyBand, EntropyReference, Manifest
from export.session import open_bundle
from model.calibration import length_bands
from model.domain import attention_entropy_ratio, attention_lag, edge_weights, head_similarity
from service.core.answers import Piece, prediction
from service.core.queries import Explain
from service.metrics.metrics import Metrics
from tests.fakes import FakeRuntime, asked_of, fake_answers, make_manifest, make_windows
from tests.unit.test_metrics import batch_of

SHORT, LONG = EntropyBand(shortest=2, low=0.5, high=1.0), EntropyBand(shortest=6, low=0.2, high=0.9)
BANDED = EntropyReference(head="mean", low=0.2, median=0.7, high=1.0, bands=[SHORT, LONG])


@pytest.fixture
def manifest():
    """Even attention is usual in windows of 2 to 5 cycles, and too even in longer ones."""
    return make_manifest(min_cycles=1).model_copy(update={"entropy": [BANDED]})


def test_limits_are_those_of_the_band_that_holds_the_length():
    low, high = BANDED.limits(8)

    assert low[2:].tolist() == pytest.approx([0.5] * 4 + [0.2] * 3, abs=1e-4)
    assert high[2:].tolist() == pytest.approx([1.0] * 4 + [0.9] * 3, abs=1e-4)


def test_a_reference_without_bands_has_the_same_limits_for_every_length_and_the_same_json():
    plain = {"head": "mean", "low": 0.3, "median": 0.5, "high": 0.9}
    reference = EntropyReference.model_validate(plain)

    low, high = reference.limits(8)
    assert low.tolist() == pytest.approx([0.3] * 9, abs=1e-4)
    assert high.tolist() == pytest.approx([0.9] * 9, abs=1e-4)
    assert json.loads(reference.model_dump_json()) == plain


def test_rounding_alone_leaves_no_band_of_a_head_whose_entropy_is_that_of_the_length():
    constant = EntropyReference(head="1", low=0.4, median=0.4, high=0.4)
    weights = np.exp(-0.4 * np.arange(60, dtype=np.float32))
    rounded = np.stack(
        [(weights / weights.sum()).astype(np.float32), weights / np.float32(weights.sum() * 1.0000003)]
    )
    low, high = constant.limits(60)

    spread = np.ptp(attention_entropy_ratio(rounded, np.array([60, 60])))

    assert 0 < spread < (high - low).min()


@pytest.mark.parametrize("context", [2, 3, 12, 60])
def test_bands_hold_every_length_once_and_full_windows_alone(context):
    bands = length_bands(context)

    assert [n for low, high in bands for n in range(low, high + 1)] == list(range(2, context + 1))
    assert bands[-1] == (context, context)


def test_a_warning_compares_a_window_with_the_band_of_its_length(manifest):
    codes = {}
    for cycles in (4, 8):
        windows = make_windows(30.0, cycles=cycles)
        piece = Piece(fake_answers(asked_of(windows), manifest), 0, [0])
        answer = prediction(piece, 0, windows, 0, explain=Explain.ATTENTION)
        codes[cycles] = [warning.code for warning in answer.warnings]

    assert codes == {4: [], 8: ["attention_uniform"]}


def test_the_band_of_full_windows_is_shown(manifest):
    registry = CollectorRegistry()

    Metrics(registry, [FakeRuntime(manifest)])

    labels = {"model": "fake", "head": "mean"}
    shown = [
        registry.get_sample_value("rul_attention_entropy_band_ratio", {**labels, "side": side})
        for side in ("low", "high")
    ]
    assert shown == pytest.approx([LONG.low, LONG.high], abs=1e-3)


@pytest.mark.parametrize(("highest", "counts"), [(1.0, (0, 1)), (1.2, (1, 0))])
def test_windows_are_counted_as_outside_the_band_of_their_length(manifest, highest, counts):
    if highest > 1:  # the attention of the short window, although even, is below its band
        bands = [
            SHORT.model_copy(update={"low": 1.1, "high": highest}),
            LONG.model_copy(update={"high": 1.0}),
        ]
        manifest = manifest.model_copy(update={"entropy": [BANDED.model_copy(update={"bands": bands})]})
    registry, runtime = CollectorRegistry(), FakeRuntime(manifest)

    Metrics(registry, [runtime]).models["fake"].ran(batch_of((30.0, 4), (30.0, 8), manifest=manifest))

    def outside(side):
        labels = {"model": "fake", "side": side}
        return registry.get_sample_value("rul_attention_out_of_band_total", labels)

    assert (outside("low"), outside("high")) == counts


def test_a_manifest_without_bands_is_read_as_it_was(shipped):
    session, _ = open_bundle(shipped)
    stored = json.loads(session.metadata[METADATA_KEY])
    for reference in stored["entropy"]:
        del reference["bands"]

    older = Manifest.model_validate(stored)

    assert json.loads(older.to_metadata()[METADATA_KEY]) == stored


@pytest.mark.parametrize(
    ("weights", "lag", "first", "last"),
    [
        ([1.0] + [0.0] * 19, 19.0, 1.0, 0.0),  # all on the first of twenty cycles
        ([0.0] * 19 + [1.0], 0.0, 0.0, 1.0),
        ([0.05] * 20, 9.5, 0.1, 0.1),
        ([0.5, 0.5] + [0.0] * 18, 18.5, 1.0, 0.0),  # a tenth of twenty cycles are two
    ],
)
def test_lag_and_weights_of_the_ends_say_where_attention_lies(weights, lag, first, last):
    attention, lengths = np.array([weights + [0.0] * 5]), np.array([20])

    assert attention_lag(attention, lengths) == pytest.approx([lag])
    np.testing.assert_allclose(edge_weights(attention, lengths), [[first], [last]])


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], 1.0),
        ([[1.0, 0.0], [0.0, 1.0]], 0.0),
        ([[1.0, 0.0], [0.6, 0.8]], 0.6),
        ([[1.0, 0.0]], np.nan),
    ],
)
def test_similarity_of_heads_is_the_mean_cosine_of_pairs(heads, expected):
    np.testing.assert_allclose(head_similarity(np.array([heads])), [expected], atol=1e-9)
