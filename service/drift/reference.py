"""What training saw, as the shares of readings that a healthy fleet puts into each bin.

The manifest holds deciles of each column and operating regime over whole lives. A fleet is seldom a fair
sample of whole lives: fresh from the shop it is all young, and its columns stand elsewhere for no fault. So
a column is held against what training saw of units *of the same remaining life*: the manifest also says where
a column stands, and how far units differ, at each RUL; that splits the deciles into RUL bands, whose shares
come back to exactly the deciles in a fleet of all ages. In the same way predictions are held against the RUL
that training's lives leave at the unit's age.

Besides its ten value bins a column has two more: `stuck`, where the last ten readings are one number, and
missing. This module must not know what is counted, or when.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.bundle import Manifest, Regime
from service.drift.ranks import Ageing, normal_share, training_readings

_Array = NDArray[np.float64]

VALUE_BINS: Final = 10
STUCK: Final = VALUE_BINS
MISSING: Final = VALUE_BINS + 1
BINS: Final = VALUE_BINS + 2
STUCK_CYCLES: Final = 10
"""So many equal readings in a row are no chance even for a column of few values: one that keeps its value
every other time does so once in 500 windows."""
LEAST_NOISE: Final = 0.1
"""Standard deviation of the z-score from cycle to cycle below which a column may well repeat itself."""
RARE: Final = 0.002
"""Share of what training hardly ever saw: never 0, of which there is no logarithm."""
BAND_EDGES: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.6)
"""Of the RUL that a unit is taken to have, in caps. Above the cap it goes by the unit's age."""
BELIEVED: Final = 0.8
"""Share of the cap from which a prediction says no more than that the unit is far from its end."""
RUL_EDGES: Final = (0.1, 0.25, 0.5, 0.8)
"""Bins of predictions, in caps. Above 0.8 they scatter below the cap whatever the true RUL is."""
AGES: Final = 8
"""Bands of the unit's age, each with as many of training's readings; one more for an age not known."""
ENTROPY_SHARES: Final = (0.005, 0.99, 0.005)
"""Below, within and above the manifest's 0.5 and 99.5 % quantiles. The median would tell young units from old
ones: where attention lies depends on the age."""
FAR_DEVIATIONS: Final = 6.0
FAR_SCALE: Final = 0.1
"""A reading is in no regime where a setting is further than both from every centre: so many of the regime's
standard deviations, and this share of the setting's spread over all regimes."""


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """Where operating regimes lie.

    Attributes:
        columns: [S], which columns are settings.
        centre: [R, S].
        scale: [S], spread over all regimes: what differences are divided by.
        reach: [R, S], beyond which a setting is far from the regime.
    """

    columns: NDArray[np.int64]
    centre: _Array
    scale: _Array
    reach: _Array

    @classmethod
    def of(cls, manifest: Manifest) -> Settings:
        """Read off the manifest."""
        columns = np.array(manifest.schema_of_columns.indices("setting"), dtype=np.int64)
        share = np.array([regime.share for regime in manifest.regimes])[:, None]
        centre = np.array([regime.centre for regime in manifest.regimes]).reshape(len(share), len(columns))
        within = np.array([regime.standard_deviation for regime in manifest.regimes])[:, columns]
        middle = (share * centre).sum(axis=0) / share.sum()
        scale = np.sqrt((share * (within**2 + (centre - middle) ** 2)).sum(axis=0) / share.sum())
        return cls(columns, centre, scale, np.maximum(FAR_DEVIATIONS * within, FAR_SCALE * scale))


