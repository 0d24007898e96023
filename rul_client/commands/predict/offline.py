"""A bundle in this process, behind the service's own predictor. Only this module knows service.core."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

from export.bundle import find_bundle
from rul_client.answers import Answer, Explain, ModelName, NoAnswer, Window, grounds_of, top_of
from service.core.batcher import MicroBatcher
from service.core.bundles import load_bundle
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain as Level
from service.core.queries import Prediction, PredictQuery, Refused
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.core.window import WindowInput
from service.settings import Settings

BATCHES_PER_REQUEST: Final = 16
"""A request sorts its windows into batches of similar length; larger requests need less padding."""


class Unobserved:
    """Any observer of the service's parts; records nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_values, **_named: None


NO_OBSERVER: Final[Any] = Unobserved()


class Offline:
    """An `Answerer` in this process."""

    def __init__(self, runtime: Runtime, batcher: MicroBatcher, *, max_windows: int, threads: int) -> None:
        loaded = LoadedModel.of(runtime, batcher, max_window_cycles=runtime.manifest.context)
        self._predictor: Final = Predictor({loaded.name.name: loaded}, max_request_windows=max_windows)
        self.manifest = loaded.manifest
        self.name = ModelName(loaded.name.name, loaded.name.version, loaded.name.sha256)
        self.windows_per_request = max_windows
        # One request is checked and one is converted while the others keep the threads busy.
        self.max_in_flight = 2 + -(-threads // BATCHES_PER_REQUEST)

    async def answer(self, windows: Sequence[Window], explain: Explain) -> list[Answer | NoAnswer]:
        """Answer each window, in order."""
        # The window's check accepts an array in place of lists.
        given = [WindowInput(w.unit, w.last_cycle, None, w.readings) for w in windows]  # pyright: ignore[reportArgumentType]
        reply = await self._predictor.predict(PredictQuery(given, explain=Level(explain), partial=True))
        return [answer_of(prediction) for prediction in reply.predictions]


def answer_of(prediction: Prediction | Refused) -> Answer | NoAnswer:
    """Take what an `Answer` holds."""
    if isinstance(prediction, Refused):
        error = prediction.error
        return NoAnswer(error.errors[0].detail if error.errors else error.detail)
    interval, attention = prediction.interval, prediction.attention
    if not attention:
        raise AssertionError("attention was asked for and is missing")
    trust = prediction.trust.value if prediction.trust else None
    grounds = grounds_of(
        prediction.sensor_contributions or {}, trust, prediction.failure_probability.values()
    )
    return Answer(
        prediction.rul, prediction.rul_state.value, interval.lower, interval.upper,
        prediction.health_state.label, attention.entropy_ratio,
        top_of(attention.evidence or attention.weights), grounds,
    )  # fmt: skip


@asynccontextmanager
async def open_offline(bundle: str) -> AsyncGenerator[Offline, None]:
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
        yield Offline(runtime, batcher, max_windows=max_windows, threads=threads)
