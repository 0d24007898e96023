"""Facts of a fleet's data, and what they mean for a training."""

import cProfile
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rich.console import Console

from model.dataset import split_units
from model.domain import InvalidData
from model.findings import columns_table, findings, inspected_trajectories, require_trainable
from model.fleet import FailureRule, fleet_toml
from model.inspection import bound_facts, column_facts, common_end, inspect_rows, nice, suggest
from model.readers import read_rows
from model.screen import number_table
from model.writers import csv_text
from tests.commands import rul
from tests.fleets import PUMP_SCHEMA, PUMPS, worn_pumps

SHORT_LIVED = replace(PUMPS, cap=40.0)
EXTRA = replace(
    PUMPS,
    schema=replace(PUMP_SCHEMA, columns=(replace(PUMP_SCHEMA.columns[1], name="extra"),)),
    sources=("extra",),
)
WORN = replace(PUMPS, failure=FailureRule("vibration", at_least=6.0))


@pytest.fixture
def inspected(tmp_path):
    """Facts and lines of pumps.csv after a change of its text, with lives of 40 to 80 cycles."""

    def read(fleet=SHORT_LIVED, *, units=24, change=lambda text: text, loads=(40.0, 75.0)):
        (tmp_path / "pumps.csv").write_text(
            change(csv_text(worn_pumps(units=units, seed=4, loads=loads), PUMP_SCHEMA).decode())
        )
        rows, _ = read_rows(tmp_path / "pumps.csv", fleet, with_groups=True)
        facts = inspect_rows(rows, fleet)
        return facts, findings(facts, fleet, folds=5)

    return read


def lines(found, level):
    return [finding.text for finding in found if finding.level == level]


def each_row(change):
    """Change the text by what `change` makes of the cells of each row."""

    def changed(text):
        head, *rows = (line.split(",") for line in text.splitlines())
        return "\n".join(",".join(map(str, row)) for row in [head, *(change(*row) for row in rows)])

    return changed


def first_cycles(last):
    """Keep the header and the rows up to a cycle."""
    return lambda text: "\n".join(
        row for i, row in enumerate(text.splitlines()) if i == 0 or int(row.split(",")[1]) <= last
    )


def with_column(text, header, value):
    """Add a column whose cells are `value(unit, cycle, life)`."""
    first, *rows = text.splitlines()
    cells = [row.split(",") for row in rows]
    lives = {unit: int(cycle) for unit, cycle, *_ in cells}
    added = [
        f"{row},{value(unit, int(c), lives[unit])}" for row, (unit, c, *_) in zip(rows, cells, strict=True)
    ]
    return "\n".join([f"{first},{header}", *added])


def test_good_data_has_no_finding_and_its_lives_are_counted(inspected):
    facts, found = inspected()

    assert found == []
    assert (facts.units, facts.failed, facts.duplicates, facts.gaps) == (24, 24, 0, 0)
    assert 40 <= facts.lives[0] <= facts.lives[3] <= facts.lives[-1] <= 80
    assert [column.name for column in facts.columns] == ["load", "vibration", "pressure"]


@pytest.mark.parametrize(("loads", "level"), [((40.0, 75.0), "warning"), ((40.0,), "note")])
def test_a_setting_that_is_missing_where_sensors_are_read_is_named_if_it_tells_regimes(
    inspected, loads, level
):
    def change(unit, cycle, load, *sensors):
        if int(cycle) in (3, 4):
            return unit, cycle, "", *sensors
        return (unit, cycle, load, *sensors) if cycle != "5" else (unit, cycle, "", "", "")

    facts, found = inspected(loads=loads, change=each_row(change))

    (text,) = [text for text in lines(found, level) if text.startswith("[[settings]] load: ")]
    said = "48 cycles with sensor readings lack it, so their regime is a guess: fill it forward"
    assert (said in text) == (level == "warning") == bool(facts.unset)


def bounded(values, rule):
    """Facts of a bound for units whose readings have the numbers 1, 2, 3, .."""
    return bound_facts(values, {name: np.arange(1, len(unit) + 1) for name, unit in values.items()}, rule)


def test_cycles_beyond_a_bound_are_counted_where_readings_are_skipped():
    values = {"a": np.array([2.0, 0.8, 0.7, 0.6])}

    facts = bound_facts(values, {"a": np.array([1, 5, 9, 25])}, FailureRule("capacity", at_most=0.88))

    assert facts.goes_on == 20


