"""Readings as they come from the field: out of order and repeated; and the answers of whole windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import httpx
import numpy as np

from model.domain import Trajectory

WITHIN_CYCLES: Final = 5
"""A reading comes before or after at most so many others."""
REPEATED: Final = 0.1
"""Share of the readings that come again, up to so many cycles later."""


def disordered(cycles: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Shuffle cycles within `WITHIN_CYCLES`, some of them twice."""
    again = [cycle for cycle in cycles if rng.random() < REPEATED]
    late = [(cycle + WITHIN_CYCLES * rng.random(), cycle) for cycle in cycles]
    late += [(cycle + 2 * WITHIN_CYCLES * rng.random(), cycle) for cycle in again]
    return [cycle for _, cycle in sorted(late)]


def reading(unit: Trajectory, cycle: int, names: Sequence[str]) -> dict[str, Any]:
    """One reading of a unit as JSON has it."""
    row = unit.readings[int(np.searchsorted(unit.cycles, cycle))]
    return {"cycle": int(cycle), "columns": dict(zip(names, map(float, row), strict=True))}


def whole(unit: Trajectory, names: Sequence[str], known: Collection[int] = ()) -> dict[str, Any]:
    """A unit's life as one window for /v1/predict: all of it, or `known` cycles and the gaps between."""
    shown = sorted(known) if known else unit.cycles.tolist()
    every = np.full((shown[-1] - shown[0] + 1, unit.readings.shape[1]), np.nan)
    every[np.array(shown) - shown[0]] = unit.readings[np.searchsorted(unit.cycles, shown)]
    columns = {
        name: [None if np.isnan(value) else float(value) for value in of]
        for name, of in zip(names, every.T, strict=True)
    }
    return {"unit": unit.unit, "last_cycle": shown[-1], "columns": columns}


def answers(http: httpx.Client, model: str, windows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What /v1/predict answers for these windows, without storing it."""
    body = {"model": model, "windows": windows, "explain": "none", "store": False}
    return http.post("/v1/predict", json=body).raise_for_status().json()["predictions"]


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest difference between two predictions, in cycles or probability."""
    assert one["rul_state"] == other["rul_state"], (one, other)
    pairs = [(one["rul"], other["rul"])]
    pairs += [(one["interval"][name], other["interval"][name]) for name in ("lower", "upper")]
    probabilities = one["failure_probability"], other["failure_probability"]
    pairs += [(probabilities[0][h], probabilities[1][h]) for h in probabilities[1]]
    return max(abs(a - b) for a, b in pairs)
