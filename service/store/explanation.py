"""Short explanations of stored predictions: a few cycles and sensors, as JSON of a bounded size."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from service.core.queries import Trust

MOST: Final = 3
"""Cycles and sensors of a brief: nobody reads more, and each stored prediction would hold them."""
DECIMALS: Final = 4
"""Of the shares and cycles of an explanation, and of failure probabilities."""
MOST_BYTES: Final = 400
"""Most bytes of a stored explanation; sensors with long names are left out."""


class StoredExplanation(msgspec.Struct, frozen=True):
    """Grounds of a stored prediction, the most first.

    `evidence`: shares of the most evident cycles. `sensor_contributions`: cycles of RUL of the sensors that
    weigh most. `trust`: as the answer had it.
    """

    evidence: dict[int, float]
    sensor_contributions: dict[str, float]
    trust: Trust | UnsetType = UNSET


Brief = tuple[list[int], list[float], list[int], list[float]]
"""Grounds of an answer, the strongest first: places of cycles in the window and their shares of the evidence;
places of sensors among the columns and their signed cycles of RUL."""


class Grounds(NamedTuple):
    """Values from which the writing thread makes an explanation."""

    brief: Brief
    first_cycle: int
    names: tuple[str, ...]
    trust: Trust | UnsetType


def explanation_text(grounds: Grounds) -> str:
    """Write an explanation in at most `MOST_BYTES`."""
    (places, shares, sensors, cycles), first_cycle, names, trust = grounds
    most_evident = zip(places, shares, strict=True)
    evidence = {first_cycle + place: share for place, share in most_evident if share > 0}
    heaviest = [(names[sensor], weight) for sensor, weight in zip(sensors, cycles, strict=True)]
    text = b""
    for most in range(MOST, -1, -1):
        text = msgspec.json.encode(StoredExplanation(evidence, dict(heaviest[:most]), trust))
        if len(text) <= MOST_BYTES:
            break
    return text.decode()


def read_explanation(text: str | None) -> StoredExplanation | UnsetType:
    """Read a stored explanation; unset where the prediction has none."""
    return UNSET if text is None else msgspec.json.decode(text, type=StoredExplanation)
