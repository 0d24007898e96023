"""`POST /v1/predict`: a body becomes a query, or the places where it is wrong; a reply becomes a body.

This module knows JSON and the shape of a query; it must not know what a model reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import msgspec

from service.core.queries import Explain, PredictQuery, PredictReply
from service.core.window import LARGEST_CYCLE, WindowInput, short
from service.errors import Problem, escaped
from service.http.problem import UNREADABLE, unreadable
from service.http.shell import Call, Reply
from service.labels import Stage

Malformed = dict[int, list[Problem]]
"""Windows with values that are no numbers, and where."""

_encode: Final[Callable[[PredictReply], bytes]] = msgspec.json.Encoder().encode


async def predict(call: Call) -> Reply:
    """Answer windows."""
    exchange, start = call.exchange, perf_counter()
    query, malformed = decode(call.body)
    exchange.windows = len(query.windows)
    exchange.stages.append((Stage.DECODE, start, perf_counter()))
    reply = await call.desk.predictor.predict(
        query, malformed=malformed, stages=exchange.stages, tenant=exchange.caller.tenant
    )
    start = perf_counter()
    body = _encode(reply)
    exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    return Reply(body)


class _LooseWindow(msgspec.Struct, forbid_unknown_fields=True):
    """A window whose values may be anything, so that each wrong one can be named."""

    unit: str | None = None
    last_cycle: Any = None
    columns: dict[str, Any] | None = None
    readings: Any = None


class _LooseQuery(msgspec.Struct, forbid_unknown_fields=True):
    windows: list[_LooseWindow]
    model: str | None = None
    explain: Explain = Explain.ATTENTION
    partial: bool = False


_strict: Final = msgspec.json.Decoder(PredictQuery)
_loose: Final = msgspec.json.Decoder(_LooseQuery)


def decode(body: bytes) -> tuple[PredictQuery, Malformed]:
    """Read a body; a second time where a value has the wrong type, to say which.

    Raises:
        MalformedBody: it is not JSON, or not the shape of a query.
    """
    try:
        return _strict.decode(body), {}
    except msgspec.ValidationError:
        return _decode_loosely(body)
    except UNREADABLE as error:
        raise unreadable(error) from error


def _decode_loosely(body: bytes) -> tuple[PredictQuery, Malformed]:
    try:
        try:
            loose = _loose.decode(body)
        except msgspec.ValidationError as error:
            if not str(error).startswith("Number out of range"):
                raise
            # 1e999 is JSON, and msgspec has no number for it: as infinity, it is its window that is wrong.
            loose = msgspec.convert(json.loads(body), _LooseQuery)
    except (ValueError, RecursionError) as error:  # UNREADABLE, and what `json` raises
        raise unreadable(error) from error
    malformed: Malformed = {}
    windows: list[WindowInput] = []
    for i, given in enumerate(loose.windows):
        found = _type_problems(given)
        if found:
            malformed[i] = found
            windows.append(WindowInput(given.unit))
        else:
            windows.append(WindowInput(given.unit, given.last_cycle, given.columns, given.readings))
    return PredictQuery(windows, loose.model, loose.explain, loose.partial), malformed


def _type_problems(given: _LooseWindow) -> list[Problem]:
    """Every place of a window that holds something else than the numbers and lists that belong there."""
    problems: list[Problem] = []
    if not _is_number(given.last_cycle):
        detail = f"expected a whole number from 0 to {LARGEST_CYCLE} or null, got {short(given.last_cycle)}"
        problems.append(Problem("/last_cycle", "bad_last_cycle", detail))
    lists: list[tuple[str, str, Any]] = [
        (f"/columns/{escaped(name)}", "wrong_length", values)
        for name, values in (given.columns or {}).items()
    ]
    if isinstance(given.readings, list):
        rows: list[Any] = given.readings
        lists += [(f"/readings/{t}", "wrong_columns", row) for t, row in enumerate(rows)]
    elif given.readings is not None:
        lists.append(("/readings", "empty", given.readings))
    for pointer, code, values in lists:
        if not isinstance(values, list):
            problems.append(Problem(pointer, code, f"expected a list, got {short(values)}"))
            continue
        problems += [
            Problem(f"{pointer}/{i}", "not_a_number", f"expected a number or null, got {short(value)}")
            for i, value in enumerate(values)
            if not _is_number(value)
        ]
    return problems


def _is_number(value: object) -> bool:
    return value is None or type(value) is float or (type(value) is int and abs(value) < 1e300)
