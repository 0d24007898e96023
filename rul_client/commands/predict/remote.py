"""A model on a server, as `rul predict --url` asks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from export.bundle import Manifest
from model.decision import Costs
from rul_client.address import Credentials
from rul_client.answers import Explain, Model, ModelName, Prediction, Refused
from rul_client.api import AsyncClient
from rul_client.readings import Window, windows_per_request

MAX_IN_FLIGHT: Final = 4


class Remote:
    """An `Answerer` on a server."""

    def __init__(
        self, client: AsyncClient, model: Model, manifest: Manifest, *, store: bool, costs: Costs | None
    ) -> None:
        self._client: Final = client
        self._store: Final = store
        self._asked: Final = None if costs is None else msgspec.to_builtins(costs)
        self.costs = costs
        self.name: ModelName = model
        self.manifest = manifest
        self.windows_per_request = windows_per_request(manifest.context * len(manifest.columns))
        self.max_in_flight = MAX_IN_FLIGHT

    async def answer(self, windows: Sequence[Window], explain: Explain) -> list[Prediction | Refused]:
        """Answer each window, in order."""
        store = None if self._store else False
        _, answers = await self._client.ask(
            windows, model=self.name.name, explain=explain, partial=True, store=store, costs=self._asked
        )
        return answers


@asynccontextmanager
async def open_remote(
    url: str, credentials: Credentials, *, model: str | None, store: bool, costs: Costs | None
) -> AsyncGenerator[Remote, None]:
    """Choose a model of a server: the named one, or the only one."""
    async with AsyncClient(url, api_key=credentials.api_key, tls=credentials.tls) as client:
        chosen = await client.choose(model)
        yield Remote(client, chosen, await client.manifest(chosen.name), store=store, costs=costs)
