"""What surrounds every request on every transport: its id, its measurement, its log line, its error."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from service import logs
from service.access import Credentials
from service.asgi import Disconnected
from service.errors import STATUS, RuntimeFailed, status_of
from service.labels import CLIENT_GONE, Route, Transport
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.predictor import Predictor


@dataclass(slots=True)
class Exchange:
    """One request and how it went.

    Attributes:
        request_id: What the caller, the log and every error call it.
        error: What went wrong, for the transport to word.
        gone: True where the caller has left: nobody waits for an answer.
        windows: How many windows were asked for.
    """

    request_id: str
    error: Exception | None = None
    gone: bool = False
    windows: int = 0


class Desk:
    """What both transports need to answer a request."""

    def __init__(
        self,
        *,
        predictor: Predictor,
        metrics: Metrics,
        lifecycle: Lifecycle,
        access_log: logs.AccessLog,
        credentials: Credentials,
        max_body_bytes: int,
        request_timeout_seconds: float,
    ) -> None:
        self.predictor: Final = predictor
        self.metrics: Final = metrics
        self.lifecycle: Final = lifecycle
        self.credentials: Final = credentials
        self.max_body_bytes: Final = max_body_bytes
        self.request_timeout_seconds: Final = request_timeout_seconds
        self._log: Final = access_log

    @contextmanager
    def exchange(
        self, transport: Transport, route: Route, request_id: str | None
    ) -> Generator[Exchange, None, None]:
        """Measure around a request, log it, and keep what it raises in `Exchange.error`."""
        start = perf_counter()
        with logs.request(request_id) as chosen:
            exchange = Exchange(chosen)
            with self.metrics.request(transport, route) as timer:
                try:
                    yield exchange
                except Disconnected:
                    exchange.gone, timer.code = True, CLIENT_GONE[transport]
                except Exception as error:  # noqa: BLE001 the transport words whatever it is
                    exchange.error, timer.code = error, self.metrics.failed(transport, error)
            self._logged(exchange, transport, route, timer.code, perf_counter() - start)

    def _logged(
        self, exchange: Exchange, transport: Transport, route: Route, code: str, seconds: float
    ) -> None:
        error, protocol = exchange.error, transport.value
        if error is None:
            self._log.answered(
                protocol=protocol, route=route.value, code=code, seconds=seconds, windows=exchange.windows
            )
        elif status_of(error) is STATUS[RuntimeFailed]:
            self._log.failed(error, protocol=protocol, route=route.value, code=code, seconds=seconds)
        else:
            self._log.refused(error, protocol=protocol, route=route.value, code=code, seconds=seconds)
