"""Rows about outcomes: what failures and removals say of the predictions that came before them."""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Panel, Query, Row
from observability.dashboards.promql import INSTANCE

OF_MODEL: Final = 'model=~"$model"'
DAYS: Final = "Over 30 days."

ERROR: Final = Panel(
    title="Error of predictions",
    unit="suffix:cycles",
    shows=f"How far predictions of units that then failed were off, in cycles, both sides capped. {DAYS}",
    act="well above the model card's MAE: see Drift. If nothing drifts, failures of a new kind are coming "
    "in: `rul outcomes` says which version, and new trajectories to failure are worth a training.",
    queries=(
        Query(
            f"job_model:rul_outcome_absolute_error_cycles:mean_rate30d{{{OF_MODEL}}}",
            "{{job}} {{model}} mean",
        ),
        Query(
            f"job_model:rul_outcome_absolute_error_cycles:p50_rate30d{{{OF_MODEL}}}", "{{job}} {{model}} p50"
        ),
        Query(
            f"job_model:rul_outcome_absolute_error_cycles:p90_rate30d{{{OF_MODEL}}}", "{{job}} {{model}} p90"
        ),
    ),
)

BIAS: Final = Panel(
    title="Bias",
    unit="suffix:cycles",
    shows="Mean of predicted less true RUL: above 0 predictions come late, which is the dangerous side. "
    f"{DAYS}",
    act="steadily above 0: plan maintenance by the lower end of the interval until the model is trained "
    "again. Below 0: units are retired too early. Few failures move it a lot, see Outcomes.",
    queries=(Query(f"job_model:rul_outcome_error_cycles:mean_rate30d{{{OF_MODEL}}}", "{{job}} {{model}}"),),
    least=None,
)

COVERAGE: Final = Panel(
    title="Coverage of the interval",
    unit="percentunit",
    shows="Share of predictions of units that failed whose interval held the true RUL, the nominal coverage, "
    f"and the limit below which so few failures leave no room for chance. Removals are not in it. {DAYS}",
    act="below its limit an alert goes out: see the runbook under RulCoverageLow. Far above nominal: "
    "intervals are wider than they need be; calibrate again.",
    queries=(
        Query(f"job_model:rul_coverage:ratio_rate30d{{{OF_MODEL}}}", "{{job}} {{model}}"),
        Query(f"job_model:rul_coverage_limit:ratio_rate30d{{{OF_MODEL}}}", "{{job}} {{model}} limit"),
        Query(f"max by (model) (rul_nominal_coverage_ratio{{{INSTANCE}, {OF_MODEL}}})", "{{model}} nominal"),
    ),
    most=1,
)

ENDS: Final = Panel(
    title="Outcomes",
    unit="short",
    shows=f"Failures and removals that were reported. {DAYS}",
    act="none at all: nobody feeds outcomes back, so errors and coverage say nothing; see POST "
    "/v1/units/{unit}/outcomes. More failures than usual: ask the plant before you ask the model.",
    queries=(Query(f"sum by (kind) (increase(rul_outcomes_total{{{INSTANCE}}}[30d]))", "{{kind}}"),),
)

OUTCOMES: Final = Row(
    "Outcomes",
    (
        ERROR,
        BIAS,
        COVERAGE,
        Panel(
            title="NASA score",
            unit="none",
            shows=f"Mean score of a prediction: late counts more than early, and far more when far. {DAYS}",
            act="a step up while Error barely moves: a few predictions were very late. Look them up with GET "
            "/v1/units/{unit} for the units that failed lately.",
            queries=(
                Query(f"job_model:rul_outcome_nasa_score:mean_rate30d{{{OF_MODEL}}}", "{{job}} {{model}}"),
            ),
        ),
        ENDS,
        Panel(
            title="Predictions judged",
            unit="short",
            shows="Predictions that met an outcome: of units that failed, which the figures of this row are "
            f"made of, and of units that were removed, by whether these had outrun the interval. {DAYS}",
            act="few beside Outcomes: units are asked about without unit or last_cycle, or were kept for "
            "fewer days than they live (RUL_STORE_RETENTION_DAYS). Many contradicted: units last longer than "
            "their intervals say, and are removed too early.",
            queries=(
                Query(f"job_model:rul_coverage_trials:increase30d{{{OF_MODEL}}}", "{{job}} {{model}} failed"),
                Query(
                    f"sum by (model, verdict) (increase(rul_removed_predictions_total{{{INSTANCE}, "
                    f"{OF_MODEL}}}[30d]))",
                    "{{model}} removed, {{verdict}}",
                ),
            ),
        ),
    ),
)
