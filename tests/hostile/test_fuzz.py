# ruff: noqa: E501 bodies in one line each
"""Any input at each door has an answer: no 500, no hang of a second, no growth of memory.

    pytest tests/hostile/test_fuzz.py --examples 100000

Input i has the seed i. A finding names its seed, so it can become an ordinary test.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from pathlib import Path
from random import Random

import pytest

from service.grpc.over_asgi import PREFIX
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as rul
from tests.hostile.bodies import GRPC, INFER, JSON, PREDICT, Hostile
from tests.hostile.test_pauses import handle
from tests.in_process import in_process

HANG_SECONDS = 1.0
GROWTH_KIB = 64 << 10

NAMES = [
    "windows", "unit", "last_cycle", "columns", "readings", "model", "partial", "explain", "setting_1",
    "sensor_1", "sensor_2", "inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "FP32",
    "INT64", "binary_data_size", "binary_data", "binary_data_output", "timeout", "id", "lengths", "kind",
    "cycle", "failed", "fake", "time", "replace",
]  # fmt: skip
ODD = ["1e999", "-1e999", "1e39", "NaN", "Infinity", '"\\ud800"', '"\\u0000"', '"é"', "1" * 30, "9" * 5000,
       "0." + "1" * 700, "-0", "1E-400", '"\xff"', "2147483648", "9223372036854775808"]  # fmt: skip
TOKENS = [*"[]{}:,", *map(json.dumps, NAMES), *ODD, "1", "1.5", "null", "true", " ", '"', "\\", ""]
GOOD = [
    '{"windows":[{"unit":"1","last_cycle":9,"columns":{"setting_1":[1,2],"sensor_1":[1,2],"sensor_2":[1,null]}}]}',
    '{"windows":[{"readings":[[1,2,3],[4,5,6]]}],"partial":true,"explain":"full","model":"fake"}',
    '{"inputs":[{"name":"readings","shape":[1,2,3],"datatype":"FP32","data":[1,2,3,4,5,6]}],"id":"1"}',
    ('{"inputs":[{"name":"readings","shape":[1,2,3],"datatype":"FP32","data":[[[1,2,3],[4,NaN,6]]]},'
    '{"name":"lengths","shape":[1],"datatype":"INT64","data":[2]}],"outputs":[{"name":"rul"}]}'),
    ('{"inputs":[{"name":"readings","shape":[1,2,3],"datatype":"FP32","parameters":{"binary_data_size":24}}],'
    '"parameters":{"binary_data_output":true,"timeout":5000000}}'),
    '{"kind":"failed","cycle":9,"model":"fake","time":"2026-01-01T00:00:00Z","replace":true}',
]  # fmt: skip


def text(rng: Random) -> bytes:
    """Make nearly valid JSON, or tokens in random order."""
    kind = rng.random()
    if kind < 0.2:
        return "".join(rng.choices(TOKENS, k=rng.randrange(30))).encode("latin-1")
    if kind < 0.3:
        return rng.randbytes(rng.randrange(100))
    given = rng.choice(GOOD)
    for _ in range(rng.randrange(4)):
        at, size = rng.randrange(len(given)), rng.choice([0, 1, 1, 2, 5, 20])
        given = given[:at] + rng.choice(TOKENS) + given[at + size :]
        if rng.random() < 0.1:
            given = given[:at] + given[at : at + 30] * rng.randrange(40) + given[at + 30 :]
    return given.encode("latin-1")


def damaged(rng: Random, raw: bytes) -> bytes:
    """Change, remove or insert a few bytes."""
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(raw) + 1)
        raw = raw[:at] + rng.randbytes(rng.randrange(3)) + raw[at + rng.randrange(3) :]
    return raw


def _json(path: str):
    return lambda rng: Hostile(path, JSON, text(rng))


def binary(rng: Random) -> Hostile:
    head, behind = text(rng), rng.randbytes(rng.choice([0, 24, 24, rng.randrange(100)]))
    length = rng.choice([str(len(head))] * 5 + ["", "-1", "²", "9" * 30, str(rng.randrange(200))])
    return Hostile(INFER, {"inference-header-content-length": length}, head + behind)


SERIES = {name: rul.Series(values=[1, 2]) for name in ("setting_1", "sensor_1", "sensor_2")}
MESSAGES = {
    "rul.v1.RulService/Predict": rul.PredictRequest(
        windows=[rul.Window(unit="1", last_cycle=9, columns=rul.Columns(columns=SERIES))]
    ),
    "rul.v1.RulService/PredictStream": rul.StreamRequest(open=rul.StreamOpen(unit="1")),
    "rul.v1.RulService/GetModel": rul.GetModelRequest(name="fake"),
    "inference.GRPCInferenceService/ModelInfer": oip.ModelInferRequest(
        model_name="fake",
        inputs=[oip.ModelInferRequest.InferInputTensor(name="readings", datatype="FP32", shape=[1, 2, 3])],
        raw_input_contents=[bytes(24)],
    ),
    "inference.GRPCInferenceService/RepositoryIndex": oip.RepositoryIndexRequest(ready=True),
    "grpc.health.v1.Health/Check": rul.GetModelRequest(),
    "no/method": rul.GetModelRequest(),
}


def grpc(rng: Random) -> Hostile:
    method = rng.choice([*MESSAGES])
    message = damaged(rng, MESSAGES[method].SerializeToString())
    flag, size = (0, len(message)) if rng.random() < 0.9 else (rng.randrange(256), rng.randrange(2**32))
    headers = _headers(rng, ["grpc-timeout", "x-request-id", "grpc-encoding", "traceparent"])
    return Hostile("/" + method, GRPC | headers, damaged_prefix(rng, PREFIX.pack(flag, size) + message))


def damaged_prefix(rng: Random, body: bytes) -> bytes:
    return body if rng.random() < 0.9 else body[: rng.randrange(len(body) + 1)]


def _headers(rng: Random, names: list[str]) -> dict[str, str]:
    openmetrics = "application/openmetrics-text; version=1.0.0"
    values = ["", "1S", "²S", "9" * 30, "gzip", "é", openmetrics, "application/json"]
    chosen = rng.sample(names, rng.randrange(3))
    random = rng.randbytes(rng.randrange(20)).decode("latin-1")
    return {name: rng.choice([*values, random]) for name in chosen}


def path(rng: Random) -> Hostile:
    parts = ["v1", "v2", "units", "models", "fake", "infer", "metrics", "livez", "docs", "assets", "..", "%ff", "%2F",
             "", "outcomes", "predict", rng.randbytes(4).decode("latin-1")]  # fmt: skip
    names = ["accept", "x-request-id", "authorization", "x-api-key", "request-timeout", "content-type",
             "content-length", "content-encoding", "traceparent", "inference-header-content-length"]  # fmt: skip
    found = "/" + "/".join(rng.choices(parts, k=rng.randrange(6)))
    return Hostile(found, _headers(rng, names), text(rng))


DOORS = {
    "JSON": _json(PREDICT),
    "Open Inference JSON": _json(INFER),
    "Open Inference binary": binary,
    "outcomes": _json("/v1/units/1/outcomes"),
    "gRPC": grpc,
    "paths and headers": path,
}


class Silence:
    """A log without output."""

    def info(self, *_, **__):
        """Say nothing."""

    warning = error = info


def memory_kib() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4


@pytest.mark.parametrize("door", DOORS)
async def test_any_input_is_answered(door, request):
    examples = request.config.getoption("--examples")
    slowest, statuses, before = 0.0, {}, 0

    async with in_process() as service:
        service.desk.log = Silence()
        for seed in range(examples):
            hostile = DOORS[door](Random(seed))
            start = time.thread_time()
            status = await handle(service, hostile)
            slowest = max(slowest, time.thread_time() - start)
            statuses[status] = statuses.get(status, 0) + 1
            assert str(status) not in {"500", "grpc 13", "grpc 2"}, f"seed {seed}: {hostile}"
            await asyncio.sleep(0)  # the event loop drops cancelled timers in its turns
            if seed % 1000 == 0:
                service.desk.metrics.publish()  # as the service does four times a second
            if seed == examples // 10:
                before = memory_kib()
        growth = memory_kib() - before

    print(f"{door}: {examples} inputs, slowest {1e3 * slowest:.0f} ms, {growth} KiB more, {statuses}")
    assert slowest < HANG_SECONDS
    assert growth < GROWTH_KIB
