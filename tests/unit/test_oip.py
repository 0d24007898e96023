"""The Open Inference Protocol around a stand-in runtime: what is answered, refused, limited and counted."""

import asyncio
import json

import grpc
import numpy as np
import pytest

from service.core.lifecycle import Phase
from service.proto import open_inference_pb2 as pb
from tests.fakes import COLUMNS, FakeRuntime, make_manifest
from tests.in_process import SLOW_SECONDS, SlowRuntime, ask_grpc, framed, in_process, until
from tests.oip import HEADER, arrays_of, binary_request, json_request

INFER = "/v2/models/fake/infer"
SERVICE = "/inference.GRPCInferenceService"
OK = grpc.StatusCode.OK


def inputs(*ruls, cycles=4):
    """Windows that `FakeRuntime` answers with these RULs."""
    readings = np.zeros((len(ruls), cycles, len(COLUMNS)), np.float32)
    readings[:, :, 1] = np.array(ruls)[:, None]
    return {"readings": readings}


def post(service, *, path=INFER, headers=None, arrays=None, **options):
    return service.http.post(
        path, json=json_request(arrays or inputs(40.0), **options), headers=headers or {}
    )


def message(arrays=None, *, model="fake", **options):
    """The same as a message, raw."""
    arrays = arrays or inputs(40.0)
    names = {"<f4": "FP32", "<i8": "INT64"}
    given = [
        pb.ModelInferRequest.InferInputTensor(name=n, datatype=names[a.dtype.str], shape=a.shape)
        for n, a in arrays.items()
    ]
    raw = [array.tobytes() for array in arrays.values()]
    return pb.ModelInferRequest(model_name=model, inputs=given, raw_input_contents=raw, **options)


async def call(service, method, request, kind, **options):
    """A message by gRPC: the answer, and how the call ended."""
    answer = await ask_grpc(
        service.grpc, f"{SERVICE}/{method}", framed(request.SerializeToString()), **options
    )
    return (kind.FromString(answer.messages[0]) if answer.messages else None), answer


async def infer(service, request=None, **options):
    return await call(service, "ModelInfer", request or message(), pb.ModelInferResponse, **options)


