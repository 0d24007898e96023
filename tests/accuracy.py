"""Figures of predictions with an outcome, computed with pandas."""

import numpy as np
import pandas as pd


def accuracy_by_pandas(met: pd.DataFrame, cap: float) -> dict[str, float]:
    """Compute the figures from rul, lower, upper, last_cycle, cycle and kind of each prediction."""
    left = (met.cycle - met.last_cycle).clip(upper=cap)
    failed = met.kind == "failed"
    error = (met.rul - left)[failed]
    held = (met.lower.le(left) & met.upper.ge(left))[failed]
    outlived = met.upper.lt(left)[~failed]
    return {
        "predictions": len(met),
        "with_error": len(error),
        "rmse": (error**2).mean() ** 0.5,
        "mean_absolute_error": error.abs().mean(),
        "late": error[error > 0].sum(),
        "early": -error[error < 0].sum(),
        "bias": error.mean(),
        "nasa_score": (np.exp(error / np.where(error < 0, -13, 10)) - 1).mean(),
        "hits": held.sum(),
        "contradicted": outlived.sum(),
        "open": (~outlived).sum(),
        "coverage": held.mean(),
        "mean_width": (met.upper - met.lower).mean(),
    }
