"""Explains answers by sensor and reading, in words, and judges whether to trust the evidence.

All of it may run the model again through the same batcher: one submission of variations per window. This
module must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from export.bundle import Manifest
from export.regime_readings import HealthyRange, Typical, average_life
from model.domain import FloatArray, IntArray
from model.faithfulness import rank_correlation
from service.core.answers import NEAR_CAP, Piece
from service.core.departures import Estimate, account, departures
from service.core.ports import Batcher
from service.core.probes import blocks_of, hiding_blocks, hiding_each, probes, staying_healthy, without_each
from service.core.queries import Explanation, Grounds, Trust, UsualRange
from service.core.rules import WindowRules
from service.core.window import Windows, check

SUPPORTED_AGREEMENT: Final = 0.6
"""Minimum rank correlation of evidence with the effect of hiding single cycles; the place of a cycle alone
reaches 0.70 on average over test units of FD001 (docs/trust.md)."""
SUPPORTED_SKILL: Final = 0.5
"""Minimum skill on the average life of the training units. With shuffled weights, evidence may agree with
hiding cycles although the model knows nothing of wear (docs/trust.md)."""
FEWEST_CYCLES: Final = 10
"""Minimum cycles with readings for `supported`: with ten, one random order in 27 reaches the agreement."""
LIFE_POINTS: Final = 6
"""Places in the average life, from failure to the cap or the longest life, at which skill is measured."""


class _Asked(NamedTuple):
    """One window of a request, with its answer."""

    windows: Windows
    i: int
    piece: Piece
    row: int

    @property
    def readings(self) -> FloatArray:
        """The window with the rows past its end, [T, F]."""
        return self.windows.readings[self.i]

    @property
    def cycles(self) -> int:
        return self.windows.lengths[self.i]

    @property
    def of_readings(self) -> FloatArray | None:
        """Contribution of each reading, [cycles, F]; None if the graph has none."""
        found = self.piece.answers.outputs.sensor_contribution
        return None if found is None else found[self.row, : self.cycles]

    @property
    def estimate(self) -> Estimate:
        return _estimate(self.piece, self.row)


class Explainer:
    """Explains the answers of one model."""

    def __init__(self, manifest: Manifest, rules: WindowRules, batcher: Batcher) -> None:
        self._manifest: Final = manifest
        self._rules: Final = rules
        self._typical: Final = Typical(manifest)
        self._healthy: Final = HealthyRange(manifest)
        self._batcher: Final = batcher
        self._known_skill: float | None = None

    async def grounds(self, windows: Windows, pieces: Sequence[Piece], *, judge: bool) -> dict[int, Grounds]:
        """Explain each window, by its place in the request; `judge` for a full explanation.

        Raises:
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
        """
        explain = self._full if judge else self._by_sensors
        found: dict[int, Grounds] = {}
        for piece in pieces:
            for row, i in enumerate(piece.places, piece.first):
                found[i] = await explain(_Asked(windows, i, piece, row))
        return found

    async def _by_sensors(self, asked: _Asked) -> Grounds:
        """Return the contribution of each sensor: from the graph, else by occlusion."""
        if asked.of_readings is not None:
            return Grounds(self._sums(asked.of_readings))
        (left_out,) = await self._ask(asked, [without_each(asked.readings, self._rules.sensors)])
        return Grounds(self._left_out(asked, left_out))

    async def _full(self, asked: _Asked) -> Grounds:
        """Explain a window; submit all of its variations at once."""
        skill, cycles, sensors = await self._skill(), asked.cycles, self._rules.sensors
        readings, given = asked.readings, asked.of_readings
        typical = self._typical.of(readings[None, :cycles])[0]
        healthy = self._healthy.of(readings[:cycles])
        departed = departures(readings[:cycles], healthy, sensors)
        returned = staying_healthy(readings, healthy.middle, departed)
        if given is None:
            blocks = blocks_of(cycles, len(sensors))
            parts = [
                without_each(readings, sensors),
                hiding_blocks(readings, typical, blocks, sensors),
                returned,
            ]
            without, hidden, better = await self._ask(asked, parts)
            of_sensors, of_readings = self._left_out(asked, without), self._shared(asked, blocks, hidden)
            judged, agreement, trust = [], None, UNSET
        else:
            known = np.flatnonzero(~np.isnan(readings[:cycles, sensors]).all(axis=1))
            judged = known if len(known) >= FEWEST_CYCLES else known[:0]
            hidden, better = await self._ask(asked, [hiding_each(readings, typical, judged), returned])
            of_sensors, of_readings = self._sums(given), given
            agreement = self._agreement(asked, judged, hidden) if len(judged) else None
            trust = _trust(agreement, skill)
        names, first = self._rules.names, asked.windows.first_cycle[asked.i]
        said = account(departed, asked.estimate, better, of_readings, names=names, first_cycle=first)
        bounds = ((healthy.lower[:, column], healthy.upper[:, column]) for column in sensors)
        usual = [UsualRange(_contiguous(lower), _contiguous(upper)) for lower, upper in bounds]
        explanation = Explanation(
            [names[column] for column in sensors],
            np.arange(first, first + cycles),
            {names[column]: _contiguous(of_readings[:, column]) for column in self._rules.contributing},
            dict(zip((names[column] for column in sensors), usual, strict=True)),
            *said, agreement, SUPPORTED_AGREEMENT, len(judged), skill, SUPPORTED_SKILL,
        )  # fmt: skip
        return Grounds(of_sensors, trust, explanation)

    def _sums(self, of_readings: FloatArray) -> dict[str, float]:
        """Add up the contributions [T, F] of each contributing column."""
        sums = of_readings.sum(axis=0, dtype=np.float64).tolist()
        return {self._rules.names[column]: sums[column] for column in self._rules.contributing}

    def _left_out(self, asked: _Asked, without: Sequence[Estimate]) -> dict[str, float]:
        """Compute the contribution of each sensor from the answers without it.

        Answers are compared before they are cut to 0..cap: at the cap, no sensor would have an effect.
        Settings are never hidden: without them the model would assume another regime.
        """
        answer = asked.estimate.unclipped
        pairs = zip(self._rules.sensors, without, strict=True)
        return {self._rules.names[column]: answer - each.unclipped for column, each in pairs}

    def _shared(self, asked: _Asked, blocks: Sequence[slice], hidden: Sequence[Estimate]) -> FloatArray:
        """Divide the effect of hiding each block among its readings, [cycles, F]; 0 where missing."""
        known = ~np.isnan(asked.readings[: asked.cycles])
        found, answer, effects = np.zeros(known.shape), asked.estimate.unclipped, iter(hidden)
        for column in self._rules.sensors:
            for block in blocks:
                shares = known[block, column]
                found[block, column] = shares * (answer - next(effects).unclipped) / max(1, shares.sum())
        return found

    def _agreement(self, asked: _Asked, cycles: IntArray, hidden: Sequence[Estimate]) -> float | None:
        """Compare the evidence of cycles with the effect of hiding each of them alone.

        The caller leaves out cycles without a reading: their evidence and effect are both 0 and would seem to
        agree.
        """
        evidence = asked.piece.answers.outputs.evidence
        if evidence is None:
            return None
        effect = np.abs(np.array([each.unclipped for each in hidden]) - asked.estimate.unclipped)
        return rank_correlation(evidence[asked.row, cycles], effect)

    async def _skill(self) -> float:
        """Measure once the model's skill on the average life of the training units.

        1: the answers equal the RUL; 0: they are no better than the mean RUL.
        """
        if self._known_skill is None:
            longest = min(self._manifest.cap, self._manifest.degradation.rul[-1])
            rul = np.linspace(0.0, longest, LIFE_POINTS)
            windows, _ = check(
                average_life(self._manifest, rul),
                [self._manifest.context] * LIFE_POINTS,
                [np.nan] * LIFE_POINTS,
                self._rules,
            )
            answers = [each.rul for each in await self._estimates(replace(windows, is_probe=True))]
            self._known_skill = 1.0 - float(
                np.square(answers - rul).sum() / np.square(rul - rul.mean()).sum()
            )
        return self._known_skill

    async def _ask(self, asked: _Asked, parts: Sequence[FloatArray]) -> list[list[Estimate]]:
        """Answer variations of a window, each part [P, T, F]."""
        varied = probes(asked.windows, asked.i, parts)
        answers = iter(await self._estimates(varied) if len(varied) else [])
        return [[next(answers) for _ in part] for part in parts]

    async def _estimates(self, windows: Windows) -> list[Estimate]:
        found: dict[int, Estimate] = {}
        for piece in await self._batcher.submit(windows):
            for row, n in enumerate(piece.places, piece.first):
                found[n] = _estimate(piece, row)
        return [found[n] for n in range(len(windows))]


def _estimate(piece: Piece, row: int) -> Estimate:
    answers = piece.answers
    rul = answers.rul[row]
    return Estimate(rul, rul >= NEAR_CAP * answers.manifest.cap, answers.unclipped[row])


def _trust(agreement: float | None, skill: float) -> Trust:
    is_supported = agreement is not None and agreement >= SUPPORTED_AGREEMENT and skill >= SUPPORTED_SKILL
    return Trust.SUPPORTED if is_supported else Trust.UNSUPPORTED


def _contiguous(values: FloatArray) -> FloatArray:
    """Copy a column to float32, the precision in which it was given."""
    return np.ascontiguousarray(values, np.float32)
