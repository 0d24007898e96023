"""Write docs/metrics.md from the metrics: `python -m observability.reference`.

The page has the metrics of a service with one bundle, the `process_*` of its workers included. Only
developers run this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.utils import floatToGoString

from export.bundle import find_bundle
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from service.metrics import buckets
from service.metrics.metrics import Metrics

PAGE: Final = Path(__file__).parents[1] / "docs" / "metrics.md"
BUNDLE: Final = "fd001"

# Labels whose values are unknown before a service runs; the page lists the values of all others.
OPEN: Final = {
    "model": "each loaded bundle",
    "version": "of the bundle",
    "sha256": "of the bundle's graph",
    "provider": "what the model runs on, as ONNX Runtime names it",
    "providers": "the order in which providers are asked for each part of the graph",
    "head": "`mean`, and the number of each head",
    "column": "each column that the model reads",
    "worker": "the number of each worker",
}
# By the last word of the name, `_total` left out.
UNITS: Final = {
    "seconds": "seconds",
    "cycles": "cycles",
    "bytes": "bytes",
    "windows": "windows",
    "rows": "rows",
    "ratio": "ratio",
    "fraction": "ratio",
    "weight": "ratio",
    "psi": "none: a population stability index",
    "score": "none: a NASA score",
    "info": "none",
    "up": "0 or 1",
}
HEAD: Final = """# Metrics

<!-- made by python -m observability.reference -->

Every metric of `/metrics`, as the code declares it. A scrape of any worker returns the metrics of
all workers: counters and histograms are sums that include stopped workers; gauges cover running
workers. Label values come from closed sets: no request,
unknown path or odd value makes a series, and no unit is ever a label. With one bundle ({bundle})
and one worker there are {series} series at the start.

The dashboards of [observability](../observability) draw them, and [the
runbook](runbook.md) says what to do when an alert reads them.
"""


def page() -> str:
    """Return the text of the page."""
    registry = CollectorRegistry()
    runtime = OnnxRuntime.load(find_bundle(BUNDLE), provider=ProviderChoice.CPU)
    Metrics(registry, [runtime])
    families = list(registry.collect())
    series = sum(len(family.samples) for family in families)
    parts = [HEAD.format(bundle=BUNDLE, series=series), *_table(families)]
    for family in families:
        parts += ["", *_section(family)]
    return "\n".join([*parts, ""])


def _table(families: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | type | labels |"
    yield "|---|---|---|"
    for family in families:
        name = _name(family)
        labels = ", ".join(f"`{label}`" for label in _labels(family))
        yield f"| [`{name}`](#{name}) | {family.type} | {labels} |"


def _section(family: Metric) -> Iterator[str]:
    yield f"## {_name(family)}"
    yield ""
    yield family.documentation
    yield ""
    yield f"- {family.type}, unit: {_unit(family)}"
    for label, values in _labels(family).items():
        said = OPEN.get(label) or ", ".join(f"`{value}`" for value in values)
        yield f"- `{label}`: {said}"
    if family.type == "histogram":
        yield from _buckets(family)


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _unit(family: Metric) -> str:
    return UNITS.get(family.name.rpartition("_")[2], "a count")


def _labels(family: Metric) -> Mapping[str, list[str]]:
    """Return the values of each label, in the order of the series, without bounds of buckets."""
    found: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values = found.setdefault(label, [])
            if label != "le" and value not in values:
                values.append(value)
    found.pop("le", None)
    return found


def _buckets(family: Metric) -> Iterator[str]:
    ends = list(dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels))
    known = [each for each in vars(buckets).values() if isinstance(each, buckets.Buckets)]
    reasons = {tuple(map(floatToGoString, each.bounds)): each.reason for each in known}
    yield f"- buckets up to {', '.join(ends[:-1])}"
    yield f"- why these: {reasons[tuple(ends[:-1])]}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
