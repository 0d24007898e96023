"""Queries and replies of all transports, in the shape of their JSON.

`msgspec` decodes a body to a `PredictQuery` and encodes a `PredictReply`; gRPC converts the same types from
and to its own messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from model.decision import Costs
from model.domain import FloatArray, IntArray, RulState
from service.core.window import WindowInput
from service.errors import Problem

Numbers = Annotated[FloatArray, Meta(extra_json_schema={"type": "array", "items": {"type": "number"}})]
Integers = Annotated[IntArray, Meta(extra_json_schema={"type": "array", "items": {"type": "integer"}})]
CautionCode = Literal[
    "out_of_range",
    "missing_column",
    "stuck_sensor",
    "truncated_to_context",
    "last_cycle_unknown",
    "last_cycle_beyond_training",
    "short_history",
    "attention_collapsed",
    "attention_uniform",
]


class Caution(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason to read an answer with care: one of its `warnings`."""

    code: CautionCode
    detail: str
    column: str | None = None


CYCLE_UNKNOWN: Final = Caution(
    "last_cycle_unknown",
    "last_cycle is not given: the model does not know the unit's age, cycles count from the first reading",
)


class Explain(StrEnum):
    """How much explanation an answer has; each level includes the one before it."""

    NONE = "none"
    ATTENTION = "attention"
    SENSORS = "sensors"
    FULL = "full"


class Trust(StrEnum):
    """Whether evidence and the effect of hiding rank the cycles alike, and the model has skill."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"


class PredictQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A request for predictions, in the shape that clients send.

    `store`: false keeps the predictions out of the store and the fleet. `costs` of a planned stop and of a
    failure add a `decision` to each prediction.
    """

    windows: list[WindowInput]
    model: str | None = None
    explain: Explain = Explain.ATTENTION
    partial: bool = False
    store: bool = True
    costs: Costs | None = None


class Decision(msgspec.Struct, frozen=True):
    """The planned stop with the lowest expected cost per cycle of this unit's life.

    `act_at_cycle` and `act_in_cycles` are null if running to failure costs least. The fixed interval is the
    age at which stopping every unit of the training fleet costs least; its cost is that of stopping this unit
    at that age, or now if it is older.
    """

    act_at_cycle: int | None
    act_in_cycles: int | None
    cost_per_cycle: float
    run_to_failure_cost_per_cycle: float
    fixed_interval_cost_per_cycle: float
    costs: Costs


class Interval(msgspec.Struct, frozen=True):
    """Interval that holds the true RUL with the probability `coverage`, in cycles."""

    coverage: float
    lower: float
    upper: float


class HealthState(msgspec.Struct, frozen=True):
    """The most probable health state, and the probability of each.

    The label is `unknown` if the readings are unlike the training data (`out_of_distribution`).
    """

    label: str
    probabilities: dict[str, float]


class Attention(msgspec.Struct, frozen=True, eq=False):
    """Weight of each cycle, and its contribution in cycles of RUL.

    `baseline` plus the contributions, plus `window_contribution` if there is one, is the RUL before it
    is cut to 0..cap. `entropy_ratio` is null for a window of one cycle. `evidence` is each cycle's share in
    the sum of the readings' absolute contributions; it sums to 1. Only models that explain readings have it.
    """

    cycles: Integers
    weights: Numbers
    contributions: Numbers
    baseline: float
    entropy_ratio: float | None
    effective_cycles: float
    evidence: Numbers | UnsetType = UNSET
    window_contribution: float | UnsetType = UNSET


Side = Literal["above", "below"]


class Clause(msgspec.Struct, frozen=True):
    """One sensor outside its healthy range, and its effect on the estimate.

    `without` is the answer to the same window with the sensor's readings since `since_cycle` set to the
    middle of their healthy range; `cycles` is the RUL minus `without`.
    """

    column: str
    side: Side
    since_cycle: int
    cycles: float
    without: float
    text: str


class Together(msgspec.Struct, frozen=True):
    """The joint effect of all sensors outside their healthy range, each since its cycle."""

    columns: list[str]
    since_cycles: list[int]
    cycles: float
    without: float
    text: str


class UsualRange(msgspec.Struct, frozen=True, eq=False):
    """The healthy range of a sensor at each cycle, in its unit."""

    lower: Numbers
    upper: Numbers


class Explanation(msgspec.Struct, frozen=True, eq=False):
    """Explanation of an answer, by sensor and cycle and in words.

    `contributions` are cycles of RUL of each reading, from the graph or by occlusion. Each clause of the
    sentence was recomputed. `trust` is `supported` if `agreement` and `skill` reach `needed_agreement` and
    `needed_skill`. Agreement is the rank correlation between the evidence and the effect of hiding each of
    the `judged_cycles` cycles; null if no cycle was judged. Skill is 1 if the model answers the average life
    of its training units exactly, and 0 if it does no better than a constant.
    """

    columns: list[str]
    cycles: Integers
    contributions: dict[str, Numbers]
    usual: dict[str, UsualRange]
    sentence: str
    clauses: list[Clause]
    together: Together | None
    agreement: float | None
    needed_agreement: float
    judged_cycles: int
    skill: float
    needed_skill: float


class Grounds(NamedTuple):
    """Optional parts of an answer; trust and explanation only for `explain` full."""

    sensors: dict[str, float] | UnsetType = UNSET
    trust: Trust | UnsetType = UNSET
    explanation: Explanation | UnsetType = UNSET


NO_GROUNDS: Final = Grounds()


class Prediction(msgspec.Struct, frozen=True):
    """The answer to one window.

    `explain` sensors and full add `sensor_contributions`; full also adds `explanation` and, for models that
    explain readings, `trust`. Costs add a `decision`; it is null if the readings are unlike the training
    data, the history is too short, or the last cycle is unknown or 0.
    """

    unit: str | None
    rul: float
    rul_state: RulState
    interval: Interval
    failure_probability: dict[str, float]
    health_state: HealthState
    imputed_fraction: float
    warnings: list[Caution]
    attention: Attention | UnsetType = UNSET
    sensor_contributions: dict[str, float] | UnsetType = UNSET
    trust: Trust | UnsetType = UNSET
    explanation: Explanation | UnsetType = UNSET
    decision: Decision | UnsetType | None = UNSET


class WindowError(msgspec.Struct, frozen=True):
    """Why one window has no answer."""

    title: str
    detail: str
    errors: list[Problem]


class Refused(msgspec.Struct, frozen=True):
    """A window without an answer, in place of its prediction."""

    unit: str | None
    error: WindowError


class ModelName(msgspec.Struct, frozen=True):
    """The model that answered: name, version and digest."""

    name: str
    version: str
    sha256: str


class PredictReply(msgspec.Struct, frozen=True):
    """One prediction per window, in the order of the request."""

    model: ModelName
    predictions: Sequence[Prediction | Refused]
