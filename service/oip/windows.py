"""From tensors to windows: the same rules as `Window.checked`, for all windows of a request at once.

Beside `Window.checked` and `alike` the only maker of windows: it tests arrays of every size, so a
request of a thousand windows costs a few array operations. This module must not know the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.domain import BoolArray, FloatArray, IntArray
from service.core.rules import WindowRules
from service.core.window import LARGEST_CYCLE, Window
from service.errors import InvalidTensor
from service.oip.tensors import LAST_CYCLE, LENGTHS, READINGS

SHOWN = 3
"""Bad places that a message names; the rest are counted."""


class Group(msgspec.Struct, frozen=True, eq=False):
    """The windows of one request, and where each one's cycles stand in its tensors.

    Attributes:
        windows: B windows, none longer than the model's context.
        cycles: T of the request.
        starts: int64 [B], the first cycle that is read: above 0 where a window exceeds the context.
        stops: int64 [B], the end of each window; what is past it is padding.
    """

    windows: list[Window]
    cycles: int
    starts: IntArray
    stops: IntArray


def checked_group(arrays: Mapping[str, NDArray[Any]], rules: WindowRules) -> Group:
    """Check the windows of a request; of each, the last `context` cycles are read.

    Args:
        arrays: `readings` [B, T, F]; `lengths` [B] where windows are padded; `last_cycle` [B] where known.
        rules: What the model asks.

    Raises:
        InvalidTensor: a window cannot be read; names the first ones, and counts the others.
    """
    readings: FloatArray = arrays[READINGS]
    count, cycles, _ = readings.shape
    if cycles > rules.max_cycles:
        raise InvalidTensor(f"input {READINGS}: expected at most {rules.max_cycles} cycles, got {cycles}")
    stops = _lengths(arrays.get(LENGTHS), count, cycles)
    last_cycle = _last_cycle(arrays.get(LAST_CYCLE), stops)
    starts = np.maximum(stops - rules.context, 0)
    imputed = _imputed_fraction(readings, starts, stops, rules)
    rows = zip(readings, starts.tolist(), stops.tolist(), last_cycle.tolist(), imputed.tolist(), strict=True)
    windows = [
        Window(None, row[start:stop], last, _first_cycle(start, stop, last), fraction, ())
        for row, start, stop, last, fraction in rows
    ]
    return Group(windows, cycles, starts, stops)


def _first_cycle(start: int, stop: int, last_cycle: float) -> int:
    """The number of the first cycle that is read; counted from the first sent where the last is unknown."""
    return (stop if math.isnan(last_cycle) else int(last_cycle)) - (stop - start) + 1


def _lengths(given: IntArray | None, count: int, cycles: int) -> IntArray:
    if given is None:
        return np.full(count, cycles, dtype=np.int64)
    _check_count(LENGTHS, given, count)
    wrong = (given < 1) | (given > cycles)
    if wrong.any():
        raise InvalidTensor(_named(LENGTHS, wrong, f"1 to {cycles}, the cycles of {READINGS}", given))
    return given


def _last_cycle(given: FloatArray | None, lengths: IntArray) -> FloatArray:
    if given is None:
        return np.full(len(lengths), np.nan, dtype=np.float32)
    _check_count(LAST_CYCLE, given, len(lengths))
    whole = (given <= LARGEST_CYCLE) & (given == np.trunc(given))
    if (whole & (given >= lengths - 1)).all():  # the usual case
        return given
    unknown = np.isnan(given)
    wrong = ~(unknown | (whole & (given >= 0)))
    if wrong.any():
        wanted = f"a whole number from 0 to {LARGEST_CYCLE}, or NaN"
        raise InvalidTensor(_named(LAST_CYCLE, wrong, wanted, given))
    early = given < lengths - 1
    if early.any():
        raise InvalidTensor(_named(LAST_CYCLE, early, "at least the window's cycles less one", given))
    return given


def _check_count(name: str, given: NDArray[Any], count: int) -> None:
    if len(given) != count:
        raise InvalidTensor(
            f"input {name}: expected one value a window, {count} as {READINGS} has, got {len(given)}"
        )


def _imputed_fraction(
    readings: FloatArray, starts: IntArray, stops: IntArray, rules: WindowRules
) -> NDArray[np.float64]:
    """Missing readings over all readings of each window, float64 [B]."""
    if np.isfinite(readings).all():  # the usual case
        return np.zeros(len(readings))
    cycle = np.arange(readings.shape[1])
    read = (cycle >= starts[:, np.newaxis]) & (cycle < stops[:, np.newaxis])
    infinite = np.isinf(readings) & read[:, :, np.newaxis]
    if infinite.any():
        raise InvalidTensor(_infinite(readings, infinite, rules))
    missing = np.count_nonzero(np.isnan(readings) & read[:, :, np.newaxis], axis=(1, 2))
    fraction = missing / ((stops - starts) * readings.shape[2])
    if (fraction > rules.max_missing_fraction).any():
        wanted = f"at most {rules.max_missing_fraction:.0%} of a window's readings missing"
        percent = [f"{share:.0%}" for share in fraction.tolist()]
        raise InvalidTensor(
            _named(READINGS, fraction > rules.max_missing_fraction, wanted, np.array(percent))
        )
    return fraction


def _infinite(readings: FloatArray, infinite: BoolArray, rules: WindowRules) -> str:
    places = np.argwhere(infinite)
    shown = ", ".join(
        f"{readings[b, t, f]:g} at {[b, t, f]} ({rules.names[f]})" for b, t, f in places[:SHOWN].tolist()
    )
    return f"input {READINGS}: expected finite numbers, or NaN where missing, got {shown}{_more(len(places))}"


def _named(name: str, wrong: BoolArray, wanted: str, values: NDArray[Any]) -> str:
    places = np.flatnonzero(wrong)
    shown = ", ".join(f"{values[i]} at [{i}]" for i in places[:SHOWN].tolist())
    return f"input {name}: expected {wanted}, got {shown}{_more(len(places))}"


def _more(count: int) -> str:
    return f" and {count - SHOWN} more" if count > SHOWN else ""
