"""`rul top`: figures from two scrapes, and what a terminal shows of them."""

import io
import math

import httpx
import pytest
from rich.console import Console
from rich.screen import Screen

from rul_client.commands.top.figures import Between, Distribution, quality, stage_times, traffic
from rul_client.commands.top.frame import frame
from rul_client.commands.top.layout import Sizes, layout
from rul_client.commands.top.run import frames
from rul_client.commands.top.scrape import Band, Model, ModelManifest, Samples, Scrape, Scraper, Unit
from rul_client.commands.top.words import shown
from rul_client.remote import RemoteFailed
from tests.in_process import in_process, json_window

URL = "http://service:3000"
FD001 = Model(
    "fd001", "1", "CPUExecutionProvider", ModelManifest([Band("mean", 0.4, 0.95), Band("0", 0, 1)], 0.9)
)

BEFORE = """
rul_requests_total{protocol="http",route="/v1/predict",code="200"} 100
rul_requests_total{protocol="http",route="/v1/predict",code="422"} 5
rul_requests_total{protocol="http",route="/metrics",code="200"} 7
rul_requests_total{protocol="grpc",route="rul.v1.RulService/Predict",code="OK"} 0
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="0.01"} 90
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="0.02"} 105
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="+Inf"} 105
rul_stage_duration_seconds_bucket{stage="queue",le="0.001"} 10
rul_stage_duration_seconds_bucket{stage="queue",le="+Inf"} 10
rul_stage_duration_seconds_sum{stage="queue"} 0.005
rul_prediction_cycles_bucket{model="fd001",le="50.0"} 10
rul_prediction_cycles_bucket{model="fd001",le="+Inf"} 10
rul_prediction_cycles_sum{model="fd001"} 400
rul_attention_entropy_ratio_bucket{model="fd001",head="mean",le="+Inf"} 10
rul_attention_entropy_ratio_sum{model="fd001",head="mean"} 8
rul_attention_out_of_band_total{model="fd001",side="low"} 1
rul_attention_out_of_band_total{model="fd001",side="high"} 1
rul_state_total{model="fd001",state="estimated"} 10
rul_state_total{model="fd001",state="at_least_cap"} 0
rul_novelty_ratio_bucket{model="fd001",le="+Inf"} 10
rul_novelty_ratio_sum{model="fd001"} 5
rul_batch_windows_bucket{le="+Inf"} 5
rul_batch_windows_sum 10
rul_rejected_total{reason="queue_full"} 0
rul_inflight_requests 0
"""

NOW = """
rul_requests_total{protocol="http",route="/v1/predict",code="200"} 300
rul_requests_total{protocol="http",route="/v1/predict",code="422"} 15
rul_requests_total{protocol="http",route="/metrics",code="200"} 9
rul_requests_total{protocol="grpc",route="rul.v1.RulService/Predict",code="OK"} 50
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="0.01"} 195
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="0.02"} 315
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="+Inf"} 315
rul_stage_duration_seconds_bucket{stage="queue",le="0.001"} 30
rul_stage_duration_seconds_bucket{stage="queue",le="+Inf"} 30
rul_stage_duration_seconds_sum{stage="queue"} 0.045
rul_prediction_cycles_bucket{model="fd001",le="50.0"} 30
rul_prediction_cycles_bucket{model="fd001",le="+Inf"} 30
rul_prediction_cycles_sum{model="fd001"} 1600
rul_attention_entropy_ratio_bucket{model="fd001",head="mean",le="+Inf"} 30
rul_attention_entropy_ratio_sum{model="fd001",head="mean"} 20
rul_attention_out_of_band_total{model="fd001",side="low"} 1
rul_attention_out_of_band_total{model="fd001",side="high"} 1
rul_state_total{model="fd001",state="estimated"} 25
rul_state_total{model="fd001",state="at_least_cap"} 5
rul_novelty_ratio_bucket{model="fd001",le="+Inf"} 30
rul_novelty_ratio_sum{model="fd001"} 15
rul_batch_windows_bucket{le="+Inf"} 9
rul_batch_windows_sum 30
rul_rejected_total{reason="queue_full"} 8
rul_inflight_requests 3
rul_pending_windows 17
rul_open_streams 4
rul_workers 2
rul_column_drift_psi{model="fd001",column="sensor_2"} 0.02
rul_column_drift_psi{model="fd001",column="sensor_11"} 0.31
rul_column_drift_psi{model="fd001",column="sensor_4"} 0.12
rul_column_drift_psi{model="fd001",column="sensor_9"} 0.01
rul_coverage_hits_total{model="fd001"} 45
rul_coverage_trials_total{model="fd001"} 50
rul_outcome_absolute_error_cycles_count{model="fd001"} 50
rul_outcome_absolute_error_cycles_sum{model="fd001"} 600
"""

