"""Drift: what its index says, what is counted, and that workers add up."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from export.ageing import LONGEST_AGE, MOST_READINGS, cut_points, drift_reference, training_readings
from export.bundle import EntropyBand, find_bundle
from export.drift_reference import MISSING, STUCK
from export.handover import shortened
from export.session import open_bundle
from model.dataset import truncated_windows
from model.simulation import simulate
from service.core.answers import Answers
from service.core.rules import WindowRules
from service.core.runtime import Asked, Outputs
from service.drift.counts import (
    BLOCKS,
    NAMELESS_UNITS,
    STUCK_CYCLES,
    UNIT_SLOTS,
    WINDOWS,
    DriftCounts,
    block_size,
    entropy_of,
    layout_of,
    repeats_of,
    totals_of,
)
from service.drift.monitor import (
    ENOUGH,
    TOLERANCE,
    UNSEEN_LIMIT,
    _worst,
    chi_squared_quantile,
    drift_of,
    population_stability,
)
from service.metrics.board import Board
from service.metrics.drift import DriftCollector
from service.metrics.instruments import Shared
from tests.examples import examples
from tests.fakes import FakeRuntime, fake_answers, make_manifest

MANIFEST = make_manifest("fake", context=12)
REFERENCE = drift_reference(MANIFEST)


def batch(last, *, cycles=STUCK_CYCLES, manifest=MANIFEST, age=40.0, seed=0):
    """Windows that end with these readings [B, F], with noise in the cycles before."""
    last = np.asarray(last, dtype=np.float32)
    rng = np.random.default_rng(seed)
    readings = last[:, None] + rng.normal(0, 1, (len(last), cycles, last.shape[1])).astype(np.float32)
    readings[:, -1] = last
    return asked(readings, manifest=manifest, age=age)


def asked(readings, *, manifest=MANIFEST, age=40.0, units=None):
    lengths = np.full(len(readings), readings.shape[1])
    ages = np.full(len(readings), age, dtype=np.float32)
    answers = fake_answers(Asked(readings, lengths, ages), manifest)
    return answers.bare(), units or [None] * len(readings)


def as_in_training(count, seed=0):
    """Readings as the manifest has them: the deciles 10, 20, .. 90, ten per cent between each two."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 100, (count, 3))


def shifted_by_40():
    """The same, with the first sensor off."""
    readings = as_in_training(1000)
    readings[:, 1] += 40
    return readings


def counted(*batches, reference=REFERENCE, **options):
    ring = np.zeros(BLOCKS * block_size(reference))
    counts = DriftCounts(ring, reference, **options)
    for each in batches:
        counts.count(*each)
    return ring


def totals(*batches, reference=REFERENCE, **options):
    return totals_of(counted(*batches, reference=reference, **options), reference)


@given(
    st.integers(2, 8).flatmap(lambda n: st.tuples(*[st.lists(st.floats(0, 1), min_size=n, max_size=n)] * 2))
)
def test_the_index_is_symmetric_and_never_negative_or_infinite(pair):
    one, other = (np.array(x) + 1e-9 for x in pair)
    one, other = one / one.sum(), other / other.sum()

    index = population_stability(one, other)

    assert 0 <= index < 100
    assert index == pytest.approx(population_stability(other, one))


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.99, 9, 21.67), (0.999, 11, 31.26), (0.9999, 4, 23.51), (0.9999, 2, 18.42)],
)
def test_the_chi_squared_quantile_is_that_of_the_tables_or_a_little_more(probability, freedom, quantile):
    assert 0.99 * quantile < chi_squared_quantile(probability, freedom) < 1.05 * quantile


def test_without_drift_the_index_follows_chi_squared_over_n():
    rng = np.random.default_rng(4)
    tenths, n = np.full(10, 0.1), 2000

    indices = population_stability(rng.multinomial(n, tenths, size=4000) / n, tenths)

    assert indices.mean() * n == pytest.approx(9, rel=0.03)
    assert (indices > chi_squared_quantile(0.99, 9) / n).mean() == pytest.approx(0.01, abs=0.006)


