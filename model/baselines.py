"""Baselines without a network: the mean, ridge regression, gradient boosting.

They use the same windows as a network and are measured by the same metrics. This module must not know
training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import torch

from model.domain import FloatArray, RulError, WindowSet, capped_rul
from model.layers import Standardise, features_of_change
from model.network import at_last_cycle

AT_ONCE: Final = 2048
RIDGE: Final = 1.0
"""Weight of the squared coefficients against the sum of squared errors."""


class MissingLibrary(RulError):
    """A baseline needs a library that is not installed."""


class Baseline(ABC):
    """A model that learns from windows and predicts RUL in cycles, 0..cap."""

    def __init__(self, standardise: Standardise, cap: float) -> None:
        self._standardise = standardise
        self._cap = cap

    @abstractmethod
    def fit(self, windows: WindowSet) -> None:
        """Learn from labelled windows."""

    @abstractmethod
    def answer(self, windows: WindowSet) -> FloatArray:
        """Predict the RUL of each window, [W]."""


def window_statistics(windows: WindowSet, standardise: Standardise) -> FloatArray:
    """Summarise each window, [W, 8F + 2].

    For each scaled column: last reading, mean, mean of the last ten, trend, standard deviation,
    minimum, maximum, mean of the first ten. Then the window's length and the unit's age.
    """
    parts: list[FloatArray] = []
    with torch.no_grad():
        for start in range(0, len(windows), AT_ONCE):
            part = windows.take(np.arange(start, min(start + AT_ONCE, len(windows))))
            lengths = torch.from_numpy(part.lengths)
            z, _, valid = standardise(torch.from_numpy(part.readings), lengths)  # [B, T, F]
            there, count = valid.unsqueeze(-1), lengths.unsqueeze(-1).to(z.dtype)
            last = at_last_cycle(torch.cat((z, features_of_change(z)), dim=-1), lengths)  # [B, 4F]
            mean = z.sum(1) / count
            deviation = ((z - mean.unsqueeze(1)).square() * there).sum(1).div(count).sqrt()
            least, most = (z.masked_fill(~there, edge) for edge in (torch.inf, -torch.inf))
            first = z[:, :10].sum(1) / count.clamp(max=10.0)
            age = torch.from_numpy(part.last_cycle).unsqueeze(-1)
            columns = (last, deviation, least.amin(1), most.amax(1), first, count, age)
            parts.append(torch.cat(columns, dim=-1).numpy())
    return np.concatenate(parts)


class Mean(Baseline):
    """The mean RUL of the training windows."""

    def fit(self, windows: WindowSet) -> None:
        """See `Baseline`."""
        self._mean = float(capped_rul(windows.rul, cap=self._cap).mean())

    def answer(self, windows: WindowSet) -> FloatArray:
        """See `Baseline`."""
        return np.full(len(windows), self._mean)


class Ridge(Baseline):
    """Ridge regression on the last scaled readings and the unit's age."""

    def fit(self, windows: WindowSet) -> None:
        """See `Baseline`."""
        x = self._columns(windows)
        penalty = RIDGE * np.eye(x.shape[1])
        penalty[-1, -1] = 0.0  # the intercept
        self._weights = np.linalg.solve(x.T @ x + penalty, x.T @ capped_rul(windows.rul, cap=self._cap))

    def answer(self, windows: WindowSet) -> FloatArray:
        """See `Baseline`."""
        return np.clip(self._columns(windows) @ self._weights, 0.0, self._cap)

    def _columns(self, windows: WindowSet) -> FloatArray:
        columns = windows.readings.shape[-1]
        found = window_statistics(windows, self._standardise)
        age = np.log1p(found[:, -1:])
        return np.hstack((found[:, :columns], age, np.ones((len(windows), 1)))).astype(np.float64)


class GradientBoosting(Baseline):
    """Histogram gradient boosting of scikit-learn on window statistics."""

    def __init__(self, standardise: Standardise, cap: float) -> None:
        super().__init__(standardise, cap)
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 for training alone
        except ImportError as error:
            raise MissingLibrary(
                "gradient boosting needs scikit-learn: pip install rulserve[train]"
            ) from error
        self._trees = HistGradientBoostingRegressor(
            learning_rate=0.05,
            max_iter=300,
            max_leaf_nodes=15,
            min_samples_leaf=40,
            l2_regularization=1.0,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=0,
        )

    def fit(self, windows: WindowSet) -> None:
        """See `Baseline`."""
        self._trees.fit(window_statistics(windows, self._standardise), capped_rul(windows.rul, cap=self._cap))

    def answer(self, windows: WindowSet) -> FloatArray:
        """See `Baseline`."""
        answers = self._trees.predict(window_statistics(windows, self._standardise))
        return np.clip(np.asarray(answers, dtype=np.float64), 0.0, self._cap)


BASELINES: Final[dict[str, type[Baseline]]] = {
    "mean": Mean,
    "ridge": Ridge,
    "gradient_boosting": GradientBoosting,
}
