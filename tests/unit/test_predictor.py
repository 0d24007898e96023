"""From a question to an answer: which model, which windows, which words."""

import json
import math
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from model.domain import RulState
from service.core.answers import Answers, Piece
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain, PredictQuery, Trust
from service.core.rules import WindowRules
from service.core.window import LaidOut, WindowInput, lay_out
from service.errors import InvalidWindows, Problem
from service.grpc.predict import _read_large
from service.http.careful import Careful
from service.http.shell import json_reply
from service.labels import Stage
from service.proto import rul_v1_pb2 as pb
from tests.fakes import COLUMNS, RULES, FakeRuntime, asked_of, make_manifest, make_windows, window_input


class InlineBatcher:
    """Answers at once."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.rules = WindowRules.of(runtime.manifest, max_window_cycles=100)
        self.submitted = []

    async def submit(self, windows):
        self.submitted.append(windows)
        # Backwards, as where short windows go first: places say which answer is whose.
        places = range(len(windows))[::-1]
        asked = asked_of(windows.only(places))
        outputs = self.runtime.run(asked.readings, asked.lengths, asked.last_cycle)
        return [Piece(Answers(asked, outputs, self.runtime.manifest, self.rules), 0, places)]


class FakeRecorder:
    """Remembers what it was offered."""

    def __init__(self):
        self.offers = []

    def offer(self, model, windows, predictions, pieces, *, tenant):
        self.offers.append((tenant, model, windows.units, predictions))


def make_predictor(*manifests, runtime=None, novelty=0.5, max_request_windows=8, recorder=None):
    models = {}
    for manifest in manifests or (None,):
        made = runtime or FakeRuntime(manifest)
        made.novelty = novelty
        models[made.manifest.name] = LoadedModel.of(made, InlineBatcher(made), max_window_cycles=100)
    return Predictor(models, max_request_windows=max_request_windows, recorder=recorder)


async def ask(*windows, predictor=None, parts=None, **options):
    query = PredictQuery(list(windows), **options)
    return await (predictor or make_predictor()).predict(query, parts=parts)


@pytest.mark.parametrize("rul", [30.0, 200.0], ids=["below the cap", "above it"])
async def test_a_full_explanation_says_what_each_sensor_adds(rul):
    (prediction,) = (await ask(window_input(rul), explain=Explain.FULL)).predictions

    assert prediction.rul == min(rul, 125)
    assert prediction.sensor_contributions == pytest.approx({"sensor_1": rul, "sensor_2": 0.0}, abs=1e-3)


async def test_a_model_that_explains_readings_says_what_each_sensor_adds_without_occlusion():
    predictor = make_predictor(make_manifest(explains_readings=True))
    windows = window_input(30.0), window_input(200.0)

    first, second = (await ask(*windows, predictor=predictor, explain=Explain.SENSORS)).predictions

    assert first.sensor_contributions == pytest.approx({"sensor_1": 30.0, "sensor_2": 0.0}, abs=1e-4)
    assert second.sensor_contributions == pytest.approx({"sensor_1": 200.0, "sensor_2": 0.0}, abs=1e-4)
    assert predictor.models["fake"].batcher.runtime.batches == [2]


async def test_a_model_that_reads_settings_says_what_each_of_them_adds():
    predictor = make_predictor(make_manifest(explains_readings=True, reads_settings=True))

    (prediction,) = (await ask(window_input(30.0), predictor=predictor, explain=Explain.FULL)).predictions

    assert [*prediction.sensor_contributions] == ["setting_1", "sensor_1", "sensor_2"]
    assert [*prediction.explanation.contributions] == ["setting_1", "sensor_1", "sensor_2"]
    assert [*prediction.explanation.usual] == prediction.explanation.columns == ["sensor_1", "sensor_2"]


class Misleading(FakeRuntime):
    """Names the first cycles as evidence; its answers rest on the last one."""

    def run(self, readings, lengths, last_cycle):
        outputs = super().run(readings, lengths, last_cycle)
        return replace(outputs, evidence=np.ascontiguousarray(outputs.evidence[:, ::-1]))


async def trust_of(runtime, *, cycles=12, explain=Explain.FULL):
    predictor = make_predictor(runtime=runtime)
    (prediction,) = (
        await ask(window_input(30.0, cycles=cycles), predictor=predictor, explain=explain)
    ).predictions
    return prediction.trust, runtime.batches


EVIDENT = make_manifest(explains_readings=True, context=16)


class Shuffled(FakeRuntime):
    """Explains its answers truly, and they grow with wear: it knows nothing."""

    def run(self, readings, lengths, last_cycle):
        return super().run(100.0 - readings, lengths, last_cycle)


@pytest.mark.parametrize(
    ("runtime", "cycles", "trust", "batches"),
    [
        (FakeRuntime(EVIDENT), 12, Trust.SUPPORTED, [1, 6, 12]),
        (Misleading(EVIDENT), 12, Trust.UNSUPPORTED, [1, 6, 12]),
        (Shuffled(EVIDENT), 12, Trust.UNSUPPORTED, [1, 6, 12]),  # without skill, however well it agrees
        (FakeRuntime(EVIDENT), 9, Trust.UNSUPPORTED, [1, 6]),  # of a few cycles, whatever hiding them does
        (FakeRuntime(make_manifest(context=16)), 12, UNSET, [1, 6, 26]),  # each sensor, and each cycle of it
    ],
)
async def test_evidence_is_supported_where_hiding_cycles_ranks_them_alike_and_the_model_has_skill(
    runtime, cycles, trust, batches
):
    assert await trust_of(runtime, cycles=cycles) == (trust, batches)


@pytest.mark.parametrize("explain", [Explain.NONE, Explain.ATTENTION, Explain.SENSORS])
async def test_trust_costs_nothing_where_nobody_asks_for_it(explain):
    assert await trust_of(FakeRuntime(EVIDENT), explain=explain) == (UNSET, [1])


async def test_evidence_stands_beside_the_weights_of_a_model_that_explains_readings_alone():
    predictor = make_predictor(make_manifest(explains_readings=True))
    (prediction,) = (await ask(window_input(30.0, cycles=3), predictor=predictor)).predictions
    (other,) = (await ask(window_input(30.0))).predictions

    assert prediction.attention.evidence.tolist() == [0.0, 0.0, 1.0]
    total = prediction.attention.baseline + prediction.attention.contributions.sum()
    assert total + prediction.attention.window_contribution == pytest.approx(30.0)
    assert other.attention.evidence is other.attention.window_contribution is UNSET


@pytest.mark.parametrize(
    ("cycles", "novelty", "state", "label"),
    [
        (4, 1.9, RulState.ESTIMATED, "healthy"),
        (4, 2.1, RulState.OUT_OF_DISTRIBUTION, "unknown"),
        (1, 1.9, RulState.INSUFFICIENT_HISTORY, "healthy"),
        (1, 2.1, RulState.INSUFFICIENT_HISTORY, "unknown"),
    ],
)
async def test_the_health_of_readings_unlike_the_training_data_is_unknown(cycles, novelty, state, label):
    reply = await ask(window_input(120.0, cycles=cycles), predictor=make_predictor(novelty=novelty))

    (prediction,) = reply.predictions
    assert (prediction.rul_state, prediction.health_state.label) == (state, label)
    assert prediction.health_state.probabilities["healthy"] == pytest.approx(0.96)


async def warnings_of(window, *manifest, novelty=0.5):
    return (await ask(window, predictor=make_predictor(*manifest, novelty=novelty))).predictions[0].warnings


@pytest.mark.parametrize(
    ("band", "code", "detail"),
    [
        ((1.0001, 1.2), "collapsed", "usually 1.00009 or more: the weight lies on fewer cycles"),
        ((0.0, 0.9998), "uniform", "usually 0.99981 or less: the weights are more even"),
    ],
)
async def test_attention_outside_the_reference_band_is_warned_of(band, code, detail):
    [warning] = await warnings_of(window_input(), make_manifest(band=band))

    assert (warning.code, warning.detail) == (f"attention_{code}", f"entropy ratio 1, {detail}")


async def test_a_reading_out_of_range_is_warned_of_before_what_else_there_is_to_say():
    window = window_input(400.0, cycles=12, last_cycle=None)

    warnings = await warnings_of(window, make_manifest(band=(0.0, 0.9)))

    expected = ["out_of_range", "truncated_to_context", "last_cycle_unknown", "attention_uniform"]
    assert [warning.code for warning in warnings] == expected


@pytest.mark.parametrize(
    ("cycles", "last_cycle", "codes"),
    [
        (4, 100.0, []),
        (3, 100.0, ["short_history"]),
        (3, 3.0, []),
        (4, 137.0, []),
        (4, 138.0, ["last_cycle_beyond_training"]),
        (3, None, ["last_cycle_unknown"]),
    ],
)
async def test_a_short_history_and_an_age_beyond_all_of_training_are_warned_of(cycles, last_cycle, codes):
    warnings = await warnings_of(window_input(cycles=cycles, last_cycle=last_cycle))

    assert [warning.code for warning in warnings] == codes


async def test_warnings_tell_an_age_above_a_million_to_the_digit():
    warnings = await warnings_of(window_input(cycles=3, last_cycle=1_234_567.0))

    assert ["1234567" in warning.detail for warning in warnings] == [True, True]


@pytest.mark.parametrize(("novelty", "stuck"), [(1.9, []), (2.1, ["sensor_2"])])
async def test_a_sensor_that_repeats_its_last_value_is_named_where_the_readings_are_unlike_training(
    novelty, stuck
):
    window = window_input(cycles=12)
    window.columns["sensor_1"] = [40.0 + 0.1 * t for t in range(12)]
    window.columns["sensor_2"] = [1.0, 2.0] + [2.5] * 10

    warnings = await warnings_of(window, make_manifest(context=12), novelty=novelty)

    found = [each for each in warnings if each.code == "stuck_sensor"]
    assert [each.column for each in found] == stuck
    assert all(each.detail.startswith("the last 10 readings are all 2.5") for each in found)


async def test_a_sensor_that_had_one_value_in_training_is_not_called_stuck():
    manifest = make_manifest(context=12)
    constant = [column.model_copy(update={"low": 0.0, "high": 0.0}) for column in manifest.columns]
    manifest = manifest.model_copy(update={"columns": constant})

    warnings = await warnings_of(window_input(rul=0.0, cycles=12), manifest, novelty=2.1)

    assert "stuck_sensor" not in [warning.code for warning in warnings]


@pytest.mark.parametrize("before", [[], [1.0, 2.0]], ids=["whole window", "end of it"])
async def test_a_sensor_that_repeats_its_last_value_nine_times_is_not_called_stuck(before):
    window = window_input(cycles=len(before) + 9)
    window.columns["sensor_2"] = [*before, *[2.5] * 9]

    warnings = await warnings_of(window, make_manifest(context=12), novelty=2.1)

    assert "sensor_2" not in [each.column for each in warnings if each.code == "stuck_sensor"]


@pytest.mark.parametrize("values", [None, [None] * 12], ids=["left out", "null"])
async def test_a_column_without_a_reading_is_warned_of_and_one_with_gaps_is_not(values):
    window = window_input(cycles=12)
    window.columns["setting_1"][:11] = [None] * 11
    del window.columns["sensor_2"]
    if values is not None:
        window.columns["sensor_2"] = values

    warnings = await warnings_of(window, make_manifest(max_missing_fraction=0.7))

    [missing] = [each for each in warnings if each.code == "missing_column"]
    assert (missing.column, missing.detail) == ("sensor_2", "the window has no reading of sensor_2")


async def test_a_column_that_alone_is_missing_is_warned_of():
    window = window_input()
    del window.columns["sensor_2"]

    assert "missing_column" in [warning.code for warning in await warnings_of(window)]


async def test_bad_windows_refuse_the_whole_request_before_a_batch_and_each_is_pointed_at():
    predictor, bad = make_predictor(), window_input()
    bad.columns["sensor_1"][3] = math.inf

    with pytest.raises(InvalidWindows, match="2 of 3 windows cannot be read; /windows/0") as caught:
        await ask(bad, window_input(), WindowInput(), predictor=predictor)

    pointers = [problem.pointer for problem in caught.value.problems]
    assert pointers == ["/windows/0/columns/sensor_1/3", "/windows/2/columns"]
    assert predictor.models["fake"].batcher.submitted == []


async def test_a_malformed_window_is_refused_with_what_the_transport_found_in_it():
    problem = Problem("/columns/sensor_1/3", "not_a_number", "expected a number, got 'x'")
    parts = [lay_out(window_input(10.0), RULES), LaidOut(None, 0, [problem])]

    reply = await ask(window_input(10.0), WindowInput(), parts=parts, partial=True)
    with pytest.raises(InvalidWindows) as caught:
        await ask(window_input(10.0), WindowInput(), parts=parts)

    assert reply.predictions[0].rul == 10.0
    for errors in (reply.predictions[1].error.errors, caught.value.problems):
        assert [(p.pointer, p.code) for p in errors] == [("/windows/1/columns/sensor_1/3", "not_a_number")]


def as_json(predictor, window):
    body = {"windows": [{"unit": window.unit, "last_cycle": window.last_cycle, "columns": window.columns}]}
    return Careful(predictor).read(json.dumps(body).encode())


def as_message(predictor, window):
    columns = {name: pb.Series(values=values) for name, values in window.columns.items()}
    given = pb.Window(unit=window.unit, last_cycle=window.last_cycle, columns=pb.Columns(columns=columns))
    return _read_large(predictor, pb.PredictRequest(windows=[given]).SerializeToString())


@pytest.mark.parametrize("read", [as_json, as_message])
async def test_a_large_request_is_answered_by_the_model_that_served_when_it_was_read(read):
    predictor = make_predictor()
    swapped = make_predictor(make_manifest(columns=COLUMNS[:2]).model_copy(update={"version": "2"}))

    query, model, parts = await read(predictor, window_input(10.0))
    predictor.serve(swapped.models)
    reply = await predictor.predict(query, model=model, parts=parts)

    assert (reply.model.version, [found.rul for found in reply.predictions]) == ("1", [10.0])


async def test_checked_windows_are_answered_as_a_query_is_and_wording_them_is_a_stage():
    predictor, stages = make_predictor(), []

    _, answered = await predictor.answer(
        predictor.model(None), make_windows(30.0, 20.0), explain=Explain.FULL, stages=stages
    )

    reply = await ask(*(window_input(rul) for rul in (30.0, 20.0)), explain=Explain.FULL)
    assert json_reply(answered) == json_reply(reply.predictions)
    assert [stage for stage, start, end in stages if start <= end] == [Stage.EXPLAIN]


async def test_answers_are_offered_to_the_recorder_as_they_are_returned_and_for_their_owner():
    recorder = FakeRecorder()
    predictor, query = make_predictor(recorder=recorder), PredictQuery([], explain=Explain.FULL)
    query.windows = [window_input(unit=unit) for unit in ("a", "b")]

    reply = await predictor.predict(query, tenant="plant")

    assert recorder.offers == [("plant", reply.model, ["a", "b"], reply.predictions)]
    assert predictor.models["fake"].batcher.submitted[0].owner == "plant"  # drift tells tenants' units apart


def many(count):
    return [window_input(float(i % 100), unit=str(i)) for i in range(count)]


async def test_many_windows_are_answered_in_their_order():
    windows = many(150)
    windows[70].columns["sensor_2"][0] = None

    predictor = make_predictor(max_request_windows=150)
    reply = await predictor.predict(PredictQuery(windows))

    assert [p.unit for p in reply.predictions] == [str(i) for i in range(150)]
    assert [p.rul for p in reply.predictions] == [float(i % 100) for i in range(150)]
    assert [i for i, p in enumerate(reply.predictions) if p.imputed_fraction] == [70]


async def test_a_prediction_survives_json_to_the_last_digit():
    reply = await ask(window_input(31.4159))

    decoded = msgspec.json.decode(json_reply(reply).body)

    weights = np.float32(decoded["predictions"][0]["attention"]["weights"])
    assert decoded["predictions"][0]["rul"] == reply.predictions[0].rul
    assert weights.tolist() == reply.predictions[0].attention.weights.tolist()


@pytest.mark.parametrize("count", [1, 2])
async def test_nothing_of_what_a_client_sent_is_kept_while_its_windows_wait(count):
    sent = [{name: [1.0] * 3 for name in make_manifest().schema_of_columns.names} for _ in range(count)]
    query = PredictQuery([WindowInput("7", 3, columns) for columns in sent])
    predictor, held = make_predictor(), []

    def references():
        return [sys.getrefcount(columns) for columns in sent]

    batcher = predictor.models["fake"].batcher

    async def submit(windows, answer=batcher.submit):
        held.extend(references())
        return await answer(windows)

    batcher.submit = submit

    await predictor.predict(query)

    assert held == references()
    assert query.windows == []