@given(
    st.lists(
        st.lists(st.floats(-50, 150) | st.just(float("nan")), min_size=3, max_size=3), min_size=1, max_size=40
    )
)
@examples(60)
def test_counts_are_never_negative_and_each_reading_counts_once(last):
    counts = totals(batch(last))

    assert (counts["columns"] >= 0).all()
    assert counts["windows"] == counts["rul"].sum() == counts["units"].sum() == len(last)
    assert counts["columns"].sum(axis=(0, 2)).tolist() == [len(last)] * 3
    assert counts["columns"][0, :, MISSING].tolist() == np.isnan(last).sum(axis=0).tolist()


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.randoms(use_true_random=False))
@examples(40)
def test_two_workers_add_up_to_one_that_has_seen_everything(sizes, random):
    batches = [batch(as_in_training(size, seed=i), seed=i) for i, size in enumerate(sizes)]
    batches = [(a, [f"unit {random.randrange(5)}" for _ in u]) for a, u in batches]
    mine = [random.random() < 0.5 for _ in batches]

    one = counted(*[b for b, my in zip(batches, mine, strict=True) if my])
    two = counted(*[b for b, my in zip(batches, mine, strict=True) if not my])

    summed, alone = totals_of(one + two, REFERENCE), totals(*batches)
    for name in layout_of(REFERENCE).names:
        np.testing.assert_array_equal(summed[name], alone[name])


def test_the_window_slides_and_forgets():
    far = [batch(np.full((50, 3), 99.0), seed=i) for i in range(4)]
    usual = [batch(as_in_training(50, seed=i), seed=i) for i in range(12)]

    before, after = totals(*far, windows=500), totals(*far, *usual, windows=500)

    assert before["columns"][0, 1, 9] == 200
    assert after["windows"] == 500
    assert after["columns"][0, 1, 9] < 100


def test_the_window_slides_on_when_workers_are_restarted():
    ring = counted(*[batch(np.full((50, 3), 99.0), seed=i) for i in range(10)], windows=500)

    for i in range(30):
        restarted = DriftCounts(ring, REFERENCE, windows=500)
        restarted.count(*batch(as_in_training(30, seed=i), seed=i))

    assert totals_of(ring, REFERENCE)["columns"][0, 1, 9] < 100


def test_workers_share_the_sliding_window():
    batches = [batch(as_in_training(50, seed=i), seed=i) for i in range(40)]

    assert totals(*batches, windows=1000, workers=2)["windows"] == 500


def test_only_the_last_reading_of_a_window_counts():
    readings = np.full((5, 12, 3), 5.0, dtype=np.float32)
    readings[:, -1] = 95.0

    counts = totals(asked(readings))

    assert counts["columns"][0, 1].tolist() == [0] * 9 + [5, 0, 0]


@pytest.mark.parametrize(("cycles", "stuck"), [(10, 3), (9, 0)])
def test_a_sensor_that_repeats_for_ten_cycles_is_stuck_and_a_setting_may_stay_where_it_is(cycles, stuck):
    readings = np.random.default_rng(0).uniform(0, 100, (4, 12, 3)).astype(np.float32)
    readings[1:, -cycles:, :2] = 50.0
    readings[0, [-10, -1], 1] = 50.0  # the same again, but not all the time

    counts = totals(asked(readings))

    assert counts["columns"][0, :, STUCK].tolist() == [0, stuck, 0]


def test_a_window_of_fewer_than_ten_cycles_has_no_stuck_sensor():
    counts = totals(asked(np.full((4, 9, 3), 50.0, dtype=np.float32)))

    assert not counts["columns"][0, :, STUCK].any()


@pytest.mark.parametrize(
    ("predicted", "age", "band"),
    [
        (50.0, 10, 3),
        (99.0, 10, 4),
        (101.0, 10, 7),  # near the cap: by the 290 cycles that lives leave at this age
        (101.0, 295, 5),  # but no less than predicted
        (101.0, np.nan, 5),
    ],
)
def test_a_prediction_near_the_cap_counts_as_the_mean_rul_at_its_age(predicted, age, band):
    reference = drift_reference(with_lives(300, 300))

    counts = totals(batch([[0.0, predicted, 0.0]], age=age), reference=reference)

    assert counts["bands"][0].nonzero()[0].tolist() == [band]
    assert counts["rul"][-1].sum() == np.isnan(age)


@pytest.mark.parametrize(("cycles", "judged"), [(5, 0), (6, 4)])
def test_the_entropy_of_less_than_half_a_context_is_judged_only_by_a_band_of_its_length(cycles, judged):
    assert totals(batch(as_in_training(4), cycles=cycles))["entropy"].sum() == judged


