"""From the windows of a query to those that can be read, and what is wrong with the others.

This module must not know what is done with a window that can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.core.alike import checked_alike
from service.core.queries import Prediction, PredictQuery, Refused, WindowError
from service.core.rules import WindowRules
from service.core.window import Window, WindowInput
from service.errors import STATUS, InvalidWindow, InvalidWindows, Problem, listed

YIELD_EVERY: Final = 64
"""Windows checked before other callers get the loop: some three milliseconds."""


class Checked:
    """The windows of a query, checked `YIELD_EVERY` at a time; the first ones when it is made.

    Attributes:
        windows: Those that can be read, in their order.
    """

    __slots__ = ("_consume", "_problems", "_query", "_refused", "_rules", "_typed", "windows")

    def __init__(self, query: PredictQuery, rules: WindowRules, *, typed: bool, consume: bool) -> None:
        self._query = query
        self._rules = rules
        self._typed = typed
        self._consume = consume
        self._problems: list[Problem] = []
        self._refused: dict[int, Refused] = {}
        self.windows: list[Window] = []
        self.check(0)

    def check(self, start: int) -> None:
        """Check some windows, from this one on."""
        given = self._query.windows
        some = given if len(given) <= YIELD_EVERY else given[start : start + YIELD_EVERY]
        alike = checked_alike(some, self._rules) if self._typed and len(some) > 1 else None
        if alike is not None:
            self.windows += alike
        else:
            self._one_by_one(some, start)
        if self._consume:
            for window in some:
                window.columns = window.readings = None

    def _one_by_one(self, some: Sequence[WindowInput], start: int) -> None:
        for i, given in enumerate(some, start=start):
            try:
                window = Window.checked(given, self._rules, pointer=f"/windows/{i}", typed=self._typed)
            except InvalidWindow as error:
                self._problems += error.problems
                self._refused[i] = refused(given.unit, error)
            else:
                self.windows.append(window)

    def conclude(self) -> None:
        """Pass where all can be read, or where those that can be are to be answered.

        Raises:
            InvalidWindows: windows cannot be read, and `partial` is not set.
        """
        if self._problems and not self._query.partial:
            worst = self._problems[0]
            raise InvalidWindows(
                f"{len(self._refused)} of {len(self._query.windows)} windows cannot be read; "
                f"{worst.pointer}: {worst.detail}",
                listed(self._problems),
            )

    def in_place(self, predictions: list[Prediction | Refused]) -> list[Prediction | Refused]:
        """The predictions of the windows, with those that cannot be read in their places."""
        for i, error in self._refused.items():
            predictions.insert(i, error)
        return predictions


def refused(unit: str | None, error: InvalidWindow) -> Refused:
    """A window's own error, in its place."""
    title = STATUS[InvalidWindow].title
    return Refused(unit, WindowError(title, error.detail, listed(error.problems)))
