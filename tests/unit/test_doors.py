"""What holds at every door alike: failures, times, metrics, batches, and callers who leave."""

import asyncio
import gc
import json
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from service.core.lifecycle import Phase
from service.core.window import WindowInput
from service.oip.inference import InferQuery
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as pb
from tests.fakes import COLUMNS, FakeRuntime, make_manifest
from tests.in_process import (
    SLOW_SECONDS,
    SlowRuntime,
    ask_grpc,
    framed,
    in_process,
    json_window,
    message_window,
)
from tests.oip import json_request

INFER = "/v2/models/fake/infer"
SERVICE = "/inference.GRPCInferenceService"
CODES = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "RESOURCE_EXHAUSTED": 413,
    "DEADLINE_EXCEEDED": 504,
    "UNAVAILABLE": 503,
    "INTERNAL": 500,
    "CANCELLED": 499,
}


def inputs(*ruls, missing=0):
    """Windows that `FakeRuntime` answers with these RULs."""
    readings = np.zeros((len(ruls), 4, len(COLUMNS)), np.float32)
    readings[:, :, 1] = np.array(ruls)[:, None]
    readings[:, :missing, 0] = np.nan
    return {"readings": readings}


def infer_request(arrays, microseconds=None):
    given = [oip.ModelInferRequest.InferInputTensor(name=n, datatype="FP32", shape=a.shape)
             for n, a in arrays.items()]  # fmt: skip
    raw = [array.tobytes() for array in arrays.values()]
    request = oip.ModelInferRequest(model_name="fake", inputs=given, raw_input_contents=raw)
    if microseconds:
        request.parameters["timeout"].int64_param = microseconds
    return request


@dataclass
class Door:
    """A way in: where it asks, and the route that its requests count under."""

    protocol: str
    route: str

    def __str__(self):
        return self.route.rpartition("/")[2] + " by " + self.protocol

    async def ask(self, service, *ruls, missing=0, microseconds=None, **options):
        """Ask about windows with these RULs: the status as HTTP has it, and what came back."""
        windows, arrays = [{"rul": rul} for rul in ruls or (40.0,)], inputs(*ruls or (40.0,), missing=missing)
        if self.protocol == "http":
            if "v2" in self.route:
                parameters = {"parameters": {"timeout": microseconds}} if microseconds else {}
                reply = await service.http.post(INFER, json=json_request(arrays, **parameters))
            else:
                given = [json_window(**window) for window in windows]
                for window in given:
                    window["columns"]["setting_1"][:missing] = [None] * missing
                reply = await service.http.post("/v1/predict", json={"windows": given})
            return reply.status_code, reply
        request: Any = infer_request(arrays, microseconds)
        if "v1" in self.route:
            request = pb.PredictRequest(windows=[message_window(**window) for window in windows])
            for window in request.windows:
                window.columns.columns["setting_1"].values[:missing] = [np.nan] * missing
        reply = await ask_grpc(service.grpc, f"/{self.route}", framed(request.SerializeToString()), **options)
        return CODES[reply.code.name], reply


DOORS = [
    Door("http", "/v1/predict"),
    Door("http", "/v2/models/{name}/infer"),
    Door("grpc", "rul.v1.RulService/Predict"),
    Door("grpc", f"{SERVICE[1:]}/ModelInfer"),
]
every_door = pytest.mark.parametrize("door", DOORS, ids=str)
grpc_doors = pytest.mark.parametrize("door", DOORS[2:], ids=str)
oip_doors = pytest.mark.parametrize("door", DOORS[1::2], ids=str)


async def call(service, method, request, kind):
    """A message of the Open Inference Protocol by gRPC: the answer, and how the call ended."""
    answer = await ask_grpc(service.grpc, f"{SERVICE}/{method}", framed(request.SerializeToString()))
    return (kind.FromString(answer.messages[0]) if answer.messages else None), answer


@every_door
async def test_a_request_has_as_many_windows_as_the_limit_and_no_more(door):
    async with in_process(max_request_windows=3) as service:
        statuses = [(await door.ask(service, *range(1, 1 + count)))[0] for count in (3, 4)]

    assert statuses == [200, 413]


async def test_a_request_with_a_bad_window_has_as_many_windows_as_the_limit():
    async with in_process(max_request_windows=2) as service:
        bad = {"columns": {"sensor_1": ["x"]}}
        reply = await service.predict_http(windows=[json_window(), bad], partial=True)

    assert (reply.status_code, len(reply.json()["predictions"])) == (200, 2)