def test_entropy_counts_below_within_or_above_the_band_of_its_length():
    """Even attention has the entropy ratio 1: above the band of 2 and 3 cycles, below that of 6 to 12."""
    within, below = EntropyBand(shortest=4, low=0.2, high=1.0), EntropyBand(shortest=6, low=1.1, high=1.2)
    bands = {"high": 0.9, "bands": [within, below]}
    banded = MANIFEST.model_copy(update={"entropy": [MANIFEST.entropy[0].model_copy(update=bands)]})
    reference = drift_reference(banded)
    of_each_length = [batch(as_in_training(40), cycles=cycles) for cycles in range(1, 13)]

    storage = counted(*of_each_length, reference=reference)

    drift = drift_of(storage, reference)
    assert totals_of(storage, reference)["entropy"].tolist() == [[7 * 40, 2 * 40, 2 * 40]]
    assert drift.entropy_shares["mean"] == pytest.approx((7 / 11, 2 / 11, 2 / 11))


def test_each_head_has_the_entropy_of_its_own_attention():
    answers = SimpleNamespace(head_entropy_ratio=np.array([[0.1, 0.2], [0.3, 0.4]]))

    assert entropy_of(answers, "1").tolist() == [0.2, 0.4]


def test_readings_far_from_every_regime_are_counted():
    far = batch([[0.0, 50, 50]] * 6 + [[500.0, 50, 50]] * 2)

    assert totals(far)["unseen"] == 2
    assert drift_of(counted(*[far] * 25), REFERENCE).unseen == 0.25
    assert drift_of(counted(*[far] * 24), REFERENCE).unseen == 0.0  # of 192 windows


def in_two_regimes():
    """A manifest whose regimes lie at 0 and 0, and at 1 and 1000, of two settings."""
    manifest = make_manifest("fake", context=12, columns=("setting_1", "setting_2", "sensor_1"))
    (regime,) = manifest.regimes
    spread = {"share": 0.5, "standard_deviation": [0.05, 50.0, 20.0]}
    centres = [[0.0, 0.0], [1.0, 1000.0]]
    regimes = [regime.model_copy(update={**spread, "centre": centre}) for centre in centres]
    return manifest.model_copy(update={"regimes": regimes})


@pytest.mark.parametrize(
    ("first", "second", "regime", "unseen"),
    [
        (0.0, 0.0, 0, 0),
        (1.0, 1000.0, 1, 0),
        (np.nan, 1000.0, 1, 0),  # one setting is enough
        (1.0, np.nan, 1, 0),
        (np.nan, np.nan, None, 1),
        (1.0, 400.0, 1, 1),  # each setting counts by its spread
        (0.0, 1000.0, 0, 1),  # near both regimes, and in none
    ],
)
def test_a_reading_counts_in_the_nearest_regime_that_its_settings_tell(first, second, regime, unseen):
    manifest = in_two_regimes()

    counts = totals(batch([[first, second, 50.0]], manifest=manifest), reference=drift_reference(manifest))

    expected = [float(r == regime) for r in range(2)]
    assert counts["bands"].sum(axis=1).tolist() == expected
    assert counts["columns"].sum(axis=2).T.tolist() == [expected] * 3
    assert (counts["unseen"], counts["windows"]) == (unseen, 1)


@pytest.mark.parametrize(("code", "unseen"), [(0.0, 0), (1.0, 0), (5.0, 1)])
def test_a_new_value_of_a_setting_that_is_constant_in_each_regime_is_in_no_regime(code, unseen):
    manifest = in_two_regimes()
    regimes = [
        regime.model_copy(
            update={
                "standard_deviation": [1.0, 1000.0, 20.0],
                "histogram_edges": [[regime.centre[0]] * 9, *regime.histogram_edges[1:]],
                "mean": [regime.centre[0], *regime.mean[1:]],
            }
        )
        for regime in manifest.regimes
    ]
    manifest = manifest.model_copy(update={"regimes": regimes})

    counts = totals(batch([[code, 0.0, 50.0]], manifest=manifest), reference=drift_reference(manifest))

    assert counts["unseen"] == unseen


def test_the_limit_follows_from_the_windows_of_a_unit_in_a_regime_and_the_number_of_indices():
    manifest = in_two_regimes()
    reference = drift_reference(manifest)
    answers, _ = batch([[0.0, 0.0, 50.0], [1.0, 1000.0, 50.0]] * 500, manifest=manifest)
    storage = counted((answers, [f"unit {i % 10}" for i in range(1000)]), reference=reference)

    drift = drift_of(storage, reference)

    repeats, level = repeats_of(totals_of(storage, reference)), 1 - 0.01 / (2 * 3 + 1 + 1)
    effect = 1 + (repeats / 2 - 1) * reference.alike[2]
    assert drift.columns["sensor_1"].limit == pytest.approx(
        TOLERANCE + chi_squared_quantile(level, 11) * effect / 500
    )
    assert drift.entropy["mean"].limit == pytest.approx(
        TOLERANCE + chi_squared_quantile(level, 2) * repeats / 1000
    )


