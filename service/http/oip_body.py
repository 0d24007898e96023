"""Bodies of the Open Inference Protocol: JSON, and the binary tensor data that may stand behind it.

With the header `inference-header-content-length: N`, the first N bytes of a body are JSON and the
rest are the contents of the tensors that say `binary_data_size`, one after the other. Lists that are large,
nested or wrong are read in slices, which also say what is wrong. This module knows the format; it must not
know what a model takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson
from msgspec import Meta, Raw

from service.core.turns import LARGE_BYTES, Turns
from service.errors import InvalidTensor, MalformedBody, short
from service.http.problem import UNREADABLE, unreadable
from service.oip.inference import MAX_TENSORS, InferQuery, timeout_of
from service.oip.tensors import FP32, INT64, Contents, GivenTensor, numbers

Parameters = dict[str, Raw] | None
"""Of any size, decoded where they are read."""

NAN: Final = re.compile(rb"NaN(?<=[\[,\s]NaN)(?=\s*[,\]])")  # searched for by its first letters
"""A value of a list that JSON does not have and that Python's clients write all the same."""
SHAPE: Final = Meta(extra_json_schema={"type": "array", "items": {"type": "integer"}})
VALUE: Final = {"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}
DATA: Final = Meta(extra_json_schema={"anyOf": [{"type": "array", "items": VALUE}, {"type": "null"}]})


class OipInput(msgspec.Struct):
    """An input; null: missing. `data` is omitted if `parameters.binary_data_size` bytes follow the JSON."""

    name: str
    shape: Annotated[Raw, SHAPE]
    datatype: str
    parameters: Parameters = None
    data: Annotated[Raw, DATA] = msgspec.field(default_factory=Raw)


class OipWanted(msgspec.Struct):
    """A wanted output."""

    name: str
    parameters: Parameters = None


class OipInferRequest(msgspec.Struct):
    """A request for inference."""

    inputs: list[OipInput]
    outputs: list[OipWanted] | None = None
    id: str = ""
    parameters: Parameters = None


_request: Final = msgspec.json.Decoder(OipInferRequest)
_shape: Final = msgspec.json.Decoder(list[int])
FLAT: Final[dict[str, Any]] = {FP32: list[float | None], INT64: list[int]}
MOST_PARAMETER_BYTES: Final = 200
MOST_KEYS: Final = 10_000
"""Keys, or objects, of a large body: a request has some twenty."""
MOST_SHAPE_BYTES: Final = 200
NESTED: Final = (2, 3)
"""Axes of lists of lists that are read."""
STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))
"""Bytes that are no structure of a list of lists."""


class Form(NamedTuple):
    """How the answer is to be written.

    Attributes:
        is_binary: Whether outputs are binary, where `by_name` does not say.
        by_name: The same for single outputs.
    """

    is_binary: bool
    by_name: dict[str, bool]


def json_size(body: bytes, header: bytes) -> int:
    """Return the JSON's size in bytes, from `inference-header-content-length` or b"".

    Raises:
        MalformedBody: the header does not fit the body.
    """
    if not header:
        return len(body)
    if not header.isdigit() or len(header) > 20 or int(header) > len(body):
        raise MalformedBody(
            f"header inference-header-content-length: expected a number up to {len(body)}, the size of the "
            f"body, got {short(header.decode('latin-1'))}"
        )
    return int(header)


async def decoded(body: bytes, size: int) -> tuple[InferQuery, Form]:
    """Read an inflated body whose first `size` bytes are JSON, and let the event loop have its turns.

    Raises:
        MalformedBody: it is not JSON of the protocol's shape, or a parameter is wrong.
        InvalidTensor: a tensor's contents are missing, come twice, are not where they are said to be, or are
            no numbers.
    """
    turns = Turns() if size > LARGE_BYTES else None
    request = await _outline(body[:size], turns)
    outputs = request.outputs or []
    if len(request.inputs) > MAX_TENSORS or len(outputs) > MAX_TENSORS:
        raise MalformedBody(f"expected at most {MAX_TENSORS} inputs and outputs")
    inputs = await _inputs(request.inputs, memoryview(body)[size:], turns)
    names = [output.name for output in outputs]
    timeout = timeout_of(_parameter(request.parameters, "timeout"))
    flags = {o.name: _flag(o.parameters, "binary_data", f"output {o.name[:80]!r}") for o in outputs}
    by_name = {name: flag for name, flag in flags.items() if flag is not None}
    is_binary = _flag(request.parameters, "binary_data_output", "the request") or False
    return InferQuery(inputs, names, request.id, timeout), Form(is_binary, by_name)


async def _outline(text: bytes, turns: Turns | None) -> OipInferRequest:
    """Decode all but the tensors' data, shapes and parameters."""
    if turns is not None:
        if max(text.count(b":"), text.count(b"{")) > MOST_KEYS:
            raise MalformedBody(f"expected at most {MOST_KEYS} keys and objects, got more")
        await turns.give()
    try:
        try:
            return _request.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"NaN" not in text:
                raise
            return _request.decode(await _without_nan(text, turns))
    except UNREADABLE as error:
        raise unreadable(error) from error


