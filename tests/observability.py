"""Queries of dashboards and rules, read from the files of Grafana and Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "observability"
RULES: Final = sorted((FOLDER / "rules").glob("*.yml"))
RULE_TESTS: Final = sorted((FOLDER / "rules" / "tests").glob("*.yml"))
DASHBOARDS: Final = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))

# A metric of ours or of our processes, a recorded series or `up`, with its matchers.
SELECTOR: Final = re.compile(r"(?<![\w:$])(rul_\w+|process_\w+|\w+:\w+:\w+|up\b)(\{[^}]*\})?")


@cache
def rules() -> list[dict[str, Any]]:
    """Return every recording and alerting rule; cached, because 800 tests need them, 0.1 s each."""
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """Return every panel, including those folded into rows, without the rows."""
    return list(_panels(json.loads(dashboard.read_text("utf-8"))["panels"]))


def _panels(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if part["type"] == "row":
            yield from _panels(part.get("panels", []))
        else:
            yield part


@cache
def panel_queries() -> dict[str, str]:
    """Return every PromQL expression of the dashboards, by "dashboard: panel, letter"."""
    return {
        f"{dashboard.stem}: {panel['title']}, {target['refId']}": target["expr"]
        for dashboard in DASHBOARDS
        for panel in panels(dashboard)
        for target in panel["targets"]
    }


@cache
def recording_rules() -> dict[str, str]:
    """Return the expression of every recorded series, by name."""
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert, by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


@cache
def expressions() -> dict[str, str]:
    """Return all expressions of dashboards, recorded series and alerts, unchanged."""
    return panel_queries() | recording_rules() | {name: alert["expr"] for name, alert in alerts().items()}


def selectors(expression: str) -> list[str]:
    """Return the series that an expression reads.

    >>> selectors('sum by (job) (rate(rul_a_total{code="5"}[5m])) / on (job) job:rul_b:rate5m > 0')
    ['rul_a_total{code="5"}', 'job:rul_b:rate5m']
    """
    return [name + matchers for name, matchers in SELECTOR.findall(expression)]


def filled_in(query: str, *, interval: str) -> str:
    """Return a panel's query as Grafana sends it, with "All" chosen everywhere."""
    return query.replace("$__rate_interval", interval).replace("$instance", ".*").replace("$model", ".*")
