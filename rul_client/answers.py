"""Typed answers of a service, for all clients.

A reader is tolerant: fields, codes and states of a later version are no error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, Literal

import msgspec

from export.bundle import Manifest
from model.cells import plain_number
from model.decision import Costs
from model.domain import RulState
from rul_client.errors import RemoteFailed
from rul_client.readings import Window
from service.core.queries import Clause, Decision, HealthState, Interval, ModelName, Together, WindowError

Explain = Literal["none", "attention", "sensors", "full"]
"""How much explanation an answer has; see `service.core.queries.Explain`."""
DOUBTFUL: Final = (RulState.INSUFFICIENT_HISTORY, RulState.OUT_OF_DISTRIBUTION)
"""RUL states of answers that nobody should act on."""


class Candidate(msgspec.Struct, frozen=True):
    """A shadow or canary beside a model; `returned`: why it stopped answering, such as a passed bound."""

    kind: str
    model: ModelName
    share: float
    returned: str | None = None


class Model(ModelName, frozen=True):
    """A loaded model, and the ONNX Runtime provider that serves it; by gRPC without its candidate."""

    provider: str
    candidate: Candidate | None = None


class Change(msgspec.Struct, frozen=True):
    """A change of models: what was done, with which model, and the models that serve now."""

    action: str
    model: ModelName
    models: list[str]


class Warned(msgspec.Struct, frozen=True):
    """A reason to read an answer with care."""

    code: str
    detail: str
    column: str | None = None


class Attention(msgspec.Struct, frozen=True):
    """Weights and contributions of each cycle; see `service.core.queries.Attention`.

    Models that do not explain readings leave `evidence` empty.
    """

    cycles: list[float]
    weights: list[float]
    contributions: list[float]
    baseline: float
    effective_cycles: float
    entropy_ratio: float | None = None
    evidence: list[float] = []
    window_contribution: float | None = None


class UsualRange(msgspec.Struct, frozen=True):
    """The healthy range of a sensor at each cycle, in its unit."""

    lower: list[float]
    upper: list[float]


class Explanation(msgspec.Struct, frozen=True):
    """Explanation of an answer, by sensor and cycle and in words; see `service.core.queries.Explanation`."""

    columns: list[str]
    cycles: list[int]
    contributions: dict[str, list[float]]
    usual: dict[str, UsualRange]
    sentence: str
    clauses: list[Clause]
    together: Together | None
    agreement: float | None
    needed_agreement: float
    judged_cycles: int
    skill: float
    needed_skill: float


class Prediction(msgspec.Struct, frozen=True):
    """The answer to one window; RUL and contributions are in cycles."""

    rul: float
    rul_state: str
    interval: Interval
    failure_probability: dict[str, float]
    health_state: HealthState
    imputed_fraction: float
    unit: str | None = None
    warnings: list[Warned] = []
    attention: Attention | None = None
    sensor_contributions: dict[str, float] = {}
    trust: str | None = None
    explanation: Explanation | None = None
    decision: Decision | None = None

    @property
    def cycles_left(self) -> str:
        """The RUL in words; "at least" at the cap, or if it is the upper bound of its interval."""
        capped = self.rul_state == RulState.AT_LEAST_CAP or self.rul >= self.interval.upper > 0
        return f"at least {self.rul:g}" if capped else f"{self.rul:.1f}"

    def __str__(self) -> str:
        between = f"{self.interval.lower:.1f} to {self.interval.upper:.1f}"
        named = f"unit {self.unit}: " if self.unit else ""
        doubts = [self.rul_state.replace("_", " ")] if self.rul_state in DOUBTFUL else []
        codes = dict.fromkeys(warning.code for warning in self.warnings)
        state = ", ".join([self.health_state.label, *doubts, *codes])
        return f"{named}{self.cycles_left} cycles left ({between}), {state}"

    def row(self) -> dict[str, Any]:
        """Return the columns of `rul predict` that follow from the answer."""
        return {
            "unit": self.unit,
            "rul": self.rul,
            "rul_state": self.rul_state,
            "rul_lower": self.interval.lower,
            "rul_upper": self.interval.upper,
            "health_state": self.health_state.label,
            **{f"failure_within_{cycles}": p for cycles, p in self.failure_probability.items()},
            "trust": self.trust,
            "warnings": ", ".join(warning.code for warning in self.warnings),
        }

    def _repr_html_(self) -> str:
        why = self.explanation.sentence if self.explanation else ""
        return f"{html_table([self.row()])}<p>{escape(why)}</p>"


class Refused(msgspec.Struct, frozen=True):
    """A window without an answer."""

    error: WindowError
    unit: str | None = None

    @property
    def detail(self) -> str:
        """Return the first reason."""
        return self.error.errors[0].detail if self.error.errors else self.error.detail


class Predictions(list[Prediction]):
    """Answers of one model, in the order of the windows; `refused` are windows without an answer."""

    def __init__(self, model: ModelName, answers: Iterable[Prediction | Refused]) -> None:
        given = list(answers)
        super().__init__(each for each in given if isinstance(each, Prediction))
        self.model: Final = model
        self.refused: Final = [each for each in given if isinstance(each, Refused)]

    def to_pandas(self) -> Any:  # noqa: ANN401 pandas is optional
        """Return a DataFrame, one row a prediction; needs `rulserve[pandas]`."""
        try:
            from pandas import DataFrame  # noqa: PLC0415 optional
        except ModuleNotFoundError:
            raise RemoteFailed("to_pandas needs pandas: pip install 'rulserve[pandas]'") from None
        return DataFrame([prediction.row() for prediction in self])

    def _repr_html_(self) -> str:
        return html_table([prediction.row() for prediction in self])


class Appended(msgspec.Struct, frozen=True):
    """A unit after its new readings.

    `repeated` readings had been stored before. `prediction` is the unit's current one; `refusal` says why
    there is none.
    """

    unit: str
    model: ModelName
    stored: int
    repeated: int
    last_cycle: int
    prediction: Prediction | None = None
    refusal: WindowError | None = None


@dataclass(frozen=True, slots=True)
class Answerer:
    """A model that answers windows, in this process or on a server.

    Attributes:
        costs: Costs for decisions.
        max_in_flight: Maximum concurrent calls of `answer`.
        answer: Answers each window, in order, with this much explanation.
        others: Other versions that have answered: the model was swapped, or its canary takes some units.
    """

    manifest: Manifest
    name: ModelName
    costs: Costs | None
    windows_per_request: int
    max_in_flight: int
    answer: Callable[[Sequence[Window], Explain], Coroutine[Any, Any, list[Prediction | Refused]]]
    others: set[str] = field(default_factory=set[str])


def answers_of(given: Sequence[Any]) -> list[Prediction | Refused]:
    """Read predictions in their JSON form; ValueError if they are something else."""
    return [
        msgspec.convert(each, Refused if each.get("error") else Prediction, strict=False) for each in given
    ]


def html_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return an HTML table of rows, every text escaped."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: object) -> str:
    return "" if value is None else plain_number(value) if isinstance(value, float) else str(value)
