"""The one place where a question becomes an answer, whatever brought it.

HTTP, gRPC and `rul predict --bundle` all call `Predictor.predict` with a `PredictQuery` and pass a
`PredictReply` on: a feature of one transport alone would be a bug. This module must not know statuses.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol

from msgspec import UNSET, UnsetType

from export.bundle import EntropyReference, Manifest
from model.domain import HEALTH_STATES
from service.core.answers import WindowOutputs, attention_warnings, entropy_reference
from service.core.checking import YIELD_EVERY, Checked
from service.core.deadline import Deadline
from service.core.providers import Placement
from service.core.queries import (
    Attention,
    Explain,
    HealthState,
    Interval,
    ModelName,
    Prediction,
    PredictQuery,
    PredictReply,
    Refused,
)
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.core.window import Window, out_of_range
from service.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Problem,
    TooLarge,
    UnknownModel,
)


class Batcher(Protocol):
    """What answers windows; `service.core.batcher.MicroBatcher` is one."""

    async def submit(self, windows: Sequence[Window]) -> list[WindowOutputs]:
        """The answers to these windows, in their order."""
        ...


class Recorder(Protocol):
    """What keeps answers, to be met with real outcomes; `service.store.recorder.Recorder` is one."""

    def offer(self, model: str, windows: Sequence[Window], outputs: Sequence[WindowOutputs]) -> None:
        """Keep what was answered; never waits and never fails."""
        ...


class StageTimer(Protocol):
    """What counts the seconds of a stage."""

    def observe(self, value: float) -> None:
        """Count one value."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model that is ready to answer."""

    manifest: Manifest
    provider: str
    placement: Placement
    batcher: Batcher
    rules: WindowRules
    name: ModelName
    horizons: tuple[str, ...]
    sensors: tuple[int, ...]
    band: EntropyReference | None

    @classmethod
    def of(cls, runtime: Runtime, batcher: Batcher, *, max_window_cycles: int) -> LoadedModel:
        """What `Predictor` needs of a model, worked out once."""
        manifest = runtime.manifest
        return cls(
            manifest,
            runtime.provider,
            runtime.placement,
            batcher,
            WindowRules.of(manifest, max_window_cycles=max_window_cycles),
            ModelName(manifest.name, manifest.version, runtime.sha256),
            tuple(map(str, manifest.horizons)),
            manifest.schema_of_columns.indices("sensor"),
            entropy_reference(manifest),
        )


