"""Asking a server by HTTP: JSON, POST /v1/predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import httpx
import msgspec
import numpy as np

from rul_client.commands.predict.asking import Answer, NoAnswer, reason, top_of
from rul_client.remote import (
    IN_FLIGHT,
    KEY_HINT,
    ComeBack,
    RemoteFailed,
    RemoteModel,
    Sleep,
    at_once,
    manifest_of,
    patiently,
)
from service.core.queries import ModelName, PredictQuery, WindowError
from service.core.window import WindowInput

BYTES_A_READING: Final = 20

# What HTTP sends: the part of each message that is needed here, so that a newer server may send more.


class _Interval(msgspec.Struct):
    lower: float
    upper: float


class _Health(msgspec.Struct):
    label: str


class _Attention(msgspec.Struct):
    weights: list[float]
    entropy_ratio: float | None = None


class _Prediction(msgspec.Struct):
    rul: float | None = None
    rul_state: str = ""
    interval: _Interval | None = None
    health_state: _Health | None = None
    attention: _Attention | None = None
    error: WindowError | None = None


class _Reply(msgspec.Struct):
    predictions: list[_Prediction]


class _Model(msgspec.Struct):
    name: str
    version: str
    sha256: str
    manifest: msgspec.Raw


class _Models(msgspec.Struct):
    models: list[_Model]


class _Problem(msgspec.Struct):
    title: str
    detail: str


def _plain(value: Any) -> Any:  # noqa: ANN401 whatever msgspec does not know
    """Arrays as lists; NaN among them becomes null."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(type(value))


class HttpAnswerer:
    """Answers by HTTP."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: RemoteModel, *, sleep: Sleep) -> None:
        self._client: Final = client
        self._url: Final = url
        self._sleep: Final = sleep
        self._encoder: Final = msgspec.json.Encoder(enc_hook=_plain)
        self._decoder: Final = msgspec.json.Decoder(_Reply)
        self.manifest: Final = model.manifest
        self.name: Final = model.name
        self.at_once: Final = at_once(model.manifest, bytes_a_reading=BYTES_A_READING)
        self.in_flight: Final = IN_FLIGHT

    async def answer(self, windows: Sequence[WindowInput]) -> list[Answer | NoAnswer]:
        """One answer a window, in order.

        Raises:
            RemoteFailed: the server cannot be reached, or refused.
        """
        body = self._encoder.encode(PredictQuery(list(windows), self.name.name, partial=True))
        content = await patiently(
            lambda: exchanged(self._client, self._url, "POST", "/v1/predict", body), sleep=self._sleep
        )
        try:
            reply = self._decoder.decode(content)
            return [_answer(prediction) for prediction in reply.predictions]
        except (msgspec.MsgspecError, ValueError) as error:
            raise RemoteFailed(f"{self._url}: its answer is not one of rulserve: {error}") from error


def _answer(given: _Prediction) -> Answer | NoAnswer:
    if given.error is not None:
        return NoAnswer(reason(given.error))
    if given.rul is None or not (given.interval and given.health_state and given.attention):
        raise ValueError("expected rul, interval, health_state and attention")
    return Answer(
        given.rul,
        given.rul_state,
        given.interval.lower,
        given.interval.upper,
        given.health_state.label,
        given.attention.entropy_ratio,
        top_of(given.attention.weights),
    )


async def exchanged(
    client: httpx.AsyncClient, url: str, method: str, path: str, body: bytes | None = None
) -> bytes:
    """The body of a good answer.

    Raises:
        RemoteFailed: anything else, in one line.
    """
    headers = {} if body is None else {"content-type": "application/json"}
    try:
        response = await client.request(method, path, content=body, headers=headers)
    except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
        raise RemoteFailed(f"{url} cannot be reached: {_cause(error)}") from error
    except httpx.TransportError as error:
        raise ComeBack(RemoteFailed(f"{url}: the connection broke: {_cause(error)}"), None) from error
    if response.is_success:
        return response.content
    failure = RemoteFailed(f"{url} answered {response.status_code}: {_words(response)}")
    if response.status_code in {429, 503}:
        raise ComeBack(failure, _seconds(response.headers.get("retry-after")))
    raise failure


def _words(response: httpx.Response) -> str:
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "and not as rulserve does; is it the right address?"
    return f"{problem.title}: {problem.detail}{KEY_HINT if response.status_code in {401, 403} else ''}"


def _seconds(text: str | None) -> float | None:
    """A Retry-After header; None for none, and for a date, which our servers do not send."""
    return float(text) if text is not None and text.isdecimal() else None


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def http_models(client: httpx.AsyncClient, url: str, *, sleep: Sleep) -> list[RemoteModel]:
    """Every model that a server has.

    Raises:
        RemoteFailed: the server cannot be reached, refused, or is no rulserve.
    """
    content = await patiently(lambda: exchanged(client, url, "GET", "/v1/models"), sleep=sleep)
    try:
        models = msgspec.json.decode(content, type=_Models).models
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteFailed(f"{url}: its answer is not one of rulserve; is it the right address?") from error
    return [
        RemoteModel(ModelName(m.name, m.version, m.sha256), manifest_of(bytes(m.manifest), url))
        for m in models
    ]
