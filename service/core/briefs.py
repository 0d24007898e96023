"""The few cycles and sensors that an answer rests on most, for a whole batch at once."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.domain import FloatArray

MOST: Final = 3
"""Cycles and sensors of a brief: more would be read by nobody, and stored with every prediction."""
DECIMALS: Final = 4
"""Of shares and cycles."""


class Brief(NamedTuple):
    """Of each window of a batch, the most first."""

    places: list[list[int]]  # Most evident cycles, by their places in the window
    shares: list[list[float]]  # Their shares of the evidence
    sensors: list[list[int]]  # Sensors that weigh most, by their places among the columns
    cycles: list[list[float]]  # Signed cycles of RUL of each


def brief_of(evidence: FloatArray, of_columns: FloatArray, sensors: tuple[int, ...]) -> Brief:
    """Choose from evidence [B, T] and the cycles of each column [B, F]."""
    places = _most(evidence)
    columns = np.array(sensors, np.intp)[_most(np.abs(of_columns[:, sensors]))]
    rows = np.arange(len(evidence))[:, None]
    shares, cycles = evidence[rows, places], of_columns[rows, columns]
    return Brief(places.tolist(), _rounded(shares), columns.tolist(), _rounded(cycles))


def _most(values: FloatArray) -> NDArray[np.intp]:
    return values.argsort(axis=1)[:, : -MOST - 1 : -1]


def _rounded(values: FloatArray) -> list[list[float]]:
    return values.astype(np.float64).round(DECIMALS).tolist()
