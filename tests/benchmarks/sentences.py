"""Truth of explanations: the figures of docs/explanations.md.

    python -m tests.benchmarks.sentences --data FOLDER_OF_CMAPSS [--units 50]

The windows are the last ones of test units, which trained nothing. The bare graph recomputes each clause from
the answer alone, with the readings since that cycle in the middle of the stated healthy range. Near failure,
the leading sensors are compared with those that the fault modes affect. `trust` is also computed for the same
networks with shuffled weights.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
import typer

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import FloatArray, Trajectory
from rul_client.answers import Answerer, Explanation, Prediction
from rul_client.commands.predict.input_file import read_units
from rul_client.commands.predict.offline import open_offline
from rul_client.readings import Window
from service.core.answers import NEAR_CAP
from service.core.departures import LEAST_OUTSIDE, LEAST_SHARE
from service.core.queries import Clause, Together, Trust
from tests.benchmarks.shuffled import shuffled_bundle
from tests.benchmarks.tables import table

BUNDLES: Final = ("fd001", "fd002", "fd003", "fd004")
FAN_TOO: Final = ("fd003", "fd004")
HPC_MOVES: Final = frozenset(f"sensor_{n}" for n in (2, 3, 4, 7, 11, 12, 15, 20, 21))
FAN_MOVES: Final = frozenset(f"sensor_{n}" for n in (8, 9, 13, 14))
NEAR_FAILURE: Final = 30.0
LEADING: Final = 3
TOLERANCE: Final = 0.01
"""Tolerance in cycles: the service answers variations in other batches than the bare graph."""
SHUFFLES: Final = 3
SHUFFLED_UNITS: Final = 20
COLUMNS: Final = {
    "clauses": "clauses that are true",
    "with a clause": "units with a clause",
    "supported": "supported",
    "near: with a clause": "near failure: with a clause",
    "near: first": "leading sensor is one that faults move",
    "near: first three": "so are the leading three",
    "near: first of its modes": "leading sensor is one that the faults of this subset move",
    "shuffled: unsupported": "shuffled weights: unsupported",
}
NUMBERS: Final = re.compile(
    r"(?:takes?|adds?) (?:at least )?(\d+) cycles?(?: off)?; without (?:it|them) the estimate would be "
    r"(?:at least )?(\d+), not (?:at least )?(\d+)$"
)


class Case(NamedTuple):
    """Last window of a unit, float32 [T, F], and its answer."""

    readings: FloatArray
    last_cycle: float
    prediction: Prediction
    explanation: Explanation


async def explained(model: Answerer, units: Sequence[Trajectory]) -> list[Case]:
    """Explain the last window of each unit."""
    cases: list[Case] = []
    for unit in units:
        readings, last = unit.readings[-model.manifest.context :], float(unit.cycles[-1])
        (prediction,) = await model.answer([Window(unit.unit, last, readings)], "full")
        assert isinstance(prediction, Prediction)
        assert prediction.explanation
        cases.append(Case(readings, last, prediction, prediction.explanation))
    return cases


class Checker:
    """Recomputes the clauses of answers by a bare graph."""

    def __init__(self, bundle: str) -> None:
        self._session, self._manifest = open_bundle(find_bundle(bundle))
        self._names = self._manifest.schema_of_columns.names

    def verdicts(self, case: Case) -> list[bool]:
        """Return whether readings and graph confirm each clause, including that of all departures."""
        given = case.explanation
        found = [
            self._departs(case, clause) and self._adds_up(case, {clause.column: clause.since_cycle}, clause)
            for clause in given.clauses
        ]
        if given.together is not None:
            since = dict(zip(given.together.columns, given.together.since_cycles, strict=True))
            found.append(self._adds_up(case, since, given.together))
        return found

    def _departs(self, case: Case, clause: Clause) -> bool:
        start = clause.since_cycle - int(case.explanation.cycles[0])
        readings, usual = case.readings[start:, self._names.index(clause.column)], case.explanation.usual
        bounds = usual[clause.column]
        outside = (
            readings > np.array(bounds.upper[start:])
            if clause.side == "above"
            else readings < np.array(bounds.lower[start:])
        )
        count, known = int(outside.sum()), int((~np.isnan(readings)).sum())
        is_lasting = count >= max(LEAST_OUTSIDE, LEAST_SHARE * known)
        return bool(outside[0]) and is_lasting and (count < known) == ("mostly" in clause.text)

    def _adds_up(self, case: Case, since: Mapping[str, int], said: Clause | Together) -> bool:
        rul, numbers = case.prediction.rul, NUMBERS.search(said.text)
        assert numbers, said.text
        return (
            abs(self._without(case, since) - said.without) <= TOLERANCE
            and abs(rul - said.without - said.cycles) <= TOLERANCE
            and [*map(int, numbers.groups())]
            == [abs(round(rul) - round(said.without)), round(said.without), round(rul)]
            and ("take" in numbers.group()) == (said.cycles < 0)
        )

    def _without(self, case: Case, since: Mapping[str, int]) -> float:
        """Answer the window with these sensors in the middle of the stated healthy range."""
        readings = case.readings.copy()
        for column, cycle in since.items():
            start, usual = cycle - int(case.explanation.cycles[0]), case.explanation.usual[column]
            middle = (np.float32(usual.lower) + np.float32(usual.upper))[start:] / 2
            values = readings[start:, self._names.index(column)]
            values[:] = np.where(np.isnan(values), np.nan, middle)
        lengths, last = np.array([len(readings)]), np.array([case.last_cycle], np.float32)
        rul = float(self._session.answer(readings[None], lengths, last)["rul"][0])
        return self._manifest.cap if rul >= NEAR_CAP * self._manifest.cap else rul


def leads(case: Case, moved: frozenset[str]) -> tuple[bool, bool]:
    """Return whether the fault modes affect the first sensor, and all of the first three."""
    weight = {name: np.abs(values).sum() for name, values in case.explanation.contributions.items()}
    first = sorted(weight, key=lambda name: -weight[name])[:LEADING]
    return first[0] in moved, moved.issuperset(first)


async def measure(bundle: str, data: Path, most: int) -> dict[str, list[bool]]:
    """Measure one bundle on the test units of its subset; `most` units, 0 for all."""
    found: dict[str, list[bool]] = {name: [] for name in COLUMNS}
    async with open_offline(bundle) as model:
        units, _ = read_units(data / f"test_{bundle.upper()}.txt", model.manifest, fleet=None)
        rng = np.random.default_rng(0)
        drawn = rng.permutation(len(units))[: most or len(units)]
        cases, checker = await explained(model, [units[i] for i in drawn]), Checker(bundle)
    everything = HPC_MOVES | FAN_MOVES
    moved = everything if bundle in FAN_TOO else HPC_MOVES
    for case in cases:
        verdicts = checker.verdicts(case)
        found["clauses"] += verdicts
        found["with a clause"].append(bool(verdicts))
        found["supported"].append(case.prediction.trust == Trust.SUPPORTED)
        if case.prediction.rul < NEAR_FAILURE:
            found["near: with a clause"].append(bool(verdicts))
            one, three = leads(case, everything)
            found["near: first"].append(one)
            found["near: first three"].append(three)
            found["near: first of its modes"].append(leads(case, moved)[0])
    source = find_bundle(bundle)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(SHUFFLES):
            mixed = shuffled_bundle(source, Path(folder) / str(seed), seed=seed)
            async with open_offline(str(mixed.path)) as model:
                shuffled = await explained(model, [units[i] for i in drawn[:SHUFFLED_UNITS]])
            found["shuffled: unsupported"] += [c.prediction.trust == Trust.UNSUPPORTED for c in shuffled]
    return found


def main(
    data: Annotated[Path, typer.Option(help="Folder of test_FD001.txt to test_FD004.txt.")],
    units: Annotated[int, typer.Option(min=0, help="Units of each subset, drawn at random; 0: all.")] = 50,
) -> None:
    """Print a table with one row per bundle and one for all."""
    found = {bundle: asyncio.run(measure(bundle, data, units)) for bundle in BUNDLES}
    found["all"] = {name: [each for row in found.values() for each in row[name]] for name in COLUMNS}
    rows = (
        [bundle, *(f"{np.mean(row[name]):.3f} of {len(row[name])}" if row[name] else "-" for name in COLUMNS)]
        for bundle, row in found.items()
    )
    print(table(["bundle", *COLUMNS.values()], rows))


if __name__ == "__main__":
    typer.run(main)
