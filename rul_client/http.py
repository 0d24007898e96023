"""Asks a server by HTTP: JSON, POST /v1/predict."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final, NoReturn
from urllib.parse import quote

import httpx
import msgspec

from rul_client.address import Tls, is_loopback
from rul_client.answers import Answer, Explain, ModelName, NoAnswer, RemoteModel, Window, grounds_of, top_of
from rul_client.errors import KEY_HINT, RemoteFailed, Retryable

TIMEOUT_SECONDS: Final = 60.0


class HttpTransport:
    """JSON over HTTP to one server; every failure is a `RemoteFailed`."""

    bytes_per_reading: Final = 20

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client: Final = client
        self._url: Final = url

    async def models(self) -> list[str]:
        """List the names of the server's models."""
        content = await request(self._client, "GET", "/v1/models")
        try:
            return [found["name"] for found in msgspec.json.decode(content)["models"]]
        except (LookupError, TypeError, ValueError) as error:
            raise RemoteFailed(f"{self._url} is not rulserve, or a newer version: {error!r}") from error

    async def model(self, name: str) -> RemoteModel:
        """Describe one of the server's models."""
        content = await request(self._client, "GET", f"/v1/models/{quote(name, safe='')}")
        try:
            found = msgspec.json.decode(content)
            of = ModelName(found["name"], found["version"], found["sha256"])
            return RemoteModel.parse(of, msgspec.json.encode(found["manifest"]), self._url)
        except (LookupError, TypeError, ValueError) as error:
            raise RemoteFailed(f"{self._url} is not rulserve, or a newer version: {error!r}") from error

    async def predict(
        self, model: str, windows: Sequence[Window], explain: Explain
    ) -> list[Answer | NoAnswer]:
        """Answer each window, in order."""
        given = [
            {"unit": w.unit, "last_cycle": w.last_cycle, "readings": w.readings.tolist()} for w in windows
        ]
        asked = {"model": model, "partial": True, "explain": explain, "windows": given}
        body = msgspec.json.encode(asked)  # NaN as null
        content = await request(self._client, "POST", "/v1/predict", body)
        try:
            return [_answer(each) for each in msgspec.json.decode(content)["predictions"]]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise RemoteFailed(f"{self._url} is not rulserve, or a newer version: {error!r}") from error


def _answer(given: dict[str, Any]) -> Answer | NoAnswer:
    if "error" in given:
        error = given["error"]
        return NoAnswer((error.get("errors") or [error])[0]["detail"])
    interval, attention = given["interval"], given["attention"]
    grounds = grounds_of(
        given.get("sensor_contributions", {}), given.get("trust"), given["failure_probability"].values()
    )
    return Answer(
        given["rul"], given["rul_state"], interval["lower"], interval["upper"],
        given["health_state"]["label"], attention.get("entropy_ratio"),
        top_of(attention.get("evidence") or attention["weights"]), grounds,
    )  # fmt: skip


def http_client(
    url: str,
    api_key: str | None,
    *,
    tls: Tls = Tls(),  # noqa: B008 frozen
    timeout_seconds: float = TIMEOUT_SECONDS,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """A connection pool to one server; no proxy is asked about this machine itself."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"x-api-key": api_key} if api_key else {},
        timeout=timeout_seconds,
        trust_env=not is_loopback(httpx.URL(url).host),
        transport=transport,
        verify=verification(tls),
    )


def verification(tls: Tls) -> ssl.SSLContext | bool:
    """Say how a server's certificate is checked: with these files, or as the HTTP library does."""
    return True if tls == Tls() else ssl_context(tls)


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Load the certificates of a connection; raise RemoteFailed if they cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password="")
    except (OSError, ValueError) as error:
        files = ", ".join(str(path) for path in tls if path is not None)
        raise RemoteFailed(f"certificates {files} cannot be used: {error}") from error
    return context


async def request(client: httpx.AsyncClient, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return the body of a successful response; raise RemoteFailed, or Retryable if it may pass."""
    url = str(client.base_url).rstrip("/")
    headers = {} if body is None else {"content-type": "application/json"}
    try:
        response = await client.request(method, path, content=body, headers=headers)
    except (httpx.ConnectError, httpx.UnsupportedProtocol, ssl.SSLError) as error:
        raise RemoteFailed(f"{url} cannot be reached: {str(error) or type(error).__name__}") from error
    except httpx.TransportError as error:
        raise Retryable(f"{url}: connection failed: {str(error) or type(error).__name__}") from error
    if not response.is_success:
        _refuse(url, response)
    return response.content


def _refuse(url: str, response: httpx.Response) -> NoReturn:
    try:
        problem = msgspec.json.decode(response.content)
        words = f"{problem['title']}: {problem['detail']}" + KEY_HINT * (response.status_code in {401, 403})
    except (LookupError, TypeError, ValueError):
        words = "no problem document; is this the address of a rulserve?"
    message = f"{url} answered {response.status_code}: {words}"
    if response.status_code in {429, 503}:
        after = response.headers.get("retry-after", "")
        raise Retryable(message, float(after) if after.isdecimal() else None)
    raise RemoteFailed(message)
