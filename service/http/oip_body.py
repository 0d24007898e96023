"""Bodies of the Open Inference Protocol: JSON, which binary tensor data may follow.

With the header `inference-header-content-length: N`, the first N bytes of a body are JSON, and the rest
holds the contents of the tensors that have a `binary_data_size`, in order. A small body of flat lists is
decoded in one call; a large, nested or wrong body is decoded in slices, which find the errors.
This module knows the format; it must not know what a model takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson

from service.core.turns import LARGE_BYTES, Turns, is_large
from service.errors import InvalidTensor, MalformedBody, short
from service.http.problem import UNREADABLE, unreadable
from service.oip.inference import MAX_TENSORS, InferQuery, timeout_of
from service.oip.tensors import FP32, INT64, Contents, GivenTensor, numbers

Parameters = dict[str, Any] | None
RawParameters = dict[str, msgspec.Raw] | None
"""Values of any size, decoded later."""

NAN: Final = re.compile(rb"NaN(?<![^\[,\s]NaN)(?=\s*[,\]])")  # searched for by its first letters
"""NaN in a list, or at the start of a part that follows a comma: not JSON, but Python clients write it."""


class OipInput(msgspec.Struct):
    """An input; null: missing. `data` is omitted if `parameters.binary_data_size` bytes follow the JSON.

    `data` is row-major and flat; lists that are nested as the shape says are read too.
    """

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = None
    data: list[int | float | None] | None = None


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


class _Input(msgspec.Struct):
    name: str
    shape: msgspec.Raw
    datatype: str
    parameters: RawParameters = None
    data: msgspec.Raw = msgspec.Raw(b"")


class _Wanted(msgspec.Struct):
    name: str
    parameters: RawParameters = None


class _Outline(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Wanted] | None = None
    id: str = ""
    parameters: RawParameters = None


_outline: Final = msgspec.json.Decoder(_Outline)
_shape: Final = msgspec.json.Decoder(list[int])
FLAT: Final[dict[str, Any]] = {FP32: list[float | None], INT64: list[int]}
MOST_PARAMETER_BYTES: Final = 200
MOST_KEYS: Final = 10_000
"""Maximum keys or objects in a body that is read in slices; a request has some twenty."""
MOST_SHAPE_BYTES: Final = 200
NESTED: Final = (2, 3)
"""Dimensions of tensors whose lists may be nested."""
NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))
"""Bytes other than the brackets and commas of nested lists."""


class Form(NamedTuple):
    """How to encode the answer.

    Attributes:
        is_binary: Whether outputs are binary, unless `by_name` says otherwise.
        by_name: Whether single outputs are binary.
    """

    is_binary: bool
    by_name: dict[str, bool]


def decoded(body: bytes, header_length: bytes) -> tuple[InferQuery, Form] | None:
    """Read an inflated body in one call; return None if it is large, nested or wrong.

    `header_length` is the header `inference-header-content-length` or b"".

    Raises:
        MalformedBody: the header does not fit the body, or a parameter is wrong.
        InvalidTensor: a tensor's contents are missing, given twice, or not of the announced size.
    """
    size = _json_size(body, header_length)
    text = body[:size] if size < len(body) else body
    if size > LARGE_BYTES and is_large(text):
        return None
    try:
        request = msgspec.convert(orjson.loads(text), OipInferRequest)
    except UNREADABLE:
        return None
    return _query(request, memoryview(body)[size:])


async def decoded_in_slices(body: bytes, header_length: bytes) -> tuple[InferQuery, Form]:
    """Read any body in slices that let the event loop run; convert values to arrays.

    Raises:
        MalformedBody: it is not JSON of the protocol's shape, or as `decoded`.
        InvalidTensor: a tensor's data are not numbers, or as `decoded`.
    """
    size, turns = _json_size(body, header_length), Turns()
    text = body[:size]
    for part in (b":", b"{"):
        if text.count(part) > MOST_KEYS:
            raise MalformedBody(f"expected at most {MOST_KEYS} keys and objects, got more")
    await turns.give()
    try:
        try:
            outline = _outline.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"NaN" not in text:
                raise
            outline = _outline.decode(await _without_nan(text, turns))
    except UNREADABLE as error:
        raise unreadable(error) from error
    _check_count(outline.inputs, outline.outputs)
    await turns.give()
    inputs = [await _input(given, f"/inputs/{i}", turns) for i, given in enumerate(outline.inputs)]
    outputs = [OipWanted(given.name, given.parameters) for given in outline.outputs or ()]
    request = OipInferRequest(inputs, outputs, outline.id, outline.parameters)
    return _query(request, memoryview(body)[size:])


def _query(request: OipInferRequest, behind: memoryview) -> tuple[InferQuery, Form]:
    """Make a query from a request and the bytes that follow its JSON.

    Raises:
        MalformedBody, InvalidTensor: as `decoded`.
    """
    _check_count(request.inputs, request.outputs)
    outputs = request.outputs or []
    inputs = _inputs(request.inputs, behind)
    names = [output.name for output in outputs]
    timeout = timeout_of(_parameter(request.parameters, "timeout"))
    by_name: dict[str, bool] = {}
    for output in outputs:
        flag = _flag(output.parameters, "binary_data", "output", output.name)
        if flag is not None:
            by_name[output.name] = flag
    is_binary = _flag(request.parameters, "binary_data_output", "the request") or False
    return InferQuery(inputs, names, request.id, timeout), Form(is_binary, by_name)


async def _without_nan(text: bytes, turns: Turns) -> bytes:
    parts, start = list[bytes](), 0
    while start < len(text):
        end = text.find(b",", start + LARGE_BYTES // 4) + 1 or len(text)
        parts.append(NAN.sub(b"null", text[start:end]))
        start = end
        await turns.give()
    return b"".join(parts)


async def _input(given: _Input, pointer: str, turns: Turns) -> OipInput:
    where, raw = f"input {short(given.name)}", bytes(given.shape)
    if len(raw) > MOST_SHAPE_BYTES:
        raise InvalidTensor(f"{where}: expected a shape, got {short(raw[:MOST_SHAPE_BYTES])}")
    try:
        shape = _shape.decode(raw)
    except UNREADABLE as error:
        raise unreadable(error, below=f"{pointer}/shape") from error
    data: Any = None
    if (text := bytes(given.data)) not in {b"", b"null"}:
        data = await _values(text, given.datatype, shape, where, turns)
    return OipInput(given.name, shape, given.datatype, given.parameters, data)


async def _values(text: bytes, datatype: str, shape: Sequence[int], where: str, turns: Turns) -> Any:  # noqa: ANN401 an array, or what has its length
    """The values of flat or nested lists, as an array."""
    if datatype not in FLAT:
        return ()  # no model takes this datatype: the check against the model refuses it
    structure = text.translate(None, NOT_STRUCTURE)
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
    start = read = 0
    while start < len(text):
        await turns.give()
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
    """Place and description of an error in a list whose first values were read before."""
    detail, _, place = str(error).partition(" - at `$[")
    index = place.removesuffix("]`")
    return f"/{first + int(index)}: {detail}" if index.isdigit() else f": {detail}"


def _structure(shape: Sequence[int]) -> bytes:
    """Brackets and commas of nested lists of this shape."""
    *outer, last = shape
    inner = b"[" + b"," * (last - 1) + b"]"
    for size in reversed(outer):
        inner = b"[" + b",".join([inner] * size) + b"]"
    return inner


def _check_count(inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
    """Refuse more tensors than any model has."""
    if len(inputs) > MAX_TENSORS or len(outputs or ()) > MAX_TENSORS:
        raise MalformedBody(f"expected at most {MAX_TENSORS} inputs and outputs")


def _json_size(body: bytes, header: bytes) -> int:
    """Return the JSON's size in bytes, from `inference-header-content-length`.

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


