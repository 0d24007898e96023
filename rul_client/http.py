"""JSON over HTTP: connections, and requests that succeed or raise `RemoteFailed`."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import Final, NoReturn

import httpx
import msgspec

from model.domain import printable
from rul_client.address import InvalidAddress, Tls, checked_key, is_loopback
from rul_client.errors import KEY_HINT, Rejected, RemoteFailed, Retryable, Unreachable

TIMEOUT_SECONDS: Final = 60.0
BAD_GATEWAY: Final = 502
"""A proxy lost the connection to a server."""
UNAVAILABLE: Final = 503
"""From a service with a problem document; without one from Envoy as a proxy, which means the same as 502."""

ENVIRONMENT: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Variables that the HTTP library reads, the proxies also in small letters."""


def http_client(
    url: str,
    api_key: str | None,
    *,
    tls: Tls,
    timeout_seconds: float,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Open a connection pool to one server; this machine itself is reached without a proxy.

    Raises:
        InvalidAddress: no server can have the host's name.
        InvalidKey: no request can carry the key.
        RemoteFailed: the certificates, or a proxy of the environment, cannot be used.
    """
    key = checked_key(api_key)
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL as error:
        raise InvalidAddress(f"{url}: {error}") from error
    verify = verification(tls)
    try:
        return httpx.AsyncClient(
            base_url=url,
            headers={} if key is None else {"x-api-key": key},
            timeout=timeout_seconds,
            trust_env=not is_loopback(host),
            transport=transport,
            verify=verify,
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:  # ImportError: a SOCKS proxy
        named = ", ".join(name for name in ENVIRONMENT if os.environ.keys() & {name, name.lower()})
        raise RemoteFailed(f"{url} cannot be reached as the environment says ({named}): {error}") from error


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


async def request(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: bytes | None = None,
    params: Mapping[str, str] | None = None,
) -> bytes:
    """Return the body of a successful response; raise RemoteFailed, or Retryable if it may pass."""
    response = await exchange(client, method, path, body, params)
    if not response.is_success:
        _refuse(address_of(client), response)
    return response.content


async def exchange(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: bytes | None = None,
    params: Mapping[str, str] | None = None,
) -> httpx.Response:
    """Return a response of any status, read to its end within the client's timeout; else raise Retryable."""
    url, seconds = address_of(client), client.timeout.read
    headers = {} if body is None else {"content-type": "application/json"}
    try:
        async with client.stream(method, path, content=body, params=params, headers=headers) as response:
            async with asyncio.timeout(seconds):  # httpx bounds the pause between two parts
                await response.aread()
            return response
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, ssl.SSLError) as error:
        raise Unreachable(f"{url} cannot be reached: {str(error) or type(error).__name__}") from error
    except httpx.RequestError as error:
        message = f"{url}: connection failed: {str(error) or type(error).__name__}"
        raise Retryable(message, may_be_done=True) from error
    except TimeoutError as error:
        message = f"{url}: connection failed: its answer took more than {seconds:g} s"
        raise Retryable(message, may_be_done=True) from error


def address_of(client: httpx.AsyncClient) -> str:
    """Return the address that a client was given, for errors."""
    return str(client.base_url).rstrip("/")


def _refuse(url: str, response: httpx.Response) -> NoReturn:
    is_lost = response.status_code == BAD_GATEWAY
    try:
        problem = msgspec.json.decode(response.content)
        words = " ".join(f"{problem['title']}: {problem['detail']}".split()) + KEY_HINT * (
            response.status_code in {401, 403}
        )
    except (LookupError, TypeError, ValueError, RecursionError):
        words = "no problem document; is this the address of a rulserve?"
        if response.has_redirect_location:  # not followed: the key belongs to this host
            words = f"a redirect to {printable(response.headers['location'], 200)!r}: use that address"
        is_lost = response.status_code in {BAD_GATEWAY, UNAVAILABLE}
    message = f"{url} answered {response.status_code}: {words}"
    if response.status_code in {429, BAD_GATEWAY, UNAVAILABLE}:
        after = response.headers.get("retry-after", "")
        seconds = float(after) if after.isdecimal() else None
        raise Retryable(message, seconds, may_be_done=is_lost)
    is_ours = response.status_code in {400, 404, 409, 413, 415, 422}
    raise (Rejected if is_ours else RemoteFailed)(message)
