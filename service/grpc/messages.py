"""Messages of `rul.v1` from and to what the predictor speaks.

A repeated float of protobuf is read and set number by number from Python, and by a copy of memory
from its wire format, where it is a tag, a length and the numbers: twenty times as fast. So the
readings are read there, and what every answer has is written there, by one `struct` whose layout is
kept; the rest goes through fields. This module must not know calls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import UNSET

from model.domain import FloatArray
from service.core.queries import Attention, Explain, ModelName, Prediction, PredictReply, Refused
from service.core.window import Caution, WindowInput
from service.errors import MalformedBody, Problem
from service.grpc.wire import (
    DELIMITED,
    FIXED32,
    FLOAT32,
    MOST_IN_ONE_BYTE,
    before_entry,
    before_float,
    delimited,
    filling,
    tag,
    varint,
)
from service.proto import rul_v1_pb2 as pb

UNIT: Final = 1 << 3 | DELIMITED
LAST_CYCLE: Final = 2 << 3 | FIXED32
FLOAT: Final = struct.Struct("<f")

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
        given.readings = in_rows(floats(window.readings), columns)
    return given


def lone_window(raw: bytes) -> tuple[str | None, float | None, FloatArray] | None:
    """Unit, last cycle and readings of a `PredictRequest` that has nothing else, as nearly all have not.

    None: the message has to be parsed, whatever it is.
    """
    size = len(raw)
    head = filling(size, 4)
    if head is None or not raw.startswith(head):
        return None
    at, unit, last_cycle = len(head), None, None
    try:
        if raw[at] == UNIT and raw[at + 1] <= MOST_IN_ONE_BYTE:
            start, at = at + 2, at + 2 + raw[at + 1]
            unit = raw[start:at].decode()
        if raw[at] == LAST_CYCLE:
            (last_cycle,) = FLOAT.unpack_from(raw, at + 1)
            at += 1 + FLOAT.size
    except (IndexError, UnicodeDecodeError, struct.error):
        return None
    head = filling(size - at, 4, 1)
    if head is None or not raw.startswith(head, at):
        return None
    at += len(head)
    if at == size or (size - at) % FLOAT.size:
        return None
    return unit, last_cycle, np.frombuffer(raw, FLOAT32, -1, at)


def in_rows(values: FloatArray, columns: int) -> Any:  # noqa: ANN401 as `WindowInput.readings`
    """Readings as rows; values that fill no whole rows stay one, which the window's check then counts."""
    return [values.tolist()] if values.size % columns else values.reshape(-1, columns)


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
    return np.frombuffer(raw, FLOAT32, count, len(head))


def predict_reply(reply: PredictReply) -> bytes:
    """A `PredictReply` on the wire."""
    parts = [_reference(reply.model)]
    for prediction in reply.predictions:
        refused = isinstance(prediction, Refused)
        parts.append(delimited(2, _refused(prediction) if refused else predicted(prediction)))
    return b"".join(parts)


def predicted(given: Prediction) -> bytes:
    """A `Prediction` on the wire; numbers that are 0 are written too, which no reader can tell."""
    interval, horizons, health = given.interval, given.failure_probability, given.health_state
    states = health.probabilities
    pack, template = _answer_layout(given.rul_state, (*horizons,), health.label, (*states,))
    filled = template.copy()
    filled[1::2] = (
        given.rul, interval.coverage, interval.lower, interval.upper,
        *horizons.values(), *states.values(), given.imputed_fraction,
    )  # fmt: skip
    raw = pack(*filled)
    if given.unit is not None:
        raw += delimited(1, given.unit.encode())
    if given.attention is not UNSET:
        raw += _attention(given.attention)
    if given.warnings:
        raw += b"".join(map(_warning, given.warnings))
    if given.sensor_contributions is not UNSET:
        raw += pb.Prediction(sensor_contributions=given.sensor_contributions).SerializeToString()
    return raw


def model_reference(name: ModelName) -> pb.ModelReference:
    """Exactly which weights answered."""
    return pb.ModelReference(name=name.name, version=name.version, sha256=name.sha256)


@lru_cache(maxsize=64)
def _reference(name: ModelName) -> bytes:
    """The `model` of a reply, the same in each."""
    return delimited(1, model_reference(name).SerializeToString())


def _refused(refused: Refused) -> bytes:
    message = pb.Prediction()
    if refused.unit is not None:
        message.unit = refused.unit
    error = refused.error
    message.error.title, message.error.detail = error.title, error.detail
    for p in error.errors:
        message.error.errors.add(pointer=p.pointer, code=p.code, detail=p.detail)
    return message.SerializeToString()


@lru_cache(maxsize=1024)
def _warning(caution: Caution) -> bytes:
    message = pb.Warning(code=caution.code, column=caution.column or "", detail=caution.detail)
    return delimited(9, message.SerializeToString())


@lru_cache(maxsize=1024)
def _answer_layout(
    rul_state: str, horizons: tuple[str, ...], label: str, states: tuple[str, ...]
) -> tuple[Callable[..., bytes], list[Any]]:
    """What writes the numbers that all answers have, and its arguments: each number and what precedes it."""
    before_horizons = [before_entry(5, b"\x08" + varint(int(horizon))) for horizon in horizons]
    before_states = [before_entry(2, delimited(1, state.encode())) for state in states]
    named = delimited(1, label.encode())
    size = len(named) + sum(len(head) + FLOAT32.itemsize for head in before_states)
    heads = [
        before_float(2),
        delimited(3, rul_state.encode()) + tag(4, 3 * (1 + FLOAT32.itemsize)) + before_float(1),
        before_float(2),
        before_float(3),
    ]
    heads += [*before_horizons, *before_states, before_float(8)]
    heads[4 + len(horizons)] = tag(6, size) + named + heads[4 + len(horizons)]
    layout = "".join(f"{len(head)}sf" for head in heads)
    return struct.Struct(f"<{layout}").pack, [part for head in heads for part in (head, 0.0)]


def _attention(attention: Any) -> bytes:  # noqa: ANN401 narrowed by UNSET, which types do not follow
    given: Attention = attention
    ratio = () if given.entropy_ratio is None else (given.entropy_ratio,)
    pack, heads = _attention_layout(len(given.cycles), len(ratio))
    return pack(
        heads[0], *given.cycles, heads[1], *given.weights, heads[2], *given.contributions,
        heads[3], given.baseline, heads[4], given.effective_cycles, heads[5], *ratio,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _attention_layout(cycles: int, ratios: int) -> tuple[Callable[..., bytes], tuple[bytes, ...]]:
    """What writes an attention of so many cycles, and what precedes each of its arrays and numbers."""
    arrays = [tag(field, FLOAT32.itemsize * cycles) for field in (1, 2, 3)]
    heads = [*arrays, before_float(4), before_float(6), before_float(5) if ratios else b""]
    counts = [cycles, cycles, cycles, 1, 1, ratios]
    size = sum(map(len, heads)) + FLOAT32.itemsize * sum(counts)
    heads[0] = tag(7, size) + heads[0]
    layout = "".join(f"{len(head)}s{count}f" for head, count in zip(heads, counts, strict=True))
    return struct.Struct(f"<{layout}").pack, tuple(heads)
