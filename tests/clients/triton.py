"""A tour with `tritonclient.http` or `tritonclient.grpc`: the target names it before the address."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tour import MODEL, Tour
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PER_WINDOW = ("rul", "rul_interval", "failure_probability", "health_state", "novelty")


def tensors(triton: Any, arrays: dict[str, Any], **form: bool) -> list[Any]:
    """Arrays as inputs, raw unless their form says otherwise, which it may by HTTP."""
    inputs = []
    for name, array in arrays.items():
        given = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(given.set_data_from_numpy(array, **form))
    return inputs


def arrays_of(result: Any, **as_json: bool) -> dict[str, Any]:
    """Every output of an answer."""
    names = [output["name"] for output in result.get_response(**as_json)["outputs"]]
    return {name: result.as_numpy(name) for name in names}


def take(tour: Tour, triton: Any, client: Any, **as_json: bool) -> None:
    """Ask for everything that both transports have."""
    facts, inputs = tour.facts, tensors(triton, tour.inputs)
    facts["live"], facts["ready"] = client.is_server_live(), client.is_server_ready()
    facts["model ready"] = client.is_model_ready(MODEL)
    facts["server"] = client.get_server_metadata(**as_json)
    facts["metadata"] = client.get_model_metadata(MODEL, **as_json)
    version = facts["metadata"]["versions"][0]
    facts["version ready"] = client.is_model_ready(MODEL, version)
    facts["index"] = client.get_model_repository_index(**as_json)

    result = client.infer(MODEL, inputs, request_id="a-1")
    response = result.get_response(**as_json)
    facts["response"] = {key: response[key] for key in ("id", "model_name", "model_version")}
    tour.answer("raw", **arrays_of(result, **as_json))
    result = client.infer(MODEL, inputs, model_version=version)
    tour.answer("version", **arrays_of(result, **as_json))
    tour.ask_in_vain(triton, client, partial(tensors, triton))


def by_http(tour: Tour, triton: Any, client: Any) -> None:
    """Ask for what HTTP alone has, or in other words."""
    take(tour, triton, client)
    inputs, ask = tensors(triton, tour.inputs), partial(client.infer, MODEL)
    tour.facts["other ready"] = client.is_model_ready("other")
    as_json = [triton.InferRequestedOutput(name, binary_data=False) for name in PER_WINDOW]
    tour.answer("json", **arrays_of(ask(tensors(triton, tour.inputs, binary_data=False), outputs=as_json)))
    mixed = [triton.InferRequestedOutput("attention"), triton.InferRequestedOutput("rul", binary_data=False)]
    tour.answer("mixed", **arrays_of(ask(inputs, outputs=mixed)))
    for algorithm in ("gzip", "deflate"):
        both = dict.fromkeys(("request_compression_algorithm", "response_compression_algorithm"), algorithm)
        tour.answer(algorithm, **arrays_of(ask(inputs, **both)))
    pending = [client.async_infer(MODEL, inputs) for _ in range(4)]
    for i, each in enumerate(pending):
        tour.answer(f"async {i}", **arrays_of(each.get_result()))
    patient = ask(inputs, timeout=5_000_000, priority=1, parameters={"mine": "x"})
    tour.answer("parameters", **arrays_of(patient))


def by_grpc(tour: Tour, triton: Any, client: Any) -> None:
    """Ask for what gRPC alone has, or in other words; its tensors are always raw."""
    take(tour, triton, client, as_json=True)
    inputs, ask = tensors(triton, tour.inputs), partial(client.infer, MODEL)
    tour.facts["numbers"] = numbers_of_fields(triton)
    mixed = [triton.InferRequestedOutput(name) for name in ("attention", "rul")]
    tour.answer("mixed", **arrays_of(ask(inputs, outputs=mixed), as_json=True))
    tour.answer("gzip", **arrays_of(ask(inputs, compression_algorithm="gzip"), as_json=True))
    patient = ask(inputs, timeout=5_000_000, client_timeout=30, parameters={"mine": "x"})
    tour.answer("parameters", **arrays_of(patient, as_json=True))
    tour.refused("no such statistics", InferenceServerException, client.get_inference_statistics)


def numbers_of_fields(triton: Any) -> dict[str, dict[str, list[int]]]:
    """The number and type of every field of the messages, as this client has them."""

    def described(message: Any) -> dict[str, list[int]]:
        own = {f"{message.full_name}.{f.name}": [f.number, f.type, f.label] for f in message.fields}
        return own | {key: value for inner in message.nested_types for key, value in described(inner).items()}

    messages = triton.service_pb2.DESCRIPTOR.message_types_by_name
    return {name: described(message) for name, message in messages.items()}


if __name__ == "__main__":
    here = Tour.from_arguments()
    protocol, address = here.target.split()
    library = import_module(f"tritonclient.{protocol}")
    options = {"concurrency": 4} if protocol == "http" else {}
    with library.InferenceServerClient(address, **options) as opened:
        {"http": by_http, "grpc": by_grpc}[protocol](here, library, opened)
    here.finish()
