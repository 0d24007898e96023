"""Asking a server: what is sent, what is asked again, and what a refusal reads like."""

import asyncio

import grpc
import httpx
import msgspec
import numpy as np
import pytest
import typer
from grpc.aio import AioRpcError, Metadata

from rul_client.address import chosen_key, is_loopback
from rul_client.answers import Answer, Grounds, ModelName, NoAnswer, RemoteModel, Window
from rul_client.client import ATTEMPTS, MAX_PAUSE_SECONDS, RemoteAnswerer, open_remote, windows_per_request
from rul_client.errors import RemoteFailed
from rul_client.grpc import GrpcTransport
from service.proto import rul_v1_pb2 as pb
from tests.fakes import make_manifest

URL = "http://rul.test:3000"
PREDICTION = {
    "unit": "1",
    "rul": 38.5,
    "rul_state": "estimated",
    "interval": {"coverage": 0.9, "lower": 27.0, "upper": 51.0},
    "failure_probability": {"10": 0.0},
    "health_state": {"label": "degrading", "probabilities": {}},
    "imputed_fraction": 0.0,
    "warnings": [{"code": "of a later version", "detail": "..."}],
    "attention": {"cycles": [1, 2], "weights": [0.25, 0.75], "entropy_ratio": 0.8},
}
ANSWER = Answer(38.5, "estimated", 27.0, 51.0, "degrading", 0.8, 1)
WINDOW = Window("1", 2.0, np.array([[1, np.nan, 3], [4, 5, 6]], dtype=np.float32))


def model_entry(name="fake"):
    manifest = make_manifest(name).model_dump(mode="json")
    return {"name": name, "version": "1", "sha256": "f", "provider": "p", "manifest": manifest}


def problem(status, title="The queue is full", detail="4096 windows wait", **headers):
    return httpx.Response(status, json={"title": title, "detail": detail, "status": status}, headers=headers)


class Server:
    """Answers /v1/models always, and /v1/predict with these responses in turn."""

    def __init__(self, *responses, models=("fake",)):
        self.responses = list(responses)
        self.models = models
        self.requests = []
        self.pauses = []

    def __call__(self, request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"models": [{"name": name} for name in self.models]})
        if request.url.path.startswith("/v1/models/"):
            return httpx.Response(200, json=model_entry(request.url.path.removeprefix("/v1/models/")))
        self.requests.append(request)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    async def sleep(self, seconds):
        self.pauses.append(seconds)

    def open(self, url=URL, **options):
        options = {"model": None, "api_key": None} | options
        return open_remote(url, transport=httpx.MockTransport(self), sleep=self.sleep, **options)

    async def ask(self, **options):
        async with self.open(**options) as answerer:
            return await answerer.answer([WINDOW], "attention")


def good(*predictions):
    return httpx.Response(200, json={"model": {}, "predictions": list(predictions or (PREDICTION,))})


async def test_the_query_names_the_model_and_sends_missing_readings_as_null():
    server = Server(good())

    await server.ask(api_key="secret")

    (request,) = server.requests
    body = msgspec.json.decode(request.content)
    assert body["model"] == "fake"
    assert body["partial"] is True
    assert body["explain"] == "attention"
    assert body["windows"][0]["readings"] == [[1.0, None, 3.0], [4.0, 5.0, 6.0]]
    assert body["windows"][0]["last_cycle"] == 2.0
    assert request.headers["x-api-key"] == "secret"
    assert request.headers["content-type"] == "application/json"


async def test_a_window_that_the_server_refuses_has_its_reason():
    error = {
        "title": "A window cannot be read",
        "detail": "/windows/0/readings: too little",
        "errors": [{"pointer": "/windows/0/readings", "code": "too_much_missing", "detail": "too little"}],
    }

    answers = await Server(good({"unit": "1", "error": error})).ask()

    assert answers == [NoAnswer("too little")]


@pytest.mark.parametrize(
    ("status", "named", "pause"), [(429, "7", 7.0), (503, "7", 7.0), (503, "86400", MAX_PAUSE_SECONDS)]
)
async def test_what_passes_is_asked_again_after_the_time_that_the_server_names_up_to_a_limit(
    status, named, pause
):
    server = Server(problem(status, **{"retry-after": named}), good())

    answers = await server.ask()

    assert answers == [ANSWER]
    assert server.pauses == [pause]


async def test_it_is_asked_a_bounded_number_of_times():
    server = Server(*[problem(429) for _ in range(ATTEMPTS)])

    with pytest.raises(RemoteFailed, match=r"429: The queue is full: 4096 windows wait; tried 6 times"):
        await server.ask()
    assert len(server.pauses) == ATTEMPTS - 1


async def test_a_connection_that_breaks_is_tried_again():
    server = Server(httpx.RemoteProtocolError("peer closed"), good())

    assert await server.ask() == [ANSWER]


async def test_a_server_that_is_not_there_is_one_clear_line_at_once():
    server = Server(httpx.ConnectError("connection refused"))

    with pytest.raises(RemoteFailed, match=f"^{URL} cannot be reached: connection refused$"):
        await server.ask()
    assert server.pauses == []


@pytest.mark.parametrize(
    ("response", "line"),
    [
        (problem(422, "A window cannot be read", "bad"), "answered 422: A window cannot be read: bad"),
        (
            problem(401, "An API key is required", "none"),
            r"401: .*: none \(--key-file, --api-key or RUL_API_KEY\)",
        ),
        (httpx.Response(404, text="<html>"), "404: no problem document; is this the address of a rulserve"),
        (httpx.Response(200, text="<html>"), "is not rulserve, or a newer version"),
        (good({"unit": "1"}), "is not rulserve, or a newer version: KeyError"),
        (good({"unit": "1", "error": "text"}), "is not rulserve, or a newer version"),
    ],
)
async def test_a_refusal_is_one_line_and_not_asked_again(response, line):
    server = Server(response)

    with pytest.raises(RemoteFailed, match=line) as raised:
        await server.ask()
    assert "\n" not in str(raised.value)
    assert server.pauses == []


