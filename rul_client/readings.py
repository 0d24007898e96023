"""Readings as callers hold them, and windows as a service reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from model.domain import LARGEST_CYCLE, FloatArray, InvalidData

WINDOW_KEYS: Final = frozenset({"unit", "last_cycle", "columns", "readings"})
MAX_WINDOWS: Final = 64
REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Half of a server's default limit; requests have fewer windows if these are wide or long."""
VALUE_BYTES: Final = 20
"""Bytes of a value as JSON."""
BEYOND: Final = np.float64(1e39)
"""Replaces infinity in JSON; not a float32 either, so the service refuses it."""
Unit = str | int
"""Many sources number their units: 17 is "17"."""


@runtime_checkable
class Frame(Protocol):
    """A pandas DataFrame: one reading per row, with columns `unit`, `cycle` and those of the model."""

    columns: Any
    index: Any
    items: Any
    reset_index: Any

    def __getitem__(self, name: Any, /) -> Any: ...  # noqa: ANN401 as pandas has it


class Window(NamedTuple):
    """Readings [T, F] of a unit, NaN where missing; `last_cycle` numbers the last row.

    `columns` names the columns; none: all of the model's, in schema order.
    """

    unit: str | None
    last_cycle: float | None
    readings: FloatArray
    columns: tuple[str, ...] = ()

    def by_column(self) -> dict[str, list[float]]:
        """Return the values of each named column."""
        return dict(zip(self.columns, self.readings.T.tolist(), strict=False))

    def body(self) -> dict[str, Any]:
        """Return the window in the form of POST /v1/predict."""
        infinite = np.isinf(self.readings)
        if infinite.any():
            readings = np.where(infinite, np.copysign(BEYOND, self.readings), self.readings)
            return self._replace(readings=readings).body()
        columns = self.by_column()
        values = {"columns": columns} if columns else {"readings": self.readings.tolist()}
        return {"unit": self.unit, "last_cycle": self.last_cycle} | values


Readings = str | Path | Frame | FloatArray | Window | Mapping[str, Any] | Sequence[Any]
"""A file, DataFrame, array [T, F] or [W, T, F] in schema order, values by column, window, or several."""


def windows_of(given: Any, unit: Unit | None = None, last_cycle: float | None = None) -> list[Window]:  # noqa: ANN401
    """Make windows from arrays, columns or windows; `unit` and `last_cycle` belong to one without them.

    Raises:
        InvalidData: they are not readings.
    """
    if isinstance(given, Window):
        return [given]
    if isinstance(given, Mapping):
        if WINDOW_KEYS.issuperset(given):
            values = given["columns"] if "columns" in given else _array(given.get("readings"))
            return windows_of(values, given.get("unit", unit), given.get("last_cycle", last_cycle))
        columns = _array([*given.values()], np.float64)
        if columns.ndim != 2:
            raise InvalidData(f"columns: expected T values in each, got {columns.ndim - 1} dimensions")
        return [window_of(unit, last_cycle, columns.T, columns=tuple(given))]
    if isinstance(given, Sequence) and all(isinstance(each, (Mapping, Window, np.ndarray)) for each in given):
        return [window for each in given for window in windows_of(each)]
    readings = _array(given)
    if readings.ndim not in {2, 3}:
        raise InvalidData(f"readings: expected an array [T, F] or [W, T, F], got {readings.ndim} dimensions")
    if readings.ndim == 3:
        return windows_of([*readings])
    return [window_of(unit, last_cycle, readings)]


def name_of(unit: object) -> str:
    """Write the name of a unit as text.

    Raises:
        InvalidData: it is neither text nor a whole number.
    """
    if isinstance(unit, str | int | np.integer) and not isinstance(unit, bool):
        return str(unit)
    raise InvalidData(f"unit: expected a name, got {unit!r}")


def window_of(
    unit: object,
    last_cycle: Any,  # noqa: ANN401 a number of any library
    readings: FloatArray,
    *,
    columns: tuple[str, ...] = (),
) -> Window:
    """Make a window from its parts.

    Raises:
        InvalidData: `unit` is not a name, or `last_cycle` not a number.
    """
    try:
        cycle = None if last_cycle is None else float(last_cycle)
    except (TypeError, ValueError):
        raise InvalidData(f"last_cycle: expected a number, got {last_cycle!r}") from None
    return Window(None if unit is None else name_of(unit), cycle, readings, columns)


def numbered(
    columns: Mapping[str, Any] | Frame, cycle: float | Sequence[float] | None
) -> tuple[Window, list[int] | None]:
    """Make one or several readings from columns, with their cycle numbers if given.

    Raises:
        InvalidData: columns are missing, there are not as many cycles as readings, or a cycle is not a whole
            number.
    """
    if not hasattr(columns, "items"):
        raise InvalidData(f"columns: expected values by column, got {type(columns).__name__}")
    (window,) = windows_of({name: np.atleast_1d(value) for name, value in columns.items()})
    if cycle is None:
        return window, None
    cycles = np.atleast_1d(_array(np.asanyarray(cycle), np.float64, name="cycle"))
    count = len(window.readings)
    if len(cycles) != count:
        raise InvalidData(f"cycle: expected {count} numbers, got {len(cycles)}")
    if (wrong := cycles[(cycles != np.floor(cycles)) | (np.abs(cycles) > LARGEST_CYCLE)]).size:
        raise InvalidData(f"cycle: expected whole numbers up to {LARGEST_CYCLE}, got {wrong[0]}")
    return window, cycles.astype(np.int64).tolist()


def _array(given: object, kind: type[np.float32 | np.float64] = np.float32, *, name: str = "readings") -> Any:  # noqa: ANN401
    if hasattr(given, "to_pandas"):
        got = f"{type(given).__module__}.{type(given).__name__}"
        raise InvalidData(f"readings: expected a pandas DataFrame, got {got}: its to_pandas makes one")
    if isinstance(given, Sequence) and given and isinstance(given[0], Frame):
        raise InvalidData("readings: expected one DataFrame of all units, got a list of them")
    if isinstance(given, np.ndarray) and given.dtype.kind in "cmM":
        raise InvalidData(f"{name}: expected numbers, got {given.dtype}")
    try:
        return np.ma.filled(np.ma.asarray(given, dtype=kind), np.nan)
    except (TypeError, ValueError) as error:
        raise InvalidData(f"{name}: expected numbers, as many in each row, got {error}") from error


def windows_per_request(values: int) -> int:
    """Return how many windows of this many values fit in a request."""
    return max(1, min(MAX_WINDOWS, REQUEST_BYTES // (VALUE_BYTES * max(1, values))))
