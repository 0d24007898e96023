"""Units with stored readings: readings in, the unit's window and prediction out, on any protocol.

The store is the source of truth: every request reads the window from it. So any worker may take any reading,
and order, repeats and restarts change no answer. This module must not know HTTP or messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import msgspec
import numpy as np

from model.decision import Costs
from model.domain import longest_gap
from service.core.ports import Stages
from service.core.predictor import LoadedModel, Predictor
from service.core.queries import Explain, ModelName, Prediction, WindowError
from service.core.rules import WindowRules
from service.core.window import WindowInput, Windows, check, lay_out
from service.errors import (
    MAX_PROBLEMS,
    NAME,
    InvalidRequest,
    InvalidWindow,
    NotReady,
    Overloaded,
    Problem,
    bad_name,
    escaped,
    listed,
    status_of,
)
from service.labels import Stage
from service.store.async_store import AsyncStore
from service.store.rows import Append, Given, Stretch, UnitKey
from service.streams.window import as_float32, cycle_problem, infinities, numbers_of, refusal, value_pointer


class CyclesReply(msgspec.Struct, frozen=True):
    """A unit after its readings are stored.

    `stored` readings are new, `repeated` ones were stored before; the rest are older than those kept.
    `prediction` belongs to the window that ends at `last_cycle`; null if the model cannot answer it, and
    `refusal` then says why.
    """

    unit: str
    model: ModelName
    stored: int
    repeated: int
    last_cycle: int
    prediction: Prediction | None
    refusal: WindowError | None


class UnitReply(msgspec.Struct, frozen=True):
    """The prediction of a stored unit, with its explanation."""

    model: ModelName
    prediction: Prediction


class UnitWindows:
    """Stores readings of units and predicts from the resulting windows."""

    def __init__(self, predictor: Predictor, store: AsyncStore) -> None:
        self._predictor: Final = predictor
        self._store: Final = store

    async def append(
        self,
        model: LoadedModel,
        unit: str,
        given: Given,
        *,
        explain: Explain = Explain.NONE,
        store: bool = True,
        costs: Costs | None = None,
        stages: Stages | None = None,
        tenant: str = "",
    ) -> CyclesReply:
        """Commit readings, all or none, and predict for the unit; `store` keeps the prediction too.

        `costs` add the decision to the prediction; `stages` gets the stages of commit and prediction. A full
        queue is an error if each reading has its cycle, otherwise a `refusal`: a retry would store readings
        without a cycle twice.

        Raises:
            CycleConflict: a cycle has another reading; nothing is stored.
            InvalidRequest: the name cannot be stored.
            NoStore, StoreUnavailable: the readings cannot be stored.
            Overloaded, NotReady, RuntimeFailed: as store and batcher say; the readings may be stored.
        """
        check_name(unit)
        rules = model.rules
        key = UnitKey(tenant, model.name.name, unit)
        start = perf_counter()
        stored, repeated, newest = await self._store.append(Append(key, rules.names, rules.context, given))
        if stages is not None:
            stages.append((Stage.STORE, start, perf_counter()))
        name, prediction, refusal = model.name, None, None
        try:
            windows = windows_of(newest, unit, rules, is_new=stored > 0)
            name, (prediction,) = await model.routed(
                unit,
                lambda asked: self._predictor.answer(
                    asked, windows, explain, stages, tenant, store=store, costs=costs
                ),
            )
        except (InvalidWindow, Overloaded, NotReady) as error:
            if None not in given.cycles and not isinstance(error, InvalidWindow):
                raise
            refusal = WindowError(status_of(error).title, str(error), listed(error.problems))
        last = newest.cycles[-1]
        return CyclesReply(unit, name, stored, repeated, last, prediction, refusal)

    async def explanation(
        self, model: LoadedModel, unit: str, *, until: int | None = None, tenant: str = ""
    ) -> UnitReply:
        """Explain the prediction of a unit at a cycle (None: its last) without storing it again.

        Raises:
            UnknownUnit: no reading of it, or of this cycle, is stored.
            InvalidWindow: the model cannot answer its window.
            NoStore, StoreUnavailable, DeadlineExceeded: the readings cannot be read.
            Overloaded, NotReady, RuntimeFailed: as store and batcher say.
        """
        key, rules = UnitKey(tenant, model.name.name, unit), model.rules
        newest = await self._store.newest(key, rules.names, most=rules.context, until=until)
        windows = windows_of(newest, unit, rules, is_new=False)
        name, (prediction,) = await model.routed(
            unit,
            lambda asked: self._predictor.answer(asked, windows, Explain.FULL, tenant=tenant, store=False),
        )
        return UnitReply(name, prediction)


def windows_of(newest: Stretch, unit: str, rules: WindowRules, *, is_new: bool = True) -> Windows:
    """Make the window that ends at a unit's last stored cycle and begins after its last long gap.

    Args:
        newest: The newest stored readings, at least as many as the context if there are so many.
        unit: The unit's name.
        rules: Rules of the model.
        is_new: False if its readings were answered before: metrics do not count the answer again.

    Raises:
        InvalidWindow: too much of it is missing.
    """
    cycles, last = np.array(newest.cycles), newest.cycles[-1]
    begins = cycles[np.diff(cycles, prepend=-np.inf) > longest_gap(rules.context) + 1]
    first = max(int(begins[-1]), last - rules.context + 1)
    cycles -= first
    readings = np.full((1, last - first + 1, len(rules.names)), np.nan, np.float32)
    readings[0, cycles[cycles >= 0]] = newest.values[cycles >= 0]
    windows, defects = check(readings, [last - first + 1], [float(last)], rules, units=[unit])
    if defects:  # single readings are valid
        detail = f"cycles {first} to {last}: " + "; ".join(defect.detail for defect in defects)
        raise InvalidWindow(detail, [Problem("/readings", defect.code, defect.detail) for defect in defects])
    return windows if is_new else msgspec.structs.replace(windows, is_probe=True)


def given_rows(
    rows: Sequence[tuple[float | None, Sequence[float], Mapping[str, float | None]]],
    rules: WindowRules,
    at: Callable[[int], str],
) -> Given:
    """Lay out readings one by one: cycle, values in schema order, or columns by name.

    Raises:
        InvalidWindow: with every problem that was found.
    """
    check_count(len(rows), rules, "/readings")
    missing = [None] * len(rules.names)
    cycles: list[int | None] = []
    numbers: list[Sequence[float | None]] = []
    problems: list[Problem] = []
    for i, (cycle, values, columns) in enumerate(rows):
        if len(problems) > MAX_PROBLEMS:
            break
        place = at(i)
        if cycle is not None and (problem := cycle_problem(cycle, f"{place}/cycle")):
            problems.append(problem)
        cycles.append(None if cycle is None or problems else int(cycle))
        numbers.append(missing)
        if not (columns or values):
            detail = f"expected one of {', '.join(rules.names)} or more, got none"
            problems.append(Problem(f"{place}/columns", "empty", detail))
            continue
        try:
            numbers[i] = numbers_of(values, columns, rules, at=place)
        except InvalidWindow as error:
            problems += error.problems
    read = as_float32(numbers)
    problems += infinities(read, rules, lambda i, f: value_pointer(at(i), f, rows[i][2], rules))
    if problems:
        raise refusal(listed(problems))

    def pointer(i: int, name: str | None) -> str:
        return f"{at(i)}/cycle" if name is None else f"{at(i)}/columns/{escaped(name)}"

    return Given(cycles, read, pointer)


def given_columns(
    cycles: Sequence[float] | None, columns: Mapping[str, list[float | None]], rules: WindowRules
) -> Given:
    """Lay out readings column by column.

    Raises:
        InvalidWindow: with every problem that was found.
    """
    known: Mapping[str, Any] = columns if cycles is None else {**columns, "": cycles}
    count = max(map(len, known.values()), default=0)
    check_count(count, rules, "/columns")
    part = lay_out(WindowInput(columns={**columns}), replace(rules, context=rules.max_cycles))
    problems = list(part.problems)
    if cycles is not None:
        if len(cycles) != count or part.sent not in {0, count}:
            detail = f"expected as many cycles as readings ({part.sent}), got {len(cycles)}"
            problems.append(Problem("/cycles", "wrong_length", detail))
        found = (cycle_problem(cycle, f"/cycles/{i}") for i, cycle in enumerate(cycles))
        problems += [problem for problem in found if problem]
    values = np.empty((0, 0), np.float32) if part.readings is None else part.readings
    problems += infinities(values, rules, lambda i, f: _column_pointer(i, rules.names[f]))
    if problems:
        raise refusal(listed(problems))
    numbers = [None] * count if cycles is None else [int(cycle) for cycle in cycles]
    return Given(numbers, values, _column_pointer)


def _column_pointer(i: int, name: str | None) -> str:
    return "/cycles" if name is None else f"/columns/{escaped(name)}/{i}"


def check_name(unit: str, pointer: str = "/unit") -> None:
    """Check that a unit can be stored under a name.

    Raises:
        InvalidRequest: it is empty, too long, or has a character that databases do not store.
    """
    if not NAME.fullmatch(unit):
        problem = bad_name(unit, pointer)
        raise InvalidRequest(f"{pointer}: {problem.detail}", [problem])


def check_count(count: int, rules: WindowRules, pointer: str) -> None:
    """Check the number of readings in a request, before any of them is read.

    Raises:
        InvalidWindow: there is none, or more than a window may have.
    """
    if not 0 < count <= rules.max_cycles:
        code = "too_long" if count else "empty"
        detail = f"expected 1 to {rules.max_cycles} readings, got {count}"
        raise refusal([Problem(pointer, code, detail)])
