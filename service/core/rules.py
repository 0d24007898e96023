"""Rules for windows, from a model and the settings, prepared for quick checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from export.bundle import Manifest
from model.domain import FloatArray
from service.errors import Problem, escaped, short

OUT_OF_RANGE_MARGIN: Final = 0.25
"""Margin beyond the 0.1 and 99.9 % quantiles of training, over their distance, within which a reading gets
no warning. Without it 7 of 8 healthy windows of 60 cycles and 17 columns would have one."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowRules:
    """Rules for the windows of one model.

    Attributes:
        names: The F column names, in order.
        sensors: Indices of the sensors.
        contributing: Indices of the sensors and, if the model reads settings, of the settings.
        horizons: The horizons of failure probabilities, as replies name them.
        known: The column names, to look up.
        units: The engineering units of the columns.
        lowest, highest: float32 [F]; readings beyond them are out of the training range.
        longest_life: The longest life in training, in cycles.
        usual_entropy: Lowest and highest usual attention entropy ratio of windows of 0, 1, .. cycles.
    """

    names: tuple[str, ...]
    horizons: tuple[str, ...]
    sensors: tuple[int, ...]
    contributing: tuple[int, ...]
    known: frozenset[str]
    units: tuple[str, ...]
    lowest: FloatArray
    highest: FloatArray
    longest_life: float
    usual_entropy: tuple[list[float], list[float]]
    context: int
    max_missing_fraction: float
    max_cycles: int

    @classmethod
    def of(cls, manifest: Manifest, *, max_window_cycles: int) -> WindowRules:
        """The rules of one model."""
        names = tuple(column.name for column in manifest.columns)
        low = np.array([column.low for column in manifest.columns])
        high = np.array([column.high for column in manifest.columns])
        # A column that was constant in training has no width; rounding to float32 is no deviation.
        margin = OUT_OF_RANGE_MARGIN * (high - low) + 1e-5 * np.maximum(np.abs(low), np.abs(high))
        least, most = manifest.entropy[0].limits(manifest.context)
        return cls(
            names,
            tuple(map(str, manifest.horizons)),
            manifest.schema_of_columns.indices("sensor"),
            manifest.contributing,
            frozenset(names),
            tuple(column.unit for column in manifest.columns),
            (low - margin).astype(np.float32),
            (high + margin).astype(np.float32),
            manifest.degradation.life_quantiles[-1],
            (least.tolist(), most.tolist()),
            min(manifest.context, max_window_cycles),
            manifest.max_missing_fraction,
            max_window_cycles,
        )

    def unknown_columns(self, names: Iterable[str], at: str = "") -> Iterator[Problem]:
        """Yield a problem for each column that the model lacks, by name, in the reading or window `at`."""
        for name in sorted({*names} - self.known):
            detail = f"the model has no column {short(name)}"
            yield Problem(f"{at}/columns/{escaped(name)}", "unknown_column", detail)
