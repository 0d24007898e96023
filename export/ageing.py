"""Ageing of columns, and the drift reference: pure functions of the manifest, computed at export.

The manifest has deciles of each column and operating regime over whole lives, and one profile of the change
of columns before failure, as z-scores that all regimes share. Together they give the shares of readings in
each RUL band; in a fleet of all ages these shares add up to exactly the deciles. A regime may follow the
profile more or less than the others (C-MAPSS' core speed hardly moves in some flight conditions), so the
shares are bounds over all profiles that agree with the regime's deciles.

This module must not know how drift is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.bundle import Manifest
from export.drift_reference import BELIEVED, RARE, VALUE_BINS, DriftReference, floored
from export.regime_readings import regimes_of, setting_deviations
from model.reference import Regime

_Array = NDArray[np.float64]
_Integers = NDArray[np.int64]

LIVES: Final = 200
MOST_READINGS: Final = 1_000_000
"""Maximum number of readings of these lives; in longer lives every n-th cycle stands for its neighbours."""
LONGEST_AGE: Final = 1_000_000
"""Ages from this cycle on are treated as equal."""
EVEN_GRID: Final = 75_000
"""RUL in cycles up to which the grid is even; above it `GEOMETRIC` more points reach the longest life."""
GEOMETRIC: Final = 200
MOVES: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
NOISES: Final = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Candidate factors of a column's movement and scatter in one regime, over those shared by all regimes."""
_PROFILES: Final = np.array([*product(MOVES, NOISES)])
AGREE: Final = 0.02
"""Excess distance from the deciles, over that of the best profile, up to which a profile is kept (RMS)."""
LEAST: Final = 1e-4
LEAST_NOISE: Final = 0.1
"""Cycle-to-cycle standard deviation of z-scores below which a healthy column may repeat values."""
BAND_EDGES: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.6)
"""Edges of RUL bands, in caps. From `BELIEVED` on an answer counts as the mean RUL at its age, if larger."""
RUL_EDGES: Final = (0.1, 0.25, 0.5, 0.8)
"""Bins of predictions, in caps. Above 0.8 they scatter below the cap whatever the true RUL is."""
AGES: Final = 8
"""Number of age bands with equally many training readings; one more is for an unknown age."""
FAR_DEVIATIONS: Final = 6.0
FAR_SCALE: Final = 0.1
"""Limits of a regime: this number of its standard deviations, and this share of the setting's spread over all
regimes. A reading is in no regime if a setting is farther than both limits from every centre."""
_NORMAL: Final = np.array([NormalDist().cdf(i / 200.0 - 8.0) for i in range(3201)])


def drift_reference(manifest: Manifest) -> DriftReference:
    """Compute the drift reference of a model from its manifest alone."""
    age, rul = training_readings(manifest)
    band_edges = manifest.cap * np.array(BAND_EDGES)
    ageing = Ageing.of(manifest, rul, band_edges)
    regimes = [_regime(manifest, regime, ageing) for regime in manifest.regimes]
    age_edges = np.quantile(age, np.arange(1, AGES) / AGES)
    settings, centre, scale, reach = _settings(manifest)
    return DriftReference(
        names=manifest.schema_of_columns.names,
        heads=tuple(each.head for each in manifest.entropy),
        settings=settings,
        centre=centre,
        scale=scale,
        reach=reach,
        cuts=np.array([cuts for cuts, _, _, _ in regimes]),
        can_stick=np.array([sticks for _, sticks, _, _ in regimes]),
        low=rounded([low for _, _, low, _ in regimes]),
        high=rounded([high for *_, high in regimes]),
        alike=ageing.alike,
        band_edges=band_edges,
        rul_edges=manifest.cap * np.array(RUL_EDGES),
        age_edges=age_edges,
        rul_by_age=_rul_by_age(age, rul, age_edges, manifest),
        bands_by_age=_bands_by_age(age, rul, age_edges, band_edges),
        left_by_age=_left_by_age(age, rul),
        believed=BELIEVED * manifest.cap,
        entropy_edges=np.array(
            [each.limits(manifest.context) for each in manifest.entropy], dtype=np.float64
        ).swapaxes(1, 2),
        # Without bands by length, the entropy of a short window is its length's, not the attention's.
        long_enough=2.0 if manifest.entropy[0].bands else manifest.context / 2,
    )