def test_units_whose_last_cycles_lack_the_failure_column_reach_the_bound_by_their_last_known_value():
    values = {"a": np.array([1.0, np.nan, 0.8, np.nan, 0.7, np.nan, np.nan]), "b": np.array([np.nan, np.nan])}

    facts = bounded(values, FailureRule("capacity", at_most=0.85))

    assert (facts.missed, facts.nearest, facts.goes_on) == (1, 0.7, 2)


@pytest.mark.parametrize(
    ("sign", "rule"),
    [(1, FailureRule("capacity", at_most=0.88)), (-1, FailureRule("capacity", at_least=-0.88))],
    ids=["from above", "from below"],
)
def test_a_bound_that_most_units_just_miss_is_named_with_one_that_they_reach(sign, rule):
    rng = np.random.default_rng(0)
    values = {str(n): np.linspace(1.2, end, 50) for n, end in enumerate(rng.uniform(0.8801, 0.8899, 20))}
    values |= {"low": np.linspace(1.2, 0.87, 50), "high": np.linspace(1.2, 1.1, 50)}

    facts = bounded({name: sign * unit for name, unit in values.items()}, rule)

    assert (facts.missed, facts.nearby, facts.reach_nearby) == (21, sign * 0.89, 21)


@pytest.mark.parametrize("scale", [1e-15, 1e-9, 1e9])
def test_a_bound_has_the_scale_of_its_column(scale):
    ends = np.random.default_rng(0).uniform(0.8801, 0.8899, 20)
    values = {str(n): scale * np.linspace(1.2, end, 50) for n, end in enumerate(ends)}
    values["high"] = scale * np.linspace(1.2, 1.1, 50)

    nearby = bounded(values, FailureRule("leak", at_most=0.88 * scale)).nearby
    end = common_end({"leak": list(values.values())})

    assert nearby == pytest.approx(0.89 * scale, rel=1e-9, abs=0.0)
    assert end is not None
    assert end.rule.at_most == pytest.approx(0.89 * scale, rel=1e-9, abs=0.0)


def test_units_beyond_the_bound_at_their_first_reading_are_named(inspected):
    _, found = inspected(replace(PUMPS, failure=FailureRule("pressure", at_least=-4.0)))

    text = " ".join(lines(found, "warning"))
    assert "24 units (1, 2, 3, ..) beyond it at the first reading" in text


def test_units_that_run_on_after_a_failure_are_named_because_a_repaired_one_needs_a_new_name(inspected):
    """Some units run a second life after the failure of the first; others cross the bound for a moment."""
    repaired = replace(PUMPS, failure=FailureRule("failed", at_least=1.0))

    def failed(unit, cycle, life):
        return int(cycle == life or (unit in {"3", "7"} and cycle == life // 2) or cycle == life - 4)

    _, found = inspected(repaired, change=lambda text: with_column(text, "failed", failed))

    text = " ".join(lines(found, "warning"))
    assert "2 units (3, 7) run on long after a value beyond it: if repaired, give each life" in text


THOUSANDTHS = st.integers(-10_000, 10_000).map(lambda n: n / 1000)


@given(
    st.lists(arrays.arrays(np.float64, st.integers(1, 8), elements=THOUSANDTHS), min_size=1, max_size=30),
    THOUSANDTHS,
    st.booleans(),
)
def test_a_nearby_bound_is_easier_and_its_count_is_right(units, bound, falling):
    values = {str(n): unit for n, unit in enumerate(units)}
    rule = FailureRule("c", at_most=bound) if falling else FailureRule("c", at_least=bound)

    facts = bounded(values, rule)

    reached = sum(rule.failed(unit[-1]) for unit in units)
    assert facts.missed == len(units) - reached
    if facts.nearby is not None:
        slack = 1e-6 if falling else -1e-6
        easier = replace(rule, **{"at_most" if falling else "at_least": facts.nearby + slack})
        assert facts.reach_nearby == sum(easier.failed(unit[-1]) for unit in units) > reached


@pytest.mark.parametrize(
    ("fleet", "units", "message"),
    [
        (
            replace(PUMPS, failure=FailureRule("vibration", at_least=99.0)), 24,
            r"\[failure\] vibration >= 99: expected units .* got none of 24; .* \d",
        ),
        (
            SHORT_LIVED, 3,
            r"--folds 5: expected at least 5 units with a known failure, got 3 .*: choose --folds 3, or ",
        ),
        (SHORT_LIVED, 1, r"--folds 5: .* got 1 \(of 1 unit\): train on more units"),
        (replace(PUMPS, context=81), 24, r"context = 81: expected at most \d\d, the longest life .* 20"),
    ],
)  # fmt: skip
def test_data_that_would_ruin_a_training_end_it_with_what_suits(inspected, fleet, units, message):
    _, found = inspected(fleet, units=units)

    with pytest.raises(InvalidData, match=f"^{message}"):
        require_trainable(found)


FOLDS = split_units([str(unit + 1) for unit in range(24)], parts=5, seed=0)


def only_in(units):
    """Empty the pressure of all other units."""
    return each_row(lambda unit, *more: [unit, *more] if unit in units else [unit, *more[:-1], ""])


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (
            FOLDS[2][:1],
            rf"pressure: only fold 3 has readings, in 1 unit \({FOLDS[2][0]}\), .*: remove the column$",
        ),
        (FOLDS[4][:2], r"pressure: only fold 5 has readings, in 2 units .* or choose another --seed$"),
    ],
)
def test_a_column_that_units_of_one_fold_alone_have_ends_a_training(inspected, units, message):
    facts, found = inspected(change=only_in(units))

    with pytest.raises(InvalidData, match=rf"^\[\[sensors\]\] {message}"):
        require_trainable(found)
    assert "error" not in {each.level for each in findings(facts, SHORT_LIVED)}


