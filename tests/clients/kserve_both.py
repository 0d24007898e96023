"""A tour with `kserve.InferenceRESTClient` and `kserve.InferenceGRPCClient`."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from kserve.utils.numpy_codec import from_np_dtype
from tour import MODEL, Tour


def request(tour: Tour, *, binary: bool, outputs: Any = None, model: str = MODEL) -> InferRequest:
    """The tour's windows as a request."""
    inputs = []
    for name, array in tour.inputs.items():
        given = InferInput(name, list(array.shape), from_np_dtype(array.dtype))
        given.set_data_from_numpy(array, binary_data=binary)
        inputs.append(given)
    wanted = [RequestedOutput(name) for name in outputs] if outputs else None
    parameters = {"binary_data_output": True} if binary else None
    return InferRequest(model, inputs, request_id="k-1", parameters=parameters, request_outputs=wanted)


def arrays_of(response: Any) -> dict[str, Any]:
    """Every output of an answer."""
    return {output.name: output.as_numpy() for output in response.outputs}


async def by_http(tour: Tour, url: str) -> None:
    """Ask for everything that the REST client knows."""
    facts = tour.facts
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        facts["http live"], facts["http ready"] = (
            await client.is_server_live(url),
            await client.is_server_ready(url),
        )
        facts["http model ready"] = await client.is_model_ready(url, MODEL)
        facts["http other ready"] = await client.is_model_ready(url, "other")
        response = await client.infer(url, request(tour, binary=False), model_name=MODEL)
        facts["http id"] = response.id
        tour.answer("http json", **arrays_of(response))
        response = await client.infer(url, request(tour, binary=True), model_name=MODEL)
        tour.answer("http binary", **arrays_of(response))
        response = await client.infer(url, request(tour, binary=True, outputs=["rul"]), model_name=MODEL)
        facts["http outputs"] = [output.name for output in response.outputs]
        try:
            await client.infer(url, request(tour, binary=True), model_name="other")
        except httpx.HTTPStatusError as error:
            facts["http unknown model"] = [error.response.status_code, str(error)]


async def by_grpc(tour: Tour, target: str) -> None:
    """Ask for everything that the gRPC client knows."""
    facts = tour.facts
    async with InferenceGRPCClient(target) as client:
        facts["grpc live"], facts["grpc ready"] = (
            await client.is_server_live(),
            await client.is_server_ready(),
        )
        facts["grpc model ready"] = await client.is_model_ready(MODEL)
        typed = request(tour, binary=False)
        for given in typed.inputs:  # it sends NaN as null by HTTP, and cannot by gRPC
            given.data = np.nan_to_num(np.array(given.data, dtype=float), nan=np.nan).tolist()
            if given.datatype == "INT64":
                given.data = [int(value) for value in given.data]
        response = await client.infer(typed)
        facts["grpc id"] = response.id
        tour.answer("grpc typed", **arrays_of(response))
        tour.answer("grpc raw", **arrays_of(await client.infer(request(tour, binary=True))))
        response = await client.infer(request(tour, binary=True, outputs=["rul"]))
        facts["grpc outputs"] = [output.name for output in response.outputs]
        try:
            await client.infer(request(tour, binary=True, model="other"))
        except grpc.RpcError as error:
            facts["grpc unknown model"] = [error.code().name, error.details()]


if __name__ == "__main__":
    here = Tour.from_arguments()
    http_url, grpc_target = here.target.split()
    asyncio.run(by_http(here, http_url))
    asyncio.run(by_grpc(here, grpc_target))
    here.finish()
