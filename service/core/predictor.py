"""Answers queries, for every transport.

HTTP, gRPC and `rul predict --bundle` call `Predictor.predict`, streams and stored units call
`Predictor.answer`, and the Open Inference Protocol, which returns tensors, uses the same batchers. This
module must not know statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol, TypeVar, cast

import msgspec

from export.bundle import Manifest
from model.decision import Costs
from service.core.answers import prediction
from service.core.changes import Candidate
from service.core.decisions import Planner
from service.core.explanations import Explainer
from service.core.ports import Batcher, Recorder, Stages
from service.core.providers import Placement
from service.core.queries import (
    NO_GROUNDS,
    Decision,
    Explain,
    Grounds,
    ModelName,
    Prediction,
    PredictQuery,
    PredictReply,
    Refused,
    WindowError,
)
from service.core.rules import WindowRules
from service.core.runtime import Runtime
from service.core.turns import Turns
from service.core.window import LaidOut, WindowInput, Windows, join, lay_out
from service.errors import (
    LONGEST_NAME,
    MAX_PROBLEMS,
    STATUS,
    InvalidRequest,
    InvalidWindow,
    InvalidWindows,
    Problem,
    RuntimeFailed,
    TooLarge,
    UnknownModel,
    listed,
)
from service.labels import Stage

Answered = TypeVar("Answered")

BY_SENSORS: Final = frozenset({Explain.SENSORS, Explain.FULL})
"""Levels that include contributions of sensors."""

YIELD_EVERY: Final = 16
"""Windows to lay out before other requests get the loop."""


class Canary(Protocol):
    """A candidate that answers a share of the requests; `service.core.candidates.Canary` is one."""

    model: LoadedModel

    def takes(self, unit: str | None) -> bool:
        """Whether the candidate answers a request of this unit."""
        ...

    def failed(self) -> None:
        """Count a request that the candidate did not answer."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadedModel:
    """A model that is ready to answer.

    Attributes:
        candidate: The candidate beside it, if any.
        canary: The candidate, if it answers a share of the requests.
    """

    manifest: Manifest
    provider: str
    placement: Placement
    batcher: Batcher
    rules: WindowRules
    name: ModelName
    explainer: Explainer
    planner: Planner
    candidate: Candidate | None = None
    canary: Canary | None = None

    @classmethod
    def of(
        cls, runtime: Runtime, batcher: Batcher, *, max_window_cycles: int, costs: Costs | None = None
    ) -> LoadedModel:
        """Make a model ready for `Predictor`; `costs` are the default of requests without costs."""
        manifest = runtime.manifest
        rules = WindowRules.of(manifest, max_window_cycles=max_window_cycles)
        return cls(
            manifest,
            runtime.provider,
            runtime.placement,
            batcher,
            rules,
            ModelName(manifest.name, manifest.version, runtime.sha256),
            Explainer(manifest, rules, batcher),
            Planner(manifest, costs),
        )

    def routed(
        self, unit: str | None, ask: Callable[[LoadedModel], Awaitable[Answered]]
    ) -> Awaitable[Answered]:
        """Answer with this model, or with its canary if that takes the unit and does not fail."""
        if self.canary is None or not self.canary.takes(unit):
            return ask(self)
        return self._by_canary(self.canary, ask)

    async def _by_canary(self, canary: Canary, ask: Callable[[LoadedModel], Awaitable[Answered]]) -> Answered:
        try:
            return await ask(canary.model)
        except RuntimeFailed:
            canary.failed()
        return await ask(self)


