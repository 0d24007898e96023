"""A service somewhere else, asked for what the table needs.

http://host:3000   https://host   JSON, POST /v1/predict
grpc://host:3000   grpcs://host   rul.v1.RulService, the s for TLS
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
import httpx

from rul_client.commands.predict.asking import Answerer
from rul_client.grpc_client import GrpcAnswerer, grpc_models
from rul_client.http_client import HttpAnswerer, http_models
from rul_client.remote import TIMEOUT_SECONDS, Sleep, chosen, is_loopback
from service.proto import rul_v1_pb2_grpc

PORTS: Final = {"http": 80, "https": 443, "grpc": 3000, "grpcs": 443}


@asynccontextmanager
async def open_remote(
    url: str,
    *,
    model: str | None,
    api_key: str | None,
    transport: httpx.AsyncBaseTransport | None = None,
    sleep: Sleep = asyncio.sleep,
) -> AsyncGenerator[Answerer, None]:
    """Find the model that a server is to answer with.

    Args:
        url: http, https, grpc or grpcs; see the module.
        model: Its name there; None: the only one.
        api_key: Sent with every request.
        transport: What carries HTTP; None: the network.
        sleep: What waits between two attempts.

    Raises:
        RemoteFailed: it cannot be reached, refused, or has no such model.
    """
    parts = urlsplit(url)
    direct = is_loopback(parts.hostname or "")  # no proxy leads to this machine's own address
    if parts.scheme.startswith("http"):
        headers = {"x-api-key": api_key} if api_key else {}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=not direct, transport=transport
        ) as client:
            found = chosen(await http_models(client, url, sleep=sleep), model, url)
            yield HttpAnswerer(client, url, found, sleep=sleep)
        return
    target = f"{parts.hostname}:{parts.port or PORTS[parts.scheme]}"
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0 if direct else 1)]
    metadata = [("x-api-key", api_key)] if api_key else []
    secure = parts.scheme == "grpcs"
    async with (
        grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=options)
        if secure
        else grpc.aio.insecure_channel(target, options=options)
    ) as channel:
        stub: Any = rul_v1_pb2_grpc.RulServiceStub(channel)
        found = chosen(await grpc_models(stub, url, metadata=metadata, sleep=sleep), model, url)
        yield GrpcAnswerer(stub, url, found, metadata=metadata, sleep=sleep)
