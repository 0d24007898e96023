"""Golden windows: windows and expected answers with which a bundle's graph is checked before it serves.

Every command that opens a bundle compares with the same tolerances. This module must not know torch, onnx
or ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from export.arrays import check_layout, one_line, read_arrays
from export.bundle import InvalidBundle, Manifest
from export.outputs import AXES, INPUTS, TOLERANCE, axis_sizes, in_cycles, output_names, tolerance_of
from model.domain import FloatArray, IntArray

ROUNDING: Final = 1 / 16
"""Maximum rounding of stored answers, in tolerances: needless digits would be a fifth of the file."""
MOST_WINDOWS: Final = 256
"""Maximum number of golden windows: a service replays them before it is ready."""
OUTSIDE: Final = 0.5
"""If this share of a column's golden readings is outside its training range, columns were exchanged."""

Answers = Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise, with its worst measured and its maximum allowed value."""

    promise: str
    worst: float
    allowed: float
    where: str = ""  # Where it is worst, with both values

    @property
    def kept(self) -> bool:
        """Return whether the promise holds; NaN breaks it."""
        return self.worst <= self.allowed

    def __str__(self) -> str:
        """Say what was measured, for the error of a promise that is broken."""
        return f"{self.where or self.promise}: {self.worst:.3g}, at most {self.allowed:g} is allowed"


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """Windows and their expected answers, replayed before a server is ready."""

    readings: FloatArray  # float32 [B, T, F]
    lengths: IntArray  # int64 [B]
    last_cycle: FloatArray  # float32 [B]
    expected: dict[str, FloatArray]  # Each output of the graph by its name

    def save(self, path: Path) -> None:
        """Write an `npz` that `parse` reads."""
        expected: dict[str, Any] = {f"expected_{name}": value for name, value in self.expected.items()}
        np.savez_compressed(
            path, readings=self.readings, lengths=self.lengths, last_cycle=self.last_cycle, **expected
        )

    @classmethod
    def parse(cls, stored: bytes, *, origin: Path) -> Golden:
        """Read golden windows; nothing in the file is executed.

        Raises:
            InvalidBundle: the file is damaged or incomplete.
        """
        try:
            arrays = read_arrays(stored)
            readings, lengths, last_cycle = (arrays.pop(name) for name in INPUTS)
        except (ValueError, KeyError) as error:
            raise InvalidBundle(
                f"{origin}: golden windows cannot be read, export the model again: {one_line(error)}"
            ) from error
        return cls(
            readings,
            lengths,
            last_cycle,
            {name.removeprefix("expected_"): value for name, value in arrays.items()},
        )

    def check(self, manifest: Manifest, *, origin: Path) -> None:
        """Compare types, shapes and readings with the manifest.

        Raises:
            InvalidBundle: these are the golden windows of another manifest, or not windows at all.
        """
        sizes = axis_sizes(manifest) | {"T": manifest.context}
        names = output_names(heads=manifest.heads, explains_readings=manifest.explains_readings)
        layout = {"readings": ("float32", "BTF"), "lengths": ("int64", "B"), "last_cycle": ("float32", "B")}
        arrays = {"readings": self.readings, "lengths": self.lengths, "last_cycle": self.last_cycle}
        arrays |= {f"expected_{name}": value for name, value in self.expected.items()}
        try:
            check_layout(arrays, layout | {f"expected_{n}": ("float32", AXES[n]) for n in names}, sizes)
            if not 1 <= sizes["B"] <= MOST_WINDOWS:
                raise ValueError(f"expected 1 to {MOST_WINDOWS} windows, got {sizes['B']}")  # noqa: TRY301
            if not (self.lengths.min() >= 1 and self.lengths.max() <= manifest.context):
                raise ValueError(f"expected lengths of 1 to {manifest.context} cycles")  # noqa: TRY301
            if not all(np.isfinite(value).all() for value in self.expected.values()):
                raise ValueError("expected finite answers")  # noqa: TRY301
            _check_columns(self.readings, manifest)
        except ValueError as error:
            raise InvalidBundle(
                f"{origin}: golden windows and manifest do not belong together, export the model again: "
                f"{one_line(error)}"
            ) from error


def replay(golden: Golden, got: Answers, manifest: Manifest) -> Iterator[Finding]:
    """Compare a graph's answers with the golden ones and with the manifest's numbers."""
    for name, expected in golden.expected.items():
        yield _compared(name, got[name], expected, tolerance_of(name, TOLERANCE, cap=manifest.cap))
    for found in (contributions_add_up(got, manifest), interval_holds_the_answer(got, manifest)):
        yield replace(found, promise=f"golden {found.promise}")


def _compared(name: str, got: FloatArray, expected: FloatArray, allowed: float) -> Finding:
    """Compare an output with its golden values, and say where they differ most."""
    promise = f"golden {name}"
    if got.shape != expected.shape:
        where = f"{promise} has shape {expected.shape}, the graph answers {got.shape}"
        return Finding(promise, float("inf"), allowed, where)
    distance = _distance(name, got, expected)
    most = np.unravel_index(int(distance.argmax()), distance.shape)
    at = ", ".join(str(int(i)) for i in most)
    where = f"{promise}[{at}] is {expected[most]:.6g}, the graph answers {got[most]:.6g}, difference"
    return Finding(promise, float(distance[most]), allowed, where)


def contributions_add_up(got: Answers, manifest: Manifest) -> Finding:
    """Compare baseline plus contributions, clipped to 0..cap, with the RUL."""
    unclipped = manifest.baseline + got["contribution"].astype(np.float64).sum(axis=-1)
    unclipped += got.get("window_contribution", 0.0)
    difference = np.abs(np.clip(unclipped, 0.0, manifest.cap) - got["rul"])
    allowed = in_cycles(1e-3, cap=manifest.cap)
    return Finding("baseline + contributions = RUL, cycles", float(difference.max()), allowed)


def interval_holds_the_answer(got: Answers, manifest: Manifest) -> Finding:
    """Check that 0 <= lower <= rul <= upper <= cap."""
    lower, upper = got["rul_interval"].T
    rul = got["rul"]
    beyond = np.max([-lower, lower - rul, rul - upper, upper - manifest.cap])
    return Finding("0 <= lower <= RUL <= upper <= cap, cycles beyond", max(float(beyond), 0.0), 1e-4)


def rounded(answers: Answers, *, cap: float) -> dict[str, FloatArray]:
    """Round answers to multiples of a power of two, at most `ROUNDING` of the tolerance away."""
    allowed = {name: tolerance_of(name, TOLERANCE, cap=cap) for name in answers}
    steps = {name: 2.0 ** np.floor(np.log2(2.0 * ROUNDING * allowed[name])) for name in answers}
    return {
        name: (np.rint(value / steps[name]) * steps[name]).astype(np.float32)
        for name, value in answers.items()
    }


def farthest(name: str, got: FloatArray, expected: FloatArray) -> float:
    """Return the largest difference of an output; infinite for NaN or other shapes."""
    if got.shape != expected.shape:
        return float("inf")
    return float(_distance(name, got, expected).max(initial=0.0))


def _distance(name: str, got: FloatArray, expected: FloatArray) -> FloatArray:
    """Return absolute differences; those of novelty, which has no upper limit, relative above 1."""
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    if name == "novelty":
        difference /= np.maximum(1.0, np.abs(expected))
    return np.where(np.isnan(difference), np.inf, difference)


def _check_columns(readings: FloatArray, manifest: Manifest) -> None:
    """Check that readings are in each column's training range, to detect exchanged columns."""
    low, high = (np.array([getattr(c, end) for c in manifest.columns]) for end in ("low", "high"))
    # A column that is nearly always the same has a range of one value, and noise from its few others.
    deviation = np.max([regime.standard_deviation for regime in manifest.regimes], axis=0)
    noise = deviation * np.array(manifest.degradation.noise)
    margin = (high - low) + 3.0 * noise + 1e-5 * np.maximum(np.abs(low), np.abs(high))
    outside = (readings < low - margin) | (readings > high + margin)
    share = outside.sum(axis=(0, 1)) / np.maximum((~np.isnan(readings)).sum(axis=(0, 1)), 1)
    if share.max() > OUTSIDE:
        name = manifest.columns[int(share.argmax())].name
        raise ValueError(f"readings of {name} lie outside its range in training")
