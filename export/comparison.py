"""Comparison of two bundles on the same windows: which has the smaller error?

This module must not know torch or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape
from rich.table import Table

from export.bundle import Manifest
from model.cells import counted
from model.dataset import answerable
from model.domain import InvalidData, WindowSet
from model.evaluation import Answered, Figure, figures, rmse_difference
from model.screen import cells, number_table

if TYPE_CHECKING:
    from export.session import Session

Model = tuple["Session", Manifest]
"""An opened bundle."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """RMSE of two models on the same windows, in cycles, up to the lower of their caps."""

    cap: float
    windows: int
    rmse: tuple[Figure, Figure]
    difference: Figure  # of the first less that of the second, with groups resampled in pairs


def compare(one: Model, other: Model, cut: Callable[..., WindowSet]) -> Comparison:
    """Compare two models on the windows that both answer, each as long as its model reads."""
    both = one, other
    cap = min(manifest.cap for _, manifest in both)
    windows = [cut(context=manifest.context) for _, manifest in both]
    answered = [
        answerable(each, manifest.max_missing_fraction)
        for each, (_, manifest) in zip(windows, both, strict=True)
    ]
    which = np.flatnonzero(np.logical_and(*answered))
    if not len(which):
        raise InvalidData("no window has enough readings for both bundles")
    found: list[Answered] = []
    for each, (session, _) in zip(windows, both, strict=True):
        asked = each.take(which)
        rul = np.minimum(session.answer_all(asked)["rul"], cap)
        found.append(Answered(asked.rul, rul, rul, rul, asked.unit, asked.group, asked.weight))
    rmse = figures(found[0], cap=cap)["rmse"], figures(found[1], cap=cap)["rmse"]
    return Comparison(cap, len(which), rmse, rmse_difference(*found, cap=cap))


def comparison_table(bundles: tuple[str, str], found: Comparison) -> Table:
    """Tabulate the errors of two bundles, as they were given, and their difference."""
    title = f"RMSE of {counted(found.windows, 'window')}, cycles, RUL capped at {found.cap:g}"
    table = number_table(title, "bundle", "RMSE", "95 % interval")
    for bundle, rmse in zip(bundles, found.rmse, strict=True):
        table.add_row(escape(bundle), *cells(rmse))
    table.add_row("difference, in pairs", *cells(found.difference))
    return table


def verdict(bundles: tuple[str, str], difference: Figure) -> str:
    """Say which bundle has the smaller error."""
    if isnan(difference.low):
        return "One unit, or one group of units, does not tell which bundle has the smaller error."
    if difference.low <= 0 <= difference.high:
        return "The difference may be chance: its 95 % interval includes 0."
    return f"{bundles[difference.value > 0]} has the smaller error."
