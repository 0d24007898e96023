"""Messages about a change of models, between workers and their supervisor; needs no ONNX Runtime."""

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
"""Changes that bring a candidate beside the model that serves."""
ENDS: Final = {Action.UNSHADOW: Action.SHADOW, Action.UNCANARY: Action.CANARY}


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of a canary, beyond which it answers nothing more.

    Attributes:
        failed: Most requests that it may fail to answer.
        difference: Largest mean absolute difference from the RUL of the model that serves, in cycles.
        novel: Largest share of windows that are out of distribution to it alone.
        windows: Least windows from which differences are judged.
    """

    failed: int = 0
    difference: float = 10.0
    novel: float = 0.05
    windows: int = 100


class Change(msgspec.Struct, frozen=True):
    """A change of the models that serve: the model that it concerns, the bundle that it brings.

    Attributes:
        share: Share of requests after which a shadow is asked, or that a canary answers.
        bounds: Of a canary.
        sha256: The only digest that the bundle may have; empty: any.
        reason: The bound that a canary has passed, which ends the canary that this change but for action and
            reason has begun; empty: somebody ends it.
    """

    action: Action
    model: str = ""
    bundle: str = ""
    share: float = 0.0
    bounds: Bounds = Bounds()
    sha256: str = ""
    reason: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """A candidate beside a model that serves.

    Attributes:
        change: The change that brought it, and brings it back in a worker that restarts.
        returned: Why it answers nothing more; empty: it does.
    """

    change: Change
    model: ModelName
    returned: str = ""


class Changed(msgspec.Struct, frozen=True):
    """Result of a change, or the reason for its refusal.

    Attributes:
        model: The model that was loaded, swapped in or unloaded, or that is or was a shadow.
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