def test_the_worst_regime_of_a_column_is_the_one_beyond_its_limit_by_most():
    worst = _worst(["a"], np.array([[2.0], [1.5]]), np.array([[2.5], [0.6]]))

    assert (worst["a"].psi, worst["a"].limit, worst["a"].drifting) == (1.5, 0.6, True)


@pytest.mark.parametrize(
    ("share", "ages", "units", "drifting"),
    [
        (1.0, (1, 100), 1000, False),
        (1.0, (1, 20), 1000, False),  # a young fleet is no drift
        (1.0, (80, 100), 1000, False),
        (0.2, (1, 100), 1000, True),
        (0.2, (1, 100), 2, False),
    ],
)
def test_predictions_drift_where_they_are_not_what_lives_leave_at_the_ages_of_many_units(
    share, ages, units, drifting
):
    rng = np.random.default_rng(0)
    age = rng.integers(*ages, 1000)
    last = np.zeros((1000, 3))
    last[:, 1] = share * (100 + rng.integers(0, 11, 1000) - age)
    answers, _ = batch(last, age=age)

    index = drift_of(counted((answers, [str(i % units) for i in range(1000)])), REFERENCE).prediction

    assert index.drifting is drifting
    assert (index.psi > TOLERANCE) is (share < 1)


def test_repeats_say_how_many_windows_a_unit_has():
    answers, _ = batch(as_in_training(200))

    names = [f"unit {i % 10}" for i in range(200)]

    assert repeats_of(totals((answers, names))) == pytest.approx(20, rel=0.2)
    assert repeats_of(totals((answers, ["one"] * 200))) == pytest.approx(200)
    assert repeats_of(totals((answers, [str(i) for i in range(200)]))) == pytest.approx(1, abs=0.3)
    # Ten of them meet in each slot.
    meeting = {"windows": 10.0 * UNIT_SLOTS, "units": np.full(UNIT_SLOTS, 10.0)}
    assert repeats_of(meeting) == 1.0


@pytest.mark.parametrize(("name", "fleet"), [("{}", 250), ("engine-{}", 100), ("P-{:03}", 250)])
def test_units_named_in_series_are_as_many_as_they_are(name, fleet):
    """The checksums of such names are spread more evenly over 256 slots than by chance."""
    answers, _ = batch(as_in_training(2000))

    names = [name.format(i % fleet) for i in range(2000)]

    assert repeats_of(totals((answers, names), windows=20_000)) == pytest.approx(2000 / fleet, rel=0.2)


def test_windows_without_a_name_are_no_more_independent_than_those_of_a_small_fleet():
    answers, _ = batch(as_in_training(200))

    nameless = totals((answers, [None] * 200))

    assert repeats_of(nameless) == pytest.approx(200 / NAMELESS_UNITS, rel=0.1)


def test_few_windows_say_nothing():
    drift = drift_of(counted(batch(np.full((ENOUGH - 1, 3), 99.0))), REFERENCE)

    assert {index.psi for index in drift.columns.values()} == {0.0}
    assert (drift.prediction.psi, drift.unseen, drift.drifting) == (0.0, 0.0, [])


def test_readings_as_in_training_do_not_drift_and_shifted_ones_do():
    usual = drift_of(counted(batch(as_in_training(1000))), REFERENCE)
    shifted = drift_of(counted(batch(shifted_by_40())), REFERENCE)

    assert usual.drifting == []
    assert shifted.drifting == ["sensor_1"]


@pytest.mark.parametrize("usual", [5.0, 0.0003])
def test_a_column_of_one_value_drifts_only_when_it_moves(usual):
    """Also where the manifest has fewer digits than the float32 that is read."""
    regime = MANIFEST.regimes[0]
    edge = shortened(float(np.float32(usual)))
    constant = regime.model_copy(update={"histogram_edges": [[edge] * 9] * 3})
    reference = drift_reference(MANIFEST.model_copy(update={"regimes": [constant]}))

    same, moved = (
        drift_of(counted(batch(np.full((400, 3), value)), reference=reference), reference)
        for value in (usual, 1.1 * usual)
    )

    assert same.drifting == []
    assert moved.drifting == list(reference.names)


