"""The client: `AsyncClient`, and `Client` for code without an event loop. Temporary failures are retried.

http://host:3000   https://host   JSON
grpc://host:3000   grpcs://host   rul.v1.RulService; routes that gRPC lacks by HTTP on the same port
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar

import httpx
import msgspec
from pydantic import ValidationError

from export.bundle import Manifest
from model.domain import printable
from rul_client.address import LOCAL, Tls, any_address, in_path
from rul_client.answers import (
    Appended,
    Explain,
    Model,
    ModelName,
    Prediction,
    Predictions,
    Refused,
    answers_of,
)
from rul_client.errors import RemoteFailed, counted_from
from rul_client.grpc import Rpc, http_beside
from rul_client.http import TIMEOUT_SECONDS, http_client, request
from rul_client.loop_thread import LoopThread
from rul_client.query import Costs, check_options, given_of, json_of, unit_path
from rul_client.readings import Frame, Readings, Unit, Window, numbered, windows_of, windows_per_request
from rul_client.retries import ATTEMPTS, Retries, Sleep
from rul_client.unit_windows import last_windows
from service.http.units_bodies import FleetBody, OutcomeReply, UnitBody, UnitDecision

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class _Models(msgspec.Struct):
    models: list[Model]


class _Described(msgspec.Struct):
    manifest: msgspec.Raw


class _Explained(msgspec.Struct):
    prediction: Prediction


class _Reply(msgspec.Struct):
    model: ModelName
    predictions: list[dict[str, Any]]


class AsyncClient:
    """A running service; failures are `RulError`s, those of service and connection `RemoteFailed`."""

    def __init__(
        self,
        url: str = LOCAL,
        *,
        api_key: str | None = None,
        tls: Tls = Tls(),  # noqa: B008 frozen
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        any_address(url)
        self.url: Final = url
        self._retries: Final = Retries(attempts, sleep)
        is_grpc = url.startswith("grpc")
        self._rpc: Final = Rpc(url, api_key, tls=tls, timeout_seconds=timeout_seconds) if is_grpc else None
        http_url = http_beside(url) if is_grpc else url
        self._http: Final = http_client(
            http_url, api_key, tls=tls, timeout_seconds=timeout_seconds, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        if self._rpc is not None:
            await self._rpc.close()

    async def models(self) -> list[Model]:
        """List the loaded models."""
        if self._rpc is not None:
            return await self._typed(self._rpc.models, list[Model])
        return (await self.request("GET", "/v1/models", _Models)).models

    async def choose(self, model: str | None = None) -> Model:
        """Find the named model, or the only one."""
        models = await self.models()
        names = ", ".join(sorted(each.name for each in models)) or "none"
        if model is None and len(models) > 1:
            raise RemoteFailed(f"{self.url} serves several models ({names}): choose one with model (--model)")
        if found := [each for each in models if model in {None, each.name}]:
            return found[0]
        raise RemoteFailed(f"{self.url} serves no model {model!r}, only {names}")

    async def manifest(self, model: str) -> Manifest:
        """Return a model's manifest: columns, context, metrics."""
        if rpc := self._rpc:
            text: str | bytes = await self._retries.call(lambda: rpc.manifest(model))
        else:
            text = bytes((await self.request("GET", f"/v1/models/{in_path(model)}", _Described)).manifest)
        try:
            return Manifest.model_validate_json(text, extra="ignore")  # a later version may add fields
        except ValidationError as error:
            first = error.errors()[0]
            place = printable(".".join(map(str, first["loc"])), 100)
            raise RemoteFailed(
                f"{self.url} is another version of rulserve (its manifest: {place}: {first['msg']}): "
                "install the version of the service"
            ) from error

    async def predict(
        self,
        windows: Readings,
        *,
        model: str | None = None,
        unit: Unit | None = None,
        last_cycle: float | None = None,
        explain: Explain = "attention",
        partial: bool = False,
        store: bool = True,
        costs: Costs | None = None,
    ) -> Predictions:
        """Predict windows: of a file or DataFrame, the last one of each unit.

        `unit` and `last_cycle` belong to a window without them. `partial` answers the good windows and lists
        the others as `refused`. `store=False` keeps predictions out of the store. `costs` of a planned stop
        and of a failure add a decision when to stop.
        """
        check_options(explain, costs)
        if isinstance(windows, str | Path | Frame):
            model = (await self.choose(model)).name
            given = last_windows(windows, await self.manifest(model), unit, last_cycle)
        else:
            given = windows_of(windows, unit, last_cycle)
        options = {"model": model, "explain": explain, "partial": partial or None, "costs": costs}
        options["store"] = None if store else False
        some = windows_per_request(max((window.readings.size for window in given), default=1))
        replies: list[tuple[ModelName, list[Prediction | Refused]]] = []
        for first in range(0, max(1, len(given)), some):
            with counted_from(first):
                replies.append(await self.ask(given[first : first + some], **options))
        return Predictions(replies[0][0], [answer for _, answers in replies for answer in answers])

    async def ask(
        self, windows: Sequence[Window], **options: object
    ) -> tuple[ModelName, list[Prediction | Refused]]:
        """Answer windows in one request, in order; `options` are those of POST /v1/predict."""
        if rpc := self._rpc:
            reply = await self._typed(lambda: rpc.predict(windows, options), _Reply)
        else:
            body = options | {"windows": [window.body() for window in windows]}
            reply = await self.request("POST", "/v1/predict", _Reply, body)
        return reply.model, self._read(lambda: answers_of(reply.predictions))

    async def append(
        self,
        unit: Unit,
        columns: Mapping[str, Any] | Frame,
        *,
        cycle: int | Sequence[int] | None = None,
        model: str | None = None,
        explain: Explain = "none",
        store: bool = True,
        costs: Costs | None = None,
    ) -> Appended:
        """Store readings of a unit, by column or as a DataFrame, and predict from all of its readings.

        Single values are one reading; lists are several readings, with as many cycles. The default of `cycle`
        is the one after the last stored. `costs` and errors are as in `predict`.
        """
        check_options(explain, costs)
        window, cycles = numbered(columns, cycle)
        options = {"model": model, "explain": explain, "store": store, "costs": costs}
        again = cycles is not None
        if rpc := self._rpc:
            call = partial(rpc.append, unit, cycles, window, options)
            return await self._typed(call, Appended, repeatable=again)
        body = {"cycles": cycles, "columns": window.body()["columns"]} | options
        return await self.request("POST", unit_path(unit, "/cycles"), Appended, body, repeatable=again)

    async def fleet(
        self,
        *,
        model: str | None = None,
        state: str | None = None,
        q: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> FleetBody:
        """List one page of units by urgency; `q` filters by part of the name."""
        params = {"model": model, "state": state, "q": q, "limit": limit, "after": after}
        return await self.request("GET", "/v1/units", FleetBody, params=params)

    async def unit(
        self, unit: Unit, *, model: str | None = None, limit: int = 100, before: int | None = None
    ) -> UnitBody:
        """Return a unit's predictions (newest first), readings (oldest first) and outcome."""
        params = {"model": model, "limit": limit, "before": before}
        return await self.request("GET", unit_path(unit), UnitBody, params=params)

    async def outcome(
        self,
        unit: Unit,
        kind: Literal["failed", "removed"],
        cycle: int,
        *,
        model: str | None = None,
        time: datetime | None = None,
        replace: bool = False,
    ) -> OutcomeReply:
        """Report that a unit failed at a cycle, or was removed while it still ran."""
        body = {"kind": kind, "cycle": cycle, "model": model, "time": time, "replace": replace}
        return await self.request("POST", unit_path(unit, "/outcomes"), OutcomeReply, body)

    async def explain(self, unit: Unit, *, model: str | None = None, cycle: int | None = None) -> Prediction:
        """Predict a unit from its stored readings up to a cycle, with a full explanation."""
        params = {"model": model, "cycle": cycle}
        found = await self.request("GET", unit_path(unit, "/explanation"), _Explained, params=params)
        return found.prediction

    async def decision(
        self, unit: Unit, *, planned: float, failure: float, model: str | None = None
    ) -> UnitDecision:
        """Return when to stop a unit, given the costs of a planned stop and of a failure."""
        params = {"model": model, "planned": planned, "failure": failure}
        return await self.request("GET", unit_path(unit, "/decision"), UnitDecision, params=params)

    async def request(
        self,
        method: str,
        path: str,
        kind: type[Result],
        body: Mapping[str, object] | None = None,
        params: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
    ) -> Result:
        """Send an HTTP request; entries of None are omitted."""
        sent = None if body is None else json_of(given_of(body))
        texts = {name: str(value) for name, value in given_of(params or {}).items()}
        call = partial(request, self._http, method, path, sent, texts)
        content = await self._retries.call(call, repeatable=repeatable)
        return self._read(lambda: msgspec.json.decode(content, type=kind))

    async def _typed(
        self, call: Callable[[], Awaitable[Any]], kind: type[Result], *, repeatable: bool = True
    ) -> Result:
        found = await self._retries.call(call, repeatable=repeatable)
        return self._read(lambda: msgspec.convert(found, kind, strict=False))  # cycles are floats by gRPC

    def _read(self, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except (TypeError, ValueError, RecursionError) as error:
            raise RemoteFailed(f"{self.url} is not rulserve, or a newer version: {error}") from error


def _blocking(
    method: Callable[Concatenate[AsyncClient, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Client, Parameters], Result]:
    """Make a synchronous method."""

    @wraps(method)
    def call(self: Client, *given: Parameters.args, **named: Parameters.kwargs) -> Result:
        return self.wait(method(self.asynchronous, *given, **named))

    return call


class Client:
    """`AsyncClient` for code without an event loop: runs its methods on a loop in a thread."""

    def __init__(
        self,
        url: str = LOCAL,
        *,
        api_key: str | None = None,
        tls: Tls = Tls(),  # noqa: B008 frozen
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.asynchronous: Final = AsyncClient(
            url, api_key=api_key, tls=tls, timeout_seconds=timeout_seconds, attempts=attempts
        )
        self._loop: Final = LoopThread(f"the client of {self.asynchronous.url}", self.asynchronous.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run on the loop; an interrupt cancels."""
        return self._loop.wait(work)

    def close(self) -> None:
        """Close the connections and end the thread; calls of other threads end with an error."""
        self._loop.close()

    models = _blocking(AsyncClient.models)
    manifest = _blocking(AsyncClient.manifest)
    predict = _blocking(AsyncClient.predict)
    append = _blocking(AsyncClient.append)
    fleet = _blocking(AsyncClient.fleet)
    unit = _blocking(AsyncClient.unit)
    outcome = _blocking(AsyncClient.outcome)
    explain = _blocking(AsyncClient.explain)
    decision = _blocking(AsyncClient.decision)
