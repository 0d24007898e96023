"""Short explanations of stored predictions: a few cycles and sensors as JSON of bounded size."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from service.core.queries import Trust

MOST: Final = 3
"""Maximum cycles and sensors: each stored prediction holds them."""
DECIMALS: Final = 4
"""Decimals of shares, contributions and failure probabilities."""
MOST_BYTES: Final = 400
"""Maximum bytes of a stored explanation; sensors are left out, the lightest first, until it fits."""


class StoredExplanation(msgspec.Struct, frozen=True):
    """Short explanation of a stored prediction, largest absolute values first.

    `evidence`: shares of the most evident cycles. `sensor_contributions`: cycles of RUL of the leading
    sensors. `trust`: that of the answer.
    """

    evidence: dict[int, float]
    sensor_contributions: dict[str, float]
    trust: Trust | UnsetType = UNSET


Brief = tuple[list[int], list[float], list[int], list[float]]
"""Short explanation of an answer, largest first: indices of cycles in the window with their shares of the
evidence; indices of sensors among the columns with their signed cycles of RUL."""


class BriefGrounds(NamedTuple):
    """Values from which the writing thread makes an explanation."""

    brief: Brief
    first_cycle: int
    names: tuple[str, ...]
    trust: Trust | UnsetType


def explanation_text(grounds: BriefGrounds) -> str:
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
    """Read a stored explanation; UNSET if the prediction has none."""
    return UNSET if text is None else msgspec.json.decode(text, type=StoredExplanation)