def plants(count, *, only=None):
    """Add a column of `count` plants, and empty the pressure of all but plant `only`."""

    def changed(unit, cycle, load, vibration, pressure):
        if unit == "unit":
            return unit, cycle, load, vibration, pressure, "plant"
        plant = f"P{int(unit) % count}"
        return unit, cycle, load, vibration, pressure if only in (None, plant) else "", plant

    def change(text):
        return "\n".join(",".join(changed(*line.split(","))) for line in text.splitlines())

    return change


def test_fewer_groups_than_folds_end_a_training(inspected):
    by_plant = replace(SHORT_LIVED, group_column="plant")

    with pytest.raises(
        InvalidData,
        match=r"^--folds 5: expected at least 5 groups \(column 'plant'\) of units with a known failure, "
        r"got 4 \(of 24 units\): choose --folds 4, or",
    ):
        require_trainable(inspected(by_plant, change=plants(4))[1])
    require_trainable(inspected(by_plant, change=plants(5))[1])


def test_a_column_that_one_group_alone_has_ends_a_training(inspected):
    by_plant = replace(SHORT_LIVED, group_column="plant")

    with pytest.raises(InvalidData, match=r"has readings, in 1 group \(P2\), and its .* remove the column$"):
        require_trainable(inspected(by_plant, change=plants(6, only="P2"))[1])


def test_a_column_that_units_of_two_folds_have_does_not_end_a_training(inspected):
    require_trainable(inspected(change=only_in([FOLDS[0][0], FOLDS[1][0]]))[1])


def test_a_column_that_only_running_units_have_ends_a_training(inspected):
    rule = FailureRule("vibration", at_least=9.0)
    fleet = replace(WORN, failure=rule)
    running = {str(unit + 1) for unit in range(24)} - {*inspected(fleet)[0].ended}

    _, found = inspected(fleet, change=only_in(running))

    with pytest.raises(InvalidData, match="pressure: expected readings before a failure, got none in any fa"):
        require_trainable(found)


def test_few_units_are_warned_of(inspected):
    assert "only 7 units with a known failure" in lines(inspected(units=7)[1], "warning")[0]


def test_a_context_and_a_cap_above_most_lives_are_warned_of(inspected):
    _, found = inspected(replace(PUMPS, context=75))

    assert [text.split(" is above the median life")[0] for text in lines(found, "warning")] == [
        "context = 75",
        "cap = 100",
    ]


def test_readings_near_the_largest_float32_are_inspected(inspected):
    largest = float(np.finfo(np.float32).max)

    def level(_unit, cycle, life):
        return -largest if cycle == 70 else largest * (0.8 + 0.2 * cycle / life)

    facts, found = inspected(EXTRA, change=lambda text: with_column(text, "extra", level))

    assert facts.columns[-1].code == -largest
    assert re.search("outliers far from .*a code for missing?", "\n".join(lines(found, "warning")))
    with pytest.raises(
        InvalidData, match=r"extra: expected readings within ±1e\+30, got up to 3\.40282e\+38"
    ):
        require_trainable(found)


