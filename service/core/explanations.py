"""Explain an answer beyond its attention: cycles of each sensor, and whether to trust the evidence.

Both may ask the model again, by the same batcher, so they cost nothing where nobody asks for them. This
module must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from export.bundle import Manifest
from export.occlusion import Typical
from model.domain import FloatArray
from model.faithfulness import rank_correlation
from service.core.answers import Piece
from service.core.ports import Batcher
from service.core.queries import Trust
from service.core.rules import WindowRules
from service.core.window import Windows

SUPPORTED_AGREEMENT: Final = 0.6
"""Least rank correlation of evidence with the effect of hiding single cycles; the place of a cycle alone
reaches 0.58 on average over test units of FD001 (docs/trust.md)."""
FEWEST_CYCLES: Final = 10
"""Fewest cycles of evidence that can be supported: of ten, one random order in 27 reaches the agreement."""


class Grounds(NamedTuple):
    """Cycles of RUL by sensor, and the trust of the evidence where the model gives evidence."""

    sensors: dict[str, float] | UnsetType = UNSET
    trust: Trust | UnsetType = UNSET


NO_GROUNDS: Final = Grounds()


class Explainer:
    """Explains the answers of one model."""

    def __init__(self, manifest: Manifest, rules: WindowRules, batcher: Batcher) -> None:
        self._explains_readings: Final = manifest.explains_readings
        self._names: Final = rules.names
        self._sensors: Final = rules.sensors
        self._typical: Final = Typical(manifest)
        self._batcher: Final = batcher

    async def grounds(self, windows: Windows, pieces: Sequence[Piece], *, judge: bool) -> dict[int, Grounds]:
        """Explain each window, by its place in the request; `judge` its evidence, where it has any.

        Raises:
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
        """
        found: dict[int, Grounds] = {}
        for piece in pieces:
            for row, i in enumerate(piece.places, piece.first):
                sensors = await self._of_sensors(piece, row, windows, i)
                is_judged = judge and self._explains_readings
                trust = await self._trust(piece, row, windows, i) if is_judged else UNSET
                found[i] = Grounds(sensors, trust)
        return found

    async def _of_sensors(self, piece: Piece, row: int, windows: Windows, i: int) -> dict[str, float]:
        """Return how many cycles each sensor adds: by the graph, else by leaving it out.

        Answers count before they are cut to 0..cap, or a sensor would seem to say nothing at the cap.
        Settings are left in: without them the model would assume another regime.
        """
        columns = piece.answers.of_columns
        if columns is not None:
            cycles = columns[row].tolist()
            return {self._names[column]: cycles[column] for column in self._sensors}
        without = await self._unclipped(without_each(windows, i, self._sensors))
        answer = piece.answers.unclipped[row]
        return {self._names[column]: answer - without[n] for n, column in enumerate(self._sensors)}

    async def _trust(self, piece: Piece, row: int, windows: Windows, i: int) -> Trust:
        """Compare the evidence of window `i` with the effect of hiding each of its cycles alone."""
        cycles = windows.lengths[i]
        if cycles < FEWEST_CYCLES or piece.answers.outputs.evidence is None:
            return Trust.UNSUPPORTED
        hidden = hiding_each(windows, i, self._typical.of(windows.readings[i : i + 1, :cycles])[0])
        effect = np.abs(np.array(await self._unclipped(hidden)) - piece.answers.unclipped[row])
        agreement = rank_correlation(piece.answers.outputs.evidence[row, :cycles], effect)
        return Trust.SUPPORTED if agreement >= SUPPORTED_AGREEMENT else Trust.UNSUPPORTED

    async def _unclipped(self, probes: Windows) -> list[float]:
        """Return the unclipped RUL of each probe, less the baseline."""
        found = [0.0] * len(probes)
        for piece in await self._batcher.submit(probes):
            for row, n in enumerate(piece.places, piece.first):
                found[n] = piece.answers.unclipped[row]
        return found


def without_each(windows: Windows, i: int, columns: Sequence[int]) -> Windows:
    """Probe window `i` once for each of these columns, with that column missing."""
    probes = windows.only([i] * len(columns))
    probes.readings[range(len(columns)), :, list(columns)] = np.nan
    return replace(probes, is_probe=True)


def hiding_each(windows: Windows, i: int, typical: FloatArray) -> Windows:
    """Probe window `i` once for each of its cycles, which takes these typical readings [T, F].

    Missing readings stay missing: a hidden cycle must not tell more than it did.
    """
    each = range(windows.lengths[i])
    probes = windows.only([i] * len(each))
    missing = np.isnan(windows.readings[i, : len(each)])
    probes.readings[each, each] = np.where(missing, np.float32(np.nan), typical)
    return replace(probes, is_probe=True)
