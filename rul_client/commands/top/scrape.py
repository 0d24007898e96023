"""What a running service says of itself at one moment: its metrics, its models, its most urgent units.

Asked from outside, so that it works for any rulserve, also a newer one: of every answer only what is
needed here is read, and what is not there is shown as not there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from rul_client.http_client import exchanged
from rul_client.remote import ComeBack, RemoteFailed

UNITS_PATH: Final = "/v1/units?limit=10"

Labels = Mapping[str, str]


class Band(msgspec.Struct, frozen=True):
    """Where the attention entropy of a head lay in training."""

    head: str
    low: float
    high: float


class ModelManifest(msgspec.Struct, frozen=True):
    """What is needed of a manifest."""

    entropy: list[Band] = []
    nominal_coverage: float | None = None


class Model(msgspec.Struct, frozen=True):
    """A model that a service has loaded."""

    name: str
    version: str
    provider: str
    manifest: ModelManifest

    @property
    def band(self) -> Band | None:
        """The reference of the entropy over all heads."""
        return next((band for band in self.manifest.entropy if band.head == "mean"), None)


class Bounds(msgspec.Struct, frozen=True):
    """The interval of a prediction, in cycles."""

    lower: float
    upper: float


class Unit(msgspec.Struct, frozen=True):
    """The last prediction of a unit."""

    unit: str
    model: str = ""
    last_cycle: float | None = None
    rul: float | None = None
    rul_state: str = ""
    interval: Bounds | None = None
    health_state: str | dict[str, Any] = ""

    @property
    def health(self) -> str:
        """The health state's name."""
        state = self.health_state
        return state if isinstance(state, str) else str(state.get("label", ""))


class _Models(msgspec.Struct):
    models: list[Model]


class _Units(msgspec.Struct):
    units: list[Unit]


class _Ready(msgspec.Struct):
    status: str = ""
    detail: str = ""


class Samples:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        """Read the Prometheus text format.

        Raises:
            ValueError: it is none.
        """
        self._of: Final[dict[str, list[tuple[Labels, float]]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._of.setdefault(sample.name, []).append((sample.labels, sample.value))

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def total(self, name: str, **labels: str) -> float:
        """The sum of every sample with these labels; 0 where there is none."""
        return sum(value for _, value in self._matching(name, labels))

    def by(self, name: str, *keys: str, **labels: str) -> dict[tuple[str, ...], float]:
        """The sums of what has these labels, by the values of the labels `keys`."""
        sums: dict[tuple[str, ...], float] = {}
        for given, value in self._matching(name, labels):
            key = tuple(given.get(label, "") for label in keys)
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def values(self, name: str, label: str) -> list[str]:
        """The values of a label, in order."""
        return sorted({given[label] for given, _ in self._of.get(name, []) if label in given})

    def _matching(self, name: str, labels: Labels) -> list[tuple[Labels, float]]:
        samples = self._of.get(name, [])
        return [sample for sample in samples if labels.items() <= sample[0].items()] if labels else samples


@dataclass(frozen=True, slots=True)
class Scrape:
    """One moment of a service.

    Attributes:
        url: Where it is.
        at: Seconds on a clock that only moves forward.
        samples: Its metrics.
        ready: What it says of its readiness: `ready`, or why not.
        models: What it has loaded.
        units: The most urgent ones, the most urgent first; None where the service keeps none.
    """

    url: str
    at: float
    samples: Samples
    ready: str
    models: tuple[Model, ...]
    units: tuple[Unit, ...] | None


class Scraper:
    """Asks one service again and again."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client: Final = client
        self._url: Final = url
        self._clock: Final = clock
        self._models: tuple[Model, ...] = ()
        self._known: dict[tuple[str, ...], float] | None = None
        self._keeps_units = True

    async def scrape(self) -> Scrape:
        """The service as it is now.

        Raises:
            RemoteFailed: it cannot be reached, refused, or is no rulserve.
        """
        ready, units = await asyncio.gather(self._ready(), self._units())
        samples = await self._metrics()  # at the end: what is asked here is not what the service is asked
        at = self._clock()
        loaded = samples.by("rul_model_info", "sha256")
        if loaded != self._known:  # manifests are long, and change with their models only
            self._models, self._known = await self._loaded(), loaded
        return Scrape(self._url, at, samples, ready, self._models, units)

    async def _metrics(self) -> Samples:
        content = await self._ask("/metrics")
        try:
            samples = Samples(content.decode())
        except ValueError as error:
            raise self._stranger() from error
        if "rul_inflight_requests" not in samples:
            raise self._stranger()
        return samples

    async def _ready(self) -> str:
        try:
            response = await self._client.get("/readyz")
            said = msgspec.json.decode(response.content, type=_Ready)
        except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
            return "does not say whether it is ready"
        return "ready" if response.is_success else said.detail or "not ready"

    async def _loaded(self) -> tuple[Model, ...]:
        content = await self._ask("/v1/models")
        try:
            return tuple(msgspec.json.decode(content, type=_Models).models)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._stranger() from error

    async def _units(self) -> tuple[Unit, ...] | None:
        """Whoever keeps no units has none to show, for whatever reason: the rest is worth showing."""
        if not self._keeps_units:
            return None
        try:
            response = await self._client.get(UNITS_PATH)
            self._keeps_units = response.status_code != HTTPStatus.NOT_FOUND  # asked again, it counts again
            if not response.is_success:
                return None
            return tuple(msgspec.json.decode(response.content, type=_Units).units)
        except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def _ask(self, path: str) -> bytes:
        try:
            return await exchanged(self._client, self._url, "GET", path)
        except ComeBack as come_back:
            raise come_back.failure from come_back

    def _stranger(self) -> RemoteFailed:
        return RemoteFailed(f"{self._url}: its answer is not one of rulserve; is it the right address?")
