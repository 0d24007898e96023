"""`rul.v1.RulService/Predict`: converts messages to queries and replies to messages.

Python reads and sets a repeated float of protobuf number by number. Its wire format (tag, length, numbers)
can be copied as memory, so arrays are converted through the wire format.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any, Final

import numpy as np
from msgspec import UNSET, to_builtins
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from model.decision import Costs, InvalidCosts
from model.domain import FloatArray
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import (
    Attention,
    Explain,
    Explanation,
    ModelName,
    Prediction,
    PredictQuery,
    PredictReply,
    Refused,
)
from service.core.rules import WindowRules
from service.core.turns import AT_ONCE, LARGE_BYTES, Turns, in_slices
from service.core.window import LaidOut, WindowInput, lay_out
from service.edge.exchange import Desk, Exchange, Limit
from service.errors import MalformedBody, Problem, TooLarge, room
from service.grpc.call import parsed
from service.grpc.fields import DELIMITED, fields
from service.labels import Stage
from service.proto import rul_v1_pb2 as pb

MOST_OTHERS: Final = 100
WINDOWS: Final = pb.PredictRequest.WINDOWS_FIELD_NUMBER
Request = pb.PredictRequest | pb.StreamOpen | pb.AppendCyclesRequest
FLOAT32: Final = np.dtype("<f4")

ARRAYS: Final = {"cycles", "contributions", "usual"}
"""Fields of an explanation that hold arrays."""

EXPLAIN: Final[dict[int, Explain]] = {
    pb.EXPLAIN_UNSPECIFIED: Explain.ATTENTION,
    pb.EXPLAIN_NONE: Explain.NONE,
    pb.EXPLAIN_ATTENTION: Explain.ATTENTION,
    pb.EXPLAIN_SENSORS: Explain.SENSORS,
    pb.EXPLAIN_FULL: Explain.FULL,
}


async def predict(desk: Desk, raw: bytes, exchange: Exchange, _limit: Limit) -> bytes:
    """Answer the windows of one message with one message."""
    predictor, model, parts = desk.predictor, None, None
    if len(raw) > LARGE_BYTES:  # in slices, between which others run: no stage
        async with desk.large_requests:
            query, model, parts = await _read_large(predictor, raw)
    else:
        start = perf_counter()
        request = parsed(pb.PredictRequest, raw)
        if len(request.windows) > predictor.max_request_windows:  # before any of them is read
            predictor.check_count(len(request.windows))
        query = predict_query(request, predictor.model(request.model or None).rules)
        del request  # or its readings would stay in memory while the call waits
        exchange.stages.append((Stage.DECODE, start, perf_counter()))
    exchange.windows = len(query.windows)
    reply = await predictor.predict(
        query, model=model, parts=parts, stages=exchange.stages, tenant=exchange.caller.tenant
    )
    if len(reply.predictions) > AT_ONCE:  # in slices too; concatenated messages are one message
        written = await in_slices(
            reply.predictions, AT_ONCE, lambda some: predict_reply(replace(reply, predictions=some))
        )
        return b"".join(written)
    start = perf_counter()
    encoded = predict_reply(reply)
    exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    return encoded


async def _read_large(predictor: Predictor, raw: bytes) -> tuple[PredictQuery, LoadedModel, list[LaidOut]]:
    """Read a large message window by window; keep only the readings that the model reads.

    Raises:
        MalformedBody: it cannot be read.
        TooLarge: it has more windows than a request may have, or too many fields.
        UnknownModel, InvalidRequest: as `Predictor.model`.
    """
    spans: list[tuple[int, int]] = []
    head, others = bytearray(), 0
    for number, at, start, end in fields(raw, 0, len(raw)):
        if number == WINDOWS:
            spans.append((start, end))
            predictor.check_count(len(spans))
            continue
        others += 1
        if others > MOST_OTHERS:
            raise TooLarge(f"expected at most {MOST_OTHERS} fields beside the windows, got more")
        head += raw[at:end]
    request = parsed(pb.PredictRequest, bytes(head))
    model, turns, found = predictor.model(request.model or None), Turns(), 0
    rules = model.rules
    query = predict_query(request, rules)
    parts: list[LaidOut] = []
    for start, end in spans:
        await turns.give()
        window = window_input(parsed(pb.Window, raw[start:end]), rules)
        parts.append(lay_out(window, rules, most=room(found)))
        found += len(parts[-1].problems)
        is_by_row = window.readings is not None
        query.windows.append(WindowInput(window.unit, window.last_cycle, None, [] if is_by_row else None))
    return query, model, parts


def predict_query(request: pb.PredictRequest, rules: WindowRules) -> PredictQuery:
    """Convert a request to a query for a model with these rules."""
    windows = [window_input(window, rules) for window in request.windows]
    return PredictQuery(
        windows,
        request.model or None,
        explain_of(request.explain),
        request.partial,
        stored(request),
        costs_of(request),
    )


def window_input(window: pb.Window, rules: WindowRules) -> WindowInput:
    """Convert a message to a window; NaN is missing."""
    last_cycle = window.last_cycle if window.HasField("last_cycle") else None
    given: Any = WindowInput(window.unit if window.HasField("unit") else None, last_cycle)
    which = window.WhichOneof("values")
    if which == "columns":
        columns_by_name = window.columns.columns
        given.columns = {
            name: floats(columns_by_name[name]) if name in rules.known else [] for name in columns_by_name
        }
    elif which == "readings":
        values, columns = floats(window.readings), len(rules.names)
        # Values that do not fill whole rows become one row, which the window's check refuses.
        given.readings = [values] if values.size % columns else values.reshape(-1, columns)
    return given


def stored(request: Request) -> bool:
    """Whether to store predictions; true by default."""
    return request.store or not request.HasField("store")


def costs_of(request: Request, pointer: str = "/costs") -> Costs | None:
    """Read the costs of a request, if given.

    Raises:
        MalformedBody: a cost is not above 0, or a failure costs no more than a planned stop.
    """
    if not request.HasField("costs"):
        return None
    try:
        return Costs(request.costs.planned, request.costs.failure)
    except InvalidCosts as error:
        raise MalformedBody(f"{pointer}: {error}", [Problem(pointer, "shape", str(error))]) from None


def explain_of(value: int, pointer: str = "/explain") -> Explain:
    """Convert the enum's value.

    Raises:
        MalformedBody: it has no such value.
    """
    if value not in EXPLAIN:
        detail = f"expected one of {', '.join(pb.Explain.keys())}, got {value}"
        raise MalformedBody(detail, [Problem(pointer, "shape", detail)])
    return EXPLAIN[value]


def floats(message: pb.Readings | pb.Series) -> FloatArray:
    """Return `values`, field 1 of the message, as float32."""
    raw = message.SerializeToString()
    head = _head(len(raw))
    if not head or not raw.startswith(head):  # no values, or unknown fields follow
        return np.array(message.values, dtype=np.float32)
    return np.frombuffer(raw, FLOAT32, offset=len(head))


def packed(field: int, values: Sequence[float] | NDArray[Any]) -> bytes:
    """Encode a repeated float as a field of its message."""
    return tag(field, 4 * len(values)) + np.asarray(values, FLOAT32).tobytes()


@lru_cache(maxsize=4096)
def _head(size: int) -> bytes:
    """Encode the start of a message of this size with one delimited field 1; b"" if impossible."""
    heads = (tag(1, size - n) for n in range(2, min(size, 7)))
    return next((head for n, head in enumerate(heads, 2) if len(head) == n), b"")


@lru_cache(maxsize=4096)
def tag(field: int, size: int) -> bytes:
    """Encode the number, type and size that precede a delimited field.

    >>> tag(1, 300).hex()
    '0aac02'
    """
    written = bytearray((field << 3 | DELIMITED,))
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*written, size))


def predict_reply(reply: PredictReply) -> bytes:
    """Encode a `PredictReply`."""
    message = pb.PredictReply(model=model_reference(reply.model))
    for given in reply.predictions:
        fill(message.predictions.add(), given)
    return message.SerializeToString()


def fill(message: pb.Prediction, given: Prediction | Refused) -> None:
    """Set the fields of an answer one by one, at half the cost of keyword arguments."""
    if given.unit is not None:
        message.unit = given.unit
    if isinstance(given, Refused):
        message.error.MergeFrom(pb.WindowError(**to_builtins(given.error)))
        return
    message.rul, message.rul_state = given.rul, given.rul_state
    interval, health = message.interval, message.health_state
    interval.coverage, interval.lower = given.interval.coverage, given.interval.lower
    interval.upper = given.interval.upper
    for horizon, probability in given.failure_probability.items():
        message.failure_probability[int(horizon)] = probability
    health.label = given.health_state.label
    for state, probability in given.health_state.probabilities.items():
        health.probabilities[state] = probability
    message.imputed_fraction = given.imputed_fraction
    for caution in given.warnings:
        message.warnings.add(code=caution.code, column=caution.column or "", detail=caution.detail)
    _fill_grounds(message, given)


def _fill_grounds(message: pb.Prediction, given: Prediction) -> None:
    """Set the optional fields."""
    if given.attention is not UNSET:
        _fill_attention(message.attention, given.attention)
    if given.sensor_contributions is not UNSET:
        message.sensor_contributions.update(given.sensor_contributions)
    if given.trust is not UNSET:
        message.trust = given.trust
    if given.decision:
        message.decision.MergeFrom(pb.Decision(**to_builtins(given.decision)))
    if given.explanation is not UNSET:
        _fill_explanation(message.explanation, given.explanation)


def _fill_explanation(message: pb.Explanation, given: Explanation) -> None:
    plain = {name: value for name, value in asdict(given).items() if name not in ARRAYS}
    message.MergeFrom(pb.Explanation(**to_builtins(plain)))
    message.MergeFromString(packed(2, given.cycles))
    for column, cycles in given.contributions.items():
        message.contributions[column].MergeFromString(packed(1, cycles))
    for column, usual in given.usual.items():
        message.usual[column].MergeFromString(packed(1, usual.lower) + packed(2, usual.upper))


def _fill_attention(message: pb.Attention, given: Attention) -> None:
    arrays = packed(1, given.cycles) + packed(2, given.weights) + packed(3, given.contributions)
    if given.evidence is not UNSET:
        arrays += packed(7, given.evidence)
    message.MergeFromString(arrays)
    if given.window_contribution is not UNSET:
        message.window_contribution = given.window_contribution
    message.baseline, message.effective_cycles = given.baseline, given.effective_cycles
    if given.entropy_ratio is not None:
        message.entropy_ratio = given.entropy_ratio


@lru_cache(maxsize=64)
def model_reference(name: ModelName) -> pb.ModelReference:
    """The model that answered: name, version and digest."""
    return pb.ModelReference(name=name.name, version=name.version, sha256=name.sha256)
