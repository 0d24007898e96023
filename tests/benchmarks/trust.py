"""Rank agreement of evidence, beside rankings that ignore the window: the figures of docs/trust.md.

    python -m tests.benchmarks.trust BUNDLE DATA [BUNDLE DATA ...]

For each window of ten cycles or more, three rankings are correlated with the effect of hiding each cycle
alone: its evidence, the evidence of another unit's window of the same length, and the mean effect at the same
lag in windows of other units.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from export.bundle import find_bundle
from export.evaluation_windows import spread_windows
from export.regime_readings import Typical
from export.session import Session, open_bundle
from model.domain import FloatArray, WindowSet
from model.faithfulness import rank_correlation
from rul_client.commands.predict.input_file import read_units
from service.core.explanations import FEWEST_CYCLES, SUPPORTED_AGREEMENT
from tests.benchmarks.tables import table

PER_UNIT: Final = 4


def effects(session: Session, windows: WindowSet, typical: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the effect of hiding each cycle alone, in cycles of RUL, and the evidence, both [W, T]."""

    def ask(readings: FloatArray) -> tuple[FloatArray, FloatArray]:
        answers = session.answer_all(replace(windows, readings=readings))
        return answers["contribution"].sum(axis=1) + answers["window_contribution"], answers["evidence"]

    rul, evidence = ask(windows.readings)
    effect = np.zeros_like(evidence)
    for t in range(windows.readings.shape[1]):
        readings = windows.readings.copy()
        readings[:, t] = np.where(np.isnan(readings[:, t]), np.float32(np.nan), typical[:, t])
        effect[:, t] = np.abs(ask(readings)[0] - rul)
    return effect, evidence


def agreements(effect: FloatArray, evidence: FloatArray, windows: WindowSet) -> dict[str, FloatArray]:
    """Rank correlations of each ranking, one per window or pair of windows."""
    rng, lengths, unit = np.random.default_rng(0), windows.lengths, windows.unit
    lags = [effect[w, :n][::-1] / (effect[w, :n].mean() or 1.0) for w, n in enumerate(lengths)]
    found: dict[str, list[float]] = {"own evidence": [], "another unit's evidence": [], "place alone": []}
    for w, n in enumerate(lengths):
        own, others = effect[w, :n], np.flatnonzero((lengths == n) & (unit != unit[w]))
        profile = [lags[i][:n] for i in np.flatnonzero((lengths >= n) & (unit != unit[w]))]
        found["own evidence"].append(rank_correlation(evidence[w, :n], own))
        if len(others):
            other = evidence[rng.choice(others), :n]
            found["another unit's evidence"].append(rank_correlation(other, own))
        if profile:
            found["place alone"].append(rank_correlation(np.mean(profile, axis=0)[::-1], own))
    return {name: np.array(values) for name, values in found.items()}


def main(pairs: Annotated[list[str], typer.Argument(metavar="BUNDLE DATA")]) -> None:
    """Print a table for each bundle."""
    for bundle, data in zip(pairs[::2], pairs[1::2], strict=True):
        session, manifest = open_bundle(find_bundle(bundle))
        units, _ = read_units(Path(data), manifest, fleet=None)
        windows = spread_windows(units, manifest, per_unit=PER_UNIT)
        windows = windows.take(windows.lengths >= FEWEST_CYCLES)
        effect, evidence = effects(session, windows, Typical(manifest).of(windows.readings))
        print(f"{bundle}, {len(windows)} windows of {len(units)} units of {data}\n")
        rows = (
            [name, *(f"{each:.2f}" for each in (values.mean(), np.median(values), below(values)))]
            for name, values in agreements(effect, evidence, windows).items()
        )
        print(table(["rank correlation with hiding", "mean", "median", "below the threshold"], rows))


def below(values: FloatArray) -> float:
    """Compute the share of rank correlations too low to support evidence."""
    return float((values < SUPPORTED_AGREEMENT).mean())


if __name__ == "__main__":
    typer.run(main)
