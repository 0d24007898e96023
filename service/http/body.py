"""From the body of a request to a query, or to the places where the body is wrong.

This module knows JSON and the shape of a query; it must not know what a model reads.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from service.core.queries import Explain, PredictQuery
from service.core.window import WindowInput
from service.errors import MalformedBody, Problem


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


class QueryDecoder:
    """Reads a query at full speed where it is right, and a second time where it is not."""

    def __init__(self) -> None:
        self._strict: Final = msgspec.json.Decoder(PredictQuery)
        self._loose: Final = msgspec.json.Decoder(_LooseQuery)

    def decode(self, body: bytes) -> tuple[PredictQuery, bool]:
        """The query, and whether every reading is known to be a number or null.

        Raises:
            MalformedBody: it is not JSON, or not the shape of a query.
        """
        try:
            return self._strict.decode(body), True
        except msgspec.ValidationError:
            pass  # a reading may be what is wrong: then the window's own check can say which
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedBody(f"the body is not JSON: {error}") from error
        try:
            loose = self._decode_loosely(body)
        except msgspec.ValidationError as error:
            detail, pointer = located(str(error))
            problem = Problem(pointer, "shape", detail)
            raise MalformedBody(f"{pointer or 'the body'}: {detail}", [problem]) from error
        except (ValueError, RecursionError) as error:
            raise MalformedBody(f"the body cannot be read: {error}") from error
        windows = [WindowInput(w.unit, w.last_cycle, w.columns, w.readings) for w in loose.windows]
        return PredictQuery(windows, loose.model, loose.explain, loose.partial), False

    def _decode_loosely(self, body: bytes) -> _LooseQuery:
        try:
            return self._loose.decode(body)
        except msgspec.ValidationError as error:
            if not str(error).startswith("Number out of range"):
                raise
        # 1e999 is JSON, but msgspec has no number for it: as infinity, it is its window that is wrong.
        return msgspec.convert(json.loads(body), _LooseQuery)


def located(message: str) -> tuple[str, str]:
    """The message of msgspec and, as a JSON pointer, the place that it names.

    >>> located("Expected `str`, got `int` - at `$.windows[3].unit`")
    ('Expected `str`, got `int`', '/windows/3/unit')
    """
    detail, _, path = message.partition(" - at `")
    plain = path.rstrip("`").removeprefix("$").replace("[...]", "")  # which key it is, msgspec does not say
    return detail, plain.replace("[", "/").replace("]", "").replace(".", "/")
