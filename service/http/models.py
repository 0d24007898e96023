"""Routes of `/v1/models`: list models, and change them while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

import msgspec

from model.decision import Costs
from model.simulation import json_columns, simulate
from service.core.changes import Action, Bounds, Change, Changed
from service.core.predictor import LoadedModel
from service.core.queries import ModelName
from service.edge.keys import KeyScope
from service.http.problem import read_json
from service.http.shell import JSON, Call, Endpoint, Operation, Parameter, Reply, json_reply
from service.http.units import read_query, whole
from service.labels import Route

LARGEST_SEED: Final = 999_999_999
SEED: Final = {"type": "integer", "minimum": 0, "maximum": LARGEST_SEED}
Folder = Annotated[str, msgspec.Meta(max_length=4096)]
"""Limited like a path on Linux."""
Changer = Callable[[Change], Awaitable[Changed]]


class CandidateBody(msgspec.Struct, frozen=True):
    """A candidate beside a model.

    `returned`: why it stopped answering, such as the bound that a canary has passed; null while it answers.
    """

    kind: Action
    model: ModelName
    share: float
    returned: str | None


class ModelSummary(msgspec.Struct, frozen=True):
    """A loaded model: its version, provider, inputs and answers.

    `columns` maps the name of each column, in order, to its engineering unit. `context`: maximum cycles
    that the model reads. `cap`: a RUL above it is "at least". `horizons`: of failure probabilities, in
    cycles. `costs`: from RUL_COSTS; each prediction then has a decision. `candidate`: its shadow or canary.
    """

    name: str
    version: str
    sha256: str
    provider: str
    columns: dict[str, str]
    context: int
    cap: float
    horizons: list[int]
    costs: Costs | None
    candidate: CandidateBody | None

    @classmethod
    def of(cls, model: LoadedModel) -> ModelSummary:
        """Summarise a loaded model."""
        name, manifest = model.name, model.manifest
        columns = {column.name: column.unit for column in manifest.columns}
        candidate, body = model.candidate, None
        if candidate is not None:
            change, returned = candidate.change, candidate.returned or None
            body = CandidateBody(change.action, candidate.model, change.share, returned)
        read = columns, manifest.context, manifest.cap, manifest.horizons, model.planner.costs
        return cls(name.name, name.version, name.sha256, model.provider, *read, body)


class ModelBody(ModelSummary, frozen=True):
    """A loaded model with its whole manifest."""

    manifest: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


class ModelsBody(msgspec.Struct, frozen=True):
    """Every loaded model; `GET /v1/models/{name}` has its manifest."""

    models: list[ModelSummary]


class BundleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bundle to load: the name of a shipped one, or a folder on the service's machine."""

    bundle: Folder


class ShadowBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidate's bundle, and the share of requests that it gets too."""

    bundle: Folder
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1


class CanaryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidate's bundle, the share of requests that it answers, and the bounds that end the canary.

    `failed`: maximum requests that the candidate may fail to answer. `difference`: maximum mean absolute
    difference from the RUL of the serving model, in cycles. `novel`: maximum share of windows that are out
    of distribution for the candidate only. `windows`: windows to compare before these two bounds apply.
    """

    bundle: Folder
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
    failed: Annotated[int, msgspec.Meta(ge=0)] = Bounds().failed
    difference: Annotated[float, msgspec.Meta(gt=0)] = Bounds().difference
    novel: Annotated[float, msgspec.Meta(ge=0, le=1)] = Bounds().novel
    windows: Annotated[int, msgspec.Meta(ge=1)] = Bounds().windows


class ChangeBody(msgspec.Struct, frozen=True):
    """A completed change: its model, and the names of all loaded models."""

    action: Action
    model: ModelName | None
    models: list[str]


class SimulatedBody(msgspec.Struct, frozen=True):
    """A simulated unit that runs to failure at the last of its `cycles`; null = missing."""

    model: ModelName
    seed: int
    cycles: list[int]
    columns: dict[str, list[float | None]]


CHANGES: Final = (
    (Route.MODELS, Action.LOAD, BundleBody, "Load another model"),
    (Route.MODEL, Action.SWAP, BundleBody, "Swap a model while requests run"),
    (Route.MODEL, Action.UNLOAD, None, "Unload a model"),
    (
        Route.SHADOW,
        Action.SHADOW,
        ShadowBody,
        "Shadow a model: send a candidate the same requests and measure the difference",
    ),
    (Route.SHADOW, Action.UNSHADOW, None, "Stop the shadow"),
    (
        Route.CANARY,
        Action.CANARY,
        CanaryBody,
        "Start a canary: a candidate answers a share of the requests, within bounds",
    ),
    (Route.CANARY, Action.UNCANARY, None, "Stop the canary"),
)
"""Each change: its route, its action, its body (None: DELETE), its summary."""


class ModelsHttp:
    """Lists the models and passes on changes."""

    def __init__(self, change: Changer) -> None:
        self._change: Final = change
        self._changing: Final[set[asyncio.Future[Changed]]] = set()

    def endpoints(self) -> list[Endpoint]:
        """List the endpoints."""
        seed = Parameter("seed", "Seed of the simulation; 0 by default.", SEED)
        simulated = Operation(
            "simulateUnit",
            "A simulated unit of a model, from its first cycle to its failure",
            SimulatedBody,
            (422, 504),
            parameters=(seed,),
        )
        every = Operation("listModels", "Every loaded model", ModelsBody)
        one = Operation("getModel", "One loaded model with its manifest", ModelBody)
        path, predict = Route.SIMULATED.value, KeyScope.PREDICT
        read = [
            Endpoint("GET", "/v1/models", Route.MODELS, self._list, KeyScope.ANY, doc=every),
            Endpoint("GET", "/v1/models/{name}", Route.MODEL, self._show, KeyScope.ANY, doc=one),
            Endpoint("GET", path, Route.SIMULATED, self._simulated, predict, doc=simulated),
        ]
        changes = [
            Endpoint(
                "POST" if body else "DELETE",
                route.value,
                route,
                partial(self._make, action, body),
                KeyScope.ADMIN,
                needs_model=True,
                media_type=JSON,
                doc=Operation(f"{action}Model", summary, ChangeBody, (409, 422), body=body),
            )
            for route, action, body, summary in CHANGES
        ]
        return [*read, *changes]

    async def _list(self, call: Call) -> Reply:
        return json_reply(ModelsBody([ModelSummary.of(m) for m in call.desk.predictor.models.values()]))

    async def _show(self, call: Call) -> Reply:
        model = call.desk.predictor.model(call.path["name"])
        manifest = msgspec.Raw(model.manifest.model_dump_json().encode())
        return json_reply(ModelBody(**msgspec.structs.asdict(ModelSummary.of(model)), manifest=manifest))

    async def _simulated(self, call: Call) -> Reply:
        seed = whole(read_query(call), "seed", most=LARGEST_SEED, least=0) or 0
        model = call.desk.predictor.model(call.path["name"])
        return json_reply(await asyncio.to_thread(simulated_body, model, seed))

    async def _make(
        self, action: Action, kind: type[BundleBody | ShadowBody | CanaryBody] | None, call: Call
    ) -> Reply:
        """Make a change and complete it even if the caller disconnects."""
        bounds = {} if kind is None else msgspec.structs.asdict(read_json(call.body, kind))
        candidate = {name: bounds.pop(name) for name in ("bundle", "share") if name in bounds}
        change = Change(action, call.path.get("name", ""), **candidate, bounds=Bounds(**bounds))
        making = asyncio.ensure_future(self._change(change))
        self._changing.add(making)
        making.add_done_callback(self._ended)
        changed = await asyncio.shield(making)
        return json_reply(ChangeBody(change.action, changed.model, list(changed.bundles)))

    def _ended(self, making: asyncio.Future[Changed]) -> None:
        self._changing.discard(making)
        if not making.cancelled():
            making.exception()  # retrieved here, as a disconnected caller does not


def simulated_body(model: LoadedModel, seed: int) -> SimulatedBody:
    """Simulate the first unit of `rul simulate` with this seed."""
    schema = model.manifest.schema_of_columns
    (unit,) = simulate(model.manifest, schema, units=1, seed=seed)
    return SimulatedBody(model.name, seed, unit.cycles.tolist(), json_columns(unit, schema))
