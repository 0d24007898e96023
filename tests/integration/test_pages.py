"""What operators, browsers and Prometheus ask, and what every HTTP answer carries."""

import json
import re
import socket
from collections import Counter

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import metrics_of

PAGES = ["/livez", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/models"]


@pytest.mark.parametrize("path", PAGES)
def test_head_answers_with_the_headers_of_get_and_no_body(http, path):
    head, get = http.head(path), http.get(path)  # on one connection: a body after HEAD would garble GET

    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", [*PAGES[2:], "/", "/nothing"])  # liveness needs none
def test_a_request_id_is_echoed(http, path):
    assert http.get(path, headers={"x-request-id": "a-1_b.c:2"}).headers["x-request-id"] == "a-1_b.c:2"


def test_a_proxy_that_speaks_http_1_0_is_answered(server):
    head = f"POST /v1/predict HTTP/1.0\r\nhost: 127.0.0.1:{server.port}\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as proxy:  # nginx does, where nobody says 1.1
        proxy.sendall(f"{head}content-length: 2\r\n\r\n{{}}".encode())
        answer = proxy.makefile("rb").read()

    assert answer.split()[1] == b"400"
    assert b"`windows`" in answer


def test_a_health_check_in_http_1_0_needs_no_host(server):
    with socket.create_connection(("127.0.0.1", server.port)) as proxy:  # as HAProxy sends
        proxy.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = proxy.makefile("rb").read()

    assert answer.split()[1] == b"200"


def test_metrics_parse_as_text_and_as_openmetrics(http):
    text = http.get("/metrics")
    openmetrics = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})

    plain = {family.name for family in text_string_to_metric_families(text.text)}
    open_ = {family.name for family in openmetrics_families(openmetrics.text)}
    assert text.headers["content-type"].startswith("text/plain")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert {"rul_request_duration_seconds", "rul_model_info", "rul_batch_windows"} <= plain & open_


def test_no_series_appears_twice(http):
    families = text_string_to_metric_families(http.get("/metrics").text)

    series = Counter((s.name, *sorted(s.labels.items())) for family in families for s in family.samples)

    assert [name for name, count in series.items() if count > 1] == []


def test_unknown_paths_models_and_values_make_no_new_series(http, server, windows):
    """Every kind of answer once, so that what may appear has appeared; then the same with other names."""

    def ask(name):
        http.get(f"/{name}", headers={"x-request-id": name})
        http.request("DELETE", "/v1/predict")
        http.get(f"/v1/models/{name}")
        window = {**windows[0].json(), "unit": name}
        http.post("/v1/predict", json={"windows": [window], "model": name})
        http.post("/v1/predict", json={"windows": [window], "explain": name})
        http.post("/v1/predict", json={"windows": [window], name: 1})
        http.post("/v1/predict", json={"windows": [{"columns": {name: [1.0]}}]})
        http.post("/v1/predict", json={"windows": [window]}, headers={"user-agent": name})

    ask("first")
    before = set(metrics_of(server))
    for i in range(5):
        ask(f'odd"{{}}\n-{i}'.replace("\n", ""))

    assert set(metrics_of(server)) == before


def test_the_documentation_page_loads_everything_from_this_server(http):
    page = http.get("/docs")

    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    own = [link for link in links if not link.startswith("data:")]
    assert page.headers["content-type"].startswith("text/html")
    assert len(own) == 3
    for link in own:
        assert link.startswith("/")
        asset = http.get(link)
        assert (asset.status_code, len(asset.content) > 50) == (200, True)
        assert asset.headers["x-content-type-options"] == "nosniff"


def test_a_page_runs_only_scripts_of_this_service_and_fits_into_no_frame(http):
    page = http.get("/docs")

    policy = page.headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert re.findall(r"<script(?! src=)|\son\w+=|javascript:", page.text) == []


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
def test_a_web_page_of_another_site_is_refused(http, headers):
    reply = http.get("/v1/models", headers=headers)

    assert reply.status_code == 403
    assert "RUL_ALLOWED_HOSTS" in reply.json()["detail"]


def test_every_operation_that_the_document_names_answers(http, windows):
    aged = next(window.json() for window in windows if window.json().get("last_cycle") is not None)
    assert http.post("/v1/predict", json={"windows": [aged | {"unit": "1"}]}).is_success
    names = http.get("/v1/models").json()["models"][0]["columns"]
    columns = dict(zip(names, zip(*aged["readings"], strict=True), strict=True))
    assert http.post("/v1/units/1/cycles", json={"columns": columns}).is_success
    document = http.get("/openapi.json").json()

    operations = [(method, path) for path, known in document["paths"].items() for method in known]
    for method, path in sorted(operations, key=lambda operation: operation[0] == "delete"):
        filled = path.format(name="tiny", version="1.0.0", unit="1")
        with http.stream(method, filled) as reply:  # one of them never ends
            assert reply.status_code not in {404, 405, 500}, (method, path)


def test_the_log_is_json_and_nobody_else_logs_requests(http, server):
    http.get("/readyz", headers={"x-request-id": "logged-once"})

    lines = [line for line in server.output().splitlines() if "/readyz" in line]
    assert lines
    assert all(line.startswith("{") and '"route": "/readyz"' in line for line in lines)


def test_a_refusal_is_found_in_the_log_by_its_id_and_shows_no_code(http, server):
    http.post("/v1/predict", content=b"{", headers={"content-type": "application/json"})
    http.get("/nothing", headers={"x-request-id": "look-for-me"})

    lines = [json.loads(line) for line in server.output().splitlines() if '"look-for-me"' in line]
    assert [line["error"] for line in lines] == ["UnknownRoute"]
    assert not re.search(r"Traceback|\.py\b", server.output())


@pytest.mark.parametrize("path", ["/docs/assets/../../x", "/v2/%2e%2e/x", "/v2//models/tiny"])
def test_a_path_that_leaves_its_folder_is_not_found(http, path):
    assert http.get(path).status_code == 404


@pytest.mark.parametrize("headers", [{"authorization": "Bearer wrong"}, {"x-api-key": "é".encode()}])
def test_a_wrong_key_of_any_characters_is_not_valid(strict, headers):
    assert strict.ask("GET", "/v1/models", headers=headers).status_code == 401
