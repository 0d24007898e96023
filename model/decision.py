"""When to act: the remaining life behind an answer, and the stop that costs least per cycle.

A unit is stopped as planned, or fails first. By the renewal reward theorem the cost per cycle in the
long run is the expected cost of a life over its expected length; classical age replacement minimises
it over the age of the stop (Barlow and Proschan, "Mathematical Theory of Reliability", 1965). Here the
distribution is that of one unit as it now stands, so the age of the stop follows its readings. All
times are cycles. This module must not know networks or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from model.domain import NEAR_CAP, FloatArray, InvalidData, tail_scale

LEAST_COST: Final = 1e-9
MOST_COST: Final = 1e15
"""Beyond these a cost per cycle would lose digits, or be 0."""
MOST_POINTS: Final = 4096
"""Maximum points of a curve after the first; in longer lives they are several cycles apart."""
LONGEST_SHARE: Final = 0.1
"""Survival at the longest training life, over that at the quantile before: longer lives are possible."""


class InvalidCosts(InvalidData, ValueError):
    """Costs are not two numbers in range, or a failure costs no more than a planned stop."""


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs of a planned stop and of a failure, in the same unit of money.

    Raises:
        InvalidCosts: a cost is below `LEAST_COST` or above `MOST_COST`, or a failure costs no more than a
            planned stop.
    """

    planned: float
    failure: float

    def __post_init__(self) -> None:
        for name, cost in (("planned", self.planned), ("failure", self.failure)):
            if not LEAST_COST <= cost <= MOST_COST:
                raise InvalidCosts(f"{name}: expected a number above 0, from 1e-9 to 1e15, got {cost:g}")
        if self.failure <= self.planned:
            raise InvalidCosts(
                f"failure: expected more than planned ({self.planned:g}), got {self.failure:g}: with a "
                "cheaper failure no planned stop pays"
            )

    @classmethod
    def read(cls, text: str) -> Costs:
        """Read PLANNED:FAILURE.

        Raises:
            InvalidCosts: the text is not of this form, or the costs are invalid.

        >>> Costs.read("1:10")
        Costs(planned=1.0, failure=10.0)
        """
        planned, _, failure = text.partition(":")
        try:
            return cls(float(planned), float(failure))
        except InvalidCosts:
            raise
        except ValueError:
            raise InvalidCosts(f"expected PLANNED:FAILURE such as 1:10, got {text[:32]!r}") from None


def read_costs(text: str) -> dict[str, Costs]:
    """Read MODEL=PLANNED:FAILURE, separated by commas; costs without a model are those of "".

    >>> read_costs("pumps=1:10, 2:5")["pumps"]
    Costs(planned=1.0, failure=10.0)
    """
    pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
    return {model.strip(): Costs.read(costs) for model, _, costs in pairs}


def costs_of(text: str, model: str) -> Costs | None:
    """Return the costs of a model in a text of `read_costs`, else those of all models, else None."""
    known = read_costs(text)
    return known.get(model, known.get(""))


@dataclass(frozen=True, slots=True, eq=False)
class RemainingLife:
    """Survival of a unit from now on, linear between the points."""

    in_cycles: FloatArray  # [N] from 0, equally spaced
    survival: FloatArray  # [N] P(RUL > in_cycles), from 1, never rising
    beyond: float  # Expected cycles lived after the last point

    def lived(self) -> FloatArray:
        """Integrate the survival: the expected cycles until the stop or the failure, [N]."""
        middle = (self.survival[1:] + self.survival[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(middle * np.diff(self.in_cycles))))


class FleetLife:
    """Distribution of whole lives, from equally spaced quantiles of the lives of training.

    Linear between the quantiles; beyond the last but one the hazard is constant, so that no age is
    impossible.
    """

    def __init__(self, quantiles: Sequence[float]) -> None:
        """Take two or more quantiles, the shortest and the longest life included."""
        lives = np.asarray(quantiles, dtype=np.float64)
        self._lives: Final = lives[:-1]
        self._survival: Final = 1.0 - np.linspace(0.0, 1.0, len(lives))[:-1]
        self._hazard: Final = -math.log(LONGEST_SHARE) / max(lives[-1] - lives[-2], 1.0)
        self.longest: Final = float(lives[-1])
        self.mean_beyond: Final = 1.0 / self._hazard
        """Expected cycles left at any age beyond the last quantile but one."""

    def log_survival(self, age: FloatArray) -> FloatArray:
        """Compute log P(life > age)."""
        within = np.log(np.interp(age, self._lives, self._survival))
        return within - self._hazard * np.maximum(age - self._lives[-1], 0.0)

    def new_unit(self) -> RemainingLife:
        """Return the life of a unit of age 0."""
        in_cycles = _grid(self.longest)
        survival = self.reached(0.0, in_cycles)
        return RemainingLife(in_cycles, survival, float(survival[-1]) * self.mean_beyond)

    def reached(self, age: float, in_cycles: FloatArray) -> FloatArray:
        """Compute P(life > age + t) of units that reached this age, for each t."""
        return np.exp(self.log_survival(age + in_cycles) - self.log_survival(np.array(age)))


