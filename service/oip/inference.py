"""The Open Inference Protocol, version 2, for both transports, which are thin layers over this module.

Tensors become windows, and the answers of their batches become tensors. The numbers are those of
`POST /v1/predict`. This module must not know JSON, messages or statuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from export.outputs import PER_CYCLE, cycles_of
from model.domain import FloatArray
from service.core.answers import Piece
from service.core.lifecycle import Lifecycle, Phase
from service.core.ports import Stages
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import ModelName
from service.core.window import Defect, Windows, check
from service.errors import MAX_PROBLEMS, InvalidTensor, MalformedBody, UnknownModel, short
from service.labels import Stage
from service.oip.tensors import (
    LAST_CYCLE,
    LENGTHS,
    READINGS,
    GivenTensor,
    Signature,
    TensorSpec,
)

SERVER_NAME: Final = "rulserve"
EXTENSIONS: Final = ("binary_tensor_data",)
PLATFORM: Final = "onnxruntime_onnx"

MAX_TENSORS: Final = 32
"""Maximum inputs and outputs in a request: more than any model has."""

SHOWN: Final = 3
"""Maximum wrong places that a message names; the rest are counted."""


class InferQuery(msgspec.Struct, frozen=True):
    """A request for inference: well-formed, but not checked.

    Attributes:
        outputs: Names of the requested outputs; none: all.
        timeout_seconds: How long the caller waits; infinity if not given.
    """

    inputs: Sequence[GivenTensor]
    outputs: Sequence[str] = ()
    id: str = ""
    timeout_seconds: float = math.inf


class Ask(msgspec.Struct, frozen=True):
    """A query that can be answered: its checked windows, and B and T of its readings.

    It does not hold the original tensors: their lists would take thirty bytes per value while a request
    waits.
    """

    windows: Windows
    wanted: tuple[TensorSpec, ...]
    count: int
    cycles: int
    id: str
    timeout_seconds: float


class Indexed(msgspec.Struct, frozen=True):
    """A model in the repository's index."""

    name: str
    version: str
    state: str
    reason: str


class Inference:
    """The operations of the protocol."""

    def __init__(self, predictor: Predictor, lifecycle: Lifecycle) -> None:
        self._predictor: Final = predictor
        self._lifecycle: Final = lifecycle
        self._signatures: Final[WeakKeyDictionary[LoadedModel, Signature]] = WeakKeyDictionary()

    def model(self, name: str, version: str = "") -> LoadedModel:
        """Return the model of this name and, if given, of exactly this version.

        Raises:
            UnknownModel: it is not loaded.
        """
        found = self._predictor.models.get(name) or self._predictor.model(name)
        if version and version != found.name.version:
            raise UnknownModel(
                f"model {name!r} is loaded in version {found.name.version}, not {short(version)}"
            )
        return found

    def signature(self, model: LoadedModel) -> Signature:
        """Return the tensors of a loaded model, computed once."""
        known = self._signatures.get(model)
        if known is None:
            known = self._signatures[model] = Signature.of(model.manifest)
        return known

    @property
    def is_ready(self) -> bool:
        """Return whether inference is ready."""
        return self._lifecycle.phase is Phase.READY

    def index(self, *, ready_only: bool) -> list[Indexed]:
        """Return every loaded model; all are ready together or not at all."""
        if ready_only and not self.is_ready:
            return []
        state, reason = ("READY", "") if self.is_ready else ("UNAVAILABLE", self._lifecycle.phase.value)
        names: list[ModelName] = [model.name for model in self._predictor.models.values()]
        return [Indexed(name.name, name.version, state, reason) for name in names]

    def read(self, model: LoadedModel, query: InferQuery) -> Ask:
        """Check the windows of a query.

        Raises:
            InvalidTensor: a tensor or a window cannot be read, or an output does not exist.
            TooLarge: more windows than a request may have.
        """
        signature, rules = self.signature(model), model.rules
        wanted = signature.wanted(query.outputs)
        arrays = signature.read(query.inputs)
        readings: FloatArray = arrays[READINGS]
        count, cycles, _ = readings.shape
        if count > self._predictor.max_request_windows:
            self._predictor.check_count(count)
        if cycles > rules.max_cycles:
            raise InvalidTensor(f"input {READINGS}: expected at most {rules.max_cycles} cycles, got {cycles}")
        lengths, last_cycle = [cycles] * count, [math.nan] * count
        if LENGTHS in arrays:
            lengths = _one_a_window(arrays[LENGTHS], LENGTHS, count)
            wrong = [f"{length} at [{i}]" for i, length in enumerate(lengths) if not 1 <= length <= cycles]
            if wrong:
                more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
                raise InvalidTensor(
                    f"input {LENGTHS}: expected 1 to {cycles}, the cycles of {READINGS}, got "
                    f"{', '.join(wrong[:SHOWN])}{more}"
                )
        if LAST_CYCLE in arrays:
            last_cycle = _one_a_window(arrays[LAST_CYCLE], LAST_CYCLE, count)
        windows, defects = check(readings, lengths, last_cycle, rules)
        if defects:
            raise _refused(defects)
        return Ask(windows, wanted, count, cycles, query.id, query.timeout_seconds)

    async def answer(
        self, model: LoadedModel, ask: Ask, stages: Stages, *, version: str = ""
    ) -> tuple[ModelName, list[FloatArray]]:
        """Return the model that answered and the values of each requested output, float32.

        A request for a certain `version` never goes to a canary.

        Raises:
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
        """
        if version or model.canary is None:
            return await _answered(model, ask, stages)
        return await model.routed(None, lambda asked: _answered(asked, ask, stages))


