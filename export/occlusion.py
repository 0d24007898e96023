"""Readings of a hidden cycle: the training mean of its regime, from a bundle's manifest.

`rul attention` and the service hide cycles alike. This module must not know torch or ONNX Runtime.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from export.bundle import Manifest
from model.domain import FloatArray
from model.faithfulness import typical_readings
from model.regimes import Regimes


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
    within the regimes plus that of the regimes' means, each weighted by its share.
    """
    settings = list(manifest.schema_of_columns.indices("setting"))
    share = np.array([regime.share for regime in manifest.regimes])[:, None]
    mean = np.array([regime.mean for regime in manifest.regimes])[:, settings]
    deviation = np.array([regime.standard_deviation for regime in manifest.regimes])[:, settings]
    middle = (share * mean).sum(axis=0)
    spread = np.sqrt((share * (deviation**2 + (mean - middle) ** 2)).sum(axis=0))
    centre = np.array([regime.centre for regime in manifest.regimes]).reshape(len(share), len(settings))
    return Regimes(centre, np.where(spread > 0, spread, 1.0))
