"""When to act on an answer: the cycle of a planned stop that costs least, at given costs.

This module must not know requests; `model.decision` has the mathematics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from export.bundle import Manifest
from model.decision import CostCurve, Costs, FleetLife, Forecast, best_fixed_age, cost_curve, remaining_life
from model.domain import RulState
from service.core.answers import Answers, Piece
from service.core.queries import Decision
from service.core.turns import Turns
from service.core.window import Windows

ADVISED: Final = frozenset({RulState.ESTIMATED, RulState.AT_LEAST_CAP})
"""RUL states that allow a decision."""


class Planner:
    """Decides for one model; `costs` are the default of requests without costs."""

    def __init__(self, manifest: Manifest, costs: Costs | None = None) -> None:
        self.costs: Final = costs
        self._said_by: Final = {"coverage": manifest.nominal_coverage, "cap": manifest.cap}
        self._horizons: Final = manifest.horizons
        self._fleet: Final = FleetLife(manifest.degradation.life_quantiles)

    async def of_pieces(
        self, windows: Windows, pieces: Sequence[Piece], costs: Costs
    ) -> dict[int, Decision | None]:
        """Decide for each window, by its place in the request; other requests get turns."""
        found: dict[int, Decision | None] = {}
        turns = Turns()
        for piece in pieces:
            for row, i in enumerate(piece.places, piece.first):
                found[i] = self._of_answer(piece.answers, row, windows.last_cycle[i], costs)
                await turns.give()
        return found

    def _of_answer(self, answers: Answers, row: int, last_cycle: float, costs: Costs) -> Decision | None:
        """Decide for one row of a batch; return None if its answer allows no decision."""
        lower, upper = answers.interval[row]
        probabilities = dict(zip(self._horizons, answers.failure_probability[row], strict=True))
        forecast = Forecast(answers.rul[row], lower, upper, probabilities)
        found = self.plan(forecast, costs, state=answers.states[row], age=last_cycle, **self._said_by)
        return None if found is None else found[0]

    def plan(
        self, forecast: Forecast, costs: Costs, *, state: RulState, age: float, coverage: float, cap: float
    ) -> tuple[Decision, CostCurve] | None:
        """Decide, and return the cost of every other stop; None if the answer allows no decision.

        `age` is the unit's cycle number; NaN = unknown. `coverage` of the interval and `cap` belong to the
        version that answered.
        """
        if state not in ADVISED or not age >= 1:
            return None
        life = remaining_life(forecast, self._fleet, coverage=coverage, cap=cap, age=age)
        curve = cost_curve(life, costs, age=age)
        best, fixed = curve.best, best_fixed_age(self._fleet, costs)
        act_in = None if best is None else int(curve.in_cycles[best])
        decision = Decision(
            None if act_in is None else int(age) + act_in,
            act_in,
            curve.run_to_failure if best is None else float(curve.cost_per_cycle[best]),
            curve.run_to_failure,
            curve.run_to_failure if fixed is None else curve.at(max(fixed - age, 0.0)),
            costs,
        )
        return decision, curve
