"""The answers of every operation have the statuses, media types and fields of the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import SecretStr

from tests.changing import KEY, WINDOWS, serving
from tests.key_files import key_file

UNDESCRIBED = {("get", "/v1/events")}
"""Endless streams, which this transport cannot read."""
WINDOW = next(window.json() for window in WINDOWS if window.json()["last_cycle"] is not None)
COSTS = {"planned": 1.0, "failure": 10.0}
UNIT = "/v1/units/a%2Fb"
JSON = "application/json"


class Client:
    """Sends requests and compares each answer with the document.

    Attributes:
        answered: Operations with their statuses, as they were answered.
    """

    def __init__(self, client: httpx.AsyncClient, document: dict[str, Any]) -> None:
        self.client, self.document = client, closed(document)
        self.answered: set[tuple[str, str, int]] = set()
        self.patterns = [
            (re.compile(re.sub(r"{\w+}", "[^/]+", path)), path)
            for path in sorted(document["paths"], key=lambda path: path.count("{"))
        ]

    async def ask(self, method: str, path: str, wanted: int = 200, **options: Any) -> httpx.Response:
        """Send a request that is answered with the wanted status, as the document says."""
        reply = await self.client.request(method, path, **options)
        assert reply.status_code == wanted, reply.text
        self._check(method.lower(), path.partition("?")[0], reply)
        return reply

    def _check(self, method: str, path: str, reply: httpx.Response) -> None:
        template = next(known for pattern, known in self.patterns if pattern.fullmatch(path))
        response = self.document["paths"][template][method]["responses"][str(reply.status_code)]
        schema = response["content"][reply.headers["content-type"].partition(";")[0]]["schema"]
        if reply.headers["content-type"].partition(";")[0].endswith("json"):
            whole = schema | {"components": self.document["components"]}
            checker = Draft202012Validator(whole, format_checker=FormatChecker())
            assert [*checker.iter_errors(reply.json())] == [], (method, path)
        wanted = {name.lower() for name in response["headers"]} & {"retry-after", "www-authenticate"}
        assert wanted <= reply.headers.keys()
        self.answered.add((method, template, reply.status_code))


def closed(node: Any) -> Any:
    """Forbid fields that a schema does not name."""
    if isinstance(node, list):
        return [closed(part) for part in node]
    if not isinstance(node, dict):
        return node
    node = {key: closed(value) for key, value in node.items()}
    return {"additionalProperties": False} | node if isinstance(node.get("properties"), dict) else node


@pytest.fixture
async def client(tmp_path, request):
    store = {"store": True, "store_url": SecretStr(f"sqlite:///{tmp_path}/rul.db")}
    settings = {"max_pending_windows": 1000} | store | getattr(request, "param", {})
    async with serving("fd001", keys_file=key_file(tmp_path, KEY), **settings) as service:
        while (await service.client.get("/v1/units")).status_code == 503:
            pass  # the database is being made
        document = (await service.client.get("/openapi.json")).json()
        yield Client(service.client, document)


async def predictions(client):
    rows = WINDOW["readings"]
    every = [WINDOW, {"unit": 7, "readings": rows}, {"readings": rows[:1]}]
    for explain in ("none", "attention", "sensors", "full"):
        body = {"windows": every, "explain": explain, "costs": COSTS}
        await client.ask("POST", "/v1/predict", json=body)
    partly = {"windows": [WINDOW, {"readings": [[1.0]]}], "partial": True}
    assert "error" in (await client.ask("POST", "/v1/predict", json=partly)).json()["predictions"][1]
    await client.ask("POST", "/v1/explain", json={"windows": every})
    for path in ("/v1/predict", "/v1/explain"):
        await client.ask("POST", path, 400, content=b"{", headers={"content-type": JSON})
        await client.ask("POST", path, 404, json={"windows": [WINDOW], "model": "none"})
        await client.ask("POST", path, 413, content=b"0" * 200_000, headers={"content-type": JSON})
        await client.ask("POST", path, 415, content=b"{}", headers={"content-type": "text/plain"})
        await client.ask("POST", path, 422, json={"windows": [{"readings": [[1.0]]}]})


async def units(client):
    seen = WINDOW["readings"]
    cycles = [{"columns": dict(zip(await columns(client), row, strict=True))} for row in seen]
    body = {"readings": cycles, "explain": "full", "costs": COSTS}
    await client.ask("POST", f"{UNIT}/cycles", json=body)
    await client.ask("POST", f"{UNIT}/cycles", 409, json={"cycle": 1, "columns": {"sensor_2": 1.0}})
    await client.ask("POST", f"{UNIT}/cycles", 422, json={"columns": {"none": 1.0}})
    unknown = {"cycle": 1, "columns": {"sensor_2": None}}
    await client.ask("POST", "/v1/units/gaps/cycles", json=unknown)
    await client.ask("GET", f"{UNIT}/explanation")
    await client.ask("GET", f"{UNIT}/explanation", 404, params={"cycle": "9999"})
    await client.ask("GET", f"{UNIT}/decision", params=COSTS)
    await client.ask("GET", f"{UNIT}/decision", 422)
    outcome = {"kind": "failed", "cycle": len(seen) + 3, "time": "2026-01-01T00:00:00Z"}
    await client.ask("POST", f"{UNIT}/outcomes", json=outcome)
    await client.ask("POST", f"{UNIT}/outcomes", 409, json=outcome | {"cycle": len(seen) + 4})
    await client.ask("POST", f"{UNIT}/outcomes", 400, json=outcome | {"kind": "lost"})
    assert (await client.ask("GET", UNIT)).json()["scores"]
    await client.ask("GET", UNIT, 422, params={"limit": "0"})
    await client.ask("GET", f"{UNIT}/decision", params=COSTS)
    for state in ({}, {"state": "failed"}):
        await client.ask("GET", "/v1/units", params=state)
    await client.ask("POST", f"{UNIT}/rename", json={"to": "c"})
    await client.ask("POST", "/v1/units/gaps/rename", 409, json={"to": "c"})
    await client.ask("DELETE", "/v1/units/c")
    await client.ask("DELETE", "/v1/units/c", 404)


async def columns(client):
    return (await client.ask("GET", "/v1/models")).json()["models"][0]["columns"]


async def models(client):
    await client.ask("GET", "/v1/models/fd001")
    await client.ask("GET", "/v1/models/none", 404)
    await client.ask("GET", "/v1/models/fd001/simulated")
    await client.ask("GET", "/v1/models/fd001/simulated", 422, params={"seed": "-1"})
    await client.ask("POST", "/v1/models", json={"bundle": "fd002"})
    await client.ask("POST", "/v1/models", 409, json={"bundle": "fd002"})
    await client.ask("POST", "/v1/models", 422, json={"bundle": "none"})
    await client.ask("DELETE", "/v1/models/fd002")
    await client.ask("DELETE", "/v1/models/fd002", 404)
    await client.ask("GET", "/v1/models/fd001/monitoring")


async def candidates(client, newer):
    bundle = {"bundle": str(newer.path)}
    for kind in ("shadow", "canary"):
        await client.ask("POST", f"/v1/models/fd001/{kind}", json=bundle)
        assert (await client.ask("GET", "/v1/models")).json()["models"][0]["candidate"]
        await client.ask("DELETE", f"/v1/models/fd001/{kind}")
        await client.ask("DELETE", f"/v1/models/fd001/{kind}", 409)
    await client.ask("POST", "/v1/models/fd001", json=bundle)


async def pages(client):
    for path in ("/readyz", "/livez", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"):
        await client.ask("GET", path)
    await client.ask("GET", "/metrics", headers={"accept": "application/openmetrics-text"})
    for path in ("/v1/predict", "/v2/models/fd001/infer"):
        await client.ask("POST", path, 401, headers={"x-api-key": "another"})


async def open_inference(client):
    version = (await client.ask("GET", "/v2/models/fd001")).json()["versions"][0]
    rows = WINDOW["readings"]
    shape = [1, len(rows), len(rows[0])]
    data = [value for row in rows for value in row]
    tensor = {"name": "readings", "datatype": "FP32", "shape": shape, "data": data}
    await client.ask("POST", "/v2/repository/index", json={})
    for at in ("/v2/models/fd001", f"/v2/models/fd001/versions/{version}"):
        await client.ask("GET", at)
        await client.ask("GET", f"{at}/ready")
        await client.ask("POST", f"{at}/infer", json={"id": "1", "inputs": [tensor]})
        binary = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        await client.ask("POST", f"{at}/infer", json=binary)
        await client.ask("POST", f"{at}/infer", 400, json={"inputs": []})
    for path in ("", "/ready"):
        await client.ask("GET", f"/v2/models/none{path}", 404)
    await client.ask("POST", "/v2/models/none/infer", 404, json={"inputs": [tensor]})


async def test_every_operation_answers_as_the_document_says(client, newer):
    await predictions(client)
    await units(client)
    await models(client)
    await pages(client)
    await open_inference(client)
    await candidates(client, newer)

    operations = {(method, path) for path, known in client.document["paths"].items() for method in known}
    assert {(method, path) for method, path, status in client.answered if status == 200} == (
        operations - UNDESCRIBED
    )


@pytest.mark.parametrize("client", [{"store": False, "request_timeout_seconds": 1e-6}], indirect=True)
async def test_a_late_answer_and_a_missing_store_are_as_the_document_says(client):
    await client.ask("POST", "/v1/predict", 504, json={"windows": [WINDOW]})
    await client.ask("GET", "/v1/units", 404)


@pytest.mark.parametrize("client", [{"max_pending_windows": 1}], indirect=True)
async def test_a_full_queue_is_as_the_document_says(client):
    await client.ask("POST", "/v1/predict", 429, json={"windows": [WINDOW] * 2})
