"""Cross-fitting: every unit with a known failure is answered by a network that it did not train.

Nobody sits out for it: the errors of the folds' networks calibrate the one that trains on all
units, and are its honest figures. After Barber et al. (2021), "Predictive inference with the
jackknife+". This module must not know files or how the weights came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

import numpy as np

from model.calibration import (
    Read,
    cut_windows,
    fit_scale,
    held_out_coverage,
    interval_bounds,
    normalised_error,
    read_windows,
    with_short_histories,
)
from model.dataset import join_windows
from model.domain import FloatArray, IntArray, WindowSet
from model.evaluation import Answered, Figure
from model.faithfulness import (
    Faithfulness,
    Reply,
    faithfulness_figures,
    fewest_cycles,
    join_faithfulness,
    measure_faithfulness,
    typical_readings,
)
from model.network import RulNetwork
from model.parts import Parts, held_out_windows
from model.regimes import Regimes

HIDDEN_SHARE: Final = 0.2
"""Of a window's cycles: what the card tells of hiding them."""
SHORT_LACK: Final = 0.1
"""Of coverage: what a short history may lack of the nominal one before it is called insufficient."""
HIDDEN_WINDOWS: Final = 1000
"""About how many are hidden cycles of: each is answered many times over."""


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A network, and what it answers to the units that it has not seen.

    Attributes:
        net: Its scale is fitted.
        windows: Truncated windows of the held-out units.
        read: What it makes of them.
    """

    net: RulNetwork
    windows: WindowSet
    read: Read


def held_out_fold(net: RulNetwork, parts: Parts) -> Fold:
    """Fit the scale of a trained network, and ask it about the units that it has not seen.

    Raises:
        InvalidData: no unit is held out.
    """
    windows = held_out_windows(parts)
    fit_scale(net, with_short_histories(parts.training))
    return Fold(net, windows, read_windows(net, windows))


def joined(folds: Sequence[Fold]) -> tuple[Read, WindowSet]:
    """Every held-out window with its answer, in the order of the folds."""

    def of_all(name: str) -> FloatArray | None:
        values = [getattr(fold.read, name) for fold in folds]
        return None if values[0] is None else np.concatenate(values)

    read = Read(**{column.name: of_all(column.name) for column in fields(Read)})  # pyright: ignore[reportArgumentType]
    return read, join_windows([fold.windows for fold in folds])


def cross_fitted(folds: Sequence[Fold]) -> Answered:
    """What new units may expect: no answer's network has seen its unit, and no interval its error."""
    config = folds[0].net.config
    read, windows = joined(folds)
    return held_out_coverage(read, windows, cap=config.cap, coverage=config.coverage)


def fewest_cycles_that_hold(folds: Sequence[Fold]) -> int:
    """From how many cycles on the interval keeps its word, for a unit whose earlier ones nobody kept.

    Held-out windows are cut to their last n cycles, for n from the context down by quarters; the
    smallest n is kept down to which at least the nominal coverage less `SHORT_LACK` is met.
    """
    config = folds[0].net.config
    read, windows = joined(folds)
    error = normalised_error(read, windows, cap=config.cap)
    low, high = interval_bounds(error, windows.unit, coverage=config.coverage)
    fewest = n = config.context
    while n >= 1:
        errors = np.concatenate([_cut_error(fold, n) for fold in folds])
        covered = (low <= errors) & (errors <= high)
        if len(covered) and covered.mean() < config.coverage - SHORT_LACK:
            break
        fewest, n = n, n * 3 // 4
    return fewest


def _cut_error(fold: Fold, cycles: int) -> FloatArray:
    """Normalised errors of the windows that have more cycles than this, cut to it."""
    longer = fold.windows.take(fold.windows.lengths > cycles)
    if len(longer) == 0:
        return np.zeros(0, np.float32)
    cut = cut_windows(longer, np.full(len(longer), cycles))
    return normalised_error(read_windows(fold.net, cut), cut, cap=fold.net.config.cap)


def attention_worth(folds: Sequence[Fold]) -> dict[str, Figure]:
    """How far the RUL moves when the most attended fifth of the cycles is hidden, against others.

    On held-out windows. Figures of `model.faithfulness`, by their names there; none where no window
    is long enough, and no ratio over a move of nothing.
    """
    every = max(1, sum(len(fold.windows) for fold in folds) // HIDDEN_WINDOWS)
    measured = [
        _hidden(fold.net, fold.windows.take(np.arange(0, len(fold.windows), every))) for fold in folds
    ]
    parts = [part for part in measured if part is not None]
    if not parts:
        return {}
    found = faithfulness_figures(join_faithfulness(parts))
    return {name: figure for name, figure in found.items() if np.isfinite(astuple(figure)).all()}


def _hidden(net: RulNetwork, windows: WindowSet) -> Faithfulness | None:
    if (windows.lengths < fewest_cycles(windows)).all():
        return None

    def ask(readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Reply:
        nobody = np.full(len(lengths), "")
        read = read_windows(net, WindowSet(readings, lengths, last_cycle, last_cycle, nobody))
        return Reply(read.unclipped, read.attention)

    centre, scale, mean = (
        net.standardise.get_buffer(name).numpy().astype(np.float64)
        for name in ("centre", "setting_scale", "mean")
    )
    regimes, settings = Regimes(centre, scale), net.config.settings
    typical = typical_readings(windows.readings, regimes, settings=settings, mean=mean)
    return measure_faithfulness(ask, windows, typical, shares=(HIDDEN_SHARE,))
