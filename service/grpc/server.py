"""gRPC on a port of its own, for an HTTP server without HTTP/2.

Workers behind Envoy do not load this module: grpcio takes 10 MiB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, Self

import grpc
import grpc.aio

from service import logs
from service.errors import release_frames
from service.grpc.call import Method, failure
from service.grpc.servicers import Methods
from service.settings import Settings

CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
"""Codes of `grpc.aio` by number: it takes a number for UNKNOWN."""


async def serve(methods: Methods, settings: Settings) -> grpc.aio.Server:
    """Serve the methods."""
    # With SO_REUSEPORT two services could share the port, and each would get some of the calls.
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", settings.max_body_bytes)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Handlers(methods),))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    await server.start()
    logs.logger().info("gRPC server started", port=port)
    return server


class Handlers(grpc.GenericRpcHandler):
    """The methods on `grpc.aio`."""

    def __init__(self, methods: Methods) -> None:
        self._methods: Final = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 grpc's
        """Return the handler of a call."""
        method = self._methods[handler_call_details.method]
        return grpc.stream_stream_rpc_method_handler(partial(_call, method))  # pyrefly: ignore[bad-argument-type] aio


class _Messages:
    """The messages of a call on `grpc.aio`, whose own iterator would keep the last one until a GC."""

    def __init__(self, context: Any) -> None:  # noqa: ANN401 grpc's
        self._context: Final = context

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        message = await self._context.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


async def _call(method: Method, _messages: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401 grpc's
    try:
        reply = await method(_Messages(context), context)
    except Exception as error:  # noqa: BLE001 grpc would show its text
        end = failure(error)
        release_frames(error)  # grpc's error refers to it and to itself: the message would stay until a GC
        await context.abort(CODES[end.code], end.details, tuple(end.metadata))
    else:
        if reply is not None:
            await context.write(reply)