def _inputs(given: Sequence[OipInput], behind: memoryview) -> list[GivenTensor]:
    """Each input with its contents, from its JSON or from the bytes that follow the JSON."""
    inputs: list[GivenTensor] = []
    offset = 0
    for tensor in given:
        where = f"input {tensor.name[:80]!r}"
        size = None if tensor.parameters is None else _binary_size(tensor.parameters, where)
        contents: Contents
        if size is None:
            if tensor.data is None:
                raise InvalidTensor(f"{where}: expected data or binary_data_size, got neither")
            contents = tensor.data
        else:
            if tensor.data is not None:
                raise InvalidTensor(f"{where}: expected data or binary_data_size, got both")
            if size > len(behind) - offset:
                raise InvalidTensor(
                    f"{where}: binary_data_size is {size}, the body has {len(behind) - offset} more bytes"
                )
            contents = behind[offset : offset + size]
            offset += size
        inputs.append(GivenTensor(tensor.name, tensor.datatype, tensor.shape, contents))
    if offset != len(behind):
        raise InvalidTensor(
            f"expected {offset} bytes after the JSON, the sum of binary_data_size, got {len(behind)}"
        )
    return inputs


def _parameter(parameters: Parameters, name: str) -> Any:  # noqa: ANN401 any JSON
    given = (parameters or {}).get(name)
    if not isinstance(given, msgspec.Raw):
        return given
    text = bytes(given)
    try:
        return msgspec.json.decode(text[:MOST_PARAMETER_BYTES])
    except UNREADABLE:
        return text[:MOST_PARAMETER_BYTES].decode(errors="replace")


def _binary_size(parameters: Parameters, where: str) -> int | None:
    size = _parameter(parameters, "binary_data_size")
    if size is None or (type(size) is int and size >= 0):
        return size
    raise InvalidTensor(f"{where}: expected a binary_data_size of 0 or more, got {short(size)}")


def _flag(parameters: Parameters, name: str, where: str, of: str | None = None) -> bool | None:
    flag = _parameter(parameters, name)
    if flag is None or isinstance(flag, bool):
        return flag
    place = where if of is None else f"{where} {short(of)}"
    raise MalformedBody(f"{place}: expected {name} to be true or false, got {short(flag)}")