UNITS = (
    Unit("17", "fd001", 121, 8.25, "estimated", None, {"label": "critical"}),
    Unit("pump\x1b[2J", "fd001", 40, 125.0, "at_least_cap", None, "healthy"),
)


def scrape(text, *, at, models=(FD001,), units=None, ready="ready"):
    return Scrape(URL, at, Samples(text), ready, models, units)


@pytest.fixture
def before():
    return scrape(BEFORE, at=100.0)


@pytest.fixture
def now():
    return scrape(NOW, at=102.0, units=UNITS)


@pytest.fixture
def between(before, now):
    return Between.of(before, now)


def drawn(picture, width=80):
    console = Console(file=io.StringIO(), width=width, record=True, highlight=False, markup=False)
    console.print(picture)
    return console.export_text(styles=False)


def replaced(text, name, value):
    """The same scrape with another value of one sample."""
    lines = [f"{name} {value}" if line.startswith(name + " ") else line for line in text.splitlines()]
    assert lines != text.splitlines(), name
    return "\n".join(lines) + "\n"


def test_rates_are_what_was_asked_for_over_the_seconds_between(between):
    http = traffic(between, "http")

    assert http.requests_per_second == 105.0
    assert http.errors_per_second == 5.0
    assert traffic(between, "grpc").requests_per_second == 25.0


def test_quantiles_are_those_of_the_requests_in_between(between):
    http = traffic(between, "http")

    # 105 of 210 took up to 10 ms, the others up to 20 ms.
    assert http.p50 == pytest.approx(0.01)
    assert http.p99 == pytest.approx(0.01 + 0.01 * (0.99 * 210 - 105) / 105)


def test_without_requests_there_is_no_latency(before):
    assert math.isnan(traffic(Between.of(before, before), "http").p99)


@pytest.mark.parametrize(
    ("q", "expected"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (0.9, 2.0), (1.0, 2.0)]
)
def test_a_quantile_lies_within_its_bucket_and_never_beyond_the_last_bound(q, expected):
    seen = Distribution({"2.0": 8.0, "1.0": 5.0, "+Inf": 10.0}, 0.0)

    found = seen.quantile(q)

    assert found == pytest.approx({0.75: 1 + 2.5 / 3}.get(q, expected))


def test_a_stage_has_the_mean_of_what_passed_it_in_between(between):
    (queue,) = [stage for stage in stage_times(between) if stage.stage == "queue"]

    assert queue.mean == pytest.approx(0.002)


def test_a_service_that_was_started_again_counts_from_nothing(before, now):
    between = Between.of(now, scrape(BEFORE, at=104.0))

    assert traffic(between, "http").requests_per_second == 52.5


def test_a_worker_that_has_not_heard_of_everything_yet_is_no_new_service(now):
    name = 'rul_requests_total{protocol="http",route="/v1/predict",code="200"}'
    behind = scrape(replaced(NOW, name, 298), at=103.0)

    assert traffic(Between.of(now, behind), "http").requests_per_second == 0


def test_what_a_model_answered_is_that_of_the_windows_in_between(between):
    seen = quality(between, FD001)

    assert seen.windows_per_second == 10.0
    assert not seen.since_start
    assert seen.rul == 60.0
    assert seen.states == {"estimated": 0.75, "at_least_cap": 0.25}
    assert seen.entropy == pytest.approx(0.6)
    assert seen.novelty == 0.5
    assert (seen.coverage, seen.outcomes, seen.error_cycles) == (0.9, 50, 12)


