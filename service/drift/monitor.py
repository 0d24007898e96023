"""Tells whether inputs, predictions and attention still resemble those of training.

Drift is the population stability index: over bins with shares p now and q in the reference, the sum of
(p - q) ln(p / q), which is the symmetrised Kullback-Leibler divergence. By the rule of thumb of credit
scoring (Lewis 1994; quoted in the abstract of Yurdakul and Naranjo 2020, Journal of Risk Model Validation) up
to 0.1 is little change, up to 0.25 moderate, above it significant.

The rule does not account for chance. Where nothing has drifted, n independent readings give about a
chi-squared with B - 1 degrees of freedom over n: to second order (p - q) ln(p / q) is (p - q)^2 / q, whose
sum is Pearson's statistic over n (see Yurdakul 2018, Western Michigan University dissertation 3208). Readings
of one unit resemble each other, so they are not independent. So n is divided by Kish's design effect,
1 + (m - 1) a, where m is how many windows a window's unit has on average and a the correlation within a unit,
from the drift reference. A column drifts where its index is above

    0.5 + chi-squared quantile at 1 - alpha / (number of indices of the model) / effective n

so that a fleet like the reference raises an alarm by chance in at most `alpha` = 1 % of the sliding windows
that do not overlap. Twice the rule's 0.25 is allowed for what the reference does not know about ageing: a
hundred or more healthy C-MAPSS units reach up to 0.45, a sensor off by two standard deviations more than 2.
docs/drift.md has the measured alarms and delays.

Everything is computed from summed counts; this module must not know how they are summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np

from export.drift_reference import ENTROPY_SHARES, DriftReference, floored
from model.domain import FloatArray
from service.drift.counts import repeats_of, totals_of

TOLERANCE: Final = 0.5
ALPHA: Final = 0.01
ENOUGH: Final = 200
"""Minimum readings of a regime, or windows in all, for a figure."""
UNSEEN_LIMIT: Final = 0.05
"""Maximum share of readings outside all regimes; training itself had hardly any."""


class DriftIndex(msgspec.Struct, frozen=True):
    """A population stability index; above `limit` is drift, not chance."""

    psi: float
    limit: float
    drifting: bool


SHORT: Final = DriftIndex(0.0, TOLERANCE, drifting=False)
"""The index if there is not enough data."""


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Drift of one model.

    Attributes:
        windows: Windows in the sliding window.
        columns: Index of each column, by name, in its worst regime.
        prediction: Index of predicted RULs.
        entropy: Index of the attention entropy, by head.
        entropy_shares: Shares of windows below, within and above the reference band, by head.
        unseen: Share of last readings that are in no operating regime; 0 if there is not enough data.
    """

    windows: int
    columns: dict[str, DriftIndex]
    prediction: DriftIndex
    entropy: dict[str, DriftIndex]
    entropy_shares: dict[str, tuple[float, ...]]
    unseen: float

    @property
    def drifting(self) -> list[str]:
        """Columns beyond their limits."""
        return [name for name, index in self.columns.items() if index.drifting]


def population_stability(share: FloatArray, reference: FloatArray) -> FloatArray:
    """Return the index of two distributions over bins, [..., B] -> [...]; rarer shares count as `RARE`.

    >>> float(population_stability(np.array([0.5, 0.5]), np.array([0.5, 0.5])))
    0.0
    """
    p, q = floored(share), floored(reference)
    return ((p - q) * np.log(p / q)).sum(axis=-1)


def chi_squared_quantile(probability: float, freedom: int) -> float:
    """Return the quantile after Wilson and Hilferty (1931).

    Right to 1 %, but up to 5 % high for few degrees of freedom in the far tail.

    >>> round(chi_squared_quantile(0.99, 10), 1)
    23.2
    """
    z = NormalDist().inv_cdf(probability)
    by = 2 / (9 * freedom)
    return freedom * (1 - by + z * by**0.5) ** 3