@pytest.mark.parametrize(("offset", "said"), [(1.7e9, "100 %"), (1e8, "10.1 %"), (1e6, None), (1e-30, None)])
def test_wear_that_float32_would_round_away_is_warned_of(inspected, offset, said):
    _, found = inspected(
        EXTRA,
        change=lambda text: with_column(text, "extra", lambda _, c, life: f"{offset + 40 * c / life:.9e}"),
    )

    said_so = [text for text in lines(found, "warning") if "float32" in text]
    assert [said in text for text in said_so] == ([] if said is None else [True])


def test_what_is_suggested_for_lives_of_two_cycles_is_not_warned_of(inspected):
    fleet = replace(PUMPS, cap=4.0, context=2, horizons=(1, 2), critical_below=1.0, degrading_below=3.0)

    facts, found = inspected(fleet, change=first_cycles(2))

    assert (facts.suggested.cap, facts.suggested.context) == (4.0, 2)
    assert not [text for text in lines(found, "warning") if "cap" in text or "first readings" in text]


def test_a_cap_of_hardly_any_life_is_noted(inspected):
    fleet = replace(PUMPS, cap=4.0, horizons=(2,), critical_below=1.0, degrading_below=3.0)

    assert any(text.startswith("cap = 4 is small") for text in lines(inspected(fleet)[1], "note"))


def test_duplicated_cycles_are_counted_and_located(inspected):
    def twice(text):
        first, *rows = text.splitlines()
        return "\n".join([first, rows[0], *rows[:2], *rows[1:]])

    facts, found = inspected(change=twice)

    assert facts.duplicates == 2
    assert re.search(
        r"line 3: unit 1, cycle 1: duplicate of .*line 2; 2 such rows of \d+: keep one of each, or .*mean$",
        lines(found, "error")[0],
    )


def test_a_column_that_counts_to_the_failure_is_the_answer(inspected):
    left = PUMP_SCHEMA.columns[1]
    fleet = replace(
        PUMPS,
        schema=replace(PUMP_SCHEMA, columns=(replace(left, name="left"), replace(left, name="hours"))),
        sources=("left", "cycle"),
    )

    _, found = inspected(
        fleet, change=lambda text: with_column(text, "left", lambda _, c, life: life - c + 7)
    )

    assert "[[sensors]] left counts the cycles to failure: the answer; remove the column" in lines(
        found, "warning"
    )
    assert any("hours repeats the cycle number" in text for text in lines(found, "note"))


CELLS = {
    "extra: expected readings, got none": lambda unit, cycle: "",
    "extra is 3.5 in 100 % of its readings": lambda unit, cycle: 3.5,
    "extra is 3.5 in 99.9 % of its readings": lambda unit, cycle: 3.5 + (unit == "9" and cycle == 2),
    "67.0 % of the readings are missing": lambda unit, cycle: "" if cycle % 3 else cycle % 7,
    "1.6 % of the readings are missing": lambda unit, cycle: "" if cycle == 5 else cycle % 7,
    "1 outlier far from 0 .. 6, the first at unit 7, cycle 3": lambda unit, cycle: (
        1e6 if (unit, cycle) == ("7", 3) else cycle % 7
    ),
    "most are -999: a code for missing?": lambda unit, cycle: (
        -999 if cycle == 9 and int(unit) < 5 else cycle % 7
    ),
    "1 outlier far from 0 .. 6, the first at unit 5, cycle 9": lambda unit, cycle: (
        50 if (unit, cycle) == ("5", 9) else cycle % 7
    ),
}


NOTED = ("1.6 % of the readings are missing", "1 outlier far from 0 .. 6, the first at unit 5, cycle 9")


@pytest.mark.parametrize("said", CELLS)
def test_a_column_that_says_little_or_something_wrong_is_named(inspected, said):
    _, found = inspected(
        EXTRA, change=lambda text: with_column(text, "extra", lambda u, c, life: CELLS[said](u, c))
    )

    (level,) = (each.level for each in found if said in each.text)
    assert level == ("error" if "got none" in said else "note" if said in NOTED else "warning")


