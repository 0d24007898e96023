"""Drift reference: the share of readings of a healthy fleet in each bin, for `service.drift`.

The reference is computed at export (`export.ageing`) and kept in the ONNX file's metadata beside the
manifest. Columns are compared with training readings at the same remaining life, and predictions with the RUL
of training's lives at the unit's age, so a young fleet is no drift.

A column has ten value bins and two more: `STUCK` if the last ten readings are one number, and `MISSING`. This
module must not know how a reference is computed, nor what is counted.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from export.arrays import check_layout, one_line, read_arrays
from export.bundle import InvalidBundle, Manifest
from model.domain import FloatArray

_Array = NDArray[np.float64]

REFERENCE_KEY: Final = "rul_drift_reference"
BELIEVED: Final = 0.8
"""Share of the cap from which a prediction only says that the unit is far from failure."""
VALUE_BINS: Final = 10
STUCK: Final = VALUE_BINS
MISSING: Final = VALUE_BINS + 1
BINS: Final = VALUE_BINS + 2
STUCK_CYCLES: Final = 10
"""Number of equal readings in a row that is no coincidence, even in a column of few values: a column that
keeps its value every other time repeats it this often once in 500 windows."""
RARE: Final = 0.002
"""Minimum share of a bin: the logarithm of 0 does not exist."""
ENTROPY_SHARES: Final = (0.005, 0.99, 0.005)
"""Below, within and above the manifest's 0.5 and 99.5 % quantiles. The median is no edge: it would separate
young units from old ones, because attention depends on the age."""


LAYOUT: Final = {
    "names": ("str", "F"), "heads": ("str", "H"), "settings": ("int64", "S"),
    "centre": ("float64", "RS"), "scale": ("float64", "S"), "reach": ("float64", "RS"),
    "cuts": ("float64", "RFc"), "can_stick": ("bool", "RF"), "low": ("float32", "RFKb"),
    "high": ("float32", "RFKb"), "alike": ("float64", "F"), "band_edges": ("float64", "k"),
    "rul_edges": ("float64", "p"), "age_edges": ("float64", "a"), "rul_by_age": ("float64", "AP"),
    "bands_by_age": ("float64", "AK"), "left_by_age": ("float64", "N"), "believed": ("float64", ""),
    "entropy_edges": ("float64", "HE2"), "long_enough": ("float64", ""),
}  # fmt: skip
"""Types and axes in the file. k, p and a are edges of RUL bands, predictions, ages; A counts unknown ages."""


@dataclass(frozen=True, slots=True, eq=False)
class DriftReference:
    """Bins and expected shares of one model's drift."""

    names: tuple[str, ...]  # [F], of the columns
    heads: tuple[str, ...]  # [H], attention heads whose entropy is watched
    settings: NDArray[np.int64]  # [S], which columns are settings
    centre: _Array  # [R, S], of the operating regimes
    scale: _Array  # [S], spread over all regimes: what differences are divided by
    reach: _Array  # [R, S], beyond which a setting is far from the regime
    cuts: _Array  # [R, F, 9], value bin i holds readings above cut i - 1 and up to cut i
    can_stick: NDArray[np.bool_]  # [R, F], columns that move from cycle to cycle
    # float32 [R, F, K, 11], least share of a RUL band's readings up to the end of each of 11 bins.
    low: NDArray[np.float32]
    # The largest share. The two differ if many readings are one number, which deciles cannot resolve.
    high: NDArray[np.float32]
    alike: _Array  # [F], 0..1, correlation of readings of one unit that are in one RUL band
    band_edges: _Array  # [K - 1], cycles
    rul_edges: _Array  # [P - 1], cycles
    age_edges: _Array  # [A - 1], cycles
    rul_by_age: _Array  # [A + 1, P]; the last for an age not known
    bands_by_age: _Array  # [A + 1, K], share of training's readings in each RUL band
    left_by_age: _Array  # float64 [N], mean RUL of training's lives at each cycle
    believed: float  # Cycles; predictions from here on are compared by age
    entropy_edges: _Array  # [H, N, 2], by cycles of the window; the last for longer ones
    long_enough: float  # Cycles; the entropy of shorter windows is not judged

    def to_metadata(self) -> dict[str, str]:
        """Return what `from_metadata` reads: a compressed `npz`, as text."""
        stored = io.BytesIO()
        # Bins of neighbouring columns are alike: in this order the file is a tenth smaller.
        arrays: dict[str, Any] = {name: np.array(array, order="F") for name, array in asdict(self).items()}
        np.savez_compressed(stored, **arrays)
        return {REFERENCE_KEY: base64.b85encode(stored.getvalue()).decode("ascii")}

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, str], manifest: Manifest, *, origin: Path
    ) -> DriftReference:
        """Read the reference out of an ONNX file's metadata; nothing in it is executed.

        Raises:
            InvalidBundle: it is missing, damaged, or belongs to another manifest.
        """
        sizes = {"R": len(manifest.regimes), "c": VALUE_BINS - 1, "b": BINS - 1, "2": 2}
        try:
            arrays = read_arrays(base64.b85decode(metadata[REFERENCE_KEY]))
            if arrays["entropy_edges"].ndim == 2:  # Bundles without bands by length
                arrays["entropy_edges"] = arrays["entropy_edges"][:, None]
            check_layout(arrays, LAYOUT, sizes)
            numbers = (array for array in arrays.values() if array.dtype.kind == "f")
            if not (sizes["N"] and sizes["E"]) or any(np.isnan(array).any() for array in numbers):
                raise ValueError("expected ages, lengths of windows and no NaN")  # noqa: TRY301
            found: dict[str, Any] = arrays | {
                **{name: tuple(arrays[name].tolist()) for name in ("names", "heads")},
                **{name: float(arrays[name]) for name in ("believed", "long_enough")},
            }
            reference = cls(**found)
        except (KeyError, ValueError) as error:
            raise InvalidBundle(
                f"{origin}: {REFERENCE_KEY!r} in the ONNX metadata is missing or damaged, "
                f"export the model again: {one_line(error)}"
            ) from error
        schema = manifest.schema_of_columns
        own = (schema.names, tuple(each.head for each in manifest.entropy), schema.indices("setting"))
        bands = (sizes["K"] - 1, sizes["P"] - 1, sizes["A"] - 2)
        of_this_cap = abs(reference.believed - BELIEVED * manifest.cap) <= 1e-6 * manifest.cap
        if (
            (reference.names, reference.heads, tuple(reference.settings.tolist())) != own
            or (sizes["k"], sizes["p"], sizes["a"]) != bands
            or not of_this_cap
        ):
            raise InvalidBundle(
                f"{origin}: the drift reference belongs to another manifest, export the model again"
            )
        return reference


def floored(share: FloatArray) -> _Array:
    """Raise shares to at least `RARE`, with the sum 1."""
    raised = np.maximum(share, RARE)
    return raised / raised.sum(axis=-1, keepdims=True, dtype=np.float64)