@given(st.lists(st.integers(0, 12), min_size=9, max_size=9).map(sorted))
def test_cuts_rise_and_their_shares_are_bounds_that_rise(deciles):
    cuts, low, high = cut_points(list(map(float, deciles)))

    finite = cuts[np.isfinite(cuts)]
    assert (np.diff(finite) > 0).all()
    assert (low <= high).all()
    assert (np.diff(low) >= -1e-12).all()
    assert (np.diff(high) >= -1e-12).all()


def test_a_band_of_all_ages_has_the_deciles_of_training():
    _, manifest = open_bundle(find_bundle("fd001"))
    reference = drift_reference(manifest)
    f = reference.names.index("sensor_11")

    assert reference.low.shape == (1, 17, 8, 11)
    assert (reference.low <= reference.high + 1e-12).all()
    deciles = pytest.approx(np.arange(1, 10) / 10, abs=0.01)  # of readings that are not missing
    assert reference.bands_by_age[-1] @ reference.low[0, f, :, :9] == deciles
    assert reference.bands_by_age[-1] @ reference.high[0, f, :, :9] == deciles
    young, old = reference.high[0, f, -1, 4], reference.low[0, f, 0, 4]
    assert young > 0.8  # sensor_11 rises: nearly all readings of new units are below the fifth decile
    assert old < 0.01  # and none of worn units


def with_lives(*quantiles):
    longer = MANIFEST.degradation.model_copy(update={"life_quantiles": [*map(float, quantiles)]})
    return MANIFEST.model_copy(update={"degradation": longer})


@pytest.mark.parametrize("life", [30_000, 1_000_001, 2**24])
def test_the_reference_of_long_lives_is_no_larger_than_that_of_short_ones(life):
    manifest = with_lives(life - 1000, life)

    age, rul = training_readings(manifest)
    reference = drift_reference(manifest)

    assert len(age) == len(rul) <= MOST_READINGS
    assert rul.min() >= 0
    assert abs(age.mean() / life - 0.5) < 0.02
    assert len(reference.left_by_age) <= LONGEST_AGE
    middle = min(life, LONGEST_AGE) // 2
    assert reference.left_by_age[middle] == pytest.approx(life - 500 - middle, rel=1e-3)


def test_lives_of_some_thousand_cycles_have_every_cycle():
    manifest = with_lives(3000, 4000)

    age, rul = training_readings(manifest)

    assert np.unique(age).tolist() == list(range(1, 4001))[: age.max()]
    assert set(np.unique(age + rul).tolist()) <= set(range(3000, 4001))


def gauges(*batches, board=None, **options):
    """What is scraped of a worker that has counted these."""
    shared = Shared(CollectorRegistry(), board)
    drift = DriftCollector(shared, **options).add(FakeRuntime(MANIFEST))
    for each in batches:
        drift.count(*each)
    return shared.registry


def test_a_column_that_drifts_is_told_once_whichever_worker_is_scraped(tmp_path):
    path = tmp_path / "board"
    path.touch()
    boards = [Board(path, worker=worker, workers=2) for worker in range(2)]
    workers = [gauges(batch(shifted_by_40()), board=board) for board in boards]

    with capture_logs() as told:
        for registry in (*workers, *workers):
            generate_latest(registry)

    assert [line["column"] for line in told if line["event"] == "column drifts"] == ["sensor_1"]


def test_the_workers_of_a_service_share_the_sliding_window(tmp_path):
    path = tmp_path / "board"
    path.touch()

    registry = gauges(*[batch(as_in_training(50))] * 40, board=Board(path, worker=0, workers=2))

    assert registry.get_sample_value("rul_column_drift_windows", {"model": "fake"}) == WINDOWS / 2


def test_another_version_of_a_model_is_counted_from_nothing_and_warned_of_anew():
    shared = Shared(CollectorRegistry())
    collector = DriftCollector(shared, clock=lambda: 100.0)
    known, warnings = [], []

    for sha256 in ("a" * 64, "a" * 64, "b" * 64):
        runtime = FakeRuntime(MANIFEST)
        runtime.sha256 = sha256
        model = collector.add(runtime)
        known.append(model.read().windows)
        model.count(*batch(shifted_by_40()))
        with capture_logs() as said:
            generate_latest(shared.registry)
        warnings.append(len(said))

    assert (known, warnings) == ([0, 1000, 0], [1, 0, 1])