class Predictor:
    """Checks, asks the batcher, and words the answer."""

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        *,
        max_request_windows: int,
        explain_timer: StageTimer,
        recorder: Recorder | None = None,
    ) -> None:
        self.models: Final = dict(models)
        self._only: Final = next(iter(models.values())) if len(models) == 1 else None
        self._max_windows: Final = max_request_windows
        self._explain_timer: Final = explain_timer
        self._recorder: Final = recorder

    def model(self, name: str | None) -> LoadedModel:
        """The model of this name, or the only one there is.

        Raises:
            UnknownModel: no such model is loaded.
            InvalidRequest: none was named, and there is more than one.
        """
        found = self._only if name is None else self.models.get(name)
        if found is not None:
            return found
        loaded = ", ".join(sorted(self.models)) or "none"
        if name is not None:
            raise UnknownModel(f"no model {name[:64]!r} is loaded, only {loaded}")
        detail = f"expected the name of a model ({loaded}), got none"
        raise InvalidRequest(detail, [Problem("/model", "missing", detail)])

    async def predict(
        self,
        query: PredictQuery,
        *,
        deadline: Deadline | None = None,
        typed: bool = False,
        consume: bool = False,
    ) -> PredictReply:
        """Answer every window of a query.

        Args:
            query: What was asked.
            deadline: How long the answer may take; None: as long as it needs.
            typed: True where a decoder has seen to it that every reading is a number or None.
            consume: True lets go of each window's readings once they are checked. While a request
                waits they would be some thirty bytes a reading for nothing, and the next request would
                be decoded into cold memory: a fifth of the CPU time of a request under load.

        Raises:
            UnknownModel: the model is not loaded.
            InvalidRequest: no model was named and several are loaded, or there is no window.
            TooLarge: more windows than a request may have.
            InvalidWindows: windows cannot be read, and `partial` is not set.
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
            DeadlineExceeded: the time has passed.
        """
        model = self.model(query.model)
        self._check_size(query)
        deadline = deadline or Deadline(None)
        checked = Checked(query, model.rules, typed=typed, consume=consume)
        sensors: list[dict[str, float]] = []
        try:
            with deadline:
                for start in range(YIELD_EVERY, len(query.windows), YIELD_EVERY):
                    await asyncio.sleep(0)
                    checked.check(start)
                checked.conclude()
                windows = checked.windows
                outputs = await model.batcher.submit(windows) if windows else []
                if query.explain is Explain.FULL:
                    sensors = [await _occlusion(model, w, o) for w, o in zip(windows, outputs, strict=True)]
        except TimeoutError:
            raise DeadlineExceeded(
                f"{len(query.windows)} windows were not answered within {deadline.seconds:g} s"
            ) from None
        if self._recorder is not None:
            self._recorder.offer(model.name.name, windows, outputs)
        start = perf_counter()
        predictions: list[Prediction | Refused] = []
        for i, window in enumerate(windows):
            hidden = sensors[i] if sensors else UNSET
            predictions.append(prediction(window, outputs[i], hidden, model=model, explain=query.explain))
        self._explain_timer.observe(perf_counter() - start)
        return PredictReply(model.name, checked.in_place(predictions))

    async def answer(
        self, model: LoadedModel, window: Window, *, explain: Explain, deadline: Deadline
    ) -> Prediction:
        """Answer one checked window, for a transport that keeps windows; raises what `outputs` does."""
        windows = [window]
        try:
            with deadline:
                outputs = await model.batcher.submit(windows)
                hidden = await _occlusion(model, window, outputs[0]) if explain is Explain.FULL else UNSET
        except TimeoutError:
            raise DeadlineExceeded(f"the window was not answered within {deadline.seconds:g} s") from None
        if self._recorder is not None:
            self._recorder.offer(model.name.name, windows, outputs)
        start = perf_counter()
        worded = prediction(window, outputs[0], hidden, model=model, explain=explain)
        self._explain_timer.observe(perf_counter() - start)
        return worded

    async def outputs(
        self, model: LoadedModel, windows: Sequence[Window], *, deadline: Deadline
    ) -> list[WindowOutputs]:
        """The answers to checked windows, for a protocol that words them itself.

        Raises:
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
            DeadlineExceeded: the time has passed.
        """
        try:
            with deadline:
                return await model.batcher.submit(windows)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{len(windows)} windows were not answered within {deadline.seconds:g} s"
            ) from None

    def check_count(self, windows: int) -> None:
        """Refuse a request of too many windows before any of them is looked at.

        Raises:
            TooLarge: more windows than a request may have.
        """
        if windows > self._max_windows:
            raise TooLarge(f"at most {self._max_windows} windows a request, got {windows}")

    def _check_size(self, query: PredictQuery) -> None:
        if not query.windows:
            detail = "expected at least one window, got none"
            raise InvalidRequest(detail, [Problem("/windows", "empty", detail)])
        self.check_count(len(query.windows))


async def _occlusion(model: LoadedModel, window: Window, outputs: WindowOutputs) -> dict[str, float]:
    """What each sensor adds to the RUL, in cycles: the answer with it less the answer without it.

    Answers before they are cut to 0..cap, or a sensor would seem to say nothing at the cap. Settings
    are left in: without them the model would assume another regime, which is not what is asked.
    """
    hidden = await model.batcher.submit([window.without(column) for column in model.sensors])
    with_it = outputs.contribution_sum
    return {
        model.rules.names[column]: with_it - without.contribution_sum
        for column, without in zip(model.sensors, hidden, strict=True)
    }


def prediction(
    window: Window,
    outputs: WindowOutputs,
    sensor_contributions: dict[str, float] | UnsetType = UNSET,
    *,
    model: LoadedModel,
    explain: Explain,
) -> Prediction:
    """Word one window's answer."""
    answers, row = outputs.answers, outputs.row
    lower, upper = answers.interval[row]
    return Prediction(
        window.unit,
        answers.rul[row],
        answers.states[row],
        Interval(model.manifest.nominal_coverage, lower, upper),
        dict(zip(model.horizons, answers.failure_probability[row], strict=True)),
        HealthState(
            HEALTH_STATES[answers.health_label[row]],
            dict(zip(HEALTH_STATES, answers.health_state[row], strict=True)),
        ),
        window.imputed_fraction,
        [
            *(out_of_range(window, model.rules) if answers.out_of_range[row] else ()),
            *window.warnings,
            *attention_warnings(answers.entropy[row], model.band),
        ],
        UNSET if explain is Explain.NONE else _attention(window, outputs, model.manifest.baseline),
        sensor_contributions,
    )


def _attention(window: Window, outputs: WindowOutputs, baseline: float) -> Attention:
    answers, row, cycles = outputs.answers, outputs.row, len(window)
    ratio = answers.entropy[row]
    return Attention(
        list(range(window.first_cycle, window.first_cycle + cycles)),
        answers.attention[row][:cycles],
        answers.contribution[row][:cycles],
        baseline,
        None if math.isnan(ratio) else ratio,
        answers.effective[row],
    )
