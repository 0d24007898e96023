"""Dashboards and alerts ask for what the service measures, and say what to do."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from observability.dashboards.render import rendered
from service.labels import PREDICTS, Route
from service.metrics.metrics import Metrics
from tests.fakes import FakeRuntime, make_manifest
from tests.observability import (
    DASHBOARDS,
    FOLDER,
    ROOT,
    RULE_TESTS,
    RULES,
    alerts,
    expressions,
    filled_in,
    panel_queries,
    panels,
    recording_rules,
    selectors,
)
from tests.programs import output_of, program

IF_WRONG = "**If it looks wrong:**"
# What Prometheus, and not the service, puts on every series.
TARGET_LABELS = {"job", "instance"}
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
EVERY_PANEL = [(dashboard, panel) for dashboard in DASHBOARDS for panel in panels(dashboard)]
panel_names = [f"{dashboard.stem}: {panel['title']}" for dashboard, panel in EVERY_PANEL]
every_panel = pytest.mark.parametrize(("dashboard", "panel"), EVERY_PANEL, ids=panel_names)
every_alert = pytest.mark.parametrize("name", alerts())
every_expression = pytest.mark.parametrize("name", expressions())


@pytest.fixture(scope="module")
def declared() -> dict[str, list[dict[str, str]]]:
    """Every series that the service has from its start: the labels of each, by name."""
    registry = CollectorRegistry()
    Metrics(registry, [FakeRuntime(make_manifest(heads=2))])
    series: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    return series


@every_expression
def test_an_expression_reads_only_series_that_exist(name, declared):
    known = set(declared) | set(recording_rules()) | {"up"}

    read = {selector.partition("{")[0] for selector in selectors(expressions()[name])}

    assert read
    assert read <= known


@every_expression
def test_each_label_value_that_is_asked_for_can_occur(name, declared):
    for selector in selectors(filled_in(expressions()[name], interval="5m")):
        metric, _, matchers = selector.partition("{")
        for label, operator, value in MATCHER.findall(matchers):
            if metric not in declared or label in TARGET_LABELS:
                continue
            pattern = value if "~" in operator else re.escape(value)
            values = {labels[label] for labels in declared[metric]}

            assert [value for value in values if re.fullmatch(pattern, value)], (label, pattern, values)


def test_probes_scrapes_pages_and_unknown_urls_are_no_requests_in_any_expression():
    left_out = {value for text in expressions().values() for value in re.findall(r'route!~"([^"]*)"', text)}

    (pattern,) = left_out

    assert {route for route in Route if re.fullmatch(pattern, route)} == {
        Route.LIVEZ, Route.READYZ, Route.METRICS, Route.DOCS, Route.OPENAPI, Route.PAGE, Route.V2_LIVE,
        Route.V2_READY, Route.V2_MODEL_READY, Route.GRPC_INFERENCE,
        Route.OTHER,
    }  # fmt: skip


def test_the_traffic_that_an_alert_misses_is_that_of_windows_and_readings():
    (pattern,) = {value for text in expressions().values() for value in re.findall(r'route=~"([^"]*)"', text)}

    assert {route for route in Route if re.fullmatch(pattern, route)} == PREDICTS


def test_no_series_is_labelled_by_unit(declared):
    labels = {label for series in declared.values() for labels in series for label in labels}

    assert not labels & {"unit", "unit_id", "request_id", "path", "user"}


def test_the_dashboards_of_the_fleet_its_models_and_the_service_are_the_generated_ones():
    committed = {path.stem: path.read_text("utf-8") for path in DASHBOARDS}

    assert [*committed] == ["rul-fleet", "rul-model-quality", "rul-service"]
    assert rendered() == committed, "run python -m observability.dashboards"


def test_the_service_runs_without_the_generator_of_its_dashboards():
    modules = [path for path in (ROOT / "service").rglob("*.py") if FOLDER not in path.parents]

    assert [path for path in modules if "observability" in path.read_text("utf-8")] == []


@every_panel
def test_a_panel_has_unit_source_query_and_says_what_to_do(dashboard, panel):
    shows, separator, act = panel["description"].partition(IF_WRONG)

    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["title"]
    assert panel["targets"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert shows.strip()
    assert separator
    assert act.strip()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_an_id_of_their_own_and_do_not_overlap(dashboard):
    parts = json.loads(dashboard.read_text("utf-8"))["panels"]
    places = [part["gridPos"] for part in parts]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({part["id"] for part in parts}) == len(parts)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@every_panel
def test_the_id_of_a_panel_is_its_titles_wherever_it_moves(dashboard, panel):
    assert panel["id"] == zlib.crc32(panel["title"].encode()) % 1_000_000_000


@every_expression
def test_attention_entropy_is_no_quantile_because_bands_are_narrower_than_buckets(name):
    assert not re.search(r"histogram_quantile\(.*rul_attention_entropy_ratio_bucket", expressions()[name])


def test_a_panel_that_stands_on_two_dashboards_is_the_same_on_both():
    found: dict[int, list[tuple[object, ...]]] = {}
    for _, panel in EVERY_PANEL:
        found.setdefault(panel["id"], []).append((panel["title"], panel["description"], panel["targets"]))

    assert all(one == panels[0] for panels in found.values() for one in panels)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_narrowed_to_an_instance_and_a_model(dashboard):
    variables = [one["name"] for one in json.loads(dashboard.read_text("utf-8"))["templating"]["list"]]

    assert {"datasource", "instance", "model"} <= set(variables)


@pytest.mark.parametrize("name", panel_queries())
def test_a_query_reads_only_what_the_variables_chose(name):
    for selector in selectors(panel_queries()[name]):
        assert ":" in selector or '"$instance"' in selector


@every_alert
def test_an_alert_has_a_severity_a_summary_and_a_section_in_the_runbook(name):
    alert = alerts()[name]
    document, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / document).read_text("utf-8"), re.MULTILINE)

    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    assert anchor == name.lower()
    assert name in headings


def test_the_runbook_has_no_section_without_an_alert():
    headings = re.findall(r"^## (Rul\w+)$", (ROOT / "docs" / "runbook.md").read_text("utf-8"), re.MULTILINE)

    assert headings == list(alerts())


def test_the_runbook_names_panels_and_rows_that_exist():
    named = re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", (ROOT / "docs" / "runbook.md").read_text("utf-8"))
    parts = [part for path in DASHBOARDS for part in json.loads(path.read_text("utf-8"))["panels"]]

    assert set(named) - {"Status, Targets"} <= {part["title"] for part in parts}


@every_panel
def test_the_alerts_that_a_panel_sends_to_exist(dashboard, panel):
    assert set(re.findall(r"\bRul[A-Z]\w+", panel["description"])) <= set(alerts())


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    """Every case of the unit tests of rules."""
    return [
        case
        for path in RULE_TESTS
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]
        for case in test.get("promql_expr_test", []) + test.get("alert_rule_test", [])
    ]


@every_alert
def test_an_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not(name, cases):
    outcomes = [
        bool(case.get("exp_samples") or case.get("exp_alerts"))
        for case in cases
        if f'alertname="{name}"' in case.get("expr", "") or case.get("alertname") == name
    ]

    assert set(outcomes) == {True, False}


@pytest.mark.parametrize("name", recording_rules())
def test_a_recorded_series_is_named_by_level_metric_and_operation(name):
    level, metric, operation = name.split(":")

    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", level)
    assert metric.startswith("rul_")
    assert re.fullmatch(r"(p\d+_|ratio_|mean_)?(rate|increase|min|max)\d+[mhd]", operation)


@pytest.mark.system
def test_promtool_accepts_configuration_and_rules():
    output_of(program("promtool"), "check", "config", "--syntax-only", FOLDER / "prometheus.yml")
    output_of(program("promtool"), "check", "rules", *RULES)


@pytest.mark.system
def test_promtool_accepts_the_job_with_the_lines_for_a_service_with_tls(tmp_path):
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    (lines,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "tls.md").read_text("utf-8"), re.DOTALL)
    config["scrape_configs"][0] |= yaml.safe_load(lines)
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")

    output_of(program("promtool"), "check", "config", "--syntax-only", file)


def test_alerts_fire_when_they_should_and_only_then():
    output_of(program("promtool"), "test", "rules", *RULE_TESTS)


@pytest.mark.system
def test_prometheus_can_parse_every_query_of_the_dashboards(tmp_path):
    queries = [
        {"record": f"parsed:query:{i}", "expr": filled_in(query, interval="5m")}
        for i, query in enumerate(panel_queries().values())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": queries}]}), "utf-8")

    output_of(program("promtool"), "check", "rules", file)


@pytest.mark.system
def test_where_each_batch_has_one_window_the_panel_of_its_windows_shows_one(tmp_path):
    shown = [
        expr for name, expr in panel_queries().items() if name.startswith("rul-service: Windows in a batch,")
    ]
    parts = (
        ("bucket", 'le="1.0", '),
        ("bucket", 'le="2.0", '),
        ("bucket", 'le="+Inf", '),
        ("sum", ""),
        ("count", ""),
    )
    series = [
        {"series": f'rul_batch_windows_{part}{{{end}instance="a"}}', "values": "0+6x30"}
        for part, end in parts
    ]
    one = [{"labels": '{instance="a"}', "value": 1}]
    asked = [
        {"expr": filled_in(expr, interval="5m"), "eval_time": "20m", "exp_samples": one} for expr in shown
    ]
    file = tmp_path / "batches.yml"
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]
    file.write_text(yaml.safe_dump({"tests": tests}), "utf-8")

    assert shown
    output_of(program("promtool"), "test", "rules", file)
