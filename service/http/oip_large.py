"""A large JSON body of the Open Inference Protocol, read in slices: values become arrays as they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from service.core.turns import LARGE_BYTES, Turns
from service.errors import InvalidTensor, MalformedBody, short
from service.http.oip_body import (
    FLAT,
    NAN,
    Form,
    OipInferRequest,
    OipInput,
    OipWanted,
    Parameters,
    check_count,
    json_size,
    query_of,
)
from service.http.problem import UNREADABLE, unreadable
from service.oip.inference import InferQuery
from service.oip.tensors import FP32, numbers

MOST_KEYS: Final = 10_000
"""Keys, or objects, of a body: a request has some twenty."""
MOST_SHAPE_BYTES: Final = 200
NESTED: Final = (2, 3)
"""Axes of lists of lists that are read."""
STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))
"""What is no structure of a list of lists."""


class _Input(msgspec.Struct):
    name: str
    shape: msgspec.Raw
    datatype: str
    parameters: Parameters = None
    data: msgspec.Raw = msgspec.Raw(b"")


class _Request(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[OipWanted] | None = None
    id: str = ""
    parameters: Parameters = None


_request: Final = msgspec.json.Decoder(_Request)
_shape: Final = msgspec.json.Decoder(list[int])


async def decoded_in_slices(body: bytes, header_length: bytes) -> tuple[InferQuery, Form]:
    """Read an inflated body as `decoded` does, and let the event loop have its turns.

    Raises:
        MalformedBody, InvalidTensor: as `decoded`.
    """
    size, turns = json_size(body, header_length), Turns()
    text = body[:size]
    for part in (b":", b"{"):
        if text.count(part) > MOST_KEYS:
            raise MalformedBody(f"expected at most {MOST_KEYS} keys and objects, got more")
    await turns.give()
    try:
        try:
            request = _request.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"NaN" not in text:
                raise
            request = _request.decode(await _without_nan(text, turns))
    except UNREADABLE as error:
        raise unreadable(error) from error
    check_count(request.inputs, request.outputs)
    await turns.give()
    inputs = [await _input(given, turns) for given in request.inputs]
    whole = OipInferRequest(inputs, request.outputs, request.id, request.parameters)
    return query_of(whole, memoryview(body)[size:])


async def _without_nan(text: bytes, turns: Turns) -> bytes:
    found, start = bytearray(), 0
    for match in NAN.finditer(text):
        found += text[start : match.start()]
        found += b"null"
        start = match.end()
        await turns.give()
    found += text[start:]
    return bytes(found)


async def _input(given: _Input, turns: Turns) -> OipInput:
    where, raw = f"input {short(given.name)}", bytes(given.shape)
    try:
        shape = _shape.decode(raw[:MOST_SHAPE_BYTES])
    except UNREADABLE as error:
        raise InvalidTensor(f"{where}: expected a shape, got {short(raw[:MOST_SHAPE_BYTES])}") from error
    data: Any = None
    if len(given.data):
        data = await _values(bytes(given.data), given.datatype, shape, where, turns)
    return OipInput(given.name, shape, given.datatype, given.parameters, data)


async def _values(text: bytes, datatype: str, shape: Sequence[int], where: str, turns: Turns) -> Any:  # noqa: ANN401 an array, or what has its length
    """The values of flat or nested lists, as an array."""
    if datatype not in FLAT:
        return ()  # no model takes this datatype: the check against the model refuses it
    structure = text.translate(None, STRUCTURE)
    await turns.give()
    count = structure.count(b",") + 1
    if structure != _structure([count]):
        is_nested = datatype == FP32 and len(shape) in NESTED and min(shape) > 0 and count == math.prod(shape)
        if not is_nested or structure != _structure(shape):
            raise InvalidTensor(f"{where}: data: expected a list of numbers, or lists of lists of its shape")
        text = text.translate(None, b"[]")
    else:
        text = text.strip()[1:-1]
    if count != math.prod(shape):
        return range(count)  # the check against the shape refuses it
    parts: list[Any] = []
    start = 0
    while start < len(text):
        await turns.give()
        end = text.find(b",", start + LARGE_BYTES // 4)
        end = len(text) if end < 0 else end
        try:
            values = FLAT[datatype].decode(b"[" + text[start:end] + b"]")
        except UNREADABLE as error:
            detail = str(error).partition(" - at")[0]
            raise InvalidTensor(f"{where}: data: {detail}") from error
        parts.append(numbers(values, datatype, where))
        start = end + 1
    return np.concatenate(parts) if parts else ()


def _structure(shape: Sequence[int]) -> bytes:
    """The brackets and commas of lists of this shape."""
    *outer, last = shape
    inner = b"[" + b"," * (last - 1) + b"]"
    for size in reversed(outer):
        inner = b"[" + b",".join([inner] * size) + b"]"
    return inner
