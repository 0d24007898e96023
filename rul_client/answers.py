"""What every client shares: windows, answers and models."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from pydantic import ValidationError

from export.bundle import Manifest
from model.domain import FloatArray
from rul_client.errors import RemoteFailed


class ModelName(NamedTuple):
    """Exactly which weights answer."""

    name: str
    version: str
    sha256: str


class RemoteModel(NamedTuple):
    """A model on a server."""

    name: ModelName
    manifest: Manifest

    @classmethod
    def parse(cls, name: ModelName, manifest: str | bytes, url: str) -> RemoteModel:
        """Read a manifest that a server sent; RemoteFailed if it has another version."""
        try:
            return cls(name, Manifest.model_validate_json(manifest))
        except ValidationError as error:
            first = f"{error.error_count()} problems, the first: {error.errors()[0]['msg']}"
            raise RemoteFailed(
                f"{url} is another version of rulserve: manifest unreadable, {first}"
            ) from error


class Window(NamedTuple):
    """Readings float32 [T, F] in engineering units, NaN where missing; `last_cycle` numbers the last row."""

    unit: str
    last_cycle: float
    readings: FloatArray


Explain = Literal["attention", "sensors", "full"]
"""Grounds that an answer shows; see `service.core.queries.Explain`."""


class Grounds(NamedTuple):
    """The two sensors that weigh most, in signed cycles of RUL, and the failure probability at each horizon.

    `trust` is None where it was not asked for.
    """

    top_sensor: str | None
    top_sensor_cycles: float | None
    second_sensor: str | None
    second_sensor_cycles: float | None
    trust: str | None
    failure: tuple[float, ...]


class Answer(NamedTuple):
    """A prediction.

    `top` is the index of the cycle with most evidence, or of the largest weight in models without evidence,
    which have no `grounds`. One cycle alone has no entropy.
    """

    rul: float
    rul_state: str
    lower: float
    upper: float
    health_state: str
    entropy_ratio: float | None
    top: int
    grounds: Grounds | None = None


class NoAnswer(NamedTuple):
    """Why a window has no prediction."""

    detail: str


class Answerer(Protocol):
    """A model that answers windows, in this process or on a server."""

    manifest: Manifest
    name: ModelName
    windows_per_request: int
    max_in_flight: int  # calls of `answer` at a time

    async def answer(self, windows: Sequence[Window], explain: Explain) -> list[Answer | NoAnswer]:
        """Answer each window, in order; `sensors` and `full` are for models that explain readings."""
        ...


def grounds_of(sensors: Mapping[str, float], trust: str | None, failure: Iterable[float]) -> Grounds | None:
    """Choose the sensors that weigh most; None where the answer has no sensors."""
    if not sensors:
        return None
    most = heapq.nlargest(2, sensors.items(), key=lambda sensor: abs(sensor[1]))
    (first, first_cycles), (second, second_cycles) = (*most, (None, None))[:2]
    return Grounds(first, first_cycles, second, second_cycles, trust, tuple(failure))


def top_of(weights: Sequence[float]) -> int:
    """Index of the largest value; the first of several."""
    return int(np.argmax(weights))