def _settings(manifest: Manifest) -> tuple[_Integers, _Array, _Array, _Array]:
    """Columns [S], centres [R, S], scale [S] and reach [R, S] of the settings in each operating regime."""
    columns = np.array(manifest.schema_of_columns.indices("setting"), dtype=np.int64)
    regimes = regimes_of(manifest)
    centre, scale = regimes.centre.astype(np.float64), regimes.scale.astype(np.float64)
    reach = np.maximum(FAR_DEVIATIONS * setting_deviations(manifest), FAR_SCALE * scale)
    return columns, centre, scale, reach


def rounded(shares: Sequence[_Array]) -> NDArray[np.float32]:
    """Round shares to 0.001, the precision of `normal_share`, which halves their size in the file."""
    return np.array(shares, dtype=np.float32).round(3)


def normal_share(z: _Array) -> _Array:
    """Share of a normal distribution below z, to 0.001.

    >>> normal_share(np.array([-np.inf, 0.0, 1.96])).round(3).tolist()
    [0.0, 0.5, 0.975]
    """
    return _NORMAL[np.rint((np.clip(z, -8.0, 8.0) + 8.0) * 200.0).astype(np.int64)]


def training_readings(manifest: Manifest) -> tuple[_Integers, _Integers]:
    """Age and RUL, in cycles, of the readings of `LIVES` units with the training quantiles of life."""
    quantiles = manifest.degradation.life_quantiles
    at = (np.arange(LIVES) + 0.5) / LIVES
    lives = np.maximum(np.rint(np.interp(at, np.linspace(0, 1, len(quantiles)), quantiles)), 1).astype(
        np.int64
    )
    every = -(-int(lives.sum()) // (MOST_READINGS - LIVES))  # rounding adds one a life
    ages = [np.arange(1, life + 1, every) for life in lives]
    age = np.concatenate(ages)
    return age, np.repeat(lives, [len(own) for own in ages]) - age


@dataclass(frozen=True, slots=True, eq=False)
class Ageing:
    """How columns move as units near failure, on a grid of N RULs."""

    weight: _Array  # [N], share of readings around each RUL
    bands: _Array  # [K, N], the same within each RUL band
    z: _Array  # [N, F], mean z-score
    spread: _Array  # [N, F], standard deviation between units
    noise: _Array  # [F], standard deviation from cycle to cycle

    @classmethod
    def of(cls, manifest: Manifest, rul: _Integers, edges: _Array) -> Ageing:
        """Take the profile from the manifest, weighted by the RULs of all readings; `edges` bound bands."""
        longest = int(rul.max())
        even = min(longest, EVEN_GRID)
        near, far = np.arange(0, min(even, 40) + 1, 4), np.arange(40, even + 1, 15)
        further = np.geomspace(even, longest, GEOMETRIC if longest > even else 0)
        cycles = np.unique(np.concatenate([near, far, further.astype(np.int64)]))
        middles = (cycles[1:] + cycles[:-1]) / 2
        weight = np.bincount(np.searchsorted(middles, rul), minlength=len(cycles)) / len(rul)
        band = np.searchsorted(edges, cycles, side="right")
        bands = (band == np.arange(len(edges) + 1)[:, None]) * weight
        bands[bands.sum(axis=1) == 0] = weight  # no unit was ever there
        aged = manifest.degradation
        z, spread = aged.along(aged.z, cycles), aged.along(aged.spread, cycles)
        return cls(weight, bands / bands.sum(axis=1, keepdims=True), z, spread, np.array(aged.noise))

    @property
    def alike(self) -> _Array:
        """Share of the variance among units of one RUL that is the units' own, [F]."""
        own = self.weight @ self.spread**2
        return own / np.maximum(own + self.noise**2, 1e-12)

    def bounds(self, cuts: _Array, low: _Array, high: _Array) -> tuple[_Array, _Array]:
        """Minimum and maximum share of each RUL band's readings below z-scores, [F, C] -> [F, K, C] twice.

        `low` and `high` bound the share of all readings. Each profile is moved, on a logistic scale, until
        the bands together have the known share.
        """
        least, most = (np.empty((len(low), len(self.bands), low.shape[1])) for _ in range(2))
        moving = self.weight @ (self.z - self.weight @ self.z) ** 2
        for f in range(len(low)):  # a column at a time: all profiles of all columns are megabytes
            below = self._below(cuts[f], f, float(moving[f]))
            of_all = np.einsum("n,mnc->mc", self.weight, below)
            error = np.sqrt(np.square(of_all - (low[f] + high[f]) / 2).mean(axis=1))
            plausible = error <= error.min() + AGREE
            of_band = np.einsum("kn,mnc->mkc", self.bands, below[plausible])
            moved = logit(of_band) - logit(of_all[plausible])[:, None]
            least[f] = logistic(moved + logit(low[f])).min(axis=0)
            most[f] = logistic(moved + logit(high[f])).max(axis=0)
        return least, most

    def _below(self, cuts: _Array, f: int, moving: float) -> _Array:
        """Share of a column's readings at each RUL below these z-scores, [M, N, C], by each profile.

        The spread between units is the rest of the variance.
        """
        size, scatter = _PROFILES.T[:, :, None]  # [M, 1]
        spread, noise = self.spread[:, f], float(self.noise[f])
        own = float(self.weight @ spread**2)
        left = moving * (1 - size**2) + own + noise**2 * (1 - scatter**2)
        widen = np.sqrt(np.clip(left / max(own, 1e-12), 0.0, 25.0))
        deviation = np.maximum(np.hypot(spread * widen, noise * scatter), 0.05)
        return normal_share((cuts - (size * self.z[:, f])[..., None]) / deviation[..., None])


def logit(share: _Array) -> _Array:
    """Log-odds of shares, which are clipped away from 0 and 1."""
    kept = np.clip(share, LEAST, 1 - LEAST)
    return np.log(kept / (1 - kept))


def logistic(odds: _Array) -> _Array:
    """The inverse of `logit`."""
    return 1 / (1 + np.exp(-odds))


def cut_points(deciles: list[float]) -> tuple[_Array, _Array, _Array]:
    """Cuts, and the minimum and maximum share of readings up to each: [9] three times.

    Distinct deciles are cuts with a known share. If some are equal, the column has few values, and deciles
    only bound the share up to each cut; a repeated decile gets a second cut just below it. Unused cuts are
    infinite.

    >>> cuts, low, high = cut_points([1, 2, 2, 2, 3, 4, 5, 6, 7])
    >>> [x.round(1).tolist() for x in (cuts[:4], low[:4], high[:4])]
    [[1.0, 2.0, 2.0, 3.0], [0.1, 0.1, 0.4, 0.5], [0.2, 0.2, 0.5, 0.6]]
    """
    cuts, low, high = (np.full(VALUE_BINS - 1, fill) for fill in (np.inf, 1.0, 1.0))
    values, first, count = np.unique(deciles, return_index=True, return_counts=True)
    unknown = 0.0 if len(values) == len(deciles) else 0.1
    n = 0
    for value, i, times in zip(values.tolist(), first.tolist(), count.tolist(), strict=True):
        if times > 1:
            cuts[n], low[n], high[n] = np.nextafter(value, -np.inf), i / 10, (i + 1) / 10
            n += 1
        cuts[n], low[n], high[n] = value, (i + times) / 10, (i + times) / 10 + unknown
        n += 1
    return cuts, low, high


def _regime(
    manifest: Manifest, regime: Regime, ageing: Ageing
) -> tuple[_Array, NDArray[np.bool_], _Array, _Array]:
    """Cuts [F, 9], whether a column can stick [F], minimum and maximum share up to each bin [F, K, 11]."""
    # In float32, as readings are: the manifest's digits tell all float32 values apart, but are not exact.
    edges = np.array(regime.histogram_edges, dtype=np.float32).tolist()
    told = [cut_points(deciles) for deciles in edges]
    cuts, low, high = (np.array([each[i] for each in told]) for i in range(3))
    mean, deviation = np.array(regime.mean)[:, None], np.array(regime.standard_deviation)[:, None]
    bounds = ageing.bounds((cuts - mean) / deviation, low, high)
    sensor = np.array([column.role == "sensor" for column in manifest.columns])
    sticks = sensor & (np.array(manifest.degradation.noise) >= LEAST_NOISE) & (cuts[:, 2] < np.inf)
    missing = np.maximum([column.missing_fraction for column in manifest.columns], RARE)
    there = 1 - RARE - missing
    rest = np.repeat(np.stack([there, there + RARE], axis=1)[:, None], len(ageing.bands), axis=1)
    least, most = (np.concatenate([bound * there[:, None, None], rest], axis=2) for bound in bounds)
    return cuts, sticks, least, most


def _differences(cumulative: _Array) -> _Array:
    """Shares of bins from the shares below their cuts, [..., B - 1] -> [..., B]."""
    return np.maximum(np.diff(cumulative, prepend=0.0, append=1.0, axis=-1), 0.0)


def _rul_by_age(age: _Integers, rul: _Integers, edges: _Array, manifest: Manifest) -> _Array:
    """Shares of prediction bins in each age band and over all ages, [A + 1, P].

    A prediction is taken as the true RUL, blurred by the error that held-out units had.
    """
    error = manifest.metrics.get("crossvalidation_rmse", 0.05 * manifest.cap)
    cuts = manifest.cap * np.array(RUL_EDGES)
    # Each capped RUL once: tens of thousands of cycles in training have about a hundred of them.
    capped, which = np.unique(np.minimum(rul, manifest.cap), return_inverse=True)
    below = normal_share((cuts - capped[:, None]) / max(error, sqrt(1 / 12)))
    counts = _counts_by_age(age, edges, which, len(capped))
    return floored(_differences(counts @ below / np.maximum(counts.sum(axis=1, keepdims=True), 1)))


def _left_by_age(age: _Integers, rul: _Integers) -> _Array:
    """Mean RUL at each age up to `LONGEST_AGE`, [N]; linear between the ages that have readings."""
    known, which = np.unique(np.minimum(age, LONGEST_AGE - 1), return_inverse=True)
    left = np.bincount(which, weights=rul) / np.bincount(which)
    return np.interp(np.arange(known[-1] + 1), known, left, left=0.0)


def _bands_by_age(age: _Integers, rul: _Integers, age_edges: _Array, band_edges: _Array) -> _Array:
    """Shares of RUL bands in each age band and over all ages, [A + 1, K]."""
    band = np.searchsorted(band_edges, rul, side="right")
    counts = _counts_by_age(age, age_edges, band, len(band_edges) + 1)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _counts_by_age(age: _Integers, edges: _Array, which: _Integers, kinds: int) -> _Integers:
    """Count readings of each kind in each age band and over all ages, [A + 1, kinds]."""
    place = np.searchsorted(edges, age, side="right") * kinds + which
    counts = np.bincount(place, minlength=(len(edges) + 1) * kinds).reshape(-1, kinds)
    return np.concatenate([counts, counts.sum(axis=0, keepdims=True)])
