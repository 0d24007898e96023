"""Read the dashboards from dashboards.yml and the panels from panels/*.yml.

A panel's keys are the fields of `Panel`. In a query, `INSTANCE`, `MODEL`, `WORK`, `FAULT` and `WORKER`
stand for the matchers of `MATCHERS`. Every query returns finite numbers or nothing, never NaN:
`>= 0` after a quantile drops the NaN of an interval without events, `> 0` under a fraction drops a
division by zero.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from observability.dashboards.render import Dashboard, Kind, Panel, Query, Row, Variable

HERE: Final = Path(__file__).parent
MATCHERS: Final = {
    "INSTANCE": 'instance=~"$instance"',
    "MODEL": 'instance=~"$instance", model=~"$model"',
    # Statuses of HTTP and names of gRPC statuses that say "our fault".
    "FAULT": 'code=~"5..|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED"',
    # What callers ask for: probes, scrapes, pages and unknown URLs would dilute every ratio and quantile.
    "WORK": 'instance=~"$instance", '
    'route!~"/livez|/readyz|/metrics|/docs|/openapi.json|grpc.health.*|grpc.reflection|other"',
    # Prometheus' own process has the same metrics, without a worker.
    "WORKER": 'instance=~"$instance", worker=~".+"',
}
VARIABLES: Final = (
    Variable(
        "instance",
        "Instance",
        "label_values(rul_model_info, instance)",
        "Running services, as Prometheus names them.",
    ),
    Variable("model", "Model", "label_values(rul_model_info, model)", "Bundles that are loaded."),
)


def read_dashboards() -> list[Dashboard]:
    """Read every dashboard."""
    panels: dict[str, Panel] = {}
    for path in sorted((HERE / "panels").glob("*.yml")):
        panels |= {title: _panel(title, fields) for title, fields in _read(path).items()}
    return [
        Dashboard(uid, each["title"], each["description"], VARIABLES, _rows(each["rows"], panels))
        for uid, each in _read(HERE / "dashboards.yml").items()
    ]


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text("utf-8"))


def _rows(rows: dict[str, list[str]], panels: dict[str, Panel]) -> tuple[Row, ...]:
    return tuple(Row(title, tuple(panels[each] for each in titles)) for title, titles in rows.items())


def _panel(title: str, fields: dict[str, Any]) -> Panel:
    queries = tuple(query for each in fields["queries"] for query in _queries(each))
    kind = Kind(fields.get("kind", Kind.LINES))
    known: dict[str, Any] = fields | {"title": title, "queries": queries, "kind": kind}
    return Panel(**known)


def _queries(query: dict[str, Any]) -> list[Query]:
    """Write the PromQL of one entry: `rates`, `gauge`, `quantiles`, `cells`, or `expr` as it stands."""
    where, by = query.get("where", "INSTANCE"), query.get("by", "")
    named = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    match query:
        case {"rates": metric}:  # events a second
            found = {named: f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"}
        case {"gauge": metric}:
            found = {named: f"{query.get('of', 'sum')} by ({by}) ({metric}{{{where}}})"}
        case {"quantiles": metric, "of": fractions}:
            rate = f"sum by (le, {by}) (rate({metric}_bucket{{{where}}}[$__rate_interval]))"
            found = {f"{named} p{x * 100:g}": f"histogram_quantile({x}, {rate}) >= 0" for x in fractions}
        case {"cells": metric}:  # a heatmap's buckets: events in each
            found = {"{{le}}": f"sum by (le) (increase({metric}_bucket{{{where}}}[$__rate_interval]))"}
        case _:
            found = {query.get("legend", ""): query["expr"]}
    return [Query(_with_matchers(expr), legend) for legend, expr in found.items()]


def _with_matchers(expr: str) -> str:
    return re.sub(r"\b(" + "|".join(MATCHERS) + r")\b", lambda name: MATCHERS[name[0]], expr)
