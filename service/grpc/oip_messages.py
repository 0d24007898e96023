"""Messages of `ModelInfer`: to a query, and from a reply.

Inputs are raw (`raw_input_contents`) or typed (`contents`), and outputs come back the way the inputs
went. This module knows messages; it must not know what a model takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from service.core.queries import ModelName
from service.errors import InvalidTensor, MalformedBody
from service.grpc.messages import tag
from service.oip.inference import MAX_TENSORS, InferQuery, timeout_of
from service.oip.tensors import DTYPES, FP32, INT64, Contents, GivenTensor, Tensor, short
from service.proto import open_inference_pb2 as pb

CONTENTS: Final = {FP32: "fp32_contents", INT64: "int64_contents"}
"""Where typed values stand; no model takes other datatypes."""

FLOATS: Final = pb.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER


def query_of(request: pb.ModelInferRequest) -> InferQuery:
    """What a message asks.

    Raises:
        MalformedBody: it has too many tensors, or its timeout is none.
        InvalidTensor: a tensor's contents are missing, come twice, or are not where they should be.
    """
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise MalformedBody(f"expected at most {MAX_TENSORS} inputs and outputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidTensor(
            f"expected raw_input_contents for each of {len(request.inputs)} inputs, got {len(raw)}"
        )
    inputs = [
        GivenTensor(
            tensor.name,
            tensor.datatype,
            tensor.shape,
            _raw(tensor, raw[i]) if raw else _typed(tensor),
        )
        for i, tensor in enumerate(request.inputs)
    ]
    outputs = [output.name for output in request.outputs]
    return InferQuery(inputs, outputs, request.id, _timeout_seconds(request))


def _raw(tensor: pb.ModelInferRequest.InferInputTensor, contents: bytes) -> Contents:
    if tensor.HasField("contents") and tensor.contents.ListFields():
        raise InvalidTensor(f"input {short(tensor.name)}: expected contents or raw_input_contents, got both")
    return contents


def _typed(tensor: pb.ModelInferRequest.InferInputTensor) -> Contents:
    wanted = CONTENTS.get(tensor.datatype)
    if wanted is None:
        return ()  # no model takes this datatype: whoever knows the model will say so
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != wanted]
    if others:
        raise InvalidTensor(
            f"input {short(tensor.name)}: {tensor.datatype} stands in {wanted}, got {', '.join(others)}"
        )
    dtype = DTYPES[tensor.datatype]
    values = getattr(tensor.contents, wanted)
    head, raw = tag(FLOATS, 4 * len(values)), tensor.contents.SerializeToString()
    if tensor.datatype == FP32 and len(values) and raw.startswith(head):  # as it stands on the wire
        return np.frombuffer(raw, dtype, offset=len(head))
    return np.array(values, dtype=dtype)


def _timeout_seconds(request: pb.ModelInferRequest) -> float:
    """The parameter `timeout`, as by HTTP."""
    if "timeout" not in request.parameters:  # reading would make it
        return math.inf
    parameter = request.parameters["timeout"]
    which = parameter.WhichOneof("parameter_choice")
    return timeout_of(None if which is None else getattr(parameter, which))


def response_of(
    model: ModelName, request_id: str, tensors: Sequence[Tensor], *, is_raw: bool
) -> pb.ModelInferResponse:
    """Tensors as a message, their contents raw or typed."""
    response = pb.ModelInferResponse(model_name=model.name, model_version=model.version, id=request_id)
    for name, datatype, values in tensors:
        output = response.outputs.add(name=name, datatype=datatype, shape=values.shape)
        if is_raw:
            response.raw_output_contents.append(values.tobytes())
        else:
            output.contents.MergeFromString(tag(FLOATS, values.nbytes) + values.tobytes())
    return response
