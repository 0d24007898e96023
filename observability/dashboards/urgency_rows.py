"""Rows about the fleet: how urgent is it, and how much of it can be answered?"""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Kind, Panel, Query, Row
from observability.dashboards.promql import MODEL, mean, rate, share, within

# Ends of buckets of rul_prediction_cycles, as Prometheus writes them.
BANDS: Final = (("0", "10.0"), ("10.0", "30.0"), ("30.0", "60.0"), ("60.0", "125.0"), ("125.0", "+Inf"))
NAMES: Final = ("up to 10 cycles", "10 to 30", "30 to 60", "60 to 125", "more")
NOT_UNITS: Final = (
    "Predictions of the last hour, not units: one that reports each cycle counts each cycle, and "
    "GET /v1/units lists the units themselves, the most urgent first."
)

URGENCY: Final = Row(
    "Urgency",
    (
        Panel(
            title="Predictions by urgency",
            unit="short",
            shows=f"How many cycles were left. {NOT_UNITS}",
            act="much in the first band: GET /v1/units?limit=20 names the units. A sudden shift of "
            "everything is not wear: see Drift of predictions on the dashboard model quality.",
            queries=tuple(
                Query(within("rul_prediction_cycles", low, high, where=MODEL), name)
                for (low, high), name in zip(BANDS, NAMES, strict=True)
            ),
            kind=Kind.BARS,
        ),
        Panel(
            title="Urgency over time",
            unit="short",
            shows=f"The same at each moment. {NOT_UNITS}",
            act="the urgent bands grow for days: maintenance falls behind the fleet's wear. They empty at "
            "once: the urgent units were served, or stopped reporting; see Outcomes.",
            queries=tuple(
                Query(within("rul_prediction_cycles", low, high, where=MODEL), name)
                for (low, high), name in zip(BANDS, NAMES, strict=True)
            ),
            kind=Kind.STACK,
        ),
        Panel(
            title="At most ten cycles left",
            unit="short",
            shows=f"Predictions of at most ten cycles, by model. {NOT_UNITS}",
            act="above what the workshop can take: order by GET /v1/units?model=NAME, and read the lower end "
            "of the interval, not the RUL.",
            queries=(Query(within("rul_prediction_cycles", "0", "10.0", "model", where=MODEL), "{{model}}"),),
        ),
    ),
)

STATES: Final = Row(
    "How far answers can be used",
    (
        Panel(
            title="Predictions by state",
            unit="short",
            shows="Predictions of the last hour by how they may be read.",
            act="insufficient_history: new units, or callers who send too few cycles. out_of_distribution: "
            "do not plan by these; see Novelty on the dashboard model quality.",
            queries=(
                Query(
                    f"sum by (state) (increase(rul_state_total{{{MODEL}}}[1h]))",
                    "{{state}}",
                ),
            ),
            kind=Kind.BARS,
        ),
        Panel(
            title="Unlike anything in training",
            unit="percentunit",
            shows="Share of windows that are out of distribution, by model.",
            act="above 5 % an alert goes out: see the runbook under RulOutOfDistribution.",
            queries=(
                Query(
                    share(
                        rate("rul_state_total", "model", where=f'{MODEL}, state="out_of_distribution"'),
                        rate("rul_state_total", "model", where=MODEL),
                    ),
                    "{{model}}",
                ),
            ),
            limit=0.05,
        ),
        Panel(
            title="Missing readings",
            unit="percentunit",
            shows="Share of readings that were missing and filled, mean over windows.",
            act="a step up: a sensor or its feed broke for part of the fleet. The warnings in the answers "
            "name the column.",
            queries=(Query(mean("rul_imputed_fraction", "instance"), "{{instance}}"),),
        ),
    ),
)
