"""The PromQL that our dashboards are made of.

Every query returns finite numbers or nothing, never NaN: `>= 0` after a quantile drops the NaN of
an interval without events, `> 0` under a fraction drops a division by zero.
"""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Query

INSTANCE: Final = 'instance=~"$instance"'
MODEL: Final = 'instance=~"$instance", model=~"$model"'
# Statuses of HTTP and names of gRPC statuses that say "our fault".
FAULT: Final = 'code=~"5..|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED"'
# What callers ask for: probes, scrapes, pages and unknown URLs would dilute every ratio and quantile.
WORK: Final = (
    'instance=~"$instance", '
    'route!~"/livez|/readyz|/metrics|/docs|/openapi.json|grpc.health.*|grpc.reflection|other"'
)


def rate(metric: str, by: str, *, where: str = INSTANCE) -> str:
    """Events a second, summed by these labels."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def series(expr: str, by: str) -> Query:
    """A query whose series are named by these labels."""
    return Query(expr, named(by))


def named(by: str) -> str:
    """The legend of series with these labels."""
    return " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))


def gauge(metric: str, by: str, *, of: str = "sum", where: str = INSTANCE) -> Query:
    """A gauge, summed (or `max`, `min`) by these labels, each series named by them."""
    return series(f"{of} by ({by}) ({metric}{{{where}}})", by)


def rates(metric: str, by: str, *, where: str = INSTANCE) -> Query:
    """Events a second, summed by these labels, each series named by them."""
    return series(rate(metric, by, where=where), by)


def share(part: str, whole: str) -> str:
    """A part of a whole; nothing while there is no whole."""
    return f"{part} / ({whole} > 0)"


def quantile(fraction: float, histogram: str, by: str = "", *, where: str = INSTANCE) -> str:
    """One quantile of a histogram, by these labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({fraction}, {rate(f'{histogram}_bucket', labels, where=where)}) >= 0"


def quantiles(
    histogram: str, by: str, fractions: tuple[float, ...], *, where: str = INSTANCE
) -> tuple[Query, ...]:
    """Several quantiles, each series named by its labels."""
    legend = named(by)
    return tuple(
        Query(quantile(fraction, histogram, by, where=where), f"{legend} p{fraction * 100:g}")
        for fraction in fractions
    )


def mean(histogram: str, by: str, *, where: str = INSTANCE) -> str:
    """The mean of a histogram's observations."""
    return share(rate(f"{histogram}_sum", by, where=where), rate(f"{histogram}_count", by, where=where))


def within(histogram: str, low: str, high: str, by: str = "", *, where: str = INSTANCE) -> str:
    """How many observations of the last hour were above one bucket's end and at most another's.

    An end is as Prometheus has it, `10.0`; a low end of `0` is below all, a high end of `+Inf` above.
    """
    total = f"sum by ({by})" if by else "sum"
    up_to = {end: f'{total} (increase({histogram}_bucket{{{where}, le="{end}"}}[1h]))' for end in (low, high)}
    # Both are sums of the same scrapes; what rounding leaves below zero is none.
    return up_to[high] if low == "0" else f"clamp_min({up_to[high]} - {up_to[low]}, 0)"


def cells(histogram: str, *, where: str = INSTANCE) -> tuple[Query, ...]:
    """The buckets of a heatmap: events in each, not summed up."""
    return (Query(f"sum by (le) (increase({histogram}_bucket{{{where}}}[$__rate_interval]))", "{{le}}"),)