@dataclass(frozen=True, slots=True, eq=False)
class DriftReference:
    """All that one model's counts are made and judged by.

    Attributes:
        names: [F], of the columns.
        heads: [H], whose entropy is watched.
        settings: The operating regimes.
        cuts: [R, F, 9], value bin i holds readings above cut i - 1 and up to cut i.
        can_stick: [R, F], columns that move from cycle to cycle.
        low: [R, F, K, 11], least share of a RUL band's readings in the bins up to each of the first eleven.
        high: The most. The two differ where many readings are one number, of which deciles tell no more.
        alike: [F], 0..1, correlation of readings of one unit that are in one RUL band.
        band_edges: [K - 1], cycles.
        rul_edges: [P - 1], cycles.
        age_edges: [A - 1], cycles.
        rul_by_age: [A + 1, P]; the last for an age not known.
        bands_by_age: [A + 1, K], share of training's readings in each RUL band.
        left_by_age: float64 [N], mean cycles that training's lives left after each cycle.
        believed: Cycles; a prediction from here on goes by the age.
        entropy_edges: [H, 2].
        long_enough: Cycles; a shorter window's entropy is its length's, not the attention's.
    """

    names: tuple[str, ...]
    heads: tuple[str, ...]
    settings: Settings
    cuts: _Array
    can_stick: NDArray[np.bool_]
    low: _Array
    high: _Array
    alike: _Array
    band_edges: _Array
    rul_edges: _Array
    age_edges: _Array
    rul_by_age: _Array
    bands_by_age: _Array
    left_by_age: _Array
    believed: float
    entropy_edges: _Array
    long_enough: float

    @classmethod
    def of(cls, manifest: Manifest) -> DriftReference:
        """Read off the manifest."""
        age, rul = training_readings(manifest)
        band_edges = manifest.cap * np.array(BAND_EDGES)
        ageing = Ageing.of(manifest, rul, band_edges)
        regimes = [_regime(manifest, regime, ageing) for regime in manifest.regimes]
        age_edges = np.quantile(age, np.arange(1, AGES) / AGES)
        left = np.bincount(age, weights=rul) / np.maximum(np.bincount(age), 1)
        return cls(
            names=manifest.schema_of_columns.names,
            heads=tuple(each.head for each in manifest.entropy),
            settings=Settings.of(manifest),
            cuts=np.array([cuts for cuts, _, _, _ in regimes]),
            can_stick=np.array([sticks for _, sticks, _, _ in regimes]),
            low=np.array([low for _, _, low, _ in regimes]),
            high=np.array([high for *_, high in regimes]),
            alike=ageing.alike,
            band_edges=band_edges,
            rul_edges=manifest.cap * np.array(RUL_EDGES),
            age_edges=age_edges,
            rul_by_age=_rul_by_age(age, rul, age_edges, manifest),
            bands_by_age=_bands_by_age(age, rul, age_edges, band_edges),
            left_by_age=left,
            believed=BELIEVED * manifest.cap,
            entropy_edges=np.array([[each.low, each.high] for each in manifest.entropy]),
            long_enough=manifest.context / 2,
        )


def cut_points(deciles: list[float]) -> tuple[_Array, _Array, _Array]:
    """Cuts, the least share of readings up to each, and the most: [9] three times.

    Deciles that all differ are cuts with a known share. Where some are equal, the column has few values, and
    deciles only bound the share up to each; one that stands several times gets a cut just below it as well.
    Cuts that are left over lie at infinity.

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
    """Cuts [F, 9], what can stick [F], least and most share up to each bin [F, K, 11] twice."""
    told = [cut_points(deciles) for deciles in regime.histogram_edges]
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


def floored(share: _Array) -> _Array:
    """Shares of which none is below `RARE`, summing to 1."""
    raised = np.maximum(share, RARE)
    return raised / raised.sum(axis=-1, keepdims=True)


def _differences(cumulative: _Array) -> _Array:
    """Shares of bins from the shares below their cuts, [..., B - 1] -> [..., B]."""
    return np.maximum(np.diff(cumulative, prepend=0.0, append=1.0, axis=-1), 0.0)


def _rul_by_age(age: NDArray[np.int64], rul: NDArray[np.int64], edges: _Array, manifest: Manifest) -> _Array:
    """Shares of prediction bins in each age band and over all ages, [A + 1, P].

    Of the true RUL, blurred by the error that held-out units had.
    """
    error = manifest.metrics.get("crossvalidation_rmse", 0.05 * manifest.cap)
    cuts = manifest.cap * np.array(RUL_EDGES)
    # Of each RUL once: training's lives are tens of thousands of cycles that end in a hundred values.
    capped, which = np.unique(np.minimum(rul, manifest.cap), return_inverse=True)
    below = normal_share((cuts - capped[:, None]) / max(error, sqrt(1 / 12)))
    place = np.searchsorted(edges, age, side="right") * len(capped) + which
    counts = np.bincount(place, minlength=(len(edges) + 1) * len(capped)).reshape(-1, len(capped))
    counts = np.concatenate([counts, counts.sum(axis=0, keepdims=True)])
    return floored(_differences(counts @ below / np.maximum(counts.sum(axis=1, keepdims=True), 1)))


def _bands_by_age(
    age: NDArray[np.int64], rul: NDArray[np.int64], age_edges: _Array, band_edges: _Array
) -> _Array:
    """Shares of RUL bands in each age band and over all ages, [A + 1, K]."""
    ages, bands = len(age_edges) + 1, len(band_edges) + 1
    place = np.searchsorted(age_edges, age, side="right") * bands
    place += np.searchsorted(band_edges, rul, side="right")
    counts = np.bincount(place, minlength=ages * bands).reshape(ages, bands).astype(np.float64)
    counts = np.concatenate([counts, counts.sum(axis=0, keepdims=True)])
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
