"""Messages about a change of models, between workers and their supervisor; needs no ONNX Runtime."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from service.core.queries import ModelName
from service.errors import (
    STATUS,
    InvalidCandidate,
    ModelConflict,
    NotReady,
    RuntimeFailed,
    UnknownModel,
    public_detail,
    status_of,
)


class Action(StrEnum):
    """Kinds of change."""

    LOAD = "load"
    SWAP = "swap"
    UNLOAD = "unload"
    SHADOW = "shadow"
    UNSHADOW = "unshadow"


class Change(msgspec.Struct, frozen=True):
    """A change of the models that serve: the model that it concerns, the bundle that it brings.

    Attributes:
        share: Share of requests after which a shadow is asked.
    """

    action: Action
    model: str = ""
    bundle: str = ""
    share: float = 0.0


class Changed(msgspec.Struct, frozen=True):
    """Result of a change, or the reason for its refusal.

    Attributes:
        model: The model that was loaded, swapped in or unloaded, or that is or was a shadow.
        bundles: Folder of the bundle of every model that serves then, by the model's name.
        digests: Their files' SHA-256, likewise.
        error, detail: Code of the error that refused it ("": none did), and its text.
    """

    model: ModelName | None = None
    bundles: dict[str, str] = {}
    digests: dict[str, str] = {}
    error: str = ""
    detail: str = ""

    @classmethod
    def refused(cls, error: Exception) -> Changed:
        """Word a refusal for another process."""
        return cls(error=status_of(error).code, detail=public_detail(error))

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
