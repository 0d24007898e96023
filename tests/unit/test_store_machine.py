"""Two processes on one database: whatever they write, report, reopen or fail, the tables are the model's."""

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import select

from service.errors import StoreUnavailable
from service.store import database
from service.store.judgement import Outcome, OutcomeKind, OutcomeResult
from service.store.rows import RowsRefused
from service.store.schema import OUTCOMES, PREDICTIONS, UNITS
from service.store.store import Store
from tests.examples import examples
from tests.unit.test_store import FD001, row

PROCESS = st.integers(0, 1)
UNIT = st.sampled_from("abc")
CYCLE = st.integers(1, 6)
ROWS = st.dictionaries(
    st.tuples(UNIT, CYCLE), st.tuples(st.integers(0, 120), st.integers(0, 5)), min_size=1, max_size=6
)


def rows_of(given):
    return [row(unit, cycle, float(rul), at=float(at)) for (unit, cycle), (rul, at) in given.items()]


class StoreMachine(RuleBasedStateMachine):
    """Writes, outcomes, late predictions, bad rows, locks and restarts, in any order.

    The model holds, of each unit and cycle, RUL, time and whether it was judged; of each unit its latest
    cycle, time and RUL; the outcomes.
    """

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(database, "BUSY_SECONDS", 0.001)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "rul.db"
        self.stores = [self.open(), self.open()]
        self.predictions, self.units, self.outcomes = {}, {}, {}

    def open(self):
        return Store.open(f"sqlite:///{self.path}", [FD001])

    @rule(process=PROCESS, given=ROWS)
    def write(self, process, given):
        self.stores[process].write(rows_of(given))
        for (unit, cycle), (rul, at) in sorted(given.items()):
            known = self.predictions.get((unit, cycle))
            if known is None or (at >= known[1] and not known[2]):
                self.predictions[unit, cycle] = (rul, at, False)
        for unit in {unit for unit, _ in given}:
            cycle = max(c for u, c in given if u == unit)
            rul, at = given[unit, cycle]
            known = self.units.get(unit)
            if known is None or (cycle, at) >= known[:2]:
                self.units[unit] = (cycle, at, rul)

    @rule(process=PROCESS, given=ROWS)
    def write_with_a_bad_row(self, process, given):
        bad = ("fd001", "a", "", 2**70, *rows_of(given)[0][4:])

        with pytest.raises(RowsRefused):
            self.stores[process].write([*rows_of(given), bad])

    @rule(process=PROCESS, given=ROWS)
    def write_while_another_program_writes(self, process, given):
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable):
            self.stores[process].write(rows_of(given))

        other.close()

    @rule(process=PROCESS, unit=UNIT, kind=st.sampled_from(OutcomeKind), cycle=CYCLE, replace=st.booleans())
    def report_an_outcome(self, process, unit, kind, cycle, replace):
        receipt = self.stores[process].take_outcome(
            Outcome("fd001", unit, kind, cycle, None, 2000.0), replace=replace
        )

        known = self.outcomes.get(unit)
        if unit not in self.units:
            assert receipt is None
            return
        expected = (
            OutcomeResult.CREATED
            if known is None
            else OutcomeResult.UNCHANGED
            if known == (kind, cycle)
            else OutcomeResult.REPLACED
            if replace
            else OutcomeResult.CONFLICT
        )
        assert receipt.result is expected
        if expected in {OutcomeResult.CREATED, OutcomeResult.REPLACED}:
            self.outcomes[unit] = (kind, cycle)
            self.judge(receipt.judgements, [unit])

    @rule(process=PROCESS)
    def judge_late_predictions(self, process):
        judgements = self.stores[process].judge_late_predictions()

        self.judge(judgements, list(self.outcomes))

    def judge(self, judgements, units):
        met = [
            key
            for key, (_, _, scored) in self.predictions.items()
            if key[0] in units and key[1] <= self.outcomes[key[0]][1] and not scored
        ]
        for key in met:
            self.predictions[key] = (*self.predictions[key][:2], True)
        assert sum(len(found.judgement) for found in judgements) == len(met)

    @rule(process=PROCESS)
    def restart(self, process):
        self.stores[process].close()
        self.stores[process] = self.open()

    @invariant()
    def the_tables_are_the_models(self):
        with self.stores[0].reading() as connection:
            p, u, o = PREDICTIONS.c, UNITS.c, OUTCOMES.c
            predictions = connection.execute(
                select(p.unit, p.last_cycle, p.rul, p.predicted_at, p.scored)
            ).all()
            units = connection.execute(select(u.unit, u.last_cycle, u.predicted_at, u.rul)).all()
            outcomes = connection.execute(select(o.unit, o.kind, o.cycle)).all()

        assert {tuple(found[:2]): tuple(found[2:]) for found in predictions} == self.predictions
        assert {unit: tuple(rest) for unit, *rest in units} == self.units
        assert {unit: tuple(rest) for unit, *rest in outcomes} == self.outcomes

    def teardown(self):
        for store in self.stores:
            store.close()
        self.folder.cleanup()
        self.patch.undo()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = examples(10, stateful_step_count=20)
