"""Rows about drift: is what comes in, and what comes out, still what the model was trained and judged on?"""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Kind, Panel, Query, Row
from observability.dashboards.promql import MODEL, gauge

DRIFTING_COLUMNS: Final = Panel(
    title="Most drifting columns",
    unit="none",
    shows="The ten columns with the largest population stability index (PSI) against training, each in its "
    "worst operating regime. 0 until a regime has enough readings.",
    act="one column far ahead: its sensor or feed changed; compare units of measure and calibration. Many "
    "columns together: a new operating regime, another kind of machine, or columns in the wrong order.",
    queries=(
        Query(f"topk(10, max by (model, column) (rul_column_drift_psi{{{MODEL}}}))", "{{model}} {{column}}"),
    ),
    kind=Kind.BARS,
    width=12,
    height=10,
)

DRIFTING: Final = Panel(
    title="Columns beyond their limit",
    unit="short",
    shows="How many columns of a model drift further than chance and the fleet's ages explain.",
    act="above 0 for a quarter of an hour an alert goes out: see the runbook under RulColumnDrifts. The log "
    'names each column once an hour ("column drifts").',
    queries=(gauge("rul_column_drifting", "model", of="max", where=MODEL),),
    limit=1,
)

UNSEEN: Final = Panel(
    title="Readings far from every regime",
    unit="percentunit",
    shows="Share of recent windows whose last reading is far from every operating regime of training.",
    act="above 5 % an alert goes out: see the runbook under RulRegimeUnknown. The settings name what is new; "
    "the model scales such readings by the nearest regime, which may be wrong.",
    queries=(gauge("rul_regime_unseen_ratio", "model", of="max", where=MODEL),),
    limit=0.05,
    most=1,
)

DRIFT: Final = Row(
    "Drift",
    (
        DRIFTING_COLUMNS,
        Panel(
            title="Drift by column",
            unit="none",
            shows="PSI of each column against training over the sliding window of recent windows, in its "
            "worst regime. Each column has a limit of its own, which falls as windows come in.",
            act="a line that steps up: note the time, and ask what changed then. A slow climb of several "
            "columns with the same fleet: it ages beyond what training saw.",
            queries=(gauge("rul_column_drift_psi", "model, column", of="max", where=MODEL),),
            width=12,
            height=10,
        ),
        DRIFTING,
        Panel(
            title="Drift of predictions",
            unit="none",
            shows="PSI of predicted RULs against what training's lives leave at the ages of this fleet, and "
            "the limit above which it is no chance.",
            act="above its limit while no column drifts: the fleet is truly younger or older than its cycles "
            "say, or last_cycle is wrong. With columns: see those first, and the runbook under "
            "RulPredictionDrifts.",
            queries=(
                gauge("rul_prediction_drift_psi", "model", of="max", where=MODEL),
                Query(f"min by (model) (rul_prediction_drift_limit_psi{{{MODEL}}})", "{{model}} limit"),
            ),
        ),
        Panel(
            title="Drift of attention entropy",
            unit="none",
            shows="PSI of each head's entropy against the band of the bundle, and the limit above which it "
            "is no chance.",
            act="one head moves alone: it has lost what it looked for, see Attention entropy by head. All: "
            "the readings changed, see Most drifting columns.",
            queries=(
                gauge("rul_entropy_drift_psi", "model, head", of="max", where=MODEL),
                Query(
                    f"min by (model, head) (rul_entropy_drift_limit_psi{{{MODEL}}})",
                    "{{model}} {{head}} limit",
                ),
            ),
        ),
        UNSEEN,
        Panel(
            title="Windows that drift is judged by",
            unit="short",
            shows="Windows in the sliding window, over all workers of an instance; the least instance.",
            act="below 200 nothing is said of drift, and all of it reads 0: wait, or send more traffic to "
            "this instance.",
            queries=(gauge("rul_column_drift_windows", "model", of="min", where=MODEL),),
        ),
    ),
)
