"""Reads a large or wrong body of `POST /v1/predict` window by window.

Keys, cycles and problems are counted against limits before work is done, and the event loop gets turns.
`msgspec.Raw` checks that a value is JSON without decoding it: skipping 16 MB takes 20 ms.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
import orjson
from msgspec import Raw

from model.decision import Costs
from model.domain import LARGEST_CYCLE
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain, PredictQuery
from service.core.turns import LARGE_BYTES, Turns
from service.core.window import LaidOut, WindowInput, lay_out
from service.errors import Problem, TooLarge, escaped, room, short
from service.http.problem import UNREADABLE, unreadable

T = TypeVar("T")
Values = list[float | None]

SPARE_KEYS: Final = 16
"""Keys per window beside the columns of the widest model."""
SPARE: Final = 1000

NULL: Final = Raw(b"null")


class _Window(msgspec.Struct, forbid_unknown_fields=True):
    unit: str | int | None = None
    last_cycle: Raw = NULL
    columns: Raw = NULL
    readings: Raw = NULL


class _Outline(msgspec.Struct, forbid_unknown_fields=True):
    windows: list[_Window]
    model: str | None = None
    explain: Explain = Explain.ATTENTION
    partial: bool = False
    store: bool = True
    costs: Costs | None = None


_outline: Final = msgspec.json.Decoder(_Outline)
_raw_columns: Final = msgspec.json.Decoder(dict[str, Raw])
_list: Final = msgspec.json.Decoder(list[Raw])


class Careful:
    """Reads one body for a predictor."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor: Final = predictor
        self._most_columns: Final = max(len(m.rules.names) for m in predictor.models.values())
        self._most_cycles: Final = max(m.rules.max_cycles for m in predictor.models.values())
        self._most_keys: Final = SPARE + predictor.max_request_windows * (self._most_columns + SPARE_KEYS)
        self._turns: Final = Turns()
        self._room = 0
        self._problems: list[Problem] = []

    async def read(self, body: bytes) -> tuple[PredictQuery, LoadedModel, list[LaidOut]]:
        """Read a body and lay out its windows for a model; keep no other copy of their values.

        Up to a hundred problems are described, then one for each window.

        Raises:
            MalformedBody: it is not JSON, or not the shape of a query.
            UnknownModel, InvalidRequest: as `Predictor.model`.
            TooLarge: it has more windows, or more keys, than the largest request.
        """
        for part, name in ((b"{", "objects"), (b":", "keys")):
            count = body.count(part) if len(body) > LARGE_BYTES else 0
            if count > self._most_keys:
                raise TooLarge(f"expected at most {self._most_keys} {name} in a body, got {count}")
        await self._turns.give()
        try:
            outline = _outline.decode(body)
        except UNREADABLE as error:
            raise unreadable(error) from error
        await self._turns.give()
        model, count = self._predictor.model(outline.model), len(outline.windows)
        self._predictor.check_count(count)
        windows: list[WindowInput] = []
        parts: list[LaidOut] = []
        found = 0
        for i, given in enumerate(outline.windows):
            self._problems, self._room = [], room(found)
            try:
                window = await self._window(given)
            except msgspec.ValidationError as error:
                raise unreadable(error, below=f"/windows/{i}") from error
            except UNREADABLE as error:
                raise unreadable(error) from error
            part = LaidOut(None, 0, self._problems)
            if not self._problems:
                part = lay_out(window, model.rules, most=room(found))
            found += len(part.problems)
            parts.append(part)
            windows.append(WindowInput(window.unit, window.last_cycle, None, window.readings and []))
            await self._turns.give()
        query = PredictQuery(
            windows, outline.model, outline.explain, outline.partial, outline.store, outline.costs
        )
        return query, model, parts

    async def _window(self, given: _Window) -> WindowInput:
        window = WindowInput(given.unit)
        try:
            window.last_cycle = _number(bytes(given.last_cycle))
        except ValueError:
            shown = _shown(given.last_cycle)
            detail = f"expected a whole number from 0 to {LARGEST_CYCLE} or null, got {shown}"
            self._add(Problem("/last_cycle", "bad_last_cycle", detail))
        await self._turns.give()
        if (columns := bytes(given.columns)) != b"null":
            window.columns = await self._columns(columns)
        if (rows := bytes(given.readings)) != b"null":
            window.readings = await self._readings(rows)
        return window

    async def _columns(self, text: bytes) -> dict[str, Values]:
        if len(text) <= LARGE_BYTES and (read := _read(text, dict[str, Values])) is not None:
            return read
        try:
            raws = _raw_columns.decode(text)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(str(error).replace("$", "$.columns")) from error
        await self._turns.give()
        columns: dict[str, Values] = {}
        longest = 0
        for name, raw in raws.items():
            column, columns[name] = bytes(raw), []
            count = column.count(b",") + 1
            longest = max(longest, count)
            if count <= self._most_cycles and self._room > 0:
                columns[name] = self._numbers(f"/columns/{escaped(name)}", "wrong_length", column)
            await self._turns.give()
        if longest > self._most_cycles:
            self._too_long("/columns", longest)
        return columns

    async def _readings(self, text: bytes) -> list[Values]:
        if not text.startswith(b"["):
            self._add(Problem("/readings", "empty", f"expected a list, got {_shown(text)}"))
            return []
        rows = text.count(b"[") - 1
        if rows > self._most_cycles or text.count(b",") > self._most_cycles * self._most_columns + SPARE:
            self._too_long("/readings", max(rows, self._most_cycles + 1))
            return []
        if len(text) <= LARGE_BYTES and (read := _read(text, list[Values])) is not None:
            return read
        found: list[Values] = []
        for t, row in enumerate(_list.decode(text)):
            if self._room <= 0:
                break
            found.append(self._numbers(f"/readings/{t}", "wrong_columns", bytes(row)))
            await self._turns.give()
        return found

    def _numbers(self, pointer: str, code: str, text: bytes) -> Values:
        """A list of numbers; any other value becomes a problem."""
        if (read := _read(text, Values)) is not None:
            return read
        if not text.startswith(b"["):
            self._add(Problem(pointer, code, f"expected a list, got {_shown(text)}"))
            return []
        found: Values = []
        for i, raw in enumerate(_list.decode(text)):
            if self._room <= 0:
                break
            try:
                found.append(_number(bytes(raw)))
            except ValueError:
                detail = f"expected a number or null, got {_shown(raw)}"
                self._add(Problem(f"{pointer}/{i}", "not_a_number", detail))
        return found

    def _too_long(self, pointer: str, count: int) -> None:
        detail = f"expected at most {self._most_cycles} cycles, got {count}"
        self._add(Problem(pointer, "too_long", detail))

    def _add(self, problem: Problem) -> None:
        if self._room > 0:
            self._problems.append(problem)
            self._room -= 1


def _read(text: bytes, kind: type[T]) -> T | None:
    """JSON of this type; None if it has another type, or a number does not fit float64."""
    try:
        return msgspec.convert(orjson.loads(text), kind)
    except UNREADABLE:
        return None


def _number(text: bytes) -> float | None:
    """A JSON number or null.

    Raises:
        ValueError: it is neither.
    """
    if text[:1].isdigit() or text[:1] == b"-":
        return float(text)
    if text == b"null":
        return None
    raise ValueError


def _shown(raw: Raw | bytes) -> str:
    """A value for an error message, cut before it is decoded."""
    text = bytes(raw)
    if len(text) > 200:
        return short(text[:200].decode(errors="replace"))
    try:
        value: Any = msgspec.json.decode(text)
    except UNREADABLE:
        return short(text.decode(errors="replace"))
    return short(value)
