"""A model on a server, for `rul predict --url`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from model.decision import Costs
from rul_client.address import Credentials
from rul_client.answers import Answerer, Explain, Prediction, Refused
from rul_client.api import AsyncClient
from rul_client.readings import Window, windows_per_request

MAX_IN_FLIGHT: Final = 4


@asynccontextmanager
async def open_remote(
    url: str, credentials: Credentials, *, model: str | None, store: bool, costs: Costs | None
) -> AsyncGenerator[Answerer, None]:
    """Choose a model of a server: the named one, or the only one."""
    async with AsyncClient(url, api_key=credentials.api_key, tls=credentials.tls) as client:
        chosen = await client.choose(model)
        manifest = await client.manifest(chosen.name)
        options = {
            "model": chosen.name,
            "partial": True,
            "store": None if store else False,
            "costs": None if costs is None else msgspec.to_builtins(costs),
        }

        others: set[str] = set()

        async def answer(windows: Sequence[Window], explain: Explain) -> list[Prediction | Refused]:
            name, answers = await client.ask(windows, explain=explain, **options)
            if name.version != chosen.version:
                others.add(name.version)
            return answers

        most = windows_per_request(manifest.context * len(manifest.columns))
        yield Answerer(manifest, chosen, costs, most, MAX_IN_FLIGHT, answer, others)