def error(reply, status):
    """The protocol's error, and nothing else."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json()) == ["error"]
    return reply.json()["error"]


# Answers


async def test_windows_of_one_tensor_are_answered_in_their_order_in_one_batch():
    async with in_process() as service:
        reply = await post(service, arrays=inputs(10, 20, 30), outputs=[{"name": "rul"}])

    assert reply.json()["outputs"] == [
        {"name": "rul", "datatype": "FP32", "shape": [3], "data": [10, 20, 30]}
    ]
    assert service.runtime.batches == [3]


async def test_windows_share_batches_with_those_of_the_native_api():
    async with in_process() as service:
        service.runtime.gate.clear()
        first = asyncio.ensure_future(post(service))
        await asyncio.to_thread(service.runtime.entered.wait)
        others = [
            asyncio.ensure_future(each)
            for each in (post(service, arrays=inputs(1, 2)), service.predict_http())
        ]
        await until(lambda: service.batcher.pending_windows == 3)
        service.runtime.gate.set()
        await asyncio.gather(first, *others)

    assert service.runtime.batches == [1, 3]


async def test_more_windows_than_a_batch_holds_are_answered_all_the_same():
    ruls = [float(i) for i in range(1, 21)]
    async with in_process() as service:
        reply = await post(service, arrays=inputs(*ruls), outputs=[{"name": "rul"}])

    assert reply.json()["outputs"][0]["data"] == ruls
    assert sorted(service.runtime.batches) == [4, 8, 8]


async def test_json_and_binary_bring_the_same_both_ways():
    arrays = {**inputs(10, 20), "lengths": np.array([3, 4]), "last_cycle": np.array([9, np.nan], np.float32)}
    body, size = binary_request(arrays, parameters={"binary_data_output": True})
    async with in_process() as service:
        plain = await post(service, arrays=arrays)
        binary = await service.http.post(INFER, content=body, headers={HEADER: str(size)})

    assert plain.headers["content-type"] == "application/json"
    assert HEADER not in plain.headers
    assert binary.headers["content-type"] == "application/octet-stream"
    by_json, by_bytes = arrays_of(plain.content, None), arrays_of(binary.content, int(binary.headers[HEADER]))
    assert list(by_json) == list(by_bytes)
    for name, values in by_json.items():
        np.testing.assert_array_equal(values, by_bytes[name])
    assert service.runtime.lengths == [[3, 4], [3, 4]]


@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_an_answer_names_its_model_its_version_and_its_id(version):
    async with in_process() as service:
        reply = await post(service, path=f"/v2/models/fake{version}/infer", id="a-1")

    body = reply.json()
    assert {key: body[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "fake",
        "model_version": "1",
        "id": "a-1",
    }


async def test_an_id_that_was_not_given_does_not_come_back():
    async with in_process() as service:
        assert "id" not in (await post(service)).json()


async def test_no_content_type_is_asked_for():
    async with in_process() as service:
        body = json.dumps(json_request(inputs(40.0)))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream"):
            reply = await service.http.post(INFER, content=body, headers={"content-type": kind})

            assert reply.status_code == 200


async def test_grpc_answers_raw_with_raw_and_typed_with_typed():
    typed = message()
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend(inputs(40.0)["readings"].ravel().tolist())
    async with in_process() as service:
        by_raw, _ = await infer(service, message(id="a-1"))
        by_type, _ = await infer(service, typed)

    assert (by_raw.id, by_raw.model_name, by_raw.model_version) == ("a-1", "fake", "1")
    assert len(by_raw.raw_output_contents) == len(by_raw.outputs) == 7
    assert not by_type.raw_output_contents
    for raw, output, other in zip(by_raw.raw_output_contents, by_raw.outputs, by_type.outputs, strict=True):
        assert (output.name, output.shape) == (other.name, other.shape)
        assert not output.HasField("contents")
        np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), np.float32(other.contents.fp32_contents))


async def test_grpc_gives_the_outputs_that_are_asked_for():
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("novelty", "rul")]
    async with in_process() as service:
        reply, _ = await infer(service, message(outputs=outputs))

    assert [output.name for output in reply.outputs] == ["novelty", "rul"]


async def test_a_network_with_heads_answers_their_attention():
    async with in_process(FakeRuntime(make_manifest(heads=2))) as service:
        reply = await post(service, arrays=inputs(1, 2), outputs=[{"name": "head_attention"}])

    assert reply.json()["outputs"][0]["shape"] == [2, 2, 4]


# What the service says of itself


async def test_the_server_says_what_it_is():
    async with in_process() as service:
        for path in ("/v2", "/v2/"):
            body = (await service.http.get(path)).json()

            assert body["name"] == "rulserve"
            assert body["version"]
            assert body["extensions"] == ["binary_tensor_data"]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING, Phase.FAILED])
async def test_what_is_not_ready_lives_and_says_so(phase):
    async with in_process(ready=False) as service:
        service.lifecycle.enter(phase, "of a reason")
        live = await service.http.get("/v2/health/live")
        refused = [await service.http.get(p) for p in ("/v2/health/ready", "/v2/models/fake/ready")] + [
            await post(service)
        ]
        index = (await service.http.post("/v2/repository/index")).json()
        ready = (await service.http.post("/v2/repository/index", json={"ready": True})).json()
        server, _ = await call(service, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
        model, _ = await call(service, "ModelReady", pb.ModelReadyRequest(name="fake"), pb.ModelReadyResponse)
        _, answer = await infer(service)

    assert live.json() == {"live": True}
    for reply in refused:
        assert phase.value in error(reply, 503)
        assert int(reply.headers["retry-after"]) >= 1
    assert index == [{"name": "fake", "version": "1", "state": "UNAVAILABLE", "reason": phase.value}]
    assert ready == []
    assert server.ready is model.ready is False
    assert answer.code is grpc.StatusCode.UNAVAILABLE


async def test_readiness_is_said_on_both_transports():
    async with in_process() as service:
        server = await service.http.get("/v2/health/ready")
        model = await service.http.get("/v2/models/fake/versions/1/ready")
        live, _ = await call(service, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        ready, _ = await call(service, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
        index, _ = await call(
            service, "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse
        )

    assert server.json() == {"ready": True}
    assert model.json() == {"name": "fake", "ready": True}
    assert live.live
    assert ready.ready
    assert [(model.name, model.version, model.state) for model in index.models] == [("fake", "1", "READY")]


async def test_when_batches_no_longer_leave_nothing_is_live():
    async with in_process() as service:
        service.batcher._failure = ValueError()

        error(await service.http.get("/v2/health/live"), 500)
        _, answer = await call(service, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)

    assert answer.code is grpc.StatusCode.INTERNAL


async def test_head_asks_without_a_body():
    async with in_process() as service:
        reply = await service.http.head("/v2/health/ready")

    assert (reply.status_code, reply.content) == (200, b"")


# Refusals


@pytest.mark.parametrize(
    "path", ["/v2/models/none/infer", "/v2/models/fake/versions/9/infer", "/v2/models/%2e%2e/infer"]
)
async def test_inference_by_an_unknown_model_or_version_is_not_found(path):
    async with in_process() as service:
        assert "loaded" in error(await post(service, path=path), 404)


@pytest.mark.parametrize("path", ["/v2/models/none", "/v2/models/none/ready", "/v2/models/fake/versions/9"])
async def test_an_unknown_model_or_version_is_not_found(path):
    async with in_process() as service:
        assert "loaded" in error(await service.http.get(path), 404)


@pytest.mark.parametrize(
    "path", ["/v2/x", "/v2/models", "/v2/models/", "/v2/models/fake/config", "/v2/models/a/b/c"]
)
async def test_a_path_that_nothing_answers_is_not_found_in_the_protocols_words(path):
    async with in_process() as service:
        reply = await service.http.get(path)

        assert "no endpoint" in error(reply, 404)
        assert service.value("rul_requests_total", protocol="http", route="other", code="404") == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", INFER, "POST"), ("POST", "/v2", "GET, HEAD"), ("HEAD", INFER, "POST")],
)
async def test_another_method_is_not_allowed(method, path, allowed):
    async with in_process() as service:
        reply = await service.http.request(method, path)

    assert reply.status_code == 405
    assert reply.headers["allow"] == allowed


async def test_what_is_wrong_is_400_where_the_native_api_says_422():
    infinite = inputs(np.inf)
    async with in_process() as service:
        body, size = binary_request(infinite)
        by_http = await service.http.post(INFER, content=body, headers={HEADER: str(size)})
        _, by_grpc = await infer(service, message(infinite))

        assert "for sensor_1, got inf, at [0, 0, 1], " in error(by_http, 400)
        assert by_grpc.code is grpc.StatusCode.INVALID_ARGUMENT
        assert by_grpc.detail == by_http.json()["error"]
        for protocol, route, code in (
            ("http", "/v2/models/{name}/infer", "400"),
            ("grpc", f"{SERVICE[1:]}/ModelInfer", "INVALID_ARGUMENT"),
        ):
            assert service.value("rul_requests_total", protocol=protocol, route=route, code=code) == 1


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda m: m.raw_input_contents.append(b""), "raw_input_contents for each of 1 inputs, got 2"),
        (lambda m: m.inputs[0].contents.fp32_contents.append(1), "contents or raw_input_contents, got both"),
        (lambda m: m.inputs[0].shape.__setitem__(0, 2**62), "takes"),
        (lambda m: m.inputs[0].shape.__setitem__(1, -4), "-1 for any size above 0"),
        (lambda m: setattr(m.inputs[0], "datatype", "FP64"), "expected datatype FP32, got 'FP64'"),
        (
            lambda m: m.parameters["timeout"].__setattr__("string_param", "x"),
            "timeout: expected whole microseconds",
        ),
        (lambda m: m.outputs.add(name="x"), "got 'x'"),
        (lambda m: [m.outputs.add(name="rul") for _ in range(40)], "at most 32"),
    ],
)
async def test_a_message_that_contradicts_itself_is_refused(change, detail):
    request = message()
    change(request)
    async with in_process() as service:
        _, answer = await infer(service, request)

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert detail in answer.detail


async def test_typed_values_stand_where_their_datatype_says():
    request = message()
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp64_contents.extend([0.0] * 12)
    async with in_process() as service:
        _, answer = await infer(service, request)

    assert "expected FP32 values in fp32_contents, got fp64_contents" in answer.detail


async def test_bytes_that_are_no_message_are_invalid():
    async with in_process() as service:
        answer = await ask_grpc(service.grpc, f"{SERVICE}/ModelInfer", framed(b"\xff\xff"))

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "method", ["ModelConfig", "ModelStatistics", "ModelStreamInfer", "RepositoryModelLoad"]
)
async def test_what_is_not_served_is_unimplemented(method):
    async with in_process() as service:
        answer = await ask_grpc(service.grpc, f"{SERVICE}/{method}", framed(b""))

    assert answer.code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_repository_index_request_that_is_none_is_malformed():
    async with in_process() as service:
        error(await service.http.post("/v2/repository/index", content=b'{"ready": 1}'), 400)


# Limits


async def test_a_key_is_asked_for_by_whatever_is_about_models():
    paths = [
        ("POST", INFER),
        ("GET", "/v2/models/fake"),
        ("GET", "/v2/models/fake/ready"),
        ("POST", "/v2/repository/index"),
    ]
    async with in_process(keys=["k"]) as service:
        for method, path in paths:
            none = await service.http.request(method, path)
            error(none, 401)
            assert none.headers["www-authenticate"] == "Bearer"
            error(await service.http.request(method, path, headers={"x-api-key": "x"}), 403)
        right = await post(service, headers={"authorization": "Bearer k"})
        for path in ("/v2", "/v2/health/live", "/v2/health/ready"):
            assert (await service.http.get(path)).status_code == 200

    assert right.status_code == 200


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("ModelReady", pb.ModelReadyRequest),
        ("ModelMetadata", pb.ModelMetadataRequest),
        ("RepositoryIndex", pb.RepositoryIndexRequest),
        ("ModelInfer", pb.ModelInferRequest),
    ],
)
async def test_a_key_is_asked_for_by_grpc_too(method, kind):
    async with in_process(keys=["k"]) as service:
        _, none = await call(service, method, kind(), kind)
        _, wrong = await call(service, method, kind(), kind, metadata=[("x-api-key", "x")])
        _, right = await infer(service, metadata=[("x-api-key", "k")])
        _, live = await call(service, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)

    assert none.code is grpc.StatusCode.UNAUTHENTICATED
    assert wrong.code is grpc.StatusCode.PERMISSION_DENIED
    assert right.code is live.code is OK


async def test_a_body_above_the_limit_is_too_large():
    async with in_process(max_body_bytes=1000) as service:
        error(await service.http.post(INFER, content=b" " * 1001), 413)


async def test_more_windows_than_a_request_may_have_are_too_large():
    async with in_process() as service:
        many = inputs(*[1.0] * 129, cycles=1)
        detail = error(await post(service, arrays=many), 413)
        _, answer = await infer(service, message(many))

    assert "at most 128 windows a request, got 129" in detail
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_full_queue_says_when_to_come_back():
    async with in_process(max_pending_windows=2) as service:
        reply = await post(service, arrays=inputs(1, 2, 3))
        _, answer = await infer(service, message(inputs(1, 2, 3)))

    assert "at most 2 may wait" in error(reply, 429)
    assert int(reply.headers["retry-after"]) >= 1
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "asked", [{"headers": {"request-timeout": "0.001"}}, {"parameters": {"timeout": 1000}}]
)
async def test_a_deadline_that_passes_is_said(asked):
    async with in_process() as service:
        service.runtime.gate.clear()
        assert "not answered within 0.001 s" in error(await post(service, **asked), 504)


async def test_a_deadline_of_grpc_is_the_callers_the_parameters_or_ours():
    patient = message()
    patient.parameters["timeout"].int64_param = 1000
    async with in_process(request_timeout_seconds=0.002) as service:
        service.runtime.gate.clear()
        answers = [
            (await infer(service, patient))[1],
            (await infer(service, metadata=[("grpc-timeout", "1m")]))[1],
            (await infer(service))[1],
        ]

    assert [answer.code for answer in answers] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 3


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
async def test_a_timeout_that_is_none_is_malformed(value):
    async with in_process() as service:
        error(await post(service, headers={"request-timeout": value}), 400)


async def test_what_fails_inside_stays_inside():
    runtime = FakeRuntime()
    runtime.failures = 2
    async with in_process(runtime) as service:
        detail = error(await post(service), 500)
        _, answer = await infer(service)

    assert "secret" not in detail + answer.detail
    assert answer.code is grpc.StatusCode.INTERNAL


async def test_draining_waits_for_an_answer_that_is_on_its_way():
    async with in_process() as service:
        service.runtime.gate.clear()
        asked = asyncio.ensure_future(post(service))
        await asyncio.to_thread(service.runtime.entered.wait)
        drained = asyncio.ensure_future(service.lifecycle.drain(30))
        await asyncio.sleep(0)
        assert not drained.done()
        error(await post(service), 503)
        service.runtime.gate.set()

        assert (await asked).status_code == 200
        assert await drained


async def test_a_caller_who_leaves_takes_their_windows_along():
    async with in_process() as service:
        service.runtime.gate.clear()
        first = asyncio.ensure_future(post(service))
        await asyncio.to_thread(service.runtime.entered.wait)
        leaves = asyncio.Event()
        asked = asyncio.ensure_future(infer(service, message(inputs(1, 2, 3)), leaves=leaves))
        await until(lambda: service.batcher.pending_windows == 3)
        leaves.set()
        await asked
        service.runtime.gate.set()
        await first

        assert service.value("rul_cancelled_total") == 3
        route = f"{SERVICE[1:]}/ModelInfer"
        assert service.value("rul_requests_total", protocol="grpc", route=route, code="CANCELLED") == 1


# Metrics


async def test_requests_are_counted_by_protocol_and_route_with_the_time_that_they_took():
    async with in_process(SlowRuntime()) as service:
        await post(service)
        await infer(service)

        for protocol, route in (("http", "/v2/models/{name}/infer"), ("grpc", f"{SERVICE[1:]}/ModelInfer")):
            labels = {"protocol": protocol, "route": route}
            code = "200" if protocol == "http" else "OK"
            assert service.value("rul_requests_total", **labels, code=code) == 1
            assert service.value("rul_request_duration_seconds_sum", **labels) >= SLOW_SECONDS


async def test_answers_are_counted_as_those_of_the_native_api_are():
    half = inputs(40.0)
    half["readings"][0, :2, 0] = np.nan
    async with in_process() as service:
        await post(service, arrays=half)

        assert service.value("rul_prediction_cycles_sum", model="fake") == 40
        assert service.value("rul_imputed_fraction_sum") == pytest.approx(2 / 12)
        assert service.value("rul_state_total", model="fake", state="estimated") == 1
        for stage in ("decode", "queue", "inference", "explain", "encode"):
            assert service.value("rul_stage_duration_seconds_count", stage=stage) == 1


async def test_no_path_under_v2_makes_a_series_of_its_own():
    def series(reply):
        return {line.rpartition(" ")[0] for line in reply.text.splitlines()}

    async with in_process() as service:

        async def ask_for(name):
            for path in ("/v2/{}", "/v2/models/{}", "/v2/models/fake/versions/{}", "/v2/models/{}/ready"):
                await service.http.get(path.format(name))

        await service.http.get("/metrics")
        await ask_for("1")
        before = series(await service.http.get("/metrics"))
        for name in ("2", "3", "4"):
            await ask_for(name)

        assert series(await service.http.get("/metrics")) == before


async def test_a_request_id_comes_back_with_answers_and_refusals():
    async with in_process() as service:
        assert (await post(service, headers={"x-request-id": "a-1"})).headers["x-request-id"] == "a-1"
        assert (await service.http.get("/v2/x", headers={"x-request-id": "a-2"})).headers[
            "x-request-id"
        ] == "a-2"
        _, answer = await infer(service, metadata=[("x-request-id", "a-3")])

    assert answer.metadata["x-request-id"] == "a-3"
