"""Messages between workers and their supervisor about changes of models; needs no ONNX Runtime."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from service.core.queries import ModelName
from service.errors import (
    STATUS,
    InvalidCandidate,
    ModelConflict,
    NotReady,
    RuntimeFailed,
    UnknownModel,
    public,
    status_of,
)


class Action(StrEnum):
    """Kinds of change."""

    LOAD = "load"
    SWAP = "swap"
    UNLOAD = "unload"
    SHADOW = "shadow"
    UNSHADOW = "unshadow"
    CANARY = "canary"
    UNCANARY = "uncanary"


BESIDE: Final = (Action.SHADOW, Action.CANARY)
"""Changes that start a candidate beside the serving model."""
ENDS: Final = {Action.UNSHADOW: Action.SHADOW, Action.UNCANARY: Action.CANARY}


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of a canary, beyond which it stops answering.

    Attributes:
        failed: Maximum requests that it may fail to answer.
        difference: Maximum mean absolute difference from the RUL of the serving model, in cycles.
        novel: Maximum share of windows that are out of distribution for the canary only.
        windows: Windows to compare before `difference` and `novel` apply.
    """

    failed: int = 0
    difference: float = 10.0
    novel: float = 0.05
    windows: int = 100


class Change(msgspec.Struct, frozen=True):
    """A change of the serving models: the name of the model, and the bundle to load.

    Attributes:
        share: Share of requests that a shadow gets too, or that a canary answers.
        bounds: Bounds of a canary.
        sha256: The digest that the bundle must have; empty: any.
        reason: The bound that the canary has passed; empty: ended by request. The canary that ends is that of
            the change with the same fields but action and reason.
    """

    action: Action
    model: str = ""
    bundle: str = ""
    share: float = 0.0
    bounds: Bounds = Bounds()
    sha256: str = ""
    reason: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """A candidate beside a serving model.

    Attributes:
        change: The change that started it; a restarted worker repeats it.
        returned: Why it stopped answering; empty: it answers.
    """

    change: Change
    model: ModelName
    returned: str = ""


class Changed(msgspec.Struct, frozen=True):
    """Result of a change, or the reason for its refusal.

    Attributes:
        model: The model that was loaded, swapped in or unloaded, or that is or was a candidate.
        bundles: Folder of the bundle of every model that serves then, by the model's name.
        digests: Their files' SHA-256, likewise.
        candidates: The candidate beside a model that serves, likewise.
        error, detail: Code of the error that refused it ("": none did), and its text.
    """

    model: ModelName | None = None
    bundles: dict[str, str] = {}
    digests: dict[str, str] = {}
    candidates: dict[str, Candidate] = {}
    error: str = ""
    detail: str = ""

    @classmethod
    def refused(cls, error: Exception) -> Changed:
        """Word a refusal for another process."""
        return cls(error=status_of(error).code, detail=str(public(error)))

    def checked(self) -> Changed:
        """Return the result.

        Raises:
            ServiceError: the change was refused.
        """
        for kind in (UnknownModel, ModelConflict, InvalidCandidate, NotReady):
            if STATUS[kind].code == self.error:
                raise kind(self.detail)
        if self.error:
            raise RuntimeFailed(self.detail)
        return self