def test_gauges_are_zero_and_never_nan_before_anything_has_come():
    registry = gauges()

    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]

    limits = [line for line in lines if "_limit_psi{" in line]
    assert len(lines) == 3 + 1 + 1 + 1 + 1 + 1 + len(limits)
    assert len(limits) == 1 + 1
    assert {line.split()[-1] for line in lines if line not in limits} == {"0.0"}
    assert {line.split()[-1] for line in limits} == {str(TOLERANCE)}


def test_gauges_say_which_column_drifts():
    registry = gauges(batch(shifted_by_40()))

    assert registry.get_sample_value("rul_column_drift_psi", {"model": "fake", "column": "sensor_1"}) > 1
    assert registry.get_sample_value("rul_column_drift_psi", {"model": "fake", "column": "sensor_2"}) < 0.1
    assert registry.get_sample_value("rul_column_drifting", {"model": "fake"}) == 1
    assert registry.get_sample_value("rul_column_drift_windows", {"model": "fake"}) == 1000


def test_people_are_warned_once_an_hour_a_column():
    booted = 100.0  # a clock that has run for a while
    now = [booted]
    registry = gauges(batch(shifted_by_40()), clock=lambda: now[0])

    told = []
    with capture_logs() as said:
        for at in (0, 1, 3599, 3600, 3601):
            now[0] = booted + at
            generate_latest(registry)
            told.append(len(said))

    assert told == [1, 1, 1, 2, 2]
    assert [line["event"] for line in said] == ["column drifts"] * 2
    assert (said[0]["model"], said[0]["column"], said[0]["windows"]) == ("fake", "sensor_1", 1000)
    assert said[0]["psi"] > said[0]["limit"] > 0


def fly(bundle):
    """The windows of simulated units of a shipped bundle, in the order of their cycles, with its answers."""
    session, manifest = open_bundle(find_bundle(bundle))
    units = simulate(manifest, manifest.schema_of_columns, units=60, seed=5)
    rng = np.random.default_rng(1)
    windows = truncated_windows(units, length=manifest.context, per_unit=20, rng=rng)
    answers = session.answer_all(windows)
    return manifest, windows, answers


@pytest.fixture(scope="module", params=["fd001", "fd002"])  # one regime, six
def flown(request):
    return fly(request.param)


def replay(flown, change=lambda readings: readings, *, of_rul=1.0, of_age=1.0):
    manifest, windows, answers = flown
    answers = answers | {"rul": of_rul * answers["rul"]}
    reference = drift_reference(manifest)
    asked = Asked(change(windows.readings.copy()), windows.lengths, of_age * windows.last_cycle)
    rules = WindowRules.of(manifest, max_window_cycles=1000)
    replayed = Answers(asked, Outputs(**answers), manifest, rules)
    return drift_of(counted((replayed.bare(), windows.unit.tolist()), reference=reference), reference)


@pytest.mark.parametrize("bundle", ["fd001", "fd002", "fd003", "fd004"])
def test_a_simulated_fleet_of_a_shipped_bundle_does_not_drift(bundle):
    drift = replay(fly(bundle))

    assert drift.windows > 1000
    assert drift.drifting == []
    assert drift.unseen <= UNSEEN_LIMIT


@pytest.mark.parametrize("column", ["sensor_2", "sensor_7", "sensor_11", "sensor_21"])
def test_a_bias_of_two_standard_deviations_in_a_shipped_bundle_does_drift(flown, column):
    manifest = flown[0]
    f = manifest.schema_of_columns.names.index(column)

    def biased(readings):
        readings[..., f] += 2 * manifest.regimes[0].standard_deviation[f]
        return readings

    assert column in replay(flown, biased).drifting


@pytest.mark.parametrize("off", [{"of_rul": 0.2}, {"of_age": 0.2}])
def test_columns_that_ages_or_answers_explain_do_not_drift_where_the_other_is_off(flown, off):
    assert replay(flown, **off).drifting == []
    assert replay(flown, of_rul=0.2, of_age=0.2).drifting


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_however_windows_come_each_block_is_filled_before_the_next(arrivals):
    batches = [batch(np.zeros((size, len(MANIFEST.columns)))) for size in arrivals]

    held = counted(*batches, windows=1000).view(layout_of(REFERENCE))["windows"].tolist()
    filled = [windows for windows in held if windows >= 100]
    assert max(held) < 100 + 40
    assert len(filled) >= len([windows for windows in held if windows]) - 1