@every_door
async def test_a_runtime_that_fails_is_our_fault_and_nothing_of_it_is_shown(door):
    runtime = FakeRuntime()
    runtime.failures = 1

    async with in_process(runtime) as service:
        code, failed = await door.ask(service)
        next_code, _ = await door.ask(service)

    shown = failed.text if door.protocol == "http" else failed.detail + str(failed.metadata)
    assert (code, next_code) == (500, 200)
    assert "secret" not in shown
    assert "ValueError" not in shown


@every_door
@pytest.mark.parametrize("failures", [0, 1])
async def test_a_runtime_that_takes_50_ms_shows_at_least_50_ms_also_on_error(door, failures):
    runtime = SlowRuntime()
    runtime.failures = failures

    async with in_process(runtime) as service:
        await door.ask(service)

        labels = {"protocol": door.protocol, "route": door.route}
        assert service.value("rul_request_duration_seconds_count", **labels) == 1
        assert service.value("rul_request_duration_seconds_sum", **labels) >= SLOW_SECONDS
        assert service.value("rul_request_duration_seconds_bucket", **labels, le="0.02") == 0


@every_door
async def test_every_door_counts_what_it_answered_alike(service, door):
    await door.ask(service, 40.0, missing=2)

    assert service.value("rul_prediction_cycles_sum", model="fake") == 40
    assert service.value("rul_imputed_fraction_sum") == pytest.approx(2 / 12)
    assert service.value("rul_state_total", model="fake", state="estimated") == 1
    for stage in ("decode", "queue", "inference", "explain", "encode"):
        assert service.value("rul_stage_duration_seconds_count", stage=stage) == 1


def requests_alive():
    """Find what was read of requests; each holds every value that was sent."""
    kinds = (WindowInput, InferQuery, pb.PredictRequest, oip.ModelInferRequest)
    return [each for each in gc.get_objects() if type(each) in kinds]


@every_door
async def test_while_a_request_waits_only_its_windows_are_kept(service, door):
    async with service.busy():
        of_others = requests_alive()
        asking = asyncio.create_task(door.ask(service))
        await service.waiting(1)
        kept = [each for each in requests_alive() if not any(each is other for other in of_others)]

    code, _ = await asking
    assert code == 200
    assert len(kept) == (door.protocol == "grpc")  # the caller's own message


async def test_http_and_grpc_give_the_same_explanation():
    runtime = FakeRuntime(make_manifest(explains_readings=True, context=16))
    options = {"cycles": 12, "unit": "7"}
    async with in_process(runtime) as service:
        body = {"windows": [json_window(90.0, **options)], "explain": "none"}
        by_http = await service.http.post("/v1/explain", json=body)
        as_predicted = await service.predict_http(windows=[json_window(90.0, **options)], explain="full")
        by_grpc = await service.predict_grpc(
            windows=[message_window(90.0, **options)], explain=pb.EXPLAIN_FULL
        )

    assert by_http.json() == as_predicted.json()
    given = by_http.json()["predictions"][0]["explanation"]
    (message,) = pb.PredictReply.FromString(by_grpc.messages[0]).predictions
    assert message.trust == by_http.json()["predictions"][0]["trust"] == "supported"
    assert message.explanation.sentence == given["sentence"]
    assert message.explanation.sentence.startswith(
        "sensor_1 above its healthy range since cycle 89 or earlier"
    )
    assert [clause.without for clause in message.explanation.clauses] == pytest.approx(
        [clause["without"] for clause in given["clauses"]]
    )
    for name, values in given["contributions"].items():
        assert [*message.explanation.contributions[name].values] == pytest.approx(values)
    for name, usual in given["usual"].items():
        assert [*message.explanation.usual[name].upper] == pytest.approx(usual["upper"])


async def test_windows_of_all_doors_share_a_batch(service):
    async with service.busy():
        asked = [asyncio.create_task(door.ask(service, 1.0, 2.0)) for door in DOORS]
        await service.waiting(8)
    codes = [(await task)[0] for task in asked]

    assert service.runtime.batches == [1, 8]
    assert codes == [200] * 4


@oip_doors
async def test_a_timeout_among_the_parameters_limits_the_time(service, door):
    service.runtime.gate.clear()

    code, reply = await door.ask(service, microseconds=1000)

    assert code == 504
    assert "not answered within 0.001 s" in (reply.text if door.protocol == "http" else reply.detail)


