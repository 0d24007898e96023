"""The OpenAPI document says what the service does, and nothing in it leads nowhere."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import Draft202012Validator

from service.core.rules import WindowRules
from service.errors import STATUS, MalformedBody
from service.http.openapi import document
from service.http.routes import endpoints
from service.http.units_cycles import COSTS, OPTIONS, decoded
from tests.fakes import make_manifest

DESK = SimpleNamespace(predictor=None, lifecycle=None)
ENDPOINTS = endpoints(DESK, None, None)
DOCUMENT = document(ENDPOINTS, make_manifest())
OPERATIONS = {
    f"{method} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}


def nodes(node):
    """Yield every object of this part of the document."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def test_every_reference_leads_somewhere():
    found = {node["$ref"] for node in nodes(DOCUMENT) if "$ref" in node}

    for reference in found:
        node = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    assert found


def test_every_schema_has_a_name_of_its_own_of_which_programs_make_a_class():
    names = list(DOCUMENT["components"]["schemas"])

    assert [name for name in names if not name.isidentifier()] == []


def schemas_of(kind, field):
    schema = DOCUMENT["components"]["schemas"][kind]["properties"][field]
    return [each for each in schema.get("anyOf", [schema]) if each != {"type": "null"}]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("FleetUnit", "predicted_at"),
        ("FleetUnit", "last_reading_at"),
        ("OutcomeBody", "time"),
        ("OutcomeBody", "recorded_at"),
        ("PastPrediction", "predicted_at"),
        ("OutcomeReport", "time"),
    ],
)
def test_a_moment_is_a_time_with_its_zone(kind, field):
    assert schemas_of(kind, field) == [{"type": "string", "format": "date-time"}]


def test_it_is_openapi_3_1_with_a_title_and_a_version():
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["title"]
    assert DOCUMENT["info"]["version"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_summary_and_describes_each_answer(name):
    operation = OPERATIONS[name]

    assert operation["summary"]
    assert "200" in operation["responses"]
    assert all(response["description"] for response in operation["responses"].values())


def test_every_operation_has_a_name_of_its_own_of_which_generators_make_a_function():
    names = [operation.get("operationId", "") for operation in OPERATIONS.values()]

    assert [name for name in names if not re.fullmatch("[a-z][A-Za-z]+", name)] == []
    assert len(set(names)) == len(names)


def test_the_page_of_clients_names_operations_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
    listed = re.search(r"names\nof its operations, such as (.+?)\.\n", page, re.DOTALL)[1]

    named = re.findall("`(.+?)`", listed)
    assert len(named) > 5
    assert set(named) <= {operation["operationId"] for operation in OPERATIONS.values()}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_in_one_group_that_is_described(name):
    described = {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]}

    assert len(OPERATIONS[name].get("tags", [])) == 1
    assert set(OPERATIONS[name]["tags"]) <= described


def test_no_number_is_read_as_32_bits_by_generators_that_guess():
    guessed = [node for node in nodes(DOCUMENT) if node.get("type") in ("number", "integer")]

    wanted = {"number": "double", "integer": "int64"}
    assert len(guessed) > 100
    assert [node for node in guessed if node.get("format") != wanted[node["type"]]] == []


def test_a_field_that_may_be_omitted_has_no_default_of_null_which_some_generators_read_as_required():
    assert [node for node in nodes(DOCUMENT) if "default" in node and node["default"] is None] == []


def test_an_object_without_named_fields_has_any_fields():
    objects = [node for node in nodes(DOCUMENT) if node.get("type") == "object"]

    unnamed = [node for node in objects if "properties" not in node]
    assert len(unnamed) > 10
    assert all(node["additionalProperties"] for node in unnamed)


def test_an_enumeration_has_a_type():
    enumerations = [node for node in nodes(DOCUMENT) if isinstance(node.get("enum"), list)]

    assert len(enumerations) > 5
    assert [node for node in enumerations if node.get("type") != "string"] == []


def test_no_answer_is_any_value():
    content = {
        f"{name} {media}": described["schema"]
        for name, operation in OPERATIONS.items()
        for media, described in operation["responses"]["200"]["content"].items()
    }

    assert [place for place, schema in content.items() if not schema] == []
    assert not any({} in node.get("anyOf", []) for node in nodes(DOCUMENT))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_refusal_that_passes_documents_when_to_retry(name):
    passing = {status.http for kind, status in STATUS.items() if kind.retry_after_seconds is not None}
    responses = OPERATIONS[name]["responses"]

    documented = {int(code) for code, response in responses.items() if "Retry-After" in response["headers"]}

    assert documented == passing & {int(code) for code in responses}


COLUMN = {"sensor_1": 1.0}