def test_the_three_columns_that_drift_most_are_named_the_worst_first(between):
    assert list(quality(between, FD001).drifting) == ["sensor_11", "sensor_4", "sensor_2"]


def test_where_nothing_was_asked_in_between_the_figures_are_of_all_time(now):
    seen = quality(Between.of(now, scrape(NOW, at=104.0)), FD001)

    assert seen.since_start
    assert seen.windows_per_second == 0
    assert seen.rul == pytest.approx(1600 / 30)


def test_a_model_that_was_never_asked_has_no_figures():
    idle = scrape("rul_inflight_requests 0\n", at=1.0)

    seen = quality(Between.of(idle, scrape("rul_inflight_requests 0\n", at=2.0)), FD001)

    assert math.isnan(seen.rul)
    assert not seen.collapsed
    assert not seen.uniform


@pytest.mark.parametrize(("total", "mark"), [(8 + 20 * 0.3, "collapsed"), (8 + 20 * 0.97, "uniform")])
def test_a_mean_entropy_outside_the_band_is_marked(before, total, mark):
    name = 'rul_attention_entropy_ratio_sum{model="fd001",head="mean"}'
    now = scrape(replaced(NOW, name, total), at=102.0)

    seen = quality(Between.of(before, now), FD001)

    assert getattr(seen, mark)
    assert mark in drawn(frame(before, now))


@pytest.mark.parametrize(("side", "mark"), [("low", "collapsed"), ("high", "uniform")])
def test_many_windows_outside_the_band_are_marked_also_where_their_mean_is_not(before, side, mark):
    name = f'rul_attention_out_of_band_total{{model="fd001",side="{side}"}}'
    now = scrape(replaced(NOW, name, 1 + 3), at=102.0)

    assert getattr(quality(Between.of(before, now), FD001), mark)


@pytest.mark.parametrize("width", [80, 120])
def test_a_frame_fits_its_terminal_and_says_everything(before, now, width):
    text = drawn(frame(before, now), width)

    assert max(map(len, text.splitlines())) <= width
    for said in (
        URL, "ready", "2 workers", "in flight 3", "queue 17 windows", "streams 4", "batch 5.00 windows",
        "refused 4.00/s queue_full", "http", "grpc", "105", "fd001", "60.0", "75 %", "0.60", "0.40 to 0.95",
        "sensor_11 0.31", "sensor_4 0.12", "90 %, want 90", "12.0", "critical", "8.25", ">= 125",
    ):  # fmt: skip
        assert said in text


@pytest.mark.parametrize("width", [80, 120])
def test_more_models_than_there_is_room_for_are_counted(before, now, width):
    models = (*(Model(f"model-{i}", "1", "CPU", ModelManifest()) for i in range(10)), FD001)
    busy = Scrape(URL, now.at, now.samples, "ready", models, None)

    text = drawn(frame(before, busy), width)

    assert max(map(len, text.splitlines())) <= width
    assert "fd001" in text
    assert f"and {11 - (width - 14) // 16} more" in text


def test_names_that_a_client_chose_cannot_command_the_terminal(before, now):
    assert "\x1b" not in drawn(frame(before, now))
    assert "pump?[2J" in drawn(frame(before, now))


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[/]", "a" * 100, "\n\r\t", ""])
def test_any_name_can_be_shown(before, name):
    odd = scrape(NOW, at=102.0, units=(Unit(name),))

    assert shown(name, 24) in drawn(frame(before, odd))


def test_a_service_that_is_not_ready_says_why(before):
    starting = scrape(NOW, at=102.0, ready="the service is starting")

    assert "the service is starting" in drawn(frame(before, starting))


def test_a_store_that_is_down_is_told(before):
    now = scrape(NOW + "rul_store_up 0\n", at=102.0)

    assert "store is down" in drawn(frame(before, now))
    assert "store is down" not in drawn(frame(before, scrape(NOW + "rul_store_up 1\n", at=102.0)))