async def _give(turns: Turns | None) -> None:
    if turns is not None:
        await turns.give()


async def _without_nan(text: bytes, turns: Turns | None) -> bytes:
    found, start = bytearray(), 0
    for match in NAN.finditer(text):
        found += text[start : match.start()]
        found += b"null"
        start = match.end()
        await _give(turns)
    found += text[start:]
    return bytes(found)


async def _inputs(given: Sequence[OipInput], behind: memoryview, turns: Turns | None) -> list[GivenTensor]:
    """Each input with its contents: from its JSON, or the next bytes of those behind the JSON."""
    inputs: list[GivenTensor] = []
    offset = 0
    for i, tensor in enumerate(given):
        where = f"input {tensor.name[:80]!r}"
        shape = _shape_of(bytes(tensor.shape), f"/inputs/{i}/shape", where)
        size, text = _binary_size(tensor.parameters, where), bytes(tensor.data)
        if (size is None) == (text in {b"", b"null"}):
            got = "neither" if size is None else "both"
            raise InvalidTensor(f"{where}: expected data or binary_data_size, got {got}")
        contents: Contents
        if size is None:
            contents = await _values(text, tensor.datatype, shape, where, turns)
        elif size > len(behind) - offset:
            raise InvalidTensor(
                f"{where}: binary_data_size is {size}, the body has {len(behind) - offset} more bytes"
            )
        else:
            contents = behind[offset : offset + size]
            offset += size
        inputs.append(GivenTensor(tensor.name, tensor.datatype, shape, contents))
    if offset != len(behind):
        raise InvalidTensor(
            f"expected {offset} bytes after the JSON, the sum of binary_data_size, got {len(behind)}"
        )
    return inputs


def _shape_of(raw: bytes, pointer: str, where: str) -> list[int]:
    if len(raw) > MOST_SHAPE_BYTES:
        raise InvalidTensor(f"{where}: expected a shape, got {short(raw[:MOST_SHAPE_BYTES])}")
    try:
        return _shape.decode(raw)
    except UNREADABLE as error:
        raise unreadable(error, below=pointer) from error


async def _values(text: bytes, datatype: str, shape: Sequence[int], where: str, turns: Turns | None) -> Any:  # noqa: ANN401 an array, or what has its length
    """The values of flat or nested lists, as an array or, of a small flat list, as they are."""
    if datatype not in FLAT:
        return ()  # no model takes this datatype: the check against the model refuses it
    if len(text) <= LARGE_BYTES:
        with suppress(*UNREADABLE):
            return msgspec.convert(orjson.loads(text), FLAT[datatype])
    structure = text.translate(None, STRUCTURE)
    await _give(turns)
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
    start = read = 0
    while start < len(text):
        await _give(turns)
        end = text.find(b",", start + LARGE_BYTES // 4)
        end = len(text) if end < 0 else end
        try:
            values = msgspec.convert(orjson.loads(b"[" + text[start:end] + b"]"), FLAT[datatype])
        except orjson.JSONDecodeError as error:
            place = read + text.count(b",", start, start + error.pos)
            raise InvalidTensor(f"{where}: data/{place}: {error.msg}") from error
        except UNREADABLE as error:
            raise InvalidTensor(f"{where}: data{_worded(error, read)}") from error
        parts.append(numbers(values, datatype, where))
        read += len(values)
        start = end + 1
    return np.concatenate(parts) if parts else ()


def _worded(error: Exception, first: int) -> str:
    """The place of an error in a list whose first values were read before, and what is wrong."""
    detail, _, place = str(error).partition(" - at `$[")
    index = place.removesuffix("]`")
    return f"/{first + int(index)}: {detail}" if index.isdigit() else f": {detail}"


def _structure(shape: Sequence[int]) -> bytes:
    """The brackets and commas of lists of this shape."""
    *outer, last = shape
    inner = b"[" + b"," * (last - 1) + b"]"
    for size in reversed(outer):
        inner = b"[" + b",".join([inner] * size) + b"]"
    return inner


def _parameter(parameters: Parameters, name: str) -> Any:  # noqa: ANN401 any JSON
    if parameters is None or name not in parameters:
        return None
    text = bytes(parameters[name])[:MOST_PARAMETER_BYTES]
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return text.decode(errors="replace")


def _binary_size(parameters: Parameters, where: str) -> int | None:
    size = _parameter(parameters, "binary_data_size")
    if size is None or (type(size) is int and size >= 0):
        return size
    raise InvalidTensor(f"{where}: expected a binary_data_size of 0 or more, got {short(size)}")


def _flag(parameters: Parameters, name: str, where: str) -> bool | None:
    flag = _parameter(parameters, name)
    if flag is None or isinstance(flag, bool):
        return flag
    raise MalformedBody(f"{where}: expected {name} to be true or false, got {short(flag)}")
