"""Each row of the table of errors: a request that gets exactly that answer by HTTP and by gRPC."""

import json
import re

import grpc
import httpx
import numpy as np
import pytest

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.integration.conftest import KEY, QUEUE_WINDOWS, STRICT_BODY_BYTES, violations

JSON = {"content-type": "application/json"}
SERIES = pb.Series(values=[1.0])
FORM = "application/x-www-form-urlencoded"


def assert_problem(reply, status, code, *, pointers=()):
    """RFC 9457, with everything that we promise."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body = reply.json()
    assert list(body) == ["type", "title", "status", "detail", "errors", "request_id"]
    assert body["type"] == f"urn:rulserve:problem:{code}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == reply.headers["x-request-id"]
    assert [problem["pointer"] for problem in body["errors"]] == list(pointers)
    assert all(problem["code"] and problem["detail"] for problem in body["errors"])


def refused(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    assert caught.value.details()
    return caught.value


def predict(stub, *windows, **options):
    return refused(stub.Predict, pb.PredictRequest(windows=[w.message() for w in windows], **options))


def post(http, *windows, **options):
    return http.post("/v1/predict", json={"windows": [w.json() for w in windows], **options})


# Malformed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"windows": [}',
        b'{"windows": [{"readings": [[NaN]]}]}',
        b'{"windows": [{"readings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"windows": [{"readings": [[1e999, ' + b"1" * 5_000 + b"]]}]}",
    ],
    ids=["nothing", "cut short", "no text", "no value", "NaN", "deep", "a huge number"],
)
def test_what_is_not_json_is_malformed(http, body):
    assert_problem(http.post("/v1/predict", content=body, headers=JSON), 400, "malformed_body")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ([], ""),
        ({}, ""),
        ({"windows": {}}, "/windows"),
        ({"windows": [3]}, "/windows/0"),
        ({"windows": [], "explain": "all"}, "/explain"),
        ({"windows": [], "partial": "yes"}, "/partial"),
        ({"windows": [], "modle": "tiny"}, ""),
        ({"windows": [{"unit": 17, "readings": [[1.0]]}]}, "/windows/0/unit"),
        ({"windows": [{"reading": [[1.0]]}]}, "/windows/0"),
    ],
)
def test_a_body_of_another_shape_is_malformed_and_the_pointer_says_where(http, body, pointer):
    assert_problem(http.post("/v1/predict", json=body), 400, "malformed_body", pointers=[pointer])


def test_bytes_that_are_no_message_are_malformed_by_grpc(channel):
    call = channel.unary_unary("/rul.v1.RulService/Predict", lambda raw: raw, pb.PredictReply.FromString)

    error = refused(call, b"\xff\xff\xff")

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_unknown_way_to_explain_is_malformed_by_grpc(stub, windows):
    error = predict(stub, windows[0], explain=99)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == ["/explain"]


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
def test_a_timeout_that_is_none_is_malformed(http, windows, value):
    body = {"windows": [windows[0].json()]}

    reply = http.post("/v1/predict", json=body, headers={"request-timeout": value})

    assert_problem(reply, 400, "malformed_body")


# Keys


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/models", "/v1/models/tiny"])
def test_without_a_key_http_asks_for_one(strict, path):
    method = "POST" if path == "/v1/predict" else "GET"

    reply = httpx.request(method, strict.http + path, trust_env=False)

    assert_problem(reply, 401, "unauthenticated")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers", [{"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}, {"x-api-key": "é"}]
)
def test_a_wrong_key_is_forbidden_by_http(strict, headers):
    encoded = {name: value.encode("utf-8") for name, value in headers.items()}

    assert_problem(httpx.get(strict.http + "/v1/models", headers=encoded, trust_env=False), 403, "forbidden")


@pytest.mark.parametrize("headers", [{"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}])
def test_a_right_key_opens_both_transports(strict, headers):
    by_http = httpx.get(strict.http + "/v1/models", headers=headers, trust_env=False)
    with grpc.insecure_channel(strict.grpc) as channel:
        by_grpc = rul_v1_pb2_grpc.RulServiceStub(channel).ListModels(
            pb.ListModelsRequest(), metadata=list(headers.items())
        )

    assert by_http.status_code == 200
    assert [model.reference.name for model in by_grpc.models] == ["tiny"]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/openapi.json", "/docs"])
def test_what_operators_and_browsers_ask_needs_no_key(strict, path):
    assert httpx.get(strict.http + path, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ([], grpc.StatusCode.UNAUTHENTICATED),
        ([("x-api-key", "wrong")], grpc.StatusCode.PERMISSION_DENIED),
        ([("authorization", "Bearer wrong")], grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_grpc_asks_for_a_right_key(strict, metadata, code):
    with grpc.insecure_channel(strict.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)

        for call, request in (
            (stub.Predict, pb.PredictRequest()),
            (stub.ListModels, pb.ListModelsRequest()),
            (stub.GetModel, pb.GetModelRequest()),
        ):
            assert refused(call, request, metadata=metadata).code() is code


# Models


def test_an_unknown_model_is_not_found(http, stub, windows):
    assert_problem(post(http, windows[0], model="none"), 404, "unknown_model")
    assert_problem(http.get("/v1/models/none"), 404, "unknown_model")
    assert predict(stub, windows[0], model="none").code() is grpc.StatusCode.NOT_FOUND
    assert refused(stub.GetModel, pb.GetModelRequest(name="none")).code() is grpc.StatusCode.NOT_FOUND


# Too large


def test_a_body_above_the_limit_is_too_large(strict):
    body = b" " * (STRICT_BODY_BYTES + 1)
    headers = {**JSON, "x-api-key": KEY}

    announced = httpx.post(strict.http + "/v1/predict", content=body, headers=headers, trust_env=False)
    in_parts = httpx.post(
        strict.http + "/v1/predict",
        content=(body[i : i + 5000] for i in range(0, len(body), 5000)),
        headers=headers,
        trust_env=False,
    )

    assert_problem(announced, 413, "too_large")
    assert_problem(in_parts, 413, "too_large")


def test_a_message_above_the_limit_exhausts_resources(strict):
    window = pb.Window(readings=pb.Readings(values=[1.0] * STRICT_BODY_BYTES))

    with grpc.insecure_channel(strict.grpc) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        error = refused(stub.Predict, pb.PredictRequest(windows=[window]), metadata=[("x-api-key", KEY)])

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_small_message_that_inflates_above_the_limit_exhausts_resources(strict):
    window = pb.Window(readings=pb.Readings(values=[1.0] * STRICT_BODY_BYTES))

    with grpc.insecure_channel(strict.grpc, compression=grpc.Compression.Gzip) as channel:
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)
        error = refused(stub.Predict, pb.PredictRequest(windows=[window]), metadata=[("x-api-key", KEY)])

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_too_many_windows_are_too_large(strict, windows):
    body = {"windows": [windows[9].json()] * 5}
    reply = httpx.post(strict.http + "/v1/predict", json=body, headers={"x-api-key": KEY}, trust_env=False)
    with grpc.insecure_channel(strict.grpc) as channel:
        error = refused(
            rul_v1_pb2_grpc.RulServiceStub(channel).Predict,
            pb.PredictRequest(windows=[windows[9].message()] * 5),
            metadata=[("x-api-key", KEY)],
        )

    assert_problem(reply, 413, "too_large")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# Media types and routes


@pytest.mark.parametrize("media_type", [None, "text/plain", FORM, "application/grpc"])
def test_another_media_type_is_not_supported(http, media_type):
    headers = {} if media_type is None else {"content-type": media_type}

    assert_problem(http.post("/v1/predict", content=b"{}", headers=headers), 415, "unsupported_media")


def test_json_may_name_its_charset(http, windows):
    body = json.dumps({"windows": [windows[0].json()]})

    reply = http.post(
        "/v1/predict", content=body, headers={"content-type": "Application/JSON; charset=utf-8"}
    )

    assert reply.status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/v1/models/", "/docs/assets/no.css", "/docs/assets/../../x"])
def test_an_unknown_path_is_not_found(http, path):
    assert_problem(http.get(path), 404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/predict", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/docs/assets/swagger-ui.css", {"GET", "HEAD"}),
    ],
)
def test_another_method_is_told_which_are_allowed(http, method, path, allowed):
    reply = http.request(method, path)

    assert_problem(reply, 405, "method_not_allowed")
    assert set(reply.headers["allow"].split(", ")) == allowed


# Windows that no model can read


def test_one_bad_window_of_many_refuses_all_and_the_pointers_name_every_place(http, stub, windows):
    mixed = list(windows[:10])
    mixed[2] = mixed[2].with_reading(3, 4, np.inf)
    mixed[7] = mixed[7].with_reading(0, 1, -np.inf)
    pointers = ["/windows/2/readings/3/4", "/windows/7/readings/0/1"]
    body = json.dumps({"windows": [w.json() for w in mixed]}).replace("Infinity", "1e999")

    reply = http.post("/v1/predict", content=body, headers=JSON)
    error = predict(stub, *mixed)

    assert_problem(reply, 422, "invalid_windows", pointers=pointers)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == pointers


def test_with_partial_the_good_windows_are_answered_and_each_bad_one_carries_its_error(http, stub, windows):
    mixed = [windows[0], windows[1].with_reading(0, 0, np.inf), windows[2]]
    body = json.dumps({"windows": [w.json() for w in mixed], "partial": True}).replace("Infinity", "1e999")

    by_json = http.post("/v1/predict", content=body, headers=JSON).json()["predictions"]
    by_message = stub.Predict(
        pb.PredictRequest(windows=[w.message() for w in mixed], partial=True)
    ).predictions

    assert (
        ["error" in p for p in by_json] == [p.HasField("error") for p in by_message] == [False, True, False]
    )
    assert [p["unit"] for p in by_json] == [p.unit for p in by_message] == [w.unit for w in mixed]
    (problem,) = by_json[1]["error"]["errors"]
    (same,) = by_message[1].error.errors
    assert (problem["pointer"], problem["code"]) == ("/windows/1/readings/0/0", "non_finite")
    assert (same.pointer, same.code, same.detail) == tuple(problem.values())
    assert all(p["attention"]["weights"] for p in (by_json[0], by_json[2]))


def test_with_partial_a_request_of_bad_windows_alone_is_answered_with_their_errors(http, stub, windows):
    bad = windows[0].with_reading(0, 0, np.inf)
    body = json.dumps({"windows": [bad.json()], "partial": True}).replace("Infinity", "1e999")

    (by_json,) = http.post("/v1/predict", content=body, headers=JSON).json()["predictions"]
    (by_message,) = stub.Predict(pb.PredictRequest(windows=[bad.message()], partial=True)).predictions

    assert by_json["error"]["errors"]
    assert by_message.error.errors


@pytest.mark.parametrize(
    ("window", "pointer"),
    [
        ({"columns": {"load": [1.0], "speed": [1.0]}}, "/columns/speed"),
        ({"columns": {"load": [1.0, 2.0], "vibration": [1.0]}}, "/columns/vibration"),
        ({"columns": {"load": []}}, "/columns"),
        ({"columns": {"load": [40.0]}}, "/columns"),  # five of six columns missing
        ({"readings": [[1.0] * 5]}, "/readings/0"),
        ({"readings": [[1.0] * 6, [1.0] * 7]}, "/readings/1"),
        ({"readings": []}, "/readings"),
        ({}, "/columns"),
        ({"readings": [[1.0, 1.0, "x", 1.0, 1.0, 1.0]]}, "/readings/0/2"),
        ({"columns": {"load": [1.0, True]}}, "/columns/load/1"),
        ({"readings": [[1.0] * 6], "last_cycle": -1}, "/last_cycle"),
        ({"readings": [[1.0] * 6], "last_cycle": "12"}, "/last_cycle"),
        ({"readings": [[1.0] * 6], "last_cycle": 1.5}, "/last_cycle"),
    ],
)
def test_a_window_that_the_model_cannot_read_is_pointed_at(http, window, pointer):
    reply = http.post("/v1/predict", json={"windows": [window]})

    assert_problem(reply, 422, "invalid_windows", pointers=[f"/windows/0{pointer}"])


@pytest.mark.parametrize(
    ("window", "pointer"),
    [
        (pb.Window(columns=pb.Columns(columns=dict.fromkeys(["load", "speed"], SERIES))), "/columns/speed"),
        (pb.Window(readings=pb.Readings(values=[1.0] * 7)), "/readings/0"),
        (pb.Window(readings=pb.Readings(values=[1.0] + [float("nan")] * 5)), "/readings"),
        (pb.Window(readings=pb.Readings(values=[float("inf")] * 1 + [1.0] * 5)), "/readings/0/0"),
        (pb.Window(readings=pb.Readings(values=[1.0] * 6), last_cycle=float("inf")), "/last_cycle"),
        (pb.Window(readings=pb.Readings()), "/readings"),
        (pb.Window(), "/columns"),
    ],
)
def test_the_same_by_grpc(stub, window, pointer):
    error = refused(stub.Predict, pb.PredictRequest(windows=[window]))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == [f"/windows/0{pointer}"]


def test_a_request_without_a_window_says_so(http, stub):
    assert_problem(post(http), 422, "invalid_request", pointers=["/windows"])
    assert violations(predict(stub)) == ["/windows"]


# Load and time


def test_more_windows_than_the_queue_holds_are_turned_away_at_once(http, stub, windows):
    many = [windows[9]] * (QUEUE_WINDOWS + 1)

    reply = post(http, *many)
    error = predict(stub, *many)

    assert_problem(reply, 429, "overloaded")
    assert int(reply.headers["retry-after"]) >= 1
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_deadline_that_passes_is_said(strict, windows):
    body = {"windows": [windows[9].json()]}
    reply = httpx.post(strict.http + "/v1/predict", json=body, headers={"x-api-key": KEY}, trust_env=False)
    with grpc.insecure_channel(strict.grpc) as channel:
        error = refused(
            rul_v1_pb2_grpc.RulServiceStub(channel).Predict,
            pb.PredictRequest(windows=[windows[9].message()]),
            metadata=[("x-api-key", KEY)],
        )

    assert_problem(reply, 504, "deadline_exceeded")
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_caller_may_ask_for_less_time_than_the_service_would_take(http, windows):
    body = {"windows": [windows[0].json()]}

    reply = http.post("/v1/predict", json=body, headers={"request-timeout": "0.000001"})

    assert_problem(reply, 504, "deadline_exceeded")


def test_a_refusal_is_found_in_the_log_by_its_id(http, server):
    reply = http.get("/nothing", headers={"x-request-id": "look-for-me"})

    lines = [json.loads(line) for line in server.output().splitlines() if '"look-for-me"' in line]
    assert reply.json()["request_id"] == "look-for-me"
    assert [line["error"] for line in lines] == ["UnknownRoute"]


def test_no_answer_or_log_line_shows_where_our_code_lies(http, server):
    http.post("/v1/predict", content=b"{", headers=JSON)

    assert not re.search(r"Traceback|\.py\b", server.output())
