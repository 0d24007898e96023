"""A tour with `tritonclient.grpc`."""

from __future__ import annotations

from typing import Any

import tritonclient.grpc as triton
from tour import MODEL, Tour
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def tensors(arrays: dict[str, Any]) -> list[triton.InferInput]:
    """Arrays as inputs, raw: this client knows no other way."""
    inputs = []
    for name, array in arrays.items():
        given = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(given.set_data_from_numpy(array))
    return inputs


def arrays_of(result: triton.InferResult) -> dict[str, Any]:
    """Every output of an answer."""
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def take(tour: Tour, client: triton.InferenceServerClient) -> None:
    """Ask for everything that the protocol has."""
    facts, inputs = tour.facts, tensors(tour.inputs)
    facts["live"], facts["ready"] = client.is_server_live(), client.is_server_ready()
    facts["model ready"] = client.is_model_ready(MODEL)
    facts["server"] = client.get_server_metadata(as_json=True)
    facts["metadata"] = client.get_model_metadata(MODEL, as_json=True)
    version = facts["metadata"]["versions"][0]
    facts["version ready"] = client.is_model_ready(MODEL, version)
    facts["index"] = client.get_model_repository_index(as_json=True)
    facts["numbers"] = numbers_of_fields()

    result = client.infer(MODEL, inputs, request_id="a-1")
    response = result.get_response()
    facts["response"] = {key: getattr(response, key) for key in ("id", "model_name", "model_version")}
    tour.answer("raw", **arrays_of(result))
    tour.answer("version", **arrays_of(client.infer(MODEL, inputs, model_version=version)))
    mixed = [triton.InferRequestedOutput("attention"), triton.InferRequestedOutput("rul")]
    result = client.infer(MODEL, inputs, outputs=mixed)
    facts["mixed"] = [output.name for output in result.get_response().outputs]
    tour.answer("mixed", **arrays_of(result))
    tour.answer("gzip", **arrays_of(client.infer(MODEL, inputs, compression_algorithm="gzip")))
    patient = client.infer(MODEL, inputs, timeout=5_000_000, client_timeout=30, parameters={"mine": "x"})
    tour.answer("parameters", **arrays_of(patient))
    tour.ask_in_vain(triton, client, tensors)
    tour.refused("no such statistics", InferenceServerException, client.get_inference_statistics)


def numbers_of_fields() -> dict[str, dict[str, list[int]]]:
    """The number and type of every field of the messages, as this client has them."""

    def described(message: Any) -> dict[str, list[int]]:
        own = {f"{message.full_name}.{f.name}": [f.number, f.type, f.label] for f in message.fields}
        return own | {key: value for inner in message.nested_types for key, value in described(inner).items()}

    return {name: described(m) for name, m in service_pb2.DESCRIPTOR.message_types_by_name.items()}


if __name__ == "__main__":
    here = Tour.from_arguments()
    with triton.InferenceServerClient(here.target) as opened:
        take(here, opened)
    here.finish()