def test_sensors_that_are_all_constant_end_a_training(inspected):
    still = each_row(lambda unit, cycle, load, *_: (unit, cycle, load, 3, 5 if cycle != "4" else ""))

    with pytest.raises(
        InvalidData, match=r"^\[\[sensors\]\]: expected readings that change, got one value a"
    ):
        require_trainable(inspected(change=still)[1])


def test_units_that_end_far_from_the_others_are_named_where_all_should_have_failed(inspected):
    def stopped(text):
        return "\n".join(line for line in text.splitlines() if not re.match(r"[27],(2[1-9]|[3-9]\d),", line))

    _, found = inspected(change=stopped, loads=(40.0,))

    (text,) = (text for text in lines(found, "warning") if "run_to_failure" in text)
    assert "2 units (2, 7) less than half-way there: do they still run?" in text
    assert not any("run_to_failure" in each.text for each in inspected(loads=(40.0,))[1])


def test_units_that_have_not_failed_and_gaps_in_cycles_are_noted(inspected):
    def with_gap(text):
        return "\n".join(line for line in text.splitlines() if not line.startswith("1,7,"))

    facts, found = inspected(replace(WORN, failure=FailureRule("vibration", at_least=9.0)), change=with_gap)

    running = 24 - facts.failed
    level = "warning" if running > 0.2 * 24 else "note"
    gaps = "1 unit with gaps in the cycle numbers: windows count 0.1% of the cycles as missing"
    assert 0 < running < 24
    assert f"{running} of 24 units have not failed: they have no RUL" in " ".join(lines(found, level))
    assert gaps in " ".join(lines(found, "note"))


@pytest.mark.parametrize(("offset", "said"), [(0, False), (500, True)])
def test_cycle_numbers_that_are_no_ages_are_a_warning(inspected, offset, said):
    _, found = inspected(change=each_row(lambda unit, cycle, *more: [unit, int(cycle) + offset, *more]))

    warnings = lines(found, "warning")
    assert any(text.startswith("the first readings stand at cycle 501") for text in warnings) == said


def test_units_numbered_in_steps_that_leave_windows_empty_do_not_train(inspected):
    facts, found = inspected(change=each_row(lambda unit, cycle, *more: [unit, 10 * int(cycle), *more]))

    (text,) = (text for text in lines(found, "note") if "gaps" in text)
    assert "24 units with gaps in the cycle numbers: windows count 89.9% of the cycles as missing" in text
    (text,) = (text for text in lines(found, "warning") if "too few readings" in text)
    assert text.startswith("98.4 % of the windows")
    assert "number the readings 1, 2, 3, .." in text
    assert facts.window == 1
    with pytest.raises(InvalidData, match="expected two cycles with enough readings before a failure"):
        require_trainable(found)


def test_no_window_counts_that_misses_too_many_readings(inspected):
    def first_alone(unit, cycle, load, vibration, _pressure):
        return [unit, cycle, *([load, vibration, ""] if cycle == "1" else [""] * 3)]

    facts, _ = inspected(change=each_row(first_alone))

    assert facts.window == 1


def test_units_that_lack_too_many_columns_for_an_answer_are_a_warning(inspected):
    def half_lack_sensors(unit, cycle, load, *sensors):
        cycle = int(cycle) + (unit == "1" and int(cycle) > 7)  # One gap of one cycle, which is harmless.
        return [unit, cycle, load, *(sensors if int(unit) % 2 else [""] * len(sensors))]

    facts, found = inspected(change=each_row(half_lack_sensors))

    assert 0.3 < facts.refused < 0.7
    assert any(text.endswith("raise max_missing_fraction") for text in lines(found, "warning"))
    assert [each.level for each in found if "gaps" in each.text] == ["note"]


def test_windows_with_just_enough_readings_train(inspected):
    facts, _ = inspected(change=each_row(lambda unit, cycle, *more: [unit, 2 * int(cycle) - 1, *more]))

    assert facts.window == PUMPS.context


@pytest.mark.parametrize("context", [10, 20, 40])
def test_units_numbered_in_steps_of_which_each_begins_a_window_are_a_warning(inspected, context):
    apart = each_row(lambda unit, cycle, *more: [unit, 25 * int(cycle), *more])

    facts, found = inspected(replace(PUMPS, context=context), change=apart)

    assert (facts.anew, facts.window) == (1.0, 1)
    (text,) = (text for text in lines(found, "warning") if "gaps" in text)
    assert ", and windows begin anew at 100.0% of the readings: number the readings 1, 2, 3, .." in text
    with pytest.raises(InvalidData, match="two cycles with enough readings before a failure, got none"):
        require_trainable(found)


