"""Expected readings of a regime, from a bundle's manifest: typical readings and the healthy range.

A hidden cycle takes the typical readings, the training mean of its regime. The healthy range of a column is
that of training units whose RUL was the cap or more. `rul attention`, explanations of the service and the
pictures of `rul explain` share them. This module must not know torch or ONNX Runtime.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from export.bundle import Manifest
from model.domain import FloatArray
from model.faithfulness import typical_readings
from model.reference import Degradation
from model.regimes import Regimes

DEVIATIONS: Final = 2.0
"""Half the width of the range, in standard deviations of healthy readings: 95 % of them are inside."""
ROUNDING: Final = 1e-5
"""Relative margin on each side, so that rounding to float32 is not a departure."""


class Typical:
    """The training means of one model."""

    def __init__(self, manifest: Manifest) -> None:
        """Read regimes and means from the manifest."""
        self._regimes: Final = regimes_of(manifest)
        self._settings: Final = manifest.schema_of_columns.indices("setting")
        self._mean: Final = np.array([regime.mean for regime in manifest.regimes])

    def of(self, readings: FloatArray) -> FloatArray:
        """Return the mean readings of each cycle's regime, [W, T, F] -> float32 [W, T, F]."""
        return typical_readings(readings, self._regimes, settings=self._settings, mean=self._mean)


def regimes_of(manifest: Manifest) -> Regimes:
    """Rebuild the regimes of the graph from the manifest.

    The manifest lacks the scale of the settings: their variance over all readings is the variance
    within the regimes plus that of the regimes' centres, each weighted by its share.
    """
    within = setting_deviations(manifest)
    share = np.array([regime.share for regime in manifest.regimes])[:, None]
    centre = np.array([regime.centre for regime in manifest.regimes]).reshape(within.shape)
    middle = (share * centre).sum(axis=0) / share.sum()
    spread = np.sqrt((share * (within**2 + (centre - middle) ** 2)).sum(axis=0) / share.sum())
    return Regimes(centre, np.where(spread > 0, spread, 1.0))


def setting_deviations(manifest: Manifest) -> FloatArray:
    """Return the standard deviation of each setting within each regime, [R, S].

    It is 0 where a setting is constant in its regime, and 1 if it is constant in all training readings.
    """
    settings = list(manifest.schema_of_columns.indices("setting"))
    edges = np.array([regime.histogram_edges for regime in manifest.regimes])[:, settings]
    deviation = np.array([regime.standard_deviation for regime in manifest.regimes])[:, settings]
    constant = np.array([regime.constant() for regime in manifest.regimes])[:, settings]
    return np.where(constant & (edges != edges[0, :, :1]).any(axis=(0, 2)), 0.0, deviation)


class Range(NamedTuple):
    """Healthy range of some readings, all float32 [T, F] in engineering units."""

    lower: FloatArray
    middle: FloatArray
    upper: FloatArray


class HealthyRange:
    """Healthy ranges of one model's columns."""

    def __init__(self, manifest: Manifest) -> None:
        """Read regimes and statistics from the manifest."""
        mean, deviation = healthy_z(manifest.degradation, cap=manifest.cap)
        scale = np.array([regime.standard_deviation for regime in manifest.regimes])
        middle = np.array([regime.mean for regime in manifest.regimes]) + mean * scale
        half = DEVIATIONS * deviation * scale + ROUNDING * np.abs(middle)
        lower, upper = (middle - half).astype(np.float32), (middle + half).astype(np.float32)
        # From the rounded bounds, so that a reader who has only these computes the same answers.
        between = (lower.astype(np.float64) + upper) / 2
        self._table: Final = np.stack([lower, between.astype(np.float32), upper])  # [3, R, F]
        self._regimes: Final = regimes_of(manifest)
        self._settings: Final = manifest.schema_of_columns.indices("setting")

    def of(self, readings: FloatArray) -> Range:
        """Return the range of each cycle's regime, [T, F] -> [T, F]; missing readings have one too."""
        return Range(*self._table[:, self._regimes.of_readings(readings, self._settings)])


def healthy_z(degradation: Degradation, *, cap: float) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of healthy z-scores, [F] and [F].

    They cover every RUL of the profile from the cap on (or the highest below it), each weighted by its cycles
    and by the share of units that lived so long: differences between units, along the RUL and from cycle to
    cycle.
    """
    rul = np.array(degradation.rul)
    rows = np.flatnonzero(rul >= cap) if rul[-1] >= cap else np.array([len(rul) - 1])
    lives = np.array(degradation.life_quantiles)
    alive = 1.0 - np.interp(rul[rows], lives, np.linspace(0.0, 1.0, len(lives)))
    bounds = np.concatenate([rul[rows[:1]], (rul[rows][1:] + rul[rows][:-1]) / 2, rul[rows[-1:]]])
    weight = np.maximum(alive, 1e-6) * np.maximum(np.diff(bounds), 1e-6)
    weight = (weight / weight.sum())[:, None]
    z = np.array(degradation.z)[rows]
    mean = (weight * z).sum(axis=0)
    variance = weight * (np.square(np.array(degradation.spread)[rows]) + np.square(z - mean))
    return mean, np.sqrt(variance.sum(axis=0) + np.square(degradation.noise))


def average_life(manifest: Manifest, rul: FloatArray) -> FloatArray:
    """Return windows of the average training unit at these RULs, [W] -> float32 [W, context, F].

    They are in the most frequent regime, without noise.
    """
    regime = max(manifest.regimes, key=lambda each: each.share)
    at = rul[:, None] + np.arange(manifest.context - 1, -1, -1)
    z = manifest.degradation.along(manifest.degradation.z, at)
    return (np.array(regime.mean) + np.array(regime.standard_deviation) * z).astype(np.float32)
