"""Asking a server by gRPC: rul.v1.RulService."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np

from rul_client.commands.predict.asking import Answer, NoAnswer, top_of
from rul_client.remote import (
    IN_FLIGHT,
    KEY_HINT,
    TIMEOUT_SECONDS,
    ComeBack,
    RemoteFailed,
    RemoteModel,
    Sleep,
    at_once,
    manifest_of,
    patiently,
)
from service.core.queries import ModelName
from service.core.window import WindowInput
from service.proto import rul_v1_pb2 as pb

BYTES_A_READING: Final = 4
PASSING: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
KEYS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class GrpcAnswerer:
    """Answers by gRPC."""

    def __init__(
        self,
        stub: Any,  # noqa: ANN401 generated without types
        url: str,
        model: RemoteModel,
        *,
        metadata: Sequence[tuple[str, str]],
        sleep: Sleep,
    ) -> None:
        self._stub: Final = stub
        self._url: Final = url
        self._metadata: Final = metadata
        self._sleep: Final = sleep
        self.manifest: Final = model.manifest
        self.name: Final = model.name
        self.at_once: Final = at_once(model.manifest, bytes_a_reading=BYTES_A_READING)
        self.in_flight: Final = IN_FLIGHT

    async def answer(self, windows: Sequence[WindowInput]) -> list[Answer | NoAnswer]:
        """One answer a window, in order.

        Raises:
            RemoteFailed: the server cannot be reached, or refused.
        """
        request = pb.PredictRequest(
            model=self.name.name, partial=True, windows=[_message(window) for window in windows]
        )
        reply = await patiently(
            lambda: called(self._stub.Predict, request, self._url, self._metadata), sleep=self._sleep
        )
        return [_answer_of_message(prediction) for prediction in reply.predictions]


def _message(window: WindowInput) -> pb.Window:
    values = np.asarray(window.readings, dtype=np.float32).ravel()
    return pb.Window(
        unit=window.unit, last_cycle=window.last_cycle, readings=pb.Readings(values=values.tolist())
    )


def _answer_of_message(given: pb.Prediction) -> Answer | NoAnswer:
    if given.HasField("error"):
        errors = given.error.errors
        return NoAnswer(errors[0].detail if errors else given.error.detail)
    attention = given.attention
    return Answer(
        given.rul,
        given.rul_state,
        given.interval.lower,
        given.interval.upper,
        given.health_state.label,
        attention.entropy_ratio if attention.HasField("entropy_ratio") else None,
        top_of(list(attention.weights)),
    )


async def called(method: Any, request: object, url: str, metadata: Sequence[tuple[str, str]]) -> Any:  # noqa: ANN401
    """The message of a good answer.

    Raises:
        RemoteFailed: anything else, in one line.
    """
    try:
        return await method(request, metadata=metadata, timeout=TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        code, detail = error.code(), error.details() or "no reason given"
        ours = any(key == "x-request-id" for key, _ in error.trailing_metadata() or ())
        if not ours and code is grpc.StatusCode.UNAVAILABLE:
            raise RemoteFailed(f"{url} cannot be reached: {_short(detail)}") from error
        hint = KEY_HINT if code in KEYS else ""
        failure = RemoteFailed(f"{url} answered {code.name}: {_short(detail)}{hint}")
        if ours and code in PASSING:
            raise ComeBack(failure, None) from error
        raise failure from error


def _short(detail: str) -> str:
    """One line, without the addresses and counters that gRPC adds."""
    line = " ".join(detail.split())
    return line if len(line) <= 300 else f"{line[:297]}..."


async def grpc_models(
    stub: Any,  # noqa: ANN401 generated without types
    url: str,
    *,
    metadata: Sequence[tuple[str, str]],
    sleep: Sleep,
) -> list[RemoteModel]:
    """Every model that a server has.

    Raises:
        RemoteFailed: the server cannot be reached, or refused.
    """
    reply = await patiently(
        lambda: called(stub.ListModels, pb.ListModelsRequest(), url, metadata), sleep=sleep
    )
    return [_model_of_message(each, url) for each in reply.models]


def _model_of_message(given: pb.Model, url: str) -> RemoteModel:
    reference = given.reference
    name = ModelName(reference.name, reference.version, reference.sha256)
    return RemoteModel(name, manifest_of(given.manifest_json, url))
