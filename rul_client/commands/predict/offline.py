"""A bundle in this process, behind the service's own predictor.

Of `rul predict`, only this module runs parts of service.core.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import numpy as np

from export.bundle import find_bundle
from model.decision import Costs
from rul_client.answers import Answerer, Explain, Prediction, Refused, answers_of
from rul_client.readings import Window
from service.core.batcher import MicroBatcher
from service.core.bundles import load_bundle
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain as Level
from service.core.queries import PredictQuery
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.core.window import WindowInput
from service.settings import Settings

BATCHES_PER_REQUEST: Final = 16
"""Batches per request: windows are batched by length, so larger requests need less padding."""


class Unobserved:
    """Any observer of the service's parts; records nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_values, **_named: None


NO_OBSERVER: Final[Any] = Unobserved()


def answerer_of(
    runtime: Runtime, batcher: MicroBatcher, *, max_windows: int, threads: int, costs: Costs | None = None
) -> Answerer:
    """Make an answerer from a graph in this process, with at most this many windows per request."""
    loaded = LoadedModel.of(runtime, batcher, max_window_cycles=runtime.manifest.context)
    predictor = Predictor({loaded.name.name: loaded}, max_request_windows=max_windows)

    async def answer(windows: Sequence[Window], explain: Explain) -> list[Prediction | Refused]:
        # The window's check accepts an array in place of lists.
        given = [WindowInput(w.unit, w.last_cycle, None, w.readings) for w in windows]  # pyrefly: ignore[bad-argument-type]
        query = PredictQuery(given, explain=Level(explain), partial=True, costs=costs)
        reply = await predictor.predict(query)
        return answers_of(msgspec.to_builtins(reply.predictions, enc_hook=np.ndarray.tolist))

    # One request is checked and one is converted while the others keep the threads busy.
    in_flight = 2 + -(-threads // BATCHES_PER_REQUEST)
    return Answerer(loaded.manifest, loaded.name, costs, max_windows, in_flight, answer)


@asynccontextmanager
async def open_offline(bundle: str, *, costs: Costs | None = None) -> AsyncGenerator[Answerer, None]:
    """Load a bundle, by its name or folder, with the settings of this environment."""
    settings = Settings.read()
    runtime = load_bundle(find_bundle(bundle), settings)
    threads, max_windows = settings.threads(), BATCHES_PER_REQUEST * settings.max_batch_windows
    with ThreadPoolExecutor(threads, thread_name_prefix="inference") as executor:
        batcher = MicroBatcher(
            runtime,
            WindowRules.of(runtime.manifest, max_window_cycles=runtime.manifest.context),
            executor=executor,
            threads=threads,
            max_batch_windows=settings.max_batch_windows,
            max_pending_windows=(threads + 2) * max_windows,
            observer=NO_OBSERVER,
        )
        yield answerer_of(runtime, batcher, max_windows=max_windows, threads=threads, costs=costs)
