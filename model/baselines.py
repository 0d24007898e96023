"""Baselines without a network: the mean, ridge regression, gradient boosting.

They use the same windows as a network and are measured by the same metrics. This module must not know
training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from model.dataset import AnyWindows, CutWindows
from model.domain import FloatArray, RulError, WindowSet, capped_rul
from model.layers import Standardise, change_weights, features_of_change

AT_ONCE: Final = 2048
MOST_WINDOWS: Final = 50_000
"""Maximum windows to train gradient boosting; more did not lower the error of long lives."""
BINS: Final = 255
"""Bins of a column in gradient boosting: the library's default."""
RIDGE: Final = 1.0
"""Weight of the squared coefficients relative to the sum of squared errors."""


class MissingLibrary(RulError):
    """A baseline needs a library that is not installed."""


Answer = Callable[[WindowSet], FloatArray]
"""Predicts the RUL of each window, [W], in cycles from 0 to the cap."""
Learner = Callable[[CutWindows, Standardise, float], Answer]
"""Learns from labelled windows, with scaled readings and RUL up to the cap."""


def window_statistics(windows: AnyWindows, standardise: Standardise) -> FloatArray:
    """Summarise each window, [W, 8F + S + 2].

    For each scaled column: last reading, mean, mean of the last ten, trend, standard deviation,
    minimum, maximum, mean of the first ten. Then the mean of each setting, scaled over all regimes as for a
    network that reads settings, the window's length and the unit's age.
    """
    parts: list[FloatArray] = []
    with torch.no_grad():
        for part in windows.batches(AT_ONCE):
            lengths, weights = torch.from_numpy(part.lengths), change_weights(part.readings.shape[1])
            readings = torch.from_numpy(part.readings)
            scaled = standardise(readings, lengths)
            z, there = scaled.z, scaled.valid.unsqueeze(-1)  # [B, T, F], [B, T, 1]
            count = lengths.unsqueeze(-1).to(z.dtype)
            z = z.masked_fill(~there, 0.0)
            last = z[torch.arange(len(z)), lengths - 1]  # [B, F]
            mean = z.sum(1) / count
            deviation = ((z - mean.unsqueeze(1)).square() * there).sum(1).div(count).sqrt()
            least, most = (z.masked_fill(~there, edge) for edge in (torch.inf, -torch.inf))
            first = z[:, :10].sum(1) / count.clamp(max=10.0)
            settings = standardise.scaled_settings(readings, scaled.observed).sum(1) / count  # [B, S]
            age = torch.from_numpy(part.last_cycle).unsqueeze(-1)
            columns = (
                last,
                features_of_change(z, scaled.after, weights[lengths]),
                deviation,
                least.amin(1),
                most.amax(1),
                first,
                settings,
                count,
                age,
            )
            parts.append(torch.cat(columns, dim=-1).numpy())
    return np.concatenate(parts)


def mean(windows: CutWindows, _standardise: Standardise, cap: float) -> Answer:
    """Predict the mean RUL of the training windows."""
    rul = float(capped_rul(windows.rul, cap=cap).mean())
    return lambda asked: np.full(len(asked), rul)


def ridge(windows: CutWindows, standardise: Standardise, cap: float) -> Answer:
    """Fit ridge regression on the last scaled readings and the unit's age."""
    columns = standardise.get_buffer("mean").shape[1]

    def design(part: AnyWindows) -> FloatArray:  # [W, F + 2]
        found = window_statistics(part, standardise)
        age = np.log1p(found[:, -1:])
        return np.hstack((found[:, :columns], age, np.ones((len(part), 1)))).astype(np.float64)

    x = design(windows)
    penalty = RIDGE * np.eye(x.shape[1])
    penalty[-1, -1] = 0.0  # the intercept
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ capped_rul(windows.rul, cap=cap))
    return lambda asked: np.clip(design(asked) @ weights, 0.0, cap)


def coarse(values: FloatArray) -> FloatArray:
    """Raise more than 255 different values [W] to the next of 255 quantiles."""
    kept = np.unique(values)
    if len(kept) > BINS:
        kept = np.unique(np.quantile(values, np.linspace(0.0, 1.0, BINS), method="higher"))
    return kept[np.searchsorted(kept, values)]


def gradient_boosting(windows: CutWindows, standardise: Standardise, cap: float) -> Answer:
    """Fit scikit-learn's histogram gradient boosting on window statistics.

    Above `MOST_WINDOWS` windows it fits a random part. It uses as many threads as torch: its default, one
    per core, takes twenty times as long on busy cores, because threads wait for each other so often.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 for training alone
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 comes with it
    except ImportError as error:
        raise MissingLibrary("gradient boosting needs scikit-learn: pip install rulserve[train]") from error
    trees = HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=300,
        max_leaf_nodes=15,
        min_samples_leaf=40,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    windows = windows.sample(MOST_WINDOWS)
    statistics = window_statistics(windows, standardise)
    # Equal weights cost time: they hide from the library that all second derivatives are equal.
    weight = None if (windows.weight == windows.weight[0]).all() else windows.weight
    if weight is not None:  # the library would sort each column once for each bin, which takes minutes
        statistics = np.stack([coarse(column) for column in statistics.T], axis=1)
    with threadpool_limits(torch.get_num_threads()):
        trees.fit(statistics, capped_rul(windows.rul, cap=cap), sample_weight=weight)

    def answer(asked: WindowSet) -> FloatArray:
        statistics = window_statistics(asked, standardise)
        with threadpool_limits(torch.get_num_threads()):
            answers = trees.predict(statistics)
        return np.clip(np.asarray(answers, dtype=np.float64), 0.0, cap)

    return answer


BASELINES: Final[dict[str, Learner]] = {"mean": mean, "ridge": ridge, "gradient_boosting": gradient_boosting}