async def _answered(model: LoadedModel, ask: Ask, stages: Stages) -> tuple[ModelName, list[FloatArray]]:
    pieces = await model.batcher.submit(ask.windows)
    start = perf_counter()
    values = _gathered(ask, pieces)
    stages.append((Stage.EXPLAIN, start, perf_counter()))
    return model.name, values


def _one_a_window(given: NDArray[Any], name: str, count: int) -> list[Any]:
    if len(given) != count:
        raise InvalidTensor(
            f"input {name}: expected {count} values, one per window of {READINGS}, got {len(given)}"
        )
    return given.tolist()


def _refused(defects: Sequence[Defect]) -> InvalidTensor:
    """Describe the first kind of defect, with its first places."""
    first = defects[0]
    alike = [defect for defect in defects if (defect.field, defect.code) == (first.field, first.code)]
    name = LAST_CYCLE if first.field == "last_cycle" else READINGS
    places = [
        f"[{d.window}]" if d.cycle is None else f"[{d.window}, {d.cycle}, {d.column}]" for d in alike[:SHOWN]
    ]
    count = len(alike) - SHOWN if len(alike) <= MAX_PROBLEMS else "many"
    more = f" and {count} more" if len(alike) > SHOWN else ""
    return InvalidTensor(f"input {name}: {first.detail}, at {', '.join(places)}{more}")


def _gathered(ask: Ask, pieces: Sequence[Piece]) -> list[FloatArray]:
    """Return the requested outputs, float32, in shapes that match the request's readings.

    Cycles that the model did not read have weight and contribution 0.
    """
    answers, first, places = pieces[0]
    width, cycles, stop = answers.outputs.attention.shape[1], ask.cycles, first + ask.count
    # Other windows of the batch may be longer; those of this request may be shorter than its tensor, or cut.
    whole = width >= cycles == ask.windows.readings.shape[1]
    if len(pieces) > 1 or not isinstance(places, range) or not whole:
        return [_scattered(spec, ask, pieces) for spec in ask.wanted]
    values = [getattr(answers.reported, name)[first:stop] for name, _, _ in ask.wanted]
    if width == cycles:
        return values
    return [
        part[cycles_of(spec.name, slice(cycles))] if spec.name in PER_CYCLE else part
        for spec, part in zip(ask.wanted, values, strict=True)
    ]


def _scattered(spec: TensorSpec, ask: Ask, pieces: Sequence[Piece]) -> FloatArray:
    """Put each window's row of one output into its place."""
    windows, is_per_cycle = ask.windows, spec.name in PER_CYCLE
    values: FloatArray = np.zeros(spec.sized(windows=ask.count, cycles=ask.cycles), np.float32)
    for answers, first, places in pieces:
        rows = getattr(answers.reported, spec.name)
        for row, i in enumerate(places, first):
            if is_per_cycle:
                length, sent = windows.lengths[i], windows.sent[i]
                read = cycles_of(spec.name, slice(sent - length, sent))
                values[i][read] = rows[row][cycles_of(spec.name, slice(length))]
            else:
                values[i] = rows[row]
    return values


def timeout_of(microseconds: object) -> float:
    """Convert the parameter `timeout` from microseconds to seconds; 0 and none mean no limit.

    Raises:
        MalformedBody: it is not a whole number of microseconds.
    """
    if microseconds is None or microseconds == 0:
        return math.inf
    if type(microseconds) is int and microseconds > 0:
        return microseconds / 1e6
    raise MalformedBody(f"parameter timeout: expected whole microseconds, got {short(microseconds)}")