@grpc_doors
async def test_a_disconnected_caller_is_counted_and_its_windows_are_dropped(service, door):
    leaves = asyncio.Event()

    async with service.busy():
        leaver = asyncio.create_task(door.ask(service, 1.0, 2.0, 3.0, leaves=leaves))
        await service.waiting(3)
        leaves.set()
        _, left = await leaver
        pending = service.batcher.pending_windows

    labels = {"protocol": "grpc", "route": door.route, "code": "CANCELLED"}
    assert (left.messages, pending) == ([], 0)
    assert service.value("rul_cancelled_total") == 3
    assert service.value("rul_requests_total", **labels) == 1


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING])
async def test_a_service_that_is_not_ready_lives_and_says_so_at_every_door(phase):
    async with in_process(ready=False) as service:
        service.lifecycle.enter(phase, "for a reason")
        asked = [await door.ask(service) for door in DOORS]
        refused = [
            await service.http.get(p) for p in ("/readyz", "/v2/health/ready", "/v2/models/fake/ready")
        ]
        live = [await service.http.get(path) for path in ("/livez", "/v1/models", "/v2/health/live")]
        index = (await service.http.post("/v2/repository/index")).json()
        ready = (await service.http.post("/v2/repository/index", json={"ready": True})).json()
        server, _ = await call(service, "ServerReady", oip.ServerReadyRequest(), oip.ServerReadyResponse)
        model, _ = await call(
            service, "ModelReady", oip.ModelReadyRequest(name="fake"), oip.ModelReadyResponse
        )

    for reply in [reply for _, reply in asked[:2]] + refused:
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert phase.value in reply.text
    assert [code for code, _ in asked] == [503] * 4
    assert [reply.status_code for reply in live] == [200] * 3
    assert index == [{"name": "fake", "version": "1", "state": "UNAVAILABLE", "reason": phase.value}]
    assert ready == []
    assert server.ready is model.ready is False


async def test_a_batcher_that_stopped_turns_readiness_and_liveness_false(service):
    service.batcher._stop(RuntimeError("broken"))

    codes = [(await service.http.get(path)).status_code for path in ("/livez", "/readyz", "/v2/health/live")]
    _, live = await call(service, "ServerLive", oip.ServerLiveRequest(), oip.ServerLiveResponse)

    assert codes == [500, 500, 500]
    assert live.code is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_the_open_inference_protocol_asks_for_no_content_type(service, kind):
    body = json.dumps(json_request(inputs(40.0)))

    reply = await service.http.post(INFER, content=body, headers={"content-type": kind})

    assert reply.status_code == 200


async def test_an_invalid_repository_index_request_is_malformed(service):
    reply = await service.http.post("/v2/repository/index", content=b'{"ready": 1}')

    assert (reply.status_code, list(reply.json())) == (400, ["error"])


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda m: m.raw_input_contents.append(b""), "raw_input_contents for each of 1 inputs, got 2"),
        (lambda m: m.inputs[0].contents.fp32_contents.append(1), "contents or raw_input_contents, got both"),
        (lambda m: m.inputs[0].shape.__setitem__(0, 2**62), "takes"),
        (lambda m: setattr(m.inputs[0], "datatype", "FP64"), "expected datatype FP32, got 'FP64'"),
        (lambda m: setattr(m.parameters["timeout"], "string_param", "x"), "expected whole microseconds"),
        (lambda m: [m.outputs.add(name="rul") for _ in range(40)], "at most 32"),
        (
            lambda m: (m.raw_input_contents.pop(), m.inputs[0].contents.fp64_contents.append(1)),
            "expected FP32 values in fp32_contents, got fp64_contents",
        ),
    ],
)
async def test_an_inference_message_that_contradicts_itself_is_refused(service, change, detail):
    request = infer_request(inputs(40.0))
    change(request)

    _, answer = await call(service, "ModelInfer", request, oip.ModelInferResponse)

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert detail in answer.detail


@pytest.mark.parametrize("form", ["text/plain", "application/openmetrics-text"])
async def test_metrics_in_a_version_that_is_no_number_are_answered_in_the_default_form(service, form):
    default = await service.http.get("/metrics")

    answer = await service.http.get("/metrics", headers={"accept": f"{form}; version=abc"})

    assert answer.status_code == 200
    assert answer.headers["content-type"] == default.headers["content-type"]


async def test_no_path_and_no_model_name_makes_a_series_of_its_own(service):
    def series(reply):
        return {line.rpartition(" ")[0] for line in reply.text.splitlines()}

    async def ask_for(name):
        for path in ("/{}", "/v1/models/{}", "/v2/{}", "/v2/models/{}", "/v2/models/fake/versions/{}"):
            await service.http.get(path.format(name))

    await service.http.get("/metrics")
    await ask_for("1")
    before = series(await service.http.get("/metrics"))
    for name in ("2", "3", "4"):
        await ask_for(name)

    assert series(await service.http.get("/metrics")) == before
    assert service.value("rul_requests_total", protocol="http", route="other", code="404") == 8
