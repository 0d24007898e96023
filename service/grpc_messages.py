"""Messages of `rul.v1` from and to what the predictor speaks.

A repeated float of protobuf is read and set number by number from Python, and by a copy of memory
from its wire format, where it is a tag, a length and the numbers: twenty times as fast. So arrays
go through the wire format and everything else through fields. This module must not know calls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import UNSET

from model.domain import FloatArray
from service.errors import MalformedBody, Problem
from service.messages import Attention, Explain, ModelName, Prediction, PredictReply, Refused
from service.proto import rul_v1_pb2 as pb
from service.window import WindowInput

DELIMITED: Final = 2
"""The wire type of what is preceded by its length, as packed numbers are."""

FIXED32: Final = 5
"""The wire type of a float."""

MOST_IN_ONE_BYTE: Final = 0x7F

EXPLAIN: Final[dict[int, Explain]] = {
    pb.EXPLAIN_UNSPECIFIED: Explain.ATTENTION,
    pb.EXPLAIN_NONE: Explain.NONE,
    pb.EXPLAIN_ATTENTION: Explain.ATTENTION,
    pb.EXPLAIN_FULL: Explain.FULL,
}


def window_input(window: pb.Window, columns: int) -> WindowInput:
    """A message as the window that the predictor reads; NaN is missing, as everywhere inside."""
    last_cycle = window.last_cycle if window.HasField("last_cycle") else None
    unit = window.unit if window.HasField("unit") else None
    given: Any = WindowInput(unit, last_cycle)
    which = window.WhichOneof("values")
    if which == "columns":
        given.columns = {name: floats(series) for name, series in window.columns.columns.items()}
    elif which == "readings":
        values = floats(window.readings)
        # Values that do not fill whole rows stay one row, which the window's check then counts.
        given.readings = values.reshape(-1, columns) if values.size % columns == 0 else [values.tolist()]
    return given


def explain_of(value: int, pointer: str = "/explain") -> Explain:
    """What an enum's value asks for.

    Raises:
        MalformedBody: it has no such value.
    """
    if value not in EXPLAIN:
        detail = f"expected a value of rul.v1.Explain, got {value}"
        raise MalformedBody(detail, [Problem(pointer, "shape", detail)])
    return EXPLAIN[value]


def floats(message: pb.Readings | pb.Series) -> FloatArray:
    """The `values`, field 1 of the message, as float32."""
    count = len(message.values)
    head = tag(1, 4 * count)
    raw = message.SerializeToString()
    if not count or not raw.startswith(head):
        return np.array(message.values, dtype=np.float32)
    return np.frombuffer(raw, dtype="<f4", count=count, offset=len(head))


def tag(field: int, size: int) -> bytes:
    """What precedes a delimited field on the wire: its number and type, and its size in bytes.

    >>> tag(1, 300).hex()
    '0aac02'
    """
    head = bytearray((field << 3 | DELIMITED,))
    while size > MOST_IN_ONE_BYTE:
        head.append(size & MOST_IN_ONE_BYTE | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


def predict_reply(reply: PredictReply) -> pb.PredictReply:
    """A reply as a message."""
    message = pb.PredictReply(model=model_reference(reply.model))
    add = message.predictions.add
    for prediction in reply.predictions:
        if isinstance(prediction, Refused):
            _fill_refused(add(), prediction)
        else:
            _fill(add(), prediction)
    return message


def fill_prediction(message: pb.Prediction, prediction: Prediction) -> None:
    """One prediction into a message that holds it."""
    _fill(message, prediction)


def model_reference(name: ModelName) -> pb.ModelReference:
    """Exactly which weights answered."""
    return pb.ModelReference(name=name.name, version=name.version, sha256=name.sha256)


def _fill_refused(message: pb.Prediction, refused: Refused) -> None:
    if refused.unit is not None:
        message.unit = refused.unit
    error = refused.error
    message.error.title, message.error.detail = error.title, error.detail
    for p in error.errors:
        message.error.errors.add(pointer=p.pointer, code=p.code, detail=p.detail)


def _fill(message: pb.Prediction, prediction: Prediction) -> None:
    if prediction.unit is not None:
        message.unit = prediction.unit
    message.rul = prediction.rul
    message.rul_state = prediction.rul_state.value
    interval, given = message.interval, prediction.interval
    interval.coverage, interval.lower, interval.upper = given.coverage, given.lower, given.upper
    failure_probability = message.failure_probability
    for horizon, probability in prediction.failure_probability.items():
        failure_probability[int(horizon)] = probability
    message.health_state.label = prediction.health_state.label
    probabilities = message.health_state.probabilities
    for state, probability in prediction.health_state.probabilities.items():
        probabilities[state] = probability
    message.imputed_fraction = prediction.imputed_fraction
    for w in prediction.warnings:
        message.warnings.add(code=w.code, column=w.column or "", detail=w.detail)
    if prediction.attention is not UNSET:
        _fill_attention(message.attention, prediction.attention)
    if prediction.sensor_contributions is not UNSET:
        message.sensor_contributions.update(prediction.sensor_contributions)


def _fill_attention(message: pb.Attention, attention: Any) -> None:  # noqa: ANN401 narrowed by UNSET, which types do not follow
    given: Attention = attention
    pack, heads = _attention_layout(len(given.cycles))
    raw = pack(
        heads[0], *given.cycles, heads[1], *given.weights, heads[2], *given.contributions,
        heads[3], given.baseline, heads[4], given.effective_cycles,
    )  # fmt: skip
    message.MergeFromString(raw)
    if given.entropy_ratio is not None:
        message.entropy_ratio = given.entropy_ratio


@lru_cache(maxsize=1024)
def _attention_layout(cycles: int) -> tuple[Callable[..., bytes], tuple[bytes, ...]]:
    """What writes an attention of so many cycles, and what stands before each of its arrays and numbers."""
    arrays = [tag(field, 4 * cycles) for field in (1, 2, 3)]
    numbers = [bytes((field << 3 | FIXED32,)) for field in (4, 6)]
    layout = "".join(f"{len(head)}s{cycles}f" for head in arrays) + "sf" * len(numbers)
    return struct.Struct(f"<{layout}").pack, (*arrays, *numbers)
