"""A service without a server: a bundle, opened here, asked through the service's own predictor.

What answers `rul predict --bundle` is what answers HTTP and gRPC: `Predictor`, `MicroBatcher` and
`OnnxRuntime`, put together without a transport. There is no second way to an answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

from export.bundle import BundleFolder, Golden, Manifest
from rul_client.commands.predict.asking import Answer, NoAnswer, reason, top_of
from service.core.batcher import MicroBatcher
from service.core.ports import BatchReport
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import ModelName, Prediction, PredictQuery, Refused
from service.core.rules import WindowRules
from service.core.runtime import OnnxRuntime, Runtime, replay_golden
from service.core.window import WindowInput
from service.settings import Settings

BATCHES_A_REQUEST: Final = 16
"""A request sorts its windows into batches of like length: the more it holds, the less is padding."""


class Unobserved:
    """Watches a batcher and counts nothing: no Prometheus scrapes this process."""

    def ran(self, batch: BatchReport) -> None:
        """Nothing."""

    def cancelled(self, windows: int) -> None:
        """Nothing."""


class Offline:
    """Answers in this process."""

    def __init__(self, runtime: Runtime, batcher: MicroBatcher, *, at_once: int, threads: int) -> None:
        loaded = LoadedModel.of(runtime, batcher, max_window_cycles=runtime.manifest.context)
        self._predictor: Final = Predictor({loaded.name.name: loaded}, max_request_windows=at_once)
        self.manifest: Final[Manifest] = loaded.manifest
        self.name: Final[ModelName] = loaded.name
        self.at_once: Final = at_once
        # One is checked and one is worded while the others keep the threads busy.
        self.in_flight: Final = 2 + -(-threads // BATCHES_A_REQUEST)

    async def answer(self, windows: Sequence[WindowInput]) -> list[Answer | NoAnswer]:
        """One answer a window, in order.

        Raises:
            RuntimeFailed: inference failed.
        """
        reply = await self._predictor.predict(PredictQuery(list(windows), partial=True))
        return [answer_of(prediction) for prediction in reply.predictions]


def answer_of(prediction: Prediction | Refused) -> Answer | NoAnswer:
    """What the table needs of one window's reply."""
    if isinstance(prediction, Refused):
        return NoAnswer(reason(prediction.error))
    interval, attention = prediction.interval, prediction.attention
    if not attention:
        raise AssertionError("attention was asked for and is not there")
    return Answer(
        prediction.rul,
        prediction.rul_state.value,
        interval.lower,
        interval.upper,
        prediction.health_state.label,
        attention.entropy_ratio,
        top_of(attention.weights),
    )


@asynccontextmanager
async def open_offline(folder: BundleFolder, settings: Settings) -> AsyncGenerator[Offline, None]:
    """Open a bundle and hold it ready, on every core that the settings allow.

    Raises:
        InvalidBundle: the bundle is damaged, or answers its golden windows otherwise here.
    """
    runtime = OnnxRuntime.load(
        folder, provider=settings.provider, max_batch_windows=settings.max_batch_windows
    )
    replay_golden(runtime, Golden.load(folder.golden))
    threads, at_once = settings.threads(), BATCHES_A_REQUEST * settings.max_batch_windows
    with ThreadPoolExecutor(threads, thread_name_prefix="inference") as executor:
        batcher = MicroBatcher(
            runtime,
            WindowRules.of(runtime.manifest, max_window_cycles=runtime.manifest.context),
            executor=executor,
            threads=threads,
            max_batch_windows=settings.max_batch_windows,
            max_pending_windows=(threads + 2) * at_once,
            observer=Unobserved(),
        )
        yield Offline(runtime, batcher, at_once=at_once, threads=threads)