class Forecast(NamedTuple):
    """The RUL of an answer, in cycles: estimate, interval, failure probabilities."""

    rul: float
    lower: float  # P(RUL <= lower) is half of what the interval does not cover
    upper: float  # Likewise above; at the cap it means "at least"
    failure_probability: Mapping[int, float]  # P(RUL <= h) by horizon h


def remaining_life(
    forecast: Forecast, fleet: FleetLife, *, coverage: float, cap: float, age: float
) -> RemainingLife:
    """Combine estimate, interval and failure probabilities to one monotone survival function.

    The log-odds of failing are linear between the points; below the first point they fall as in the tail of
    the stated probabilities. The survival is that of a unit that has not failed yet. Above the cap an answer
    says only "at least", so beyond the last point below the cap the unit lives as units of the fleet that
    reached its age.
    """
    tail = (1.0 - coverage) / 2.0
    if forecast.rul >= NEAR_CAP * cap:
        forecast = forecast._replace(rul=cap)
    times, odds = _known_points(forecast, tail=tail, cap=cap)
    if times[0] > 0:
        scale = tail_scale(max(forecast.rul - forecast.lower, 1.0), tail=tail)
        times, odds = [0.0, *times], [odds[0] - times[0] / scale, *odds]
    in_cycles = _grid(max(times[-1], fleet.longest - age))
    survival = 1.0 / (1.0 + np.exp(np.interp(in_cycles, times, odds)))
    survival /= survival[0]
    survival *= fleet.reached(age + times[-1], np.maximum(in_cycles - times[-1], 0.0))
    return RemainingLife(in_cycles, survival, float(survival[-1]) * fleet.mean_beyond)


def _grid(end: float) -> FloatArray:
    """Return whole cycles from 0 to at least `end`, equally spaced."""
    step = max(1, math.ceil(end / MOST_POINTS))
    return np.arange(max(1, math.ceil(end / step)) + 1) * float(step)


def _known_points(forecast: Forecast, *, tail: float, cap: float) -> tuple[list[float], list[float]]:
    """Return times up to the cap and log-odds of failing by then, both rising; at least one.

    A lower bound of 0 was cut, so it is no quantile.
    """
    stated = [(float(h), p) for h, p in forecast.failure_probability.items() if tail < p < 1.0 - tail]
    points = [*stated, (forecast.upper, 1.0 - tail), (forecast.rul, 0.5)]
    points = [point for point in points if point[0] < cap]
    if forecast.lower > 0:
        points.append((forecast.lower, tail))
    times: list[float] = []
    odds: list[float] = []
    for time, probability in sorted(points):
        if times and time == times[-1]:
            del times[-1], odds[-1]
        times.append(time)
        odds.append(max([_log_odds(probability), *odds[-1:]]))
    return (times, odds) if times else ([1.0], [_log_odds(1.0 - tail)])


def _log_odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


@dataclass(frozen=True, slots=True, eq=False)
class CostCurve:
    """Expected cost per cycle of a whole life, by the cycles until its planned stop."""

    in_cycles: FloatArray  # [N]
    cost_per_cycle: FloatArray  # [N]; infinite if a life has no length
    run_to_failure: float  # Cost per cycle without a planned stop

    @property
    def best(self) -> int | None:
        """Return the index of the cheapest stop; None if running to failure is cheaper."""
        i = int(self.cost_per_cycle.argmin())
        return i if self.cost_per_cycle[i] < self.run_to_failure else None

    def at(self, in_cycles: float) -> float:
        """Return the cost per cycle of a stop after this many cycles."""
        return float(np.interp(in_cycles, self.in_cycles, self.cost_per_cycle))


def cost_curve(life: RemainingLife, costs: Costs, *, age: float) -> CostCurve:
    """Compute (planned S(t) + failure (1 - S(t))) / (age + E[min(RUL, t)]) for every t."""
    lived = age + life.lived()
    spent = costs.planned * life.survival + costs.failure * (1.0 - life.survival)
    rate = np.divide(spent, lived, out=np.full_like(spent, np.inf), where=lived > 0)
    return CostCurve(life.in_cycles, rate, costs.failure / float(lived[-1] + life.beyond))


@lru_cache(maxsize=1024)
def best_fixed_age(fleet: FleetLife, costs: Costs) -> float | None:
    """Find the best age to stop every unit of a fleet; None if running to failure is cheaper."""
    curve = cost_curve(fleet.new_unit(), costs, age=0.0)
    return None if curve.best is None else float(curve.in_cycles[curve.best])
