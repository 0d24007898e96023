"""Comparison of a network with gradient boosting on the same held-out windows.

Trees on window statistics learn in seconds, so every run can say whether its network is worth serving.
This module must not know networks or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from model.domain import FloatArray
from model.evaluation import Answered, Figure, figures, rmse_difference

BOOSTING_TITLES: Final = {
    "boosting_rmse": "RMSE of gradient boosting, cycles",
    "boosting_rmse_below_cap": "RMSE of gradient boosting below the cap, cycles",
    "boosting_difference": "RMSE less that of gradient boosting, cycles",
}
"""Titles of the metrics that a run keeps of `boosting_figures`."""


def boosting_figures(answered: Answered, boosted: FloatArray, *, cap: float) -> dict[str, Figure]:
    """Compare answers of a network with `boosted` ones to the same windows, [W].

    `rmse` and `rmse_below_cap` are those of gradient boosting. `difference` is the RMSE of the network
    less that of gradient boosting, with units resampled in pairs.
    """
    rival = replace(answered, rul=boosted, lower=boosted, upper=boosted)
    found = {name: figure for name, figure in figures(rival, cap=cap).items() if name.startswith("rmse")}
    return {**found, "difference": rmse_difference(answered, rival, cap=cap)}


def boosting_caution(metrics: Mapping[str, float]) -> str | None:
    """Warn where gradient boosting has the lower error, from the metrics of a run.

    None where the network is better or equal, or where the run did not compare.
    """
    if metrics.get("boosting_difference", 0.0) <= 0:
        return None
    errors = (
        f"Gradient boosting on window statistics has an RMSE of {metrics['boosting_rmse']:.1f} cycles where "
        f"this network has {metrics['crossvalidation_rmse']:.1f}"
    )
    if metrics["boosting_difference_low"] <= 0:
        return f"{errors}. The difference may be chance: its 95 % interval includes 0."
    return f"{errors}: do not rely on this model until more data or other options close the gap."
