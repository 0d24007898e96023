"""The shares of readings that a healthy fleet puts into each bin: what `service.drift` compares counts with.

Computed at export (`export.ageing`) and kept in the ONNX file's metadata beside the manifest. A column is
compared with what training saw of units of the same remaining life, and predictions with the RUL that
training's lives leave at the unit's age: a young fleet is no drift.

Besides its ten value bins a column has two more: `STUCK`, where the last ten readings are one number, and
`MISSING`. This module must not know how a reference is computed, nor what is counted.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from export.bundle import InvalidBundle, Manifest

_Array = NDArray[np.float64]

REFERENCE_KEY: Final = "rul_drift_reference"
VALUE_BINS: Final = 10
STUCK: Final = VALUE_BINS
MISSING: Final = VALUE_BINS + 1
BINS: Final = VALUE_BINS + 2
STUCK_CYCLES: Final = 10
"""So many equal readings in a row are no chance even for a column of few values: one that keeps its value
every other time does so once in 500 windows."""
RARE: Final = 0.002
"""Share of what training hardly ever saw: never 0, of which there is no logarithm."""
ENTROPY_SHARES: Final = (0.005, 0.99, 0.005)
"""Below, within and above the manifest's 0.5 and 99.5 % quantiles. The median would tell young units from old
ones: where attention lies depends on the age."""


@dataclass(frozen=True, slots=True, eq=False)
class DriftReference:
    """What drift of one model is counted by and compared with."""

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
    # The most. The two differ where many readings are one number, of which deciles tell no more.
    high: NDArray[np.float32]
    alike: _Array  # [F], 0..1, correlation of readings of one unit that are in one RUL band
    band_edges: _Array  # [K - 1], cycles
    rul_edges: _Array  # [P - 1], cycles
    age_edges: _Array  # [A - 1], cycles
    rul_by_age: _Array  # [A + 1, P]; the last for an age not known
    bands_by_age: _Array  # [A + 1, K], share of training's readings in each RUL band
    left_by_age: _Array  # float64 [N], mean cycles that training's lives left after each cycle
    believed: float  # Cycles; a prediction from here on goes by the age
    entropy_edges: _Array  # [H, N, 2], by cycles of the window; the last for longer ones
    long_enough: float  # Cycles; the entropy of shorter windows is not judged

    def to_metadata(self) -> dict[str, str]:
        """Return what `from_metadata` reads: a compressed `npz`, as text."""
        stored = io.BytesIO()
        arrays: dict[str, Any] = asdict(self)
        np.savez_compressed(stored, **arrays)
        return {REFERENCE_KEY: base64.b64encode(stored.getvalue()).decode("ascii")}

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, str], manifest: Manifest, *, origin: Path
    ) -> DriftReference:
        """Read the reference out of an ONNX file's metadata; nothing in it is executed."""
        try:
            stored = io.BytesIO(base64.b64decode(metadata[REFERENCE_KEY], validate=True))
            with np.load(stored, allow_pickle=False) as arrays:
                found: dict[str, Any] = {name: arrays[name] for name in arrays.files}
            for name in ("names", "heads"):
                found[name] = tuple(found[name].tolist())
            for name in ("believed", "long_enough"):
                found[name] = float(found[name])
            if found["entropy_edges"].ndim == 2:  # Bundles without bands by length
                found["entropy_edges"] = found["entropy_edges"][:, None]
            reference = cls(**found)
        except (KeyError, ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidBundle(
                f"{origin}: {REFERENCE_KEY!r} in the ONNX metadata is missing or damaged, "
                f"export the model again: {error}"
            ) from error
        heads = tuple(each.head for each in manifest.entropy)
        cuts = (len(manifest.regimes), len(manifest.columns), VALUE_BINS - 1)
        if (reference.names, reference.heads, reference.cuts.shape) != (
            manifest.schema_of_columns.names, heads, cuts,
        ):  # fmt: skip
            raise InvalidBundle(
                f"{origin}: the drift reference belongs to another manifest, export the model again"
            )
        return reference


def floored(share: _Array) -> _Array:
    """Shares of which none is below `RARE`, summing to 1."""
    raised = np.maximum(share, RARE)
    return raised / raised.sum(axis=-1, keepdims=True)
