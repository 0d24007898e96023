"""What a service says of itself at one moment: metrics, readiness, models, most urgent units."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from rul_client.address import in_path
from rul_client.errors import RemoteFailed
from rul_client.http import exchange, request

UNITS_PATH: Final = "/v1/units?limit=10"
UNCOUNTED: Final = frozenset(
    {
        "/livez", "/readyz", "/metrics", "/v1/models", "/v1/models/{name}", "/v1/units",
        "/v2/health/live", "/v2/health/ready", "/v2/models/{name}/ready", "inference.GRPCInferenceService",
        "rul.v1.RulService/PredictStream",
    }
)  # fmt: skip
"""Routes of probes, of `rul top` itself, and of streams: their readings are counted one by one."""

NO_UNITS: Final = frozenset({httpx.codes.NOT_FOUND, httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN})
"""Statuses after which units are not asked for again: none are kept, or the key may not see them."""

Sample = tuple[str, frozenset[tuple[str, str]]]


class Samples:
    """Metrics of one moment, or their growth between two."""

    def __init__(self, values: Iterable[tuple[Sample, float]]) -> None:
        self._values: Final = dict(values)
        self._named: Final[dict[str, list[tuple[dict[str, str], float]]]] = {}
        for (name, labels), value in self._values.items():
            self._named.setdefault(name, []).append((dict(labels), value))

    @classmethod
    def parse(cls, text: str) -> Samples:
        """Read the Prometheus text format, without uncounted routes; ValueError if it is something else."""
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        counted = (s for s in samples if s.labels.get("route") not in UNCOUNTED)
        return cls(((s.name, frozenset(s.labels.items())), s.value) for s in counted)

    def since(self, before: Samples) -> Samples:
        """Return each counter's growth."""
        return Samples((key, growth(before._values.get(key, 0.0), now)) for key, now in self._values.items())

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Sum the samples that have these labels, for each value of `label`."""
        sums: dict[str, float] = {}
        for given, value in self._named.get(name, []):
            if labels.items() <= given.items():
                key = given.get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def total(self, name: str, **labels: str) -> float:
        """Sum the samples that have these labels."""
        return sum(self.by("", name, **labels).values())

    def mean(self, name: str, **labels: str) -> float:
        """Mean of a histogram; NaN if it is empty."""
        count = self.total(f"{name}_count", **labels)
        return self.total(f"{name}_sum", **labels) / count if count else math.nan

    def quantile(self, q: float, name: str, **labels: str) -> float:
        """Quantile of a histogram as Prometheus computes it; NaN if it is empty."""
        buckets = self.by("le", f"{name}_bucket", **labels)
        rank = q * buckets.get("+Inf", 0.0)
        low, below = 0.0, 0.0
        for bound, count in sorted((float(le), count) for le, count in buckets.items()):
            if count >= rank > 0:
                return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
            low, below = bound, count
        return math.nan


def growth(before: float, now: float) -> float:
    """Return a counter's growth; a restarted one counts from 0."""
    # A value a little smaller comes from a worker that does not have the latest counts of the others.
    return now - before if now >= before else now if now < before / 2 else 0.0


class Scrape(NamedTuple):
    """One moment of a service; `units` is None if the service keeps none or does not show them."""

    url: str
    at: float
    samples: Samples
    ready: str
    models: list[dict[str, Any]]
    units: list[dict[str, Any]] | None


class Scraper:
    """Reads one service again and again; manifests only when its models change."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client: Final = client
        self._url: Final = url
        self._clock: Final = clock
        self._models: list[dict[str, Any]] = []
        self._loaded: dict[str, float] | None = None
        self._has_units = True

    async def scrape(self) -> Scrape:
        """Read the service as it is now."""
        ready, units = await asyncio.gather(self._get("/readyz"), self._units())
        try:
            samples = Samples.parse((await request(self._client, "GET", "/metrics")).decode())
            loaded = samples.by("sha256", "rul_model_info")
            if loaded != self._loaded:
                names = [model["name"] for model in (await self._decoded("/v1/models"))["models"]]
                self._models = [await self._decoded(f"/v1/models/{in_path(name)}") for name in names]
                self._loaded = loaded
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise RemoteFailed(f"{self._url} is not rulserve, or a newer version: {error}") from error
        said = "ready" if ready.get("status") == "ready" else str(ready.get("detail", "readiness unknown"))
        return Scrape(self._url, self._clock(), samples, said, self._models, units)

    async def _decoded(self, path: str) -> Any:  # noqa: ANN401 JSON
        return msgspec.json.decode(await request(self._client, "GET", path))

    async def _get(self, path: str) -> dict[str, Any]:
        """Fetch a path; empty if it cannot be read, so that the rest is shown."""
        try:
            response = await exchange(self._client, "GET", path)
            return msgspec.json.decode(response.content, type=dict[str, Any])
        except (RemoteFailed, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}

    async def _units(self) -> list[dict[str, Any]] | None:
        found = await self._get(UNITS_PATH) if self._has_units else {}
        self._has_units = self._has_units and found.get("status") not in NO_UNITS
        return found.get("units")
