"""A dashboard as plain data, and how that becomes Grafana's JSON.

A dashboard is rows of panels; a panel is a few queries and two sentences: what it shows, and what
to do when it looks wrong. Layout, ids and look are decided here, once for all dashboards. This
module must not know any metric of ours.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from string import ascii_uppercase
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge as bargauge_builders
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap as heatmap_builders
from grafana_foundation_sdk.builders import prometheus as prometheus_builders
from grafana_foundation_sdk.builders import stat as stat_builders
from grafana_foundation_sdk.builders import table as table_builders
from grafana_foundation_sdk.builders import timeseries as timeseries_builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard, heatmap, prometheus

COLUMNS: Final = 24  # of Grafana's grid
IF_WRONG: Final = "**If it looks wrong:**"
SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

PanelBuilder = (
    timeseries_builders.Panel
    | stat_builders.Panel
    | heatmap_builders.Panel
    | table_builders.Panel
    | bargauge_builders.Panel
)


class Kind(StrEnum):
    """How a panel draws its series."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    BARS = "bars"
    HEATMAP = "heatmap"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression, and the name of each series that it returns."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        unit: Grafana's name of the unit (`s`, `reqps`, `percentunit`) or `suffix:cycles`.
        shows: What one sees here.
        act: What to do when it looks wrong.
        width: In columns of a grid of 24.
        limit: From here on the value is drawn as a problem.
        least: The lower end of the axis; None where values may be below 0.
        most: The upper end of the axis, where there is one.
    """

    title: str
    unit: str
    shows: str
    act: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    height: int = 8
    limit: float | None = None
    least: float | None = 0
    most: float | None = None

    @property
    def identity(self) -> int:
        """What links to this panel name it by: as long as its title stays, wherever it moves."""
        return identity(self.title)

    @property
    def description(self) -> str:
        """The text behind the panel's "i"."""
        return f"{self.shows}\n\n{IF_WRONG} {self.act}"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, laid out left to right."""

    title: str
    panels: tuple[Panel, ...]

    @property
    def identity(self) -> int:
        """As a panel's, and never that of one with the same title."""
        return identity(f"row: {self.title}")


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard, filled with one label's values."""

    name: str
    label: str
    query: str
    description: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `uid` is also the name of its file."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def identity(title: str) -> int:
    """A number that follows from a title alone.

    >>> identity("Latency p99")
    101516706
    """
    return zlib.crc32(title.encode()) % 1_000_000_000


def to_json(content: Dashboard) -> str:
    """What Grafana reads: JSON, the same text whenever the content is the same."""
    parsed = json.loads(json.dumps(_built(content), cls=JSONEncoder))
    return json.dumps(_without_left_overs(parsed), indent=2, sort_keys=True) + "\n"


def _without_left_overs(parsed: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the SDK writes and Grafana's own types, since 12, no longer know."""
    variables = [
        {key: value for key, value in variable.items() if key not in {"auto", "auto_count", "auto_min"}}
        for variable in parsed["templating"]["list"]
    ]
    panels = [
        panel | {"options": {key: value for key, value in panel["options"].items() if key != "footer"}}
        if panel["type"] == "table"
        else panel
        for panel in parsed["panels"]
    ]
    return parsed | {"panels": panels, "templating": {"list": variables}}


def _built(content: Dashboard) -> dashboard.Dashboard:
    builder = (
        dashboard_builders.Dashboard(content.title)
        .uid(content.uid)
        .description(content.description)
        .tags(["rulserve"])
        .readonly()
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(_siblings())
        .with_variable(_source_variable())
    )
    for variable in content.variables:
        builder.with_variable(_label_variable(variable))
    for part in _laid_out(content.rows):
        if isinstance(part, dashboard_builders.Row):
            builder.with_row(part)
        else:
            builder.with_panel(part)
    return builder.build()


def _siblings() -> dashboard_builders.DashboardLink:
    """To the other dashboards, with the same time and the same choices."""
    return (
        dashboard_builders.DashboardLink("rulserve")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags(["rulserve"])
        .keep_time(keep_time=True)
        .include_vars(include_vars=True)
    )


def _source_variable() -> dashboard_builders.DatasourceVariable:
    # A variable rather than a fixed uid, so that the same file imports into any Grafana.
    return dashboard_builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _label_variable(variable: Variable) -> dashboard_builders.QueryVariable:
    everything = dashboard.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard_builders.QueryVariable(variable.name)
        .label(variable.label)
        .description(variable.description)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name, "qryType": 1})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(everything)
    )


