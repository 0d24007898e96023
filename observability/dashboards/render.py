"""Grafana's JSON from dashboards.yml, the panels of panels/*.yml and look.yml.

The keys of a panel:
    unit: Grafana's name of the unit (`s`, `reqps`, `percentunit`) or `suffix:cycles`.
    shows: The figures that the panel draws.
    act: The operator's next step when they look wrong.
    queries: As `_queries` reads them.
    kind: One of look.yml; default: lines.
    width, height: In columns and rows of a grid of 24 columns; default: 8.
    limit: From here on the value is drawn as a problem.
    least, most: The ends of the axis; default: from 0, and no upper end.

In a query, `INSTANCE`, `MODEL`, `WORK`, `FAULT` and `WORKER`
stand for the matchers of `MATCHERS`. Every query returns finite numbers or nothing, never NaN:
`>= 0` after a quantile drops the NaN of an interval without events, `> 0` under a fraction drops a
division by zero.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE.parent / "grafana" / "dashboards"
MATCHERS: Final = {
    "INSTANCE": 'instance=~"$instance"',
    "MODEL": 'instance=~"$instance", model=~"$model"',
    # Statuses of HTTP and names of gRPC statuses that say "our fault".
    "FAULT": 'code=~"5..|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED"',
    # What callers ask for: probes, scrapes, pages and unknown URLs would dilute every ratio and quantile.
    "WORK": 'instance=~"$instance", '
    'route!~"/livez|/readyz|/metrics|/docs|/openapi.json|/page/.*|/v2/.*/(live|ready)|'
    'inference.GRPCInferenceService|other"',
    # Prometheus' own process has the same metrics, without a worker.
    "WORKER": 'instance=~"$instance", worker=~".+"',
}
VARIABLES: Final = {
    "instance": "Running services, as Prometheus names them.",
    "model": "Bundles that are loaded.",
}
COLUMNS: Final = 24  # of Grafana's grid
IF_WRONG: Final = "**If it looks wrong:**"
Json = dict[str, Any]


def rendered() -> dict[str, str]:
    """Return each dashboard's JSON by its uid, the same text whenever the content is the same."""
    look = _read(HERE / "look.yml")
    panels: Json = {}
    for path in sorted((HERE / "panels").glob("*.yml")):
        panels |= {title: _panel(title, look, **fields) for title, fields in _read(path).items()}
    variables = [look["source_variable"]]
    for name, description in VARIABLES.items():
        query = {"query": f"label_values(rul_model_info, {name})", "refId": name, "qryType": 1}
        named = {"name": name, "label": name.title(), "description": description, "query": query}
        variables.append(look["variable"] | named)
    dashboards = {
        uid: look["dashboard"]
        | {"uid": uid, "title": given["title"], "description": given["description"]}
        | {"templating": {"list": variables}, "panels": [*_laid_out(given["rows"], panels)]}
        for uid, given in _read(HERE / "dashboards.yml").items()
    }
    return {uid: json.dumps(each, indent=2, sort_keys=True) + "\n" for uid, each in dashboards.items()}


def _read(path: Path) -> Json:
    return yaml.safe_load(path.read_text("utf-8"))


def _laid_out(rows: Mapping[str, list[str]], panels: Mapping[str, Json]) -> Iterator[Json]:
    """Yield rows and panels in reading order, each with its place."""
    top = 0
    for title, titles in rows.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        row = {"id": _identity(f"row: {title}"), "title": title, "gridPos": place}
        yield row | {"type": "row", "collapsed": False, "panels": []}
        top += 1
        left, height = 0, 0
        for panel in (panels[each] for each in titles):
            size = panel["gridPos"]
            if left + size["w"] > COLUMNS:
                left, top, height = 0, top + height, 0
            yield panel | {"gridPos": size | {"x": left, "y": top}}
            left, height = left + size["w"], max(height, size["h"])
        top += height


def _panel(
    title: str,
    look: Json,
    *,
    unit: str,
    shows: str,
    act: str,
    queries: list[Json],
    kind: str = "lines",
    width: int = 8,
    height: int = 8,
    limit: float | None = None,
    least: float | None = 0,
    most: float | None = None,
) -> Json:
    """Make one panel, without its place."""
    drawn = look["kinds"][kind]
    asked = [query for each in queries for query in _queries(each)]
    target = look["target"] | drawn["target"]
    panel = look["panel"] | drawn["panel"]
    if kind == "heatmap":
        panel["options"] = panel["options"] | {"yAxis": {"unit": unit}}
    return panel | {
        "id": _identity(title),
        "title": title,
        "description": f"{shows}\n\n{IF_WRONG} {act}",
        "fieldConfig": {"defaults": {"unit": unit, **_drawing(drawn, limit, least, most)}, "overrides": []},
        "gridPos": {"w": width, "h": height},
        "targets": [
            target | {"expr": expr, "legendFormat": legend or "__auto", "refId": letter}
            for (legend, expr), letter in zip(asked, ascii_uppercase[: len(asked)], strict=True)
        ],
    }


def _drawing(drawn: Json, limit: float | None, least: float | None, most: float | None) -> Json:
    """Return the ends of the axis and the colours."""
    found: Json = {name: end for name, end in (("min", least), ("max", most)) if end is not None}
    found |= {"custom": drawn["custom"]} if "custom" in drawn else {}
    if limit is None and not drawn.get("coloured"):
        return found
    beyond = [] if limit is None else [{"color": "red", "value": limit}]
    found["thresholds"] = {"mode": "absolute", "steps": [{"color": "green", "value": None}, *beyond]}
    if "custom" in found:
        found["custom"] = found["custom"] | {"thresholdsStyle": {"mode": "dashed"}}
    return found


def _identity(title: str) -> int:
    """Return the id of a panel for links: it changes with the title, not with the place.

    >>> _identity("Latency p99")
    101516706
    """
    return zlib.crc32(title.encode()) % 1_000_000_000


def _queries(query: Json) -> Iterator[tuple[str, str]]:
    """Yield legend and PromQL of `rates`, `gauge`, `quantiles`, `cells`, or of `expr` as it stands."""
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
    matchers = re.compile(rf"\b({'|'.join(MATCHERS)})\b")
    for legend, expr in found.items():
        yield legend, matchers.sub(lambda name: MATCHERS[name[0]], expr)