def test_windows_that_begin_anew_after_an_outage_are_not_too_empty(inspected):
    def with_outage(text):
        head, *rows = text.splitlines()
        return "\n".join([head, *(row for row in rows if not 10 < int(row.split(",")[1]) <= 28)])

    facts, found = inspected(change=with_outage)

    assert (facts.gaps, facts.skipped, facts.refused) == (24, 0.0, 0.0)
    assert [each.level for each in found if "gaps" in each.text] == ["note"]


@given(
    arrays.arrays(np.float32, st.integers(0, 60), elements=st.floats(-1e6, 1e6, width=32) | st.just(np.nan))
)
def test_facts_of_any_column_are_in_order_and_within_its_count(readings):
    facts = column_facts("c", "sensor", readings)

    assert 0 <= facts.missing <= 1
    assert 0 <= facts.commonest <= 1
    assert facts.outliers <= len(readings)
    assert np.isnan(readings).all() or facts.low <= facts.median <= facts.high


@given(st.lists(st.floats(1, 1e5), min_size=6, max_size=6).map(sorted))
def test_suggested_values_fit_each_other_and_the_lives(lives):
    suggested = suggest(lives)

    assert suggested is not None
    assert 2 <= suggested.context <= max(2, suggested.cap)
    assert list(suggested.horizons) == sorted(set(suggested.horizons))
    assert 0 < suggested.horizons[0] <= suggested.horizons[-1] <= suggested.cap


@given(st.floats(1e-6, 1e9))
def test_a_nice_number_is_within_a_quarter(value):
    assert nice(value) == pytest.approx(value, rel=0.25)


def test_rul_inspect_prints_lives_columns_findings_and_suggested_values(files):
    result = rul("inspect", files / "pumps.toml", files / "pumps.csv")

    assert result.exit_code == 0, result.exception
    shown = ("readings of 12 units", "median", "vibration", "warning: only 12 units", "suggested for")
    assert [said for said in shown if said not in result.stdout] == []


def test_rul_inspect_ends_with_1_where_a_training_cannot_begin(tmp_path):
    (tmp_path / "pumps.csv").write_bytes(csv_text(worn_pumps(units=3, seed=4), PUMP_SCHEMA))
    (tmp_path / "pumps.toml").write_text(fleet_toml(PUMPS), encoding="utf-8")

    result = rul("inspect", tmp_path / "pumps.toml", tmp_path / "pumps.csv")

    assert result.exit_code == 1
    assert "error: --folds 5" in result.stdout


def test_a_column_that_varies_little_is_shown_with_the_digits_that_tell_its_readings_apart(inspected):
    def steady(unit, cycle, load, *others):
        return unit, cycle, 2388 + int(cycle) % 10 / 40, *others

    facts, _ = inspected(change=each_row(steady))

    shown = {column.header: next(iter(column.cells)) for column in columns_table(facts).columns}
    assert shown["median"] == "2388.1"
    assert shown["1 %"] != shown["99 %"]


def test_one_finding_is_not_called_findings(tmp_path, capsys):
    (tmp_path / "pumps.csv").write_bytes(csv_text(worn_pumps(units=19, seed=4), PUMP_SCHEMA))

    inspected_trajectories([tmp_path / "pumps.csv"], SHORT_LIVED, fleet="pumps.toml", folds=5)

    assert "1 finding in all: rul inspect" in capsys.readouterr().err


@pytest.mark.parametrize("unit", ["P[/x]", "P[red]1", "[1]"])
def test_a_table_shows_any_name_as_it_is(unit, capsys):
    table = number_table(f"windows of {unit}", "a long name for a width", "number")
    Console().print(table)

    assert f"windows of {unit}" in capsys.readouterr().out


def test_cycles_of_a_column_are_compared_only_if_units_end_close_together_in_it():
    rng = np.random.default_rng(0)
    lives = [np.linspace(0.0, 100.0, 20) for _ in range(50)]
    columns = {"load": [life * rng.uniform(0.5, 2.0) for life in lives], "wear": lives}

    with cProfile.Profile() as profile:
        found = common_end(columns)

    assert found is not None
    assert found.rule.column == "wear"
    assert sum(each.callcount for each in profile.getstats() if "'std'" in str(each.code)) == len(lives)
