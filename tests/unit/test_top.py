"""`rul top`: figures from two scrapes, and what a terminal shows of them."""

import io
import math

import httpx
import pytest
from rich.console import Console

from model.domain import printable
from rul_client.address import Credentials
from rul_client.commands.top import screen
from rul_client.commands.top.scrape import UNCOUNTED, Samples, Scrape, Scraper
from rul_client.commands.top.screen import frame, frames
from rul_client.errors import RemoteFailed
from service.labels import Route

URL = "http://service:3000"
FD001 = {"name": "fd001", "manifest": {"entropy": [{"head": "mean", "low": 0.4, "high": 0.95}]}}

GROWTH = """
rul_requests_total{protocol="http",route="/v1/predict",code="200"} 100 300
rul_requests_total{protocol="http",route="/v1/predict",code="422"} 5 15
rul_requests_total{protocol="http",route="/metrics",code="200"} 7 9
rul_requests_total{protocol="grpc",route="rul.v1.RulService/Predict",code="OK"} 0 50
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="0.01"} 90 195
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="0.02"} 105 315
rul_request_duration_seconds_bucket{protocol="http",route="/v1/predict",le="+Inf"} 105 315
rul_prediction_cycles_count{model="fd001"} 10 30
rul_prediction_cycles_sum{model="fd001"} 400 1600
rul_attention_entropy_ratio_count{model="fd001",head="mean"} 10 30
rul_attention_entropy_ratio_sum{model="fd001",head="mean"} 8 20
rul_attention_out_of_band_total{model="fd001",side="low"} 1 1
rul_attention_out_of_band_total{model="fd001",side="high"} 1 1
rul_state_total{model="fd001",state="estimated"} 10 25
rul_state_total{model="fd001",state="at_least_cap"} 0 5
rul_rejected_total{reason="queue_full"} 0 8
rul_inflight_requests 0 3
rul_workers - 2
rul_column_drift_psi{model="fd001",column="sensor_11"} - 0.31
rul_column_drifting{model="fd001"} - 0
"""
LINES = [line.rsplit(" ", 2) for line in GROWTH.split("\n") if line]
BEFORE = "".join(f"{name} {before}\n" for name, before, _ in LINES if before != "-")
NOW = "".join(f"{name} {now}\n" for name, _, now in LINES)
INTERVAL = {"lower": 2.0, "upper": 15.0}
UNIT = {"unit": "7", "rul": 8.25, "rul_state": "estimated", "interval": INTERVAL, "health_state": "critical"}


def scrape(text=NOW, *, at=102.0, units=None, ready="ready"):
    return Scrape(URL, at, Samples.parse(text), ready, [FD001], units)


def drawn(before=None, now=None, *, width=110, **options):
    return printed(frame(before or scrape(BEFORE, at=100.0), now or scrape(), **options), width)


def printed(picture, width=200, *, styles=False):
    console = Console(file=io.StringIO(), width=width, record=True, highlight=False, markup=False)
    console.print(picture)
    return console.export_text(styles=styles)


def line(text, first):
    return next(words for words in map(str.split, text.splitlines()) if words and words[0] == first)


def replaced(name, value):
    lines = [f"{name} {value}\n" if each.startswith(name + " ") else each for each in NOW.splitlines(True)]
    return scrape("".join(lines))


@pytest.mark.parametrize(
    "route", [Route.READYZ, Route.V2_READY, Route.V2_MODEL_READY, Route.GRPC_INFERENCE, Route.GRPC_STREAM]
)
def test_probes_and_streams_are_no_requests(route):
    probes = Samples.parse(f'rul_requests_total{{protocol="http",route="{route}",code="200"}} 9\n')

    assert probes.total("rul_requests_total") == 0


def test_the_uncounted_routes_exist():
    assert set(Route) >= UNCOUNTED


@pytest.mark.parametrize("state", ["at_least_cap", "insufficient_history", "out_of_distribution"])
def test_a_capped_rul_is_no_exact_number_in_any_state(state):
    capped = UNIT | {"rul": 125.0, "rul_state": state, "interval": {"lower": 90.0, "upper": 125.0}}

    text = drawn(now=scrape(units=[capped]))

    assert ">= 125" in text


def test_rates_and_quantiles_are_of_the_requests_in_between():
    text = drawn()

    # 105 of 210 took up to 10 ms, the others up to 20 ms.
    assert line(text, "http") == ["http", "105", "5.00", "10.0", "19.8"]
    assert line(text, "grpc") == ["grpc", "25.0", "0", "-", "-"]


@pytest.mark.parametrize(("now", "rate"), [(100, "50.0"), (298, "0")], ids=["restarted", "worker behind"])
def test_a_counter_that_falls_restarted_unless_it_falls_little(now, rate):
    later = replaced('rul_requests_total{protocol="http",route="/v1/predict",code="200"}', now)

    assert line(drawn(scrape(at=100.0), later), "http")[1] == rate


@pytest.mark.parametrize(("q", "expected"), [(0.25, 0.5), (0.5, 1.0), (0.75, 1 + 2.5 / 3), (1.0, 2.0)])
def test_a_quantile_lies_within_its_bucket_and_never_beyond_the_last_bound(q, expected):
    samples = Samples.parse('d_bucket{le="2.0"} 8\nd_bucket{le="1.0"} 5\nd_bucket{le="+Inf"} 10\n')

    assert samples.quantile(q, "d") == pytest.approx(expected)
    assert math.isnan(samples.quantile(q, "other"))