class Predictor:
    """Checks windows, submits them to the batcher, and makes the reply."""

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        *,
        max_request_windows: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.models: Final = dict(models)
        self._only = next(iter(models.values())) if len(models) == 1 else None
        self.max_request_windows: Final = max_request_windows
        self._recorder: Final = recorder

    def serve(self, models: Mapping[str, LoadedModel]) -> None:
        """Answer with these models from now on; requests in flight end with their old model."""
        self.models.clear()
        self.models.update(models)
        self._only = next(iter(models.values())) if len(models) == 1 else None

    def model(self, name: str | None) -> LoadedModel:
        """Return the model of this name, or the only one.

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
        model: LoadedModel | None = None,
        parts: Sequence[LaidOut] | None = None,
        stages: Stages | None = None,
        tenant: str = "",
    ) -> PredictReply:
        """Answer every window of a query; release the query's windows once they are laid out.

        Args:
            query: The request.
            model: The model that `parts` are laid out for, which may have been swapped meanwhile.
            parts: Its windows, if they are laid out already.
            stages: Gets the stage of making the predictions.
            tenant: The owner of the units.

        Raises:
            UnknownModel: the model is not loaded.
            InvalidRequest: no model was named and several are loaded, or there is no window.
            TooLarge: more windows than a request may have.
            InvalidWindows: windows cannot be read, and `partial` is not set.
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
        """
        model, count = model or self.model(query.model), len(query.windows)
        if not count:
            detail = "expected at least one window, got none"
            raise InvalidRequest(detail, [Problem("/windows", "empty", detail)])
        self.check_count(count)
        if parts is None:
            parts = await _laid_out(query.windows, model.rules)
        windows, problems = join(query.windows, parts, model.rules)
        units = [window.name for window in query.windows] if problems else []
        if problems and not query.partial:
            raise _invalid(problems, count)
        query.windows = []  # or a waiting request would keep thirty bytes per reading
        name, answered = model.name, list[Prediction]()
        if windows is not None:
            name, answered = await model.routed(
                windows.units[0],
                lambda asked: self.answer(
                    asked, windows, query.explain, stages, tenant, store=query.store, costs=query.costs
                ),
            )
        if not problems:
            return PredictReply(name, answered)
        in_order, placed = iter(answered), enumerate(units)
        every = [_refused(unit, i, problems[i]) if i in problems else next(in_order) for i, unit in placed]
        return PredictReply(name, every)

    async def answer(
        self,
        model: LoadedModel,
        windows: Windows,
        explain: Explain,
        stages: Stages | None = None,
        tenant: str = "",
        *,
        store: bool = True,
        costs: Costs | None = None,
    ) -> tuple[ModelName, list[Prediction]]:
        """Answer checked windows in order; return the model's name too. Without `store`, keep no prediction.

        Raises:
            Overloaded, NotReady, RuntimeFailed: as the batcher says.
        """
        if tenant:
            windows = msgspec.structs.replace(windows, owner=tenant)
        pieces = await model.batcher.submit(windows)
        grounds: dict[int, Grounds] = {}
        if explain in BY_SENSORS:
            grounds = await model.explainer.grounds(windows, pieces, judge=explain is Explain.FULL)
        decisions: dict[int, Decision | None] = {}
        if (costs := costs or model.planner.costs) is not None:
            decisions = await model.planner.of_pieces(windows, pieces, costs)
        start = perf_counter()
        answered: list[Prediction | None] = [None] * len(windows.lengths)
        for piece in pieces:
            for row, i in enumerate(piece.places, piece.first):
                of_window, decision = grounds.get(i, NO_GROUNDS), decisions.get(i, msgspec.UNSET)
                answered[i] = prediction(
                    piece, row, windows, i, explain=explain, grounds=of_window, decision=decision
                )
        worded = cast("list[Prediction]", answered)
        if stages is not None:
            stages.append((Stage.EXPLAIN, start, perf_counter()))
        if store and self._recorder is not None:
            self._recorder.offer(model.name, windows, worded, pieces, tenant=tenant)
        return model.name, worded

    def check_count(self, windows: int) -> None:
        """Refuse a request of too many windows before any of them is read.

        Raises:
            TooLarge: more windows than a request may have.
        """
        if windows > self.max_request_windows:
            raise TooLarge(f"at most {self.max_request_windows} windows a request, got {windows}")


async def _laid_out(given: Sequence[WindowInput], rules: WindowRules) -> list[LaidOut]:
    """Lay out the windows of a query."""
    parts: list[LaidOut] = []
    left, turns = MAX_PROBLEMS + 1, Turns() if len(given) > YIELD_EVERY else None
    for window in given:
        if turns is not None and len(parts) % YIELD_EVERY == 0:
            await turns.give()
        parts.append(lay_out(window, rules, most=max(1, left)))
        left -= len(parts[-1].problems)
    return parts


def _invalid(problems: Mapping[int, Sequence[Problem]], windows: int) -> InvalidWindows:
    in_order = [p.below(f"/windows/{i}") for i in sorted(problems) for p in problems[i]]
    worst = in_order[0]
    return InvalidWindows(
        f"{len(problems)} of {windows} windows cannot be read; {worst.pointer}: {worst.detail}", in_order
    )


def _refused(unit: str | None, i: int, problems: Sequence[Problem]) -> Refused:
    """The error of one window, in place of its prediction."""
    placed = [p.below(f"/windows/{i}") for p in problems]
    detail = "; ".join(f"{p.pointer}: {p.detail}" for p in placed[:3])
    return Refused(
        unit and unit[:LONGEST_NAME], WindowError(STATUS[InvalidWindow].title, detail, listed(placed))
    )