def _laid_out(rows: tuple[Row, ...]) -> Iterator[dashboard_builders.Row | PanelBuilder]:
    """Rows and panels in reading order, each with its place and an id of its own."""
    top = 0
    for row in rows:
        yield dashboard_builders.Row(row.title).id(row.identity).grid_pos(_place(top, 0, COLUMNS, 1))
        top += 1
        left, height = 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            yield _panel(panel).id(panel.identity).grid_pos(_place(top, left, panel.width, panel.height))
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _place(top: int, left: int, width: int, height: int) -> dashboard.GridPos:
    return dashboard.GridPos(x=left, y=top, w=width, h=height)


def _panel(panel: Panel) -> PanelBuilder:
    builder = _drawn(panel).title(panel.title).description(panel.description).unit(panel.unit)
    builder.datasource(SOURCE)
    if panel.least is not None:
        builder.min(panel.least)
    if panel.most is not None:
        builder.max(panel.most)
    for query, ref_id in zip(panel.queries, ascii_uppercase[: len(panel.queries)], strict=True):
        builder.with_target(_target(query, ref_id, panel.kind))
    return builder


def _drawn(panel: Panel) -> PanelBuilder:
    match panel.kind:
        case Kind.NUMBER:
            latest = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
            return stat_builders.Panel().reduce_options(latest).thresholds(_thresholds(panel))
        case Kind.BARS:
            return _bars(panel)
        case Kind.HEATMAP:
            return _heatmap(panel)
        case Kind.TABLE:
            hidden = {"Time": True, "Value": True}
            plain = common.TableAutoCellOptions()
            return (
                table_builders.Panel()
                .cell_options(plain)
                .with_transformation(
                    dashboard.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
                )
            )
        case Kind.LINES | Kind.STACK:
            return _timeseries(panel)


def _timeseries(panel: Panel) -> timeseries_builders.Panel:
    stacked = panel.kind is Kind.STACK
    legend = (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["lastNotNull", "max"])
    )
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    builder = timeseries_builders.Panel().legend(legend).tooltip(tooltip)
    builder.fill_opacity(40 if stacked else 8).show_points(common.VisibilityMode.NEVER)
    if stacked:
        builder.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.limit is not None:
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        builder.thresholds(_thresholds(panel)).thresholds_style(style)
    return builder


def _bars(panel: Panel) -> bargauge_builders.Panel:
    latest = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
    return (
        bargauge_builders.Panel()
        .reduce_options(latest)
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .thresholds(_thresholds(panel))
    )


def _heatmap(panel: Panel) -> heatmap_builders.Panel:
    # Prometheus' buckets arrive ready-made: one series a bucket, named by its upper end.
    colour = (
        heatmap_builders.HeatmapColorOptions()
        .mode(heatmap.HeatmapColorMode.SCHEME)
        .scheme("Blues")
        .scale(heatmap.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
    )
    return (
        heatmap_builders.Panel()
        .calculate(calculate=False)
        .color(colour)
        .y_axis(heatmap_builders.YAxisConfig().unit(panel.unit))
        .filter_values(heatmap_builders.FilterValueRange().le(1e-9))
        .tooltip(
            heatmap_builders.HeatmapTooltip()
            .mode(common.TooltipDisplayMode.SINGLE)
            .y_histogram(y_histogram=True)
        )
    )


def _thresholds(panel: Panel) -> dashboard_builders.ThresholdsConfig:
    steps = [dashboard.Threshold(value=None, color="green")]
    if panel.limit is not None:
        steps.append(dashboard.Threshold(value=panel.limit, color="red"))
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _target(query: Query, ref_id: str, kind: Kind) -> prometheus_builders.Dataquery:
    target = prometheus_builders.Dataquery().datasource(SOURCE).expr(query.expr).ref_id(ref_id)
    target.editor_mode(prometheus.QueryEditorMode.CODE).legend_format(query.legend or "__auto")
    match kind:
        case Kind.HEATMAP:
            return target.range().format(prometheus.PromQueryFormat.HEATMAP)
        case Kind.TABLE:
            return target.instant().format(prometheus.PromQueryFormat.TABLE)
        case Kind.BARS:  # now: over time, the largest few would be others at each moment
            return target.instant().format(prometheus.PromQueryFormat.TIME_SERIES)
        case Kind.LINES | Kind.STACK | Kind.NUMBER:
            return target.range().format(prometheus.PromQueryFormat.TIME_SERIES)
