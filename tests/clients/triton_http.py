"""A tour with `tritonclient.http`."""

from __future__ import annotations

from typing import Any

import tritonclient.http as triton
from tour import MODEL, Tour
from tritonclient.utils import np_to_triton_dtype

PER_WINDOW = ("rul", "rul_interval", "failure_probability", "health_state", "novelty")


def tensors(arrays: dict[str, Any], *, binary: bool = True) -> list[triton.InferInput]:
    """Arrays as inputs."""
    inputs = []
    for name, array in arrays.items():
        given = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(given.set_data_from_numpy(array, binary_data=binary))
    return inputs


def arrays_of(result: triton.InferResult) -> dict[str, Any]:
    """Every output of an answer."""
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def take(tour: Tour, client: triton.InferenceServerClient) -> None:
    """Ask for everything that the protocol has."""
    facts, inputs = tour.facts, tensors(tour.inputs)
    facts["live"], facts["ready"] = client.is_server_live(), client.is_server_ready()
    facts["model ready"], facts["other ready"] = client.is_model_ready(MODEL), client.is_model_ready("other")
    facts["server"] = client.get_server_metadata()
    facts["metadata"] = client.get_model_metadata(MODEL)
    version = facts["metadata"]["versions"][0]
    facts["version ready"] = client.is_model_ready(MODEL, version)
    facts["index"] = client.get_model_repository_index()

    result = client.infer(MODEL, inputs, request_id="a-1")
    facts["response"] = {key: result.get_response()[key] for key in ("id", "model_name", "model_version")}
    tour.answer("binary", **arrays_of(result))
    tour.answer("version", **arrays_of(client.infer(MODEL, inputs, model_version=version)))
    as_json = [triton.InferRequestedOutput(name, binary_data=False) for name in PER_WINDOW]
    tour.answer("json", **arrays_of(client.infer(MODEL, tensors(tour.inputs, binary=False), outputs=as_json)))
    mixed = [triton.InferRequestedOutput("attention"), triton.InferRequestedOutput("rul", binary_data=False)]
    result = client.infer(MODEL, inputs, outputs=mixed)
    facts["mixed"] = [output["name"] for output in result.get_response()["outputs"]]
    tour.answer("mixed", **arrays_of(result))
    for algorithm in ("gzip", "deflate"):
        result = client.infer(
            MODEL, inputs, request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
        )
        tour.answer(algorithm, **arrays_of(result))
    pending = [client.async_infer(MODEL, inputs) for _ in range(4)]
    for i, each in enumerate(pending):
        tour.answer(f"async {i}", **arrays_of(each.get_result()))
    patient = client.infer(MODEL, inputs, timeout=5_000_000, priority=1, parameters={"mine": "x"})
    tour.answer("parameters", **arrays_of(patient))
    tour.ask_in_vain(triton, client, tensors)


if __name__ == "__main__":
    here = Tour.from_arguments()
    with triton.InferenceServerClient(here.target, concurrency=4) as opened:
        take(here, opened)
    here.finish()
