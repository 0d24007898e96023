"""Options of a query, checked before either transport sends them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, get_args

import msgspec
import numpy as np

from model import decision
from model.domain import InvalidData
from rul_client.address import in_path
from rul_client.answers import Explain
from rul_client.readings import Unit, name_of

Costs = Mapping[Literal["planned", "failure"], float]
"""Costs of a planned stop and of a failure."""


def check_options(explain: str, costs: object) -> None:
    """Check the options that both transports send.

    Raises:
        InvalidData: `explain` or `costs` are invalid.
    """
    if explain not in get_args(Explain):
        raise InvalidData(f"explain: expected one of {', '.join(get_args(Explain))}, got {explain!r}")
    if costs is None:
        return
    if not isinstance(costs, Mapping):
        raise InvalidData(f"costs: expected a mapping with planned and failure, got {costs!r}")
    try:
        msgspec.json.decode(json_of(costs), type=decision.Costs)
    except (InvalidData, msgspec.ValidationError) as error:
        raise InvalidData(f"costs: {error}") from error


def unit_path(unit: Unit, action: str = "") -> str:
    """Return the path of a unit or of one of its actions.

    Raises:
        InvalidData: the unit has no name.
    """
    return f"/v1/units/{in_path(name_of(unit))}{action}"


def given_of(entries: Mapping[str, object]) -> dict[str, object]:
    """Return the options without those that are None."""
    return {name: value for name, value in entries.items() if value is not None}


def json_of(body: Mapping[str, object]) -> bytes:
    """Write a body as JSON: NaN as null, a mapping, number or time of any type as one.

    Raises:
        InvalidData: it holds something else.
    """
    return msgspec.json.encode(body, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    raise InvalidData(f"expected numbers, text and times, got {type(value).__name__}")