def test_a_model_shows_what_it_answered_in_between_or_if_nothing_since_start():
    assert line(drawn(scrape(at=100.0)), "fd001")[1:3] == ["0", "53.3"]
    assert line(drawn(), "fd001") == [
        "fd001", "10.0", "60.0", "-", "25", "%", "0", "%", "0", "%", "0.60", "-", "sensor_11", "0.31",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "mark"),
    [
        ('entropy_ratio_sum{model="fd001",head="mean"}', 8 + 20 * 0.3, "collapsed"),
        ('out_of_band_total{model="fd001",side="high"}', 4, "uniform"),
    ],
)
def test_attention_outside_the_band_of_training_is_marked(name, value, mark):
    assert mark in line(drawn(now=replaced(f"rul_attention_{name}", value)), "fd001")


@pytest.mark.parametrize(("drifting", "is_marked"), [(0, False), (1, True)])
def test_drift_is_marked_where_the_service_says_that_it_is_no_chance(drifting, is_marked):
    """A healthy fleet's index is often above 0.25; the limit depends on how many units there are."""
    now = replaced('rul_column_drifting{model="fd001"}', drifting)

    text = printed(frame(scrape(BEFORE, at=100.0), now), styles=True)

    assert ("\x1b[1;31msensor_11 0.31" in text) == is_marked


STRANGE = {"rul": 12.9, "rul_state": "out_of_distribution", "health_state": "unknown"}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({}, "7 - 8.25 2.00 to 15.0 critical estimated"),
        (STRANGE, "7 - 12.9 2.00 to 15.0 unknown out of distribution"),
    ],
)
def test_a_frame_fits_its_terminal(changed, row, width):
    text = drawn(now=scrape(units=[UNIT | changed]), width=width)

    assert max(map(len, text.splitlines())) <= width
    assert all(part in text for part in ("2 workers", "in flight 3", "refused 4.00/s queue_full"))
    assert " ".join(line(text, "7")) == row


@pytest.mark.parametrize("name", ["pump\x1b[2J", "[bold]x[/bold]", "a" * 100, "\n\r\t", ""])
async def test_a_name_that_a_client_chose_cannot_command_the_terminal(monkeypatch, capsys, name):
    async def pictures(*_, **__):
        yield frame(scrape(BEFORE, at=100.0), scrape(units=[{"unit": name}]))

    monkeypatch.setattr(screen, "frames", pictures)
    await screen.watch(URL, Credentials(), once=True, interval_seconds=0)

    text = capsys.readouterr().out
    assert (printable(name, 24) in text, "\x1b" in text) == (True, False)


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ("rul_store_up 0\n", {}, "store is down"),
        ("rul_store_dropped_total 6\n", {}, "store drops 3.00/s"),
        ("", {"units": []}, "no unit has been asked about yet"),
    ],
)
def test_what_is_wrong_is_shown_only_when_it_is(more, options, words):
    assert words in drawn(now=scrape(NOW + more, **options))
    assert words not in drawn(now=scrape(NOW + "rul_store_up 1\n"))


class Answers:
    """A service that answers each path as told, and keeps what it was asked."""

    def __init__(self, **answers):
        self.answers = {
            "/metrics": httpx.Response(200, text=NOW),
            "/readyz": httpx.Response(503, json={"status": 503, "detail": "the service is starting"}),
            "/v1/models": httpx.Response(200, json={"models": [{"name": "fd001"}]}),
            "/v1/models/fd001": httpx.Response(200, json=FD001),
            "/v1/units": httpx.Response(404, json={"status": 404}),
        } | {f"/{name.replace('__', '/')}": answer for name, answer in answers.items()}
        self.asked = []
        client = httpx.AsyncClient(transport=httpx.MockTransport(self), base_url=URL)
        self.scraper = Scraper(client, URL)

    def __call__(self, request):
        self.asked.append(request.url.path)
        answer = self.answers[request.url.path]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content)


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("metrics", httpx.Response(404), "address of a rulserve"),
        ("metrics", httpx.Response(200, text="<html>"), "is not rulserve"),
        ("v1__models", httpx.Response(200, text="[]"), "is not rulserve"),
        ("v1__models", httpx.Response(200, text="[" * 100_000), "is not rulserve"),
        ("metrics", httpx.ConnectError("refused"), f"{URL} cannot be reached: refused"),
        ("v1__models", httpx.Response(401, json={"title": "", "detail": ""}), "--api-key"),
    ],
)
async def test_a_service_that_cannot_be_read_is_one_line(path, answer, words):
    with pytest.raises(RemoteFailed, match=words) as refused:
        await Answers(**{path: answer}).scraper.scrape()

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(503),
        httpx.Response(200, text="[]"),
        httpx.Response(200, text='{"units":' + "[" * 100_000),
        httpx.ReadError(""),
    ],
)
async def test_units_that_cannot_be_read_are_left_out(answer):
    assert (await Answers(v1__units=answer).scraper.scrape()).units is None


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_manifests_and_units_that_are_not_kept_or_not_shown_are_asked_for_once(status):
    answers = Answers(v1__units=httpx.Response(status, json={"status": status}))

    scrapes = [await answers.scraper.scrape() for _ in range(3)]

    assert "the service is starting" in drawn(*scrapes[:2])
    assert [each.units for each in scrapes] == [None] * 3
    paths = ("/metrics", "/v1/models", "/v1/models/fd001", "/v1/units")
    assert [answers.asked.count(path) for path in paths] == [3, 1, 1, 1]


async def test_a_service_that_goes_leaves_its_last_figures_and_the_reason():
    answers, shown = Answers(), []
    pictures = frames(answers.scraper, interval_seconds=0)

    there = answers.answers["/metrics"]
    for answer in (there, httpx.ConnectError("refused"), there):
        answers.answers["/metrics"] = answer
        shown.append(printed(await anext(pictures)))

    assert ["cannot be reached" in text for text in shown] == [False, True, False]
    assert "2 workers" in shown[1]
