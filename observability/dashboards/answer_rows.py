"""Rows about answers: what do the models say, and on what does it rest?"""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Kind, Panel, Query, Row
from observability.dashboards.promql import MODEL, cells, mean, quantiles, rate

ATTENTION: Final = Row(
    "Attention",
    (
        Panel(
            title="Windows by attention entropy",
            unit="percentunit",
            shows="Entropy of each window's attention over its largest possible value: 0 is all weight on "
            "one cycle, 1 is the same weight on every cycle.",
            act="the band moves after a deployment: the new model attends differently, compare model "
            "cards. It moves by itself: the fleet's data changed, see Novelty.",
            queries=cells("rul_attention_entropy_ratio", where=f'{MODEL}, head="mean"'),
            kind=Kind.HEATMAP,
            most=1,
        ),
        Panel(
            title="Attention entropy by head",
            unit="percentunit",
            shows="Quantiles of the entropy ratio, for the attention itself (mean) and for each head, and "
            "the band of 99 % of calibration windows: its low and its high end.",
            act="one head at 0 or 1 while the others move: that head is dead, retrain with the entropy "
            "regulariser. All: see the runbook under RulAttentionCollapsed.",
            queries=(
                *quantiles("rul_attention_entropy_ratio", "model, head", (0.05, 0.5, 0.95), where=MODEL),
                Query(
                    f"max by (model, head, side) (rul_attention_entropy_band_ratio{{{MODEL}}})",
                    "{{model}} {{head}} band {{side}}",
                ),
            ),
            most=1,
        ),
        Panel(
            title="Attention outside its band",
            unit="percentunit",
            shows="Share of windows with an entropy below (low) or above (high) the band of 99 % of "
            "calibration windows. About 0.5 % on each side is normal.",
            act="above 5 % an alert goes out; see the runbook under RulAttentionCollapsed (low) and "
            "RulAttentionUniform (high). Do not show attention to users meanwhile.",
            queries=(
                Query(
                    f"{rate('rul_attention_out_of_band_total', 'model, side', where=MODEL)} "
                    f"/ on (model) group_left () ({rate('rul_state_total', 'model', where=MODEL)} > 0)",
                    "{{model}} {{side}}",
                ),
            ),
            limit=0.05,
        ),
        Panel(
            title="Weight of the most attended cycle",
            unit="percentunit",
            shows="The largest attention weight of each window, quantiles.",
            act="p99 near 1 while the entropy is normal: a few windows rest on one cycle; often a spike in "
            "one sensor. Ask for explain=full on such a unit.",
            queries=quantiles("rul_attention_peak_weight", "model", (0.5, 0.99), where=MODEL),
            width=24,
            most=1,
        ),
    ),
)

ANSWERS: Final = Row(
    "Answers",
    (
        Panel(
            title="Predicted RUL",
            unit="suffix:cycles",
            shows="Quantiles of the RUL that was answered. At the cap it means at least that much.",
            act="all quantiles fall together: the fleet ages, or a sensor drifted for all units. "
            "Flat at the cap: the fleet is young, or the wrong model was asked.",
            queries=quantiles("rul_prediction_cycles", "model", (0.1, 0.5, 0.9), where=MODEL),
        ),
        Panel(
            title="Interval width",
            unit="suffix:cycles",
            shows="Upper less lower end of the interval, quantiles.",
            act="wider than in the model card: windows are shorter or stranger than those of training; "
            "see Novelty and Imputed readings.",
            queries=quantiles("rul_interval_width_cycles", "model", (0.5, 0.9), where=MODEL),
        ),
        Panel(
            title="Answers by state",
            unit="percentunit",
            shows="Share of windows by how their answer may be read.",
            act="much insufficient_history: callers send too few cycles. Much out_of_distribution: wrong "
            "model, wrong units of a sensor, or truly new behaviour.",
            queries=(
                Query(
                    f"{rate('rul_state_total', 'model, state', where=MODEL)} "
                    f"/ on (model) group_left () ({rate('rul_state_total', 'model', where=MODEL)} > 0)",
                    "{{model}} {{state}}",
                ),
            ),
            kind=Kind.STACK,
        ),
        Panel(
            title="Novelty",
            unit="none",
            shows="Distance of windows from the training data; 1 is the 99.5 % quantile of training.",
            act="median above 1: the model is outside what it knows. Stop trusting its intervals, "
            "look for a changed sensor or unit of measure, retrain.",
            queries=quantiles("rul_novelty_ratio", "model", (0.5, 0.99), where=MODEL),
            limit=1,
        ),
        Panel(
            title="Windows by predicted RUL",
            unit="suffix:cycles",
            shows="How many windows got a RUL in each range: the distribution behind the quantiles.",
            act="one range empties and another fills within minutes: no fleet ages that fast; see Drift.",
            queries=cells("rul_prediction_cycles", where=MODEL),
            kind=Kind.HEATMAP,
        ),
        Panel(
            title="Imputed readings",
            unit="percentunit",
            shows="Share of readings that were missing and filled, mean over windows.",
            act="a step up: a sensor or its feed broke. The warnings in the answers name the column.",
            queries=(Query(mean("rul_imputed_fraction", "instance"), "{{instance}}"),),
        ),
    ),
)
