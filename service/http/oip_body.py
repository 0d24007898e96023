"""Bodies of the Open Inference Protocol: JSON, and the binary tensor data that may stand behind it.

With the header `inference-header-content-length: N`, the first N bytes of a body are JSON and the
rest are the contents of the tensors that say `binary_data_size`, one after the other. This module
knows the format; it must not know what a model takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from model.domain import FloatArray
from service.core.queries import ModelName
from service.errors import InvalidTensor, MalformedBody, short
from service.http.problem import UNREADABLE, unreadable
from service.oip.inference import MAX_TENSORS, InferQuery, timeout_of
from service.oip.tensors import FP32, INT64, Contents, GivenTensor, TensorSpec

Parameters = dict[str, msgspec.Raw] | None
"""Of any size, decoded where they are read."""

NAN: Final = re.compile(rb"(?<=[\[,\s])NaN(?=\s*[,\]])")
"""A value of a list that JSON does not have and that Python's clients write all the same."""


class OipInput(msgspec.Struct):
    """An input; null: missing. `data` is omitted if `parameters.binary_data_size` bytes follow the JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = None
    data: list[int | float | None] | None = None


class _LooseInput(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = None
    data: msgspec.Raw = msgspec.Raw(b"")


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


class _LooseRequest(msgspec.Struct):
    """A request whose data may be anything, so that it can be said which of them is wrong."""

    inputs: list[_LooseInput]
    outputs: list[OipWanted] | None = None
    id: str = ""
    parameters: Parameters = None


_STRICT: Final = msgspec.json.Decoder(OipInferRequest)
_LOOSE: Final = msgspec.json.Decoder(_LooseRequest)
FLAT: Final = {FP32: msgspec.json.Decoder(list[float | None]), INT64: msgspec.json.Decoder(list[int])}
_NESTED: Final = {
    2: msgspec.json.Decoder(list[list[float | None]]),
    3: msgspec.json.Decoder(list[list[list[float | None]]]),
}
MOST_PARAMETER_BYTES: Final = 200

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


class Form(NamedTuple):
    """How the answer is to be written.

    Attributes:
        is_binary: Whether outputs are binary, where `by_name` does not say.
        by_name: The same for single outputs.
    """

    is_binary: bool
    by_name: dict[str, bool]


def decoded(body: bytes, header_length: bytes) -> tuple[InferQuery, Form]:
    """Read an inflated body; `header_length` is the header `inference-header-content-length` or b"".

    Raises:
        MalformedBody: it is not JSON of the protocol's shape, or the header does not fit it.
        InvalidTensor: a tensor's contents are missing, come twice, or are not where they are said to be.
    """
    size = json_size(body, header_length)
    request = _request(body[:size] if size < len(body) else body)
    return query_of(request, memoryview(body)[size:])


def query_of(request: OipInferRequest, behind: memoryview) -> tuple[InferQuery, Form]:
    """Make a query of a request and the bytes behind its JSON.

    Raises:
        MalformedBody, InvalidTensor: as `decoded`.
    """
    check_count(request.inputs, request.outputs)
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


def encoded(
    model: ModelName, request_id: str, specs: Sequence[TensorSpec], arrays: Sequence[FloatArray], form: Form
) -> tuple[bytes, int | None]:
    """Outputs as a body, and the size of its JSON where binary contents stand behind it."""
    outputs: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for (name, datatype, _), values in zip(specs, arrays, strict=True):
        described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": values.shape}
        if form.by_name.get(name, form.is_binary):
            described["parameters"] = {"binary_data_size": values.nbytes}
            behind.append(values.tobytes())
        else:
            described["data"] = values.ravel().tolist()
        outputs.append(described)
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if request_id:
        head["id"] = request_id
    head["outputs"] = outputs
    text = _encode(head)
    return (b"".join([text, *behind]), len(text)) if behind else (text, None)


def check_count(inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
    """Refuse more tensors than any model has."""
    if len(inputs) > MAX_TENSORS or len(outputs or ()) > MAX_TENSORS:
        raise MalformedBody(f"expected at most {MAX_TENSORS} inputs and outputs")


def json_size(body: bytes, header: bytes) -> int:
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


def _request(text: bytes) -> OipInferRequest:
    try:
        try:
            return _STRICT.decode(text)
        except msgspec.ValidationError:
            return _read_again(text)
        except msgspec.DecodeError:
            replaced, count = NAN.subn(b"null", text)
            if not count:
                raise
            return _request(replaced)
    except UNREADABLE as error:
        raise unreadable(error) from error


def _read_again(text: bytes) -> OipInferRequest:
    """Read a request with nested data, or name what is wrong."""
    loose = _LOOSE.decode(text)
    inputs = [OipInput(i.name, i.shape, i.datatype, i.parameters, _values(i)) for i in loose.inputs]
    return OipInferRequest(inputs, loose.outputs, loose.id, loose.parameters)


def _inputs(given: Sequence[OipInput], behind: memoryview) -> list[GivenTensor]:
    """Each input with its contents: from its JSON, or the next bytes of those behind the JSON."""
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


def _values(tensor: _LooseInput) -> list[Any] | None:
    if not len(tensor.data):
        return None
    if tensor.datatype not in FLAT:
        return []  # no model takes this datatype: whoever knows the model will say so
    try:
        return FLAT[tensor.datatype].decode(tensor.data)
    except msgspec.DecodeError as error:
        nested = _nested(tensor)
        if nested is None:
            detail = unreadable(error).detail if isinstance(error, msgspec.ValidationError) else error
            raise InvalidTensor(f"input {short(tensor.name)}: data{detail}") from error
        return nested


def _nested(tensor: _LooseInput) -> list[Any] | None:
    """Lists of lists, which the protocol allows where they have the declared shape."""
    decoder = _NESTED.get(len(tensor.shape))
    if tensor.datatype != FP32 or decoder is None:
        return None
    try:
        rows: list[Any] = decoder.decode(tensor.data)
    except msgspec.DecodeError:
        return None
    for size in tensor.shape[1:]:
        if any(len(row) != size for row in rows):
            return None
        rows = list(chain.from_iterable(rows))
    return rows


def _parameter(parameters: Parameters, name: str) -> Any:  # noqa: ANN401 any JSON
    raw = (parameters or {}).get(name)
    if raw is None:
        return None
    text = bytes(raw)
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
