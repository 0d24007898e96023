"""What every client shares: windows, answers and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class Answer(NamedTuple):
    """A prediction; `top` is the index of the largest weight; one cycle alone has no entropy."""

    rul: float
    rul_state: str
    lower: float
    upper: float
    health_state: str
    entropy_ratio: float | None
    top: int


class NoAnswer(NamedTuple):
    """Why a window has no prediction."""

    detail: str


class Answerer(Protocol):
    """A model that answers windows, in this process or on a server."""

    manifest: Manifest
    name: ModelName
    windows_per_request: int
    max_in_flight: int  # calls of `answer` at a time

    async def answer(self, windows: Sequence[Window]) -> list[Answer | NoAnswer]:
        """Answer each window, in order."""
        ...


def top_of(weights: Sequence[float]) -> int:
    """Index of the largest weight; the first of several."""
    return int(np.argmax(weights))
