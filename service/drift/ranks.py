"""What share of the readings of units of one remaining life lies below each decile of all readings.

The manifest has deciles of each column and regime over whole lives, and one profile of how columns move as
units near failure, as z-scores that all regimes share. A regime may follow the profile more or less than
the others (C-MAPSS' core speed hardly moves in some flight conditions), so what comes out are bounds: every
profile that agrees with the regime's deciles is a way that columns may age. Pure functions of the manifest;
this module must not know counts or drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.bundle import Manifest

_Array = NDArray[np.float64]
_Integers = NDArray[np.int64]

LIVES: Final = 200
MOVES: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
NOISES: Final = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""How far a column may move in one regime, and how much it may scatter, over what is shared by all."""
_PROFILES: Final = np.array([*product(MOVES, NOISES)])
AGREE: Final = 0.02
"""How much further from the deciles than the best profile another may be, root mean square over deciles."""
LEAST: Final = 1e-4
_NORMAL: Final = np.array([NormalDist().cdf(i / 200.0 - 8.0) for i in range(3201)])


def normal_share(z: _Array) -> _Array:
    """Share of a normal distribution below z, to 0.001.

    >>> normal_share(np.array([-np.inf, 0.0, 1.96])).round(3).tolist()
    [0.0, 0.5, 0.975]
    """
    return _NORMAL[np.rint((np.clip(z, -8.0, 8.0) + 8.0) * 200.0).astype(np.int64)]


def training_readings(manifest: Manifest) -> tuple[_Integers, _Integers]:
    """Age and RUL, in cycles, of every reading of `LIVES` units that live as training's quantiles have it."""
    quantiles = manifest.degradation.life_quantiles
    at = (np.arange(LIVES) + 0.5) / LIVES
    lives = np.maximum(np.rint(np.interp(at, np.linspace(0, 1, len(quantiles)), quantiles)), 1).astype(
        np.int64
    )
    age = np.concatenate([np.arange(1, life + 1) for life in lives])
    return age, np.repeat(lives, lives) - age


@dataclass(frozen=True, slots=True, eq=False)
class Ageing:
    """How columns move as units near failure, on a grid of N RULs.

    Attributes:
        weight: [N], share of readings around each RUL.
        bands: [K, N], the same within each RUL band.
        z: [N, F], mean z-score.
        spread: [N, F], standard deviation between units.
        noise: [F], standard deviation from cycle to cycle.
    """

    weight: _Array
    bands: _Array
    z: _Array
    spread: _Array
    noise: _Array

    @classmethod
    def of(cls, manifest: Manifest, rul: _Integers, edges: _Array) -> Ageing:
        """Read off the manifest, weighted by the RULs of all readings; `edges` part the bands."""
        longest = int(rul.max())
        near, far = np.arange(0, min(longest, 40) + 1, 4), np.arange(40, longest + 1, 15)
        cycles = np.unique(np.concatenate([near, far]))
        middles = (cycles[1:] + cycles[:-1]) / 2
        weight = np.bincount(np.searchsorted(middles, rul), minlength=len(cycles)) / len(rul)
        band = np.searchsorted(edges, cycles, side="right")
        bands = (band == np.arange(len(edges) + 1)[:, None]) * weight
        bands[bands.sum(axis=1) == 0] = weight  # no unit was ever there
        z, spread = (
            np.stack(
                [np.interp(cycles, manifest.degradation.rul, column) for column in np.array(rows).T], axis=1
            )
            for rows in (manifest.degradation.z, manifest.degradation.spread)
        )
        noise = np.array(manifest.degradation.noise)
        return cls(weight, bands / bands.sum(axis=1, keepdims=True), z, spread, noise)

    @property
    def alike(self) -> _Array:
        """Share of the variance among units of one RUL that is the units' own, [F]."""
        own = self.weight @ self.spread**2
        return own / np.maximum(own + self.noise**2, 1e-12)

    def bounds(self, cuts: _Array, low: _Array, high: _Array) -> tuple[_Array, _Array]:
        """Least and most share of each RUL band's readings below these z-scores, [F, C] -> [F, K, C] twice.

        Of all readings at least `low` and at most `high` are below. Each profile is moved, on a logistic
        scale, to where bands together have the share that is known.
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

        The spread between units takes what is left of the variance.
        """
        size, scatter = _PROFILES.T[:, :, None]  # [M, 1]
        spread, noise = self.spread[:, f], float(self.noise[f])
        own = float(self.weight @ spread**2)
        left = moving * (1 - size**2) + own + noise**2 * (1 - scatter**2)
        widen = np.sqrt(np.clip(left / max(own, 1e-12), 0.0, 25.0))
        deviation = np.maximum(np.hypot(spread * widen, noise * scatter), 0.05)
        return normal_share((cuts - (size * self.z[:, f])[..., None]) / deviation[..., None])


def logit(share: _Array) -> _Array:
    """Log of the odds, of shares that are kept off 0 and 1."""
    kept = np.clip(share, LEAST, 1 - LEAST)
    return np.log(kept / (1 - kept))


def logistic(odds: _Array) -> _Array:
    """The inverse of `logit`."""
    return 1 / (1 + np.exp(-odds))