def drift_of(ring: FloatArray, reference: DriftReference) -> Drift:
    """Compute drift from one ring of counts, or from the sum of several workers' rings."""
    totals = totals_of(ring, reference)
    regimes, columns, bins = totals["columns"].shape
    level = 1 - ALPHA / (regimes * columns + 1 + len(reference.heads))
    repeats = repeats_of(totals)
    readings = totals["bands"].sum(axis=1)  # [R]
    psi = _column_psi(totals, reference)
    share = readings / max(readings.sum(), 1.0)
    effect = 1 + np.maximum(repeats * share[:, None] - 1, 0) * reference.alike
    limit = TOLERANCE + chi_squared_quantile(level, bins - 1) * effect / np.maximum(readings[:, None], 1)
    enough = readings >= ENOUGH
    return Drift(
        windows=round(float(totals["windows"])),
        columns=_worst(reference.names, psi[enough], limit[enough]),
        prediction=_prediction(totals, reference, level, repeats),
        entropy={
            head: _index(counts, np.array(ENTROPY_SHARES), level, repeats)
            for head, counts in zip(reference.heads, totals["entropy"], strict=True)
        },
        entropy_shares={
            head: tuple((counts / max(counts.sum(), 1.0)).tolist())
            for head, counts in zip(reference.heads, totals["entropy"], strict=True)
        },
        unseen=float(totals["unseen"] / totals["windows"]) if totals["windows"] >= ENOUGH else 0.0,
    )


def _column_psi(totals: Mapping[str, FloatArray], reference: DriftReference) -> FloatArray:
    """Compute the index of each regime and column against training in the fleet's mix of RUL bands, [R, F].

    The mix is that of the answers, or that which training's lives have at the units' ages: whichever explains
    the column. A sensor that is off moves the answers, and by them alone every other column would be blamed.
    """
    answered = totals["bands"] / np.maximum(totals["bands"].sum(axis=1, keepdims=True), 1)
    of_age = totals["rul"].sum(axis=1)
    expected = of_age @ reference.bands_by_age / max(float(of_age.sum()), 1.0)
    by_age = np.broadcast_to(expected, answered.shape)
    return np.minimum(_psi_in(answered, totals, reference), _psi_in(by_age, totals, reference))


def _psi_in(of_band: FloatArray, totals: Mapping[str, FloatArray], reference: DriftReference) -> FloatArray:
    """Compute the index of each regime and column in a mix of RUL bands [R, K], [R, F].

    It compares with the nearest shares that the reference allows: shares between its bounds are no drift.
    """
    low, high = (np.einsum("rk,rfkb->rfb", of_band, bound) for bound in (reference.low, reference.high))
    n = np.maximum(totals["columns"].sum(axis=2, keepdims=True), 1)
    nearest = np.clip(np.cumsum(totals["columns"], axis=2)[..., :-1] / n, low, high)
    return population_stability(totals["columns"] / n, np.diff(nearest, prepend=0.0, append=1.0, axis=2))


def _worst(names: Sequence[str], psi: FloatArray, limit: FloatArray) -> dict[str, DriftIndex]:
    """Choose each column's index in its worst regime: the one beyond its limit by most."""
    if not len(psi):
        return dict.fromkeys(names, SHORT)
    worst = (psi - limit).argmax(axis=0)
    return {
        name: _compared(float(psi[r, f]), float(limit[r, f]))
        for f, (name, r) in enumerate(zip(names, worst.tolist(), strict=True))
    }


def _prediction(
    totals: Mapping[str, FloatArray], reference: DriftReference, level: float, repeats: float
) -> DriftIndex:
    """Compare predicted RULs with those that training's lives leave at the ages of the fleet."""
    of_age = totals["rul"].sum(axis=1)
    expected = of_age @ reference.rul_by_age / max(float(of_age.sum()), 1.0)
    return _index(totals["rul"].sum(axis=0), expected, level, repeats)


def _index(counts: FloatArray, reference: FloatArray, level: float, repeats: float) -> DriftIndex:
    """Compute the index of counts; windows of one unit count as one, because they resemble each other."""
    n = float(counts.sum())
    if n < ENOUGH:
        return SHORT
    limit = TOLERANCE + chi_squared_quantile(level, len(counts) - 1) * repeats / n
    return _compared(float(population_stability(counts / n, reference)), limit)


def _compared(psi: float, limit: float) -> DriftIndex:
    return DriftIndex(psi, limit, drifting=psi > limit)