def test_a_service_without_units_shows_none(before):
    assert "health" not in drawn(frame(before, scrape(NOW, at=102.0, units=None)))


def test_a_service_that_was_asked_about_no_unit_says_so(before):
    assert "no unit" in drawn(frame(before, scrape(NOW, at=102.0, units=())))


# Terminals of any height

FLEET = tuple(Unit(f"unit-{i}", "fd001", 100 + i, 3.0 * i, "estimated") for i in range(10))
MODELS = (FD001, *(Model(f"model-{i}", "1", "CPU", ModelManifest()) for i in range(3)))


def on_screen(picture, height, width=100):
    """The lines of a terminal that shows nothing else."""
    console = Console(file=io.StringIO(), width=width, height=height, record=True, highlight=False)
    console.print(Screen(picture))
    return console.export_text(styles=False).rstrip("\n").splitlines()


def units_of(lines):
    return [line.split()[0] for line in lines if line.startswith("unit-")]


@pytest.fixture
def fleet(before):
    """A service of four models and ten units, in a terminal."""
    now = scrape(NOW, at=102.0, models=MODELS, units=FLEET)
    return lambda height, **options: on_screen(frame(before, now, fits=True, **options), height)


@pytest.mark.parametrize(("height", "units"), [(24, 5), (30, 5), (45, 10), (60, 10)])
def test_a_terminal_of_any_usual_height_shows_traffic_models_and_the_most_urgent_units(fleet, height, units):
    lines = fleet(height)

    assert len(lines) <= height
    assert units_of(lines) == [f"unit-{i}" for i in range(units)]
    for said in (URL, "in flight 3", "http ", "grpc ", "queue_full", "windows/s", "mean RUL", "entropy"):
        assert any(said in line for line in lines), said


def test_what_a_short_terminal_leaves_out_a_tall_one_shows_and_says_how_tall(fleet):
    short, tall = "\n".join(fleet(24)), "\n".join(fleet(60))

    assert "its band" not in short
    assert "its band" in tall
    needed = len(tall.rstrip().splitlines())
    assert f"{needed} lines show all" in short
    assert "lines show all" not in tall
    assert "lines show all" not in "\n".join(fleet(needed))


@pytest.mark.parametrize("height", range(3, 61))
def test_a_frame_fits_every_height_and_leaves_urgent_units_out_last(fleet, height):
    lines = fleet(height)

    assert len(lines) <= height
    assert URL in lines[0]
    assert units_of(lines) == [f"unit-{i}" for i in range(len(units_of(lines)))]
    if height >= 13:
        assert len(units_of(lines)) >= 3
        assert any(line.startswith("http ") for line in lines)


def test_trouble_takes_its_line_of_a_short_terminal_too(fleet):
    lines = fleet(24, trouble="cannot be reached: " + "x" * 100)

    assert len(lines) <= 24
    assert len(units_of(lines)) >= 3
    assert any(line.startswith("http ") for line in lines)


def test_without_a_terminal_everything_is_shown(before, now):
    assert "its band" in drawn(frame(before, now))


SIZES = Sizes(head=3, protocols=2, stages=5, models=4, figures=16, units=10)


@pytest.mark.parametrize("height", range(1, 70))
def test_a_taller_terminal_shows_no_less_of_anything(height):
    less, more = layout(height, SIZES), layout(height + 1, SIZES)

    assert more.stages >= less.stages
    assert more.figures >= less.figures
    assert more.units >= less.units


# Scraping


async def test_a_running_service_is_shown_with_the_requests_in_between():
    ticks = iter(range(100))
    async with in_process() as service:
        scraper = Scraper(service.http, URL, clock=lambda: float(next(ticks)))
        before = await scraper.scrape()
        for _ in range(4):
            await service.predict_http(windows=[json_window(40.0)] * 2)
            await service.predict_grpc()
        await service.predict_http(windows=[])
        now = await scraper.scrape()

    between = Between.of(before, now)
    assert now.ready == "ready"
    assert [model.name for model in now.models] == ["fake"]
    assert now.models[0].band == Band("mean", 0.2, 1.0)
    assert (traffic(between, "http").requests_per_second, traffic(between, "http").errors_per_second) == (
        5,
        1,
    )
    assert traffic(between, "grpc").requests_per_second == 4
    assert traffic(between, "http").p50 > 0
    assert quality(between, now.models[0]).windows_per_second == 12
    assert quality(between, now.models[0]).rul == pytest.approx(40)
    assert "fake" in drawn(frame(before, now))


