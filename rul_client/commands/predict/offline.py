"""A bundle in this process, behind the service's own predictor. Only this module knows service.core."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
from msgspec import UnsetType

from export.bundle import Manifest, find_bundle
from export.explanation_picture import Explained
from model.domain import FloatArray, Trajectory
from rul_client.answers import Answer, Explain, ModelName, NoAnswer, Window, grounds_of, top_of
from service.core.batcher import MicroBatcher
from service.core.bundles import load_bundle
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain as Level
from service.core.queries import Explanation, Prediction, PredictQuery, Refused, Trust
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.core.window import WindowInput
from service.settings import Settings

BATCHES_PER_REQUEST: Final = 16
"""A request sorts its windows into batches of similar length; larger requests need less padding."""

MOST_LIFE: Final = 400
"""Most answers before an explained one."""


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

    async def explained(self, trajectory: Trajectory) -> Explained:
        """Explain the answer at a unit's last cycle, with the answers at the cycles before it."""
        context, cycles = self.manifest.context, trajectory.cycles.tolist()
        ends = range(max(1, len(cycles) - MOST_LIFE + 1), len(cycles) + 1)
        windows = [
            Window(trajectory.unit, cycles[end - 1], trajectory.readings[max(0, end - context) : end])
            for end in ends
        ]
        life: list[tuple[float, float, float, float]] = []
        for start in range(0, len(windows), self.windows_per_request):
            some = windows[start : start + self.windows_per_request]
            for window, answer in zip(some, await self.answer(some, "attention"), strict=True):
                if isinstance(answer, Answer):
                    life.append((window.last_cycle, answer.rul, answer.lower, answer.upper))
        last = WindowInput(trajectory.unit, windows[-1].last_cycle, None, windows[-1].readings)  # pyright: ignore[reportArgumentType]
        reply = await self._predictor.predict(PredictQuery([last], explain=Level.FULL))
        return explained_of(reply.predictions[0], self.manifest, windows[-1], np.array(life))


def explained_of(
    prediction: Prediction | Refused, manifest: Manifest, window: Window, life: FloatArray
) -> Explained:
    """Take what the picture of an answer shows; `life` is [N, 4], cycle, RUL and its interval."""
    if isinstance(prediction, Refused) or not prediction.explanation or not prediction.attention:
        raise AssertionError("a full explanation was asked for and is missing")
    given, attention, interval = prediction.explanation, prediction.attention, prediction.interval
    names = list(given.columns)
    column = {each.name: each for each in manifest.columns}
    places = [manifest.schema_of_columns.names.index(name) for name in names]
    state = prediction.rul_state.value.replace("_", " ")
    return Explained(
        title=f"{manifest.name}: unit {window.unit} at cycle {window.last_cycle:g}: RUL {prediction.rul:.0f} "
        f"cycles, {state} ({interval.coverage:.0%}: {interval.lower:.0f} to {interval.upper:.0f})",
        sentence=given.sentence,
        trust=trust_words(prediction.trust, given),
        cap=manifest.cap,
        life=life,
        coverage=interval.coverage,
        cycles=np.array(given.cycles),
        names=names,
        units=[column[name].unit for name in names],
        readings=window.readings[-len(given.cycles) :, places],
        lower=np.array([given.usual[name].lower for name in names]).T,
        upper=np.array([given.usual[name].upper for name in names]).T,
        contributions=np.array([given.contributions[name] for name in names]).T,
        ranking=np.array(attention.evidence or attention.weights),
        ranked_by="evidence" if attention.evidence else "attention",
        since={clause.column: clause.since_cycle for clause in given.clauses},
    )


def trust_words(trust: Trust | UnsetType, given: Explanation) -> str:
    """Word the verdict and its figures."""
    said = f"Trust: {trust.value if trust else 'not judged'}. "
    if given.agreement is not None:
        said += (
            f"Evidence agrees with hiding each of {given.judged_cycles} cycles: {given.agreement:.2f} "
            f"({given.needed_agreement:g} needed). "
        )
    return f"{said}Skill in the average life: {given.skill:.2f} ({given.needed_skill:g} needed)."


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