async def test_of_several_models_one_must_be_named():
    server = Server(good(), models=("fd001", "fd002"))

    with pytest.raises(RemoteFailed, match=r"several models \(fd001, fd002\): choose one with --model"):
        await server.ask()
    with pytest.raises(RemoteFailed, match="serves no model 'fd003', only fd001, fd002"):
        await server.ask(model="fd003")
    async with server.open(model="fd002") as answerer:
        assert answerer.manifest.name == "fd002"


def test_wide_windows_go_fewer_at_a_time_but_always_one():
    assert windows_per_request(make_manifest(context=60), 20) == 64
    assert windows_per_request(make_manifest(context=10_000), 20) == 13
    assert windows_per_request(make_manifest(context=100_000), 20) == 1


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("a", False)],
)
def test_no_proxy_is_asked_about_this_machine_itself(host, here):
    assert is_loopback(host) is here


def refusal(code, *, ours=True, details="why"):
    trailing = Metadata(("x-request-id", "1")) if ours else Metadata()
    return AioRpcError(code, Metadata(), trailing, details=details)


class Stub:
    """Answers `Predict` with these outcomes in turn."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.requests = []
        self.metadata = None

    async def Predict(self, request, *, metadata, timeout):  # noqa: ASYNC109, N802 as the generated stub
        self.requests.append(request)
        self.metadata = metadata
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def ask(self, pauses):
        async def sleep(seconds):
            pauses.append(seconds)

        model = RemoteModel(ModelName("fake", "1", "f"), make_manifest())
        answerer = RemoteAnswerer(GrpcTransport(self, "grpc://rul.test", "secret"), model, sleep=sleep)
        return asyncio.ensure_future(answerer.answer([WINDOW], "attention"))


GRPC_REPLY = pb.PredictReply(
    predictions=[
        pb.Prediction(
            rul=38.5,
            rul_state="estimated",
            interval=pb.Interval(coverage=0.9, lower=27.0, upper=51.0),
            health_state=pb.HealthState(label="degrading"),
            attention=pb.Attention(weights=[0.25, 0.75], entropy_ratio=0.8),
        ),
        pb.Prediction(error=pb.WindowError(title="A window cannot be read", detail="too little")),
    ]
)


async def test_grpc_gives_the_same_answers_as_http():
    stub = Stub(GRPC_REPLY)

    answer, refused = await stub.ask([])

    assert answer == ANSWER._replace(entropy_ratio=pytest.approx(0.8, abs=1e-6))
    assert refused == NoAnswer("too little")
    (window,) = stub.requests[0].windows
    np.testing.assert_array_equal(window.readings.values, [1, np.nan, 3, 4, 5, 6])
    assert stub.metadata == [("x-api-key", "secret")]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_grpc_asks_again_what_a_server_of_ours_says_will_pass(code):
    pauses = []

    answers = await Stub(refusal(code), GRPC_REPLY).ask(pauses)

    assert len(answers) == 2
    assert pauses == [0.5]


async def test_grpc_does_not_wait_for_a_server_that_is_not_there():
    pauses = []
    stub = Stub(refusal(grpc.StatusCode.UNAVAILABLE, ours=False, details="failed to connect\nto all"))

    with pytest.raises(RemoteFailed, match=r"^grpc://rul\.test cannot be reached: failed to connect to all$"):
        await stub.ask(pauses)
    assert pauses == []


async def test_a_grpc_refusal_is_one_line():
    stub = Stub(refusal(grpc.StatusCode.PERMISSION_DENIED, details="not a key"))

    with pytest.raises(
        RemoteFailed, match=r"PERMISSION_DENIED: not a key \(--key-file, --api-key or RUL_API_KEY\)$"
    ):
        await stub.ask([])


GROUNDS = Grounds("sensor_2", -12.0, "sensor_1", 3.5, "supported", (0.25, 0.75))


async def test_the_grounds_of_an_answer_come_by_http():
    attention = {"cycles": [1, 2], "weights": [0.25, 0.75], "evidence": [0.875, 0.125], "entropy_ratio": 0.8}
    sensors = {"sensor_1": 3.5, "sensor_2": -12.0}
    explained = PREDICTION | {"attention": attention, "sensor_contributions": sensors, "trust": "supported"}
    explained["failure_probability"] = {"10": 0.25, "30": 0.75}

    (answer,) = await Server(good(explained)).ask()

    assert (answer.top, answer.grounds) == (0, GROUNDS)


async def test_the_grounds_of_an_answer_come_by_grpc():
    reply = pb.PredictReply()
    reply.CopyFrom(GRPC_REPLY)
    explained = reply.predictions[0]
    explained.attention.evidence.extend([0.875, 0.125])
    explained.sensor_contributions.update({"sensor_1": 3.5, "sensor_2": -12.0})
    explained.failure_probability.update({30: 0.75, 10: 0.25})
    explained.trust = "supported"

    answer, _ = await Stub(reply).ask([])

    assert (answer.top, answer.grounds) == (0, GROUNDS)


def test_the_key_in_a_file_is_chosen_before_one_that_is_given_and_loses_its_newline(tmp_path):
    (tmp_path / "key").write_text("of the file\n", encoding="utf-8")

    assert chosen_key("given", tmp_path / "key") == "of the file"
    assert chosen_key("given", None) == "given"
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        chosen_key("given", tmp_path / "none")
