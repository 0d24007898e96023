"""What of an answer is recorded, and when two answers are the same."""

from __future__ import annotations

import json
import math
from typing import Any, Final

TOLERANCE: Final = 1e-6
"""Of numbers: absolute or relative, whichever is larger."""

CONTRIBUTION_TOLERANCE: Final = 1e-4
"""Absolute, of contributions: their slopes have the precision of float32, and another processor or batch size
changes them by up to 2e-5 cycles (1e-3 are promised)."""

ANY: Final = "<any>"
"""A recorded value that must be present, with any content."""

FREE: Final = {
    *("title", "detail", "request_id"),
    *("version", "versions", "model_version", "sha256"),
    *("predicted_at", "recorded_at", "last_reading_at"),
}
"""Fields whose content is not compared: wording, identifiers, moments."""

STABLE: Final = {"name", "context", "cap", "horizons", "nominal_coverage"}
"""Fields of a manifest whose content is compared, beside its column names."""

NUMBERS: Final = (int, float)


def normalised(value: Any, name: str = "") -> Any:
    """An answer without what is not compared, its numbers in eight digits."""
    if name in FREE or (name in {"error", "next"} and isinstance(value, str) and value):
        return ANY
    if name == "manifest_json" and value:
        return normalised(json.loads(value), "manifest")
    if name == "manifest":
        columns = [column["name"] for column in value["columns"]]
        return {key: value[key] if key in STABLE else ANY for key in value} | {"columns": columns}
    if isinstance(value, dict):
        return {key: normalised(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [normalised(item) for item in value]
    return float(f"{value:.8g}") if isinstance(value, float) and math.isfinite(value) else value


def differences(got: Any, recorded: Any, place: str = "", *, tolerance: float = TOLERANCE) -> list[str]:
    """Every place where an answer is not the recorded one; a manifest may have more fields than recorded."""
    if isinstance(recorded, str) and recorded == ANY:
        return []
    if isinstance(recorded, dict) and isinstance(got, dict):
        more = set() if place.endswith(("/manifest", "/manifest_json")) else got.keys() - recorded.keys()
        place += f"/{recorded['name']}" if "name" in recorded else ""
        found = [f"{place}/{key}: unexpected" for key in sorted(more)]
        found += [f"{place}/{key}: missing" for key in sorted(recorded.keys() - got.keys())]
        common = [key for key in recorded if key in got]
        parts = [(got[key], recorded[key], f"{place}/{key}") for key in common]
        return found + [d for part in parts for d in differences(*part, tolerance=tolerance)]
    if isinstance(recorded, list) and isinstance(got, list) and len(got) == len(recorded):
        parts = [
            (one, other, f"{place}/{i}") for i, (one, other) in enumerate(zip(got, recorded, strict=True))
        ]
        return [d for part in parts for d in differences(*part, tolerance=tolerance)]
    if type(recorded) in NUMBERS and type(got) in NUMBERS:
        absolute = max(CONTRIBUTION_TOLERANCE, tolerance) if "contribution" in place else tolerance
        same = math.isclose(got, recorded, rel_tol=tolerance, abs_tol=absolute)
    else:
        same = type(got) is type(recorded) and got == recorded
    return [] if same else [f"{place}: got {got!r}, recorded {recorded!r}"]
