"""Inputs and outputs of a bundle's graph: names, order, shapes, tolerances.

This module must not know torch, onnx or ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Final

from export.bundle import Manifest
from model.domain import HEALTH_STATES

INPUTS: Final = ("readings", "lengths", "last_cycle")
OUTPUTS: Final = {
    "rul": ("B", 1e-3),
    "rul_interval": ("B2", 1e-2),  # a learned scale times a quantile widens the difference
    "failure_probability": ("BK", 1e-3),
    "health_state": ("BC", 1e-3),
    "attention": ("BT", 1e-4),
    "contribution": ("BT", 1e-3),
    "head_attention": ("BHT", 1e-4),
    "novelty": ("B", 1e-3),
    "sensor_contribution": ("BTF", 1e-3),
    "window_contribution": ("B", 1e-3),
    "evidence": ("BT", 1e-4),
}
"""Axes of each output (windows B, cycles T, columns F, heads H, horizons K, health states C), and the maximum
difference between a machine's answer and the exporter's, for some in cycles; see `tolerance_of`."""
AXES: Final = {name: axes for name, (axes, _) in OUTPUTS.items()}
TOLERANCE: Final = {name: tolerance for name, (_, tolerance) in OUTPUTS.items()}
EXPLAINING: Final = frozenset({"sensor_contribution", "window_contribution", "evidence"})
"""Outputs of networks that explain readings."""
MAP: Final = "self_attention"
"""Optional output [B, H, T, T] beside these: where each cycle looks. Services do not ask for it."""
PER_CYCLE: Final = frozenset(name for name, axes in AXES.items() if "T" in axes)
IN_CYCLES: Final = frozenset(
    {"rul", "rul_interval", "contribution", "sensor_contribution", "window_contribution"}
)
CAP_OF_TOLERANCES: Final = 125.0
"""Cap up to which tolerances in cycles are not scaled; above it they grow with the cap, because float32 has
24 bits: at 2,000 cycles its steps are 1.2e-4 cycles."""

Shapes = dict[str, tuple[int, ...]]


def output_names(*, heads: int, explains_readings: bool) -> tuple[str, ...]:
    """Return the outputs of a graph, in its order."""
    missing: set[str] = set() if heads else {"head_attention"}
    if not explains_readings:
        missing |= EXPLAINING
    return tuple(name for name in AXES if name not in missing)


def axis_sizes(manifest: Manifest) -> dict[str, int]:
    """Return the sizes of the axes that a model determines: all but windows and cycles."""
    sizes = {"F": len(manifest.columns), "H": manifest.heads, "K": len(manifest.horizons)}
    return sizes | {"C": len(HEALTH_STATES), "2": 2}


def output_shapes(manifest: Manifest, *, windows: int, cycles: int) -> Shapes:
    """Return the shape of each output of a model, in the order of its graph."""
    sizes = {"B": windows, "T": cycles, **axis_sizes(manifest)}
    names = output_names(heads=manifest.heads, explains_readings=manifest.explains_readings)
    return {name: tuple(sizes[axis] for axis in AXES[name]) for name in names}


def tolerance_of(name: str, tolerances: Mapping[str, float], *, cap: float) -> float:
    """Return the tolerance of an output; in cycles, it grows with caps above `CAP_OF_TOLERANCES`."""
    return in_cycles(tolerances[name], cap=cap) if name in IN_CYCLES else tolerances[name]


def in_cycles(tolerance: float, *, cap: float) -> float:
    """Scale a tolerance in cycles to a cap.

    >>> in_cycles(1e-3, cap=100), in_cycles(1e-3, cap=1000)
    (0.001, 0.008)
    """
    return tolerance * max(1.0, cap / CAP_OF_TOLERANCES)


def cycles_of(name: str, cycles: slice) -> tuple[EllipsisType | slice, ...]:
    """Return the index of some cycles of an output, of one window or of many.

    >>> import numpy as np
    >>> np.zeros((2, 9, 5))[cycles_of("sensor_contribution", slice(4))].shape
    (2, 4, 5)
    """
    return (..., cycles, slice(None)) if AXES[name].endswith("TF") else (..., cycles)
