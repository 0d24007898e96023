"""The Open Inference Protocol, version 2, as both transports answer it: thin shells around this module.

It knows what may be asked; it must not know JSON, messages or statuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from model.version import VERSION
from service.core.answers import WindowOutputs
from service.core.lifecycle import Phase
from service.core.predictor import LoadedModel
from service.core.queries import ModelName
from service.edge.exchange import Desk
from service.errors import MalformedBody, UnknownModel
from service.oip.outputs import Gathering
from service.oip.tensors import GivenTensor, Signature, Tensor, short
from service.oip.windows import Group, checked_group

SERVER_NAME: Final = "rulserve"
EXTENSIONS: Final = ("binary_tensor_data",)
PLATFORM: Final = "onnxruntime_onnx"

MAX_TENSORS: Final = 32
"""More inputs or outputs than any model has, and fewer than would cost anything to look at."""


@dataclass(frozen=True, slots=True)
class InferQuery:
    """A request for inference as it was sent: well-formed, nothing more.

    Attributes:
        outputs: The names of the outputs that are wanted; none: every one.
        timeout_seconds: How long the caller would wait; infinity where it does not say.
    """

    inputs: Sequence[GivenTensor]
    outputs: Sequence[str] = ()
    id: str = ""
    timeout_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class InferReply:
    """The tensors that were wanted, in the order in which they were."""

    model: ModelName
    id: str
    tensors: list[Tensor] = field(default_factory=list[Tensor])


@dataclass(frozen=True, slots=True)
class Indexed:
    """A model in the repository's index."""

    name: str
    version: str
    state: str
    reason: str


class Inference:
    """What the protocol can be asked for."""

    def __init__(self, desk: Desk) -> None:
        self._desk: Final = desk
        self._signatures: Final = {
            name: Signature.of(model.manifest) for name, model in desk.predictor.models.items()
        }

    def model(self, name: str, version: str = "") -> LoadedModel:
        """The model of this name and, where one is given, exactly this version.

        Raises:
            UnknownModel: it is not loaded.
        """
        predictor = self._desk.predictor
        found = predictor.models.get(name) or predictor.model(name)
        if version and version != found.name.version:
            raise UnknownModel(
                f"model {name!r} is loaded in version {found.name.version}, not {short(version)}"
            )
        return found

    def signature(self, model: LoadedModel) -> Signature:
        """The tensors of a loaded model."""
        return self._signatures[model.name.name]

    @property
    def ready(self) -> bool:
        """Whether inference would be answered."""
        return self._desk.lifecycle.phase is Phase.READY

    def index(self, *, ready_only: bool) -> list[Indexed]:
        """Every loaded model; all are ready together or not at all."""
        if ready_only and not self.ready:
            return []
        state, reason = ("READY", "") if self.ready else ("UNAVAILABLE", self._desk.lifecycle.phase.value)
        names = [model.name for model in self._desk.predictor.models.values()]
        return [Indexed(name.name, name.version, state, reason) for name in names]

    def read(self, model: LoadedModel, query: InferQuery) -> Group:
        """The windows of a query, checked.

        Raises:
            InvalidTensor: a tensor or a window cannot be read, or an output does not exist.
            TooLarge: more windows than a request may have.
        """
        signature = self.signature(model)
        signature.wanted(query.outputs)
        arrays = signature.read(query.inputs)
        self._desk.predictor.check_count(len(arrays["readings"]))
        return checked_group(arrays, model.rules)

    def reply(
        self, model: LoadedModel, group: Group, query: InferQuery, outputs: Sequence[WindowOutputs]
    ) -> InferReply:
        """The answers to the windows, as tensors."""
        gathering = Gathering(outputs, group)
        wanted = self.signature(model).wanted(query.outputs)
        return InferReply(model.name, query.id, [gathering.tensor(spec) for spec in wanted])


def timeout_of(microseconds: object) -> float:
    """The parameter `timeout` in seconds, from the microseconds that clients send; 0 and none: no limit.

    Raises:
        MalformedBody: it is not a whole number of microseconds.
    """
    if microseconds is None or microseconds == 0:
        return math.inf
    if type(microseconds) is int and microseconds > 0:
        return microseconds / 1e6
    raise MalformedBody(f"parameter timeout: expected whole microseconds, got {short(microseconds)}")


@cache
def server_version() -> str:
    """The version of this package."""
    return VERSION