async def test_a_service_that_is_not_ready_is_shown_too():
    async with in_process(ready=False) as service:
        seen = await Scraper(service.http, URL).scrape()

    assert "ready" in drawn(frame(seen, seen))
    assert seen.ready != "ready"


class Answers:
    """A service that answers each path as it is told; counts what it was asked."""

    def __init__(self, **answers):
        self.answers = {
            "/metrics": httpx.Response(200, text=NOW),
            "/readyz": httpx.Response(200, json={"status": "ready"}),
            "/v1/models": httpx.Response(200, json={"models": []}),
            "/v1/units": httpx.Response(404),
        } | {f"/{name.replace('__', '/')}": answer for name, answer in answers.items()}
        self.asked = []

    def __call__(self, request):
        self.asked.append(request.url.path)
        answer = self.answers[request.url.path]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content)

    def scraper(self):
        client = httpx.AsyncClient(transport=httpx.MockTransport(self), base_url=URL)
        return Scraper(client, URL)


@pytest.mark.parametrize(
    "answer", [httpx.Response(404), httpx.Response(200, text="<html>"), httpx.Response(200, text="up 1\n")]
)
async def test_what_is_no_rulserve_is_said_to_be_none(answer):
    with pytest.raises(RemoteFailed, match="right address"):
        await Answers(metrics=answer).scraper().scrape()


async def test_who_cannot_be_reached_is_named():
    with pytest.raises(RemoteFailed, match=f"{URL} cannot be reached"):
        await Answers(metrics=httpx.ConnectError("refused")).scraper().scrape()


async def test_a_key_that_is_missing_is_asked_for():
    problem = httpx.Response(401, json={"title": "Unauthenticated", "detail": "a key is needed"})

    with pytest.raises(RemoteFailed, match="--api-key"):
        await Answers(v1__models=problem).scraper().scrape()


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.Response(200, text="[]"), httpx.ReadError("")])
async def test_units_that_cannot_be_had_are_left_out(answer):
    assert (await Answers(v1__units=answer).scraper().scrape()).units is None


async def test_units_come_in_the_order_of_their_urgency():
    units = [
        {
            "unit": "17", "model": "fd001", "last_cycle": 121, "rul": 8.5, "rul_state": "estimated",
            "interval": {"coverage": 0.9, "lower": 2.0, "upper": 15.0}, "health_state": "critical",
            "predicted_at": "2026-01-01T00:00:00Z",
        },
        {"unit": "3", "model": "fd001", "rul": 60.0},
    ]  # fmt: skip
    seen = await Answers(v1__units=httpx.Response(200, json={"units": units})).scraper().scrape()

    assert [(unit.unit, unit.health) for unit in seen.units] == [("17", "critical"), ("3", "")]
    assert "2.00 to 15.0" in drawn(frame(seen, seen))


async def test_manifests_and_a_list_that_is_not_there_are_asked_for_once():
    answers = Answers()
    scraper = answers.scraper()

    for _ in range(3):
        await scraper.scrape()

    assert answers.asked.count("/metrics") == 3
    assert answers.asked.count("/v1/models") == 1
    assert answers.asked.count("/v1/units") == 1


async def test_a_service_that_goes_leaves_its_last_figures_and_a_word():
    answers = Answers()
    pictures = frames(answers.scraper(), interval_seconds=0)

    there = drawn(await anext(pictures))
    answers.answers["/metrics"] = httpx.ConnectError("refused")
    gone = drawn(await anext(pictures), width=200)
    answers.answers["/metrics"] = httpx.Response(200, text=NOW)
    back = drawn(await anext(pictures), width=200)

    assert "cannot be reached" not in there
    assert "cannot be reached" in gone
    assert "2 workers" in gone
    assert "cannot be reached" not in back
