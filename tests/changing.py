"""A whole service with shipped bundles in this process; a test changes its models."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from export.bundle import find_bundle
from export.seal import read_bundle
from service.assembly import Parts, build
from service.choices import ProviderChoice
from service.processes.control import WorkerSpec
from service.settings import Settings
from tests.asking import golden_windows
from tests.in_process import SMALL

KEY = "an-admins-key"
WINDOWS = golden_windows(read_bundle(find_bundle("fd001")).golden)
WINDOW = WINDOWS[0]


class Service:
    """A running application and its client."""

    def __init__(self, parts: Parts, client: httpx.AsyncClient) -> None:
        self.parts, self.client = parts, client

    async def change(self, method: str, path: str = "", bundle: object = None, **more: Any) -> httpx.Response:
        """Request a change of the models."""
        body = None if bundle is None else {"bundle": str(bundle), **more}
        return await self.client.request(method, f"/v1/models{path}", json=body)

    async def predict(self, **options: Any) -> Any:
        """Predict the first golden window, of a unit if one is given."""
        window = WINDOW.json() | {key: options.pop(key) for key in ("unit",) if key in options}
        answer = await self.client.post("/v1/predict", json={"windows": [window]} | options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def version(self, **options: Any) -> str:
        """Return the version that answers."""
        return (await self.predict(**options))["model"]["version"]

    def value(self, name: str, **labels: str) -> float | None:
        """Return a sample of the metrics."""
        return self.parts.desk.metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def serving(
    *bundles: str, keys_file: Path | None = None, worker: WorkerSpec | None = None, **settings: Any
) -> AsyncGenerator[Service]:
    """Serve these bundles until the block ends."""
    chosen = Settings.model_construct(
        **{"store": False} | SMALL | settings,
        bundles=bundles,
        provider=ProviderChoice.CPU,
        api_keys=SecretStr(""),
        keys_file="" if keys_file is None else str(keys_file),
    )
    parts = build(chosen, worker=worker or WorkerSpec())
    await parts.become_ready(settle=lambda **_: None)
    transport = httpx.ASGITransport(parts.handle)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"x-api-key": KEY}
    ) as client:
        try:
            yield Service(parts, client)
        finally:
            await parts.stop()