@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        ({"columns": COLUMN}, True),
        ({"columns": COLUMN, "cycle": 3, "model": "fake", "store": False}, True),
        ({"columns": COLUMN, "cycle": 3.0}, True),
        ({"columns": {"sensor_1": [1.0, None], "sensor_2": None}, "cycles": [3, 4]}, True),
        ({"readings": [{"columns": COLUMN}]}, True),
        ({"columns": COLUMN, "cycles": [3]}, False),
        ({"columns": COLUMN | {"sensor_2": [1.0]}}, False),
        ({"readings": [{"columns": COLUMN}], "columns": COLUMN}, False),
        ({}, False),
    ],
)
def test_readings_of_a_unit_are_described_as_they_are_read(body, is_read):
    schema = {"$ref": "#/components/schemas/CyclesQuery", "components": DOCUMENT["components"]}

    assert Draft202012Validator(schema).is_valid(body) == is_read
    assert can_be_read(body) == is_read


def can_be_read(body):
    rules = WindowRules.of(make_manifest(), max_window_cycles=1000)
    try:
        decoded(json.dumps(body).encode(), {}, model_of_csv=None).given(rules)
    except MalformedBody:
        return False
    return True


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_status_that_is_documented_exists(name):
    known = {"200", *(str(status.http) for status in STATUS.values())}

    assert set(OPERATIONS[name]["responses"]) <= known


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_documents_that_its_address_or_a_header_may_be_malformed(name):
    assert "400" in OPERATIONS[name]["responses"]


def test_every_refusal_of_a_prediction_is_documented():
    elsewhere = {405, 409}  # of the path, and of the cycles of a stream

    documented = {int(code) for code in OPERATIONS["post /v1/predict"]["responses"]}

    assert documented == {200} | {status.http for status in STATUS.values()} - elsewhere


@pytest.mark.parametrize("path", ["/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"])
def test_a_refusal_of_the_open_inference_protocol_is_its_error(path):
    elsewhere = {405, 409, 422}  # of the path and of streams; and what the native API says for 400

    responses = OPERATIONS[f"post {path}"]["responses"]

    assert {int(code) for code in responses} == {200} | {s.http for s in STATUS.values()} - elsewhere
    schema = responses["400"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/OipError"}


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.startswith("post ")])
def test_every_operation_with_a_body_documents_that_bodies_may_be_too_many_or_too_slow(name):
    assert {"408", "413", "415", "429"} <= set(OPERATIONS[name]["responses"])


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.needs_model and each.doc])
def test_every_operation_that_needs_a_model_documents_what_its_work_may_end_with(endpoint):
    name = f"{endpoint.method.lower()} {endpoint.path.replace(':path', '')}"

    assert {"429", "500", "503", "504"} <= set(OPERATIONS[name]["responses"])


def test_a_simulation_that_takes_too_long_is_documented():
    assert "504" in OPERATIONS["get /v1/models/{name}/simulated"]["responses"]


def test_the_headers_that_every_request_may_have_are_described():
    text = DOCUMENT["info"]["description"]

    assert all(name in text for name in ("request-timeout", "x-request-id", "traceparent", "retry-after"))
    assert "`content-encoding`" in text


@pytest.mark.parametrize("kind", DOCUMENT["components"]["schemas"])
def test_a_type_is_described_in_markdown_without_errors_of_python(kind):
    text = DOCUMENT["components"]["schemas"][kind].get("description", "")

    assert "\n\n    " not in text  # a block of code
    assert "Raises:" not in text


def test_a_cycle_is_a_whole_number():
    assert schemas_of("OutcomeReport", "cycle")[0]["multipleOf"] == 1


def test_every_body_that_is_read_is_described():
    bodies = {name: operation.get("requestBody") for name, operation in OPERATIONS.items() if "post " in name}

    assert [name for name, body in bodies.items() if body is None] == []


def test_every_path_parameter_is_declared():
    for path, operations in DOCUMENT["paths"].items():
        named = {part.strip("{}") for part in path.split("/") if part.startswith("{")}
        for operation in operations.values():
            assert {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"} == named


def test_the_options_of_a_csv_are_declared():
    parameters = OPERATIONS["post /v1/units/{unit}/cycles"]["parameters"]

    assert {p["name"] for p in parameters if p["in"] == "query"} == {*OPTIONS, *COSTS}


def test_a_refusal_is_a_problem():
    content = OPERATIONS["post /v1/predict"]["responses"]["422"]["content"]

    assert list(content) == ["application/problem+json"]
    problem = DOCUMENT["components"]["schemas"]["ProblemBody"]
    assert set(problem["required"]) == {"type", "title", "status", "detail", "errors", "request_id"}


def test_readiness_documents_where_each_model_runs():
    model = DOCUMENT["components"]["schemas"]["ReadyModel"]

    assert set(model["required"]) == {"name", "version", "provider", "providers", "fallback"}
    assert {"type": "null"} in model["properties"]["fallback"]["anyOf"]
