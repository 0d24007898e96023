"""`rul fleet init`: a fleet file guessed from data, and what it says it could not guess."""

import cProfile
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.domain import Column, InvalidData
from model.fleet import FailureRule, load_fleet
from model.fleet_cli import FleetExists
from model.fleet_draft import Draft, draft_fleet
from model.fleet_draft_columns import column_name
from model.fleet_draft_text import draft_toml
from model.inspection import Suggested
from model.outputs import CannotWrite
from model.writers import csv_text
from tests.commands import rul
from tests.fleets import PUMP_SCHEMA, worn_pumps

HEADER = ("Pump No.", "day", "Speed (rpm)", "vibration", "note", "RUL", "spare")


def rows(*, pumps=12, seed=1):
    """Pumps at two speeds that end near a vibration of 8, with columns that no model should read."""
    drawn = random.Random(seed)
    for pump in range(1, pumps + 1):
        life = drawn.randint(30, 60)
        for day in range(1, life + 1):
            vibration = 2 + 6 * 2.718 ** ((day - life) / 10) + drawn.gauss(0, 0.05)
            yield f"P-{pump:03}", day, drawn.choice([1450, 2900]), round(vibration, 4), "ok", life - day, 7


def write_csv(path, table, *, header=HEADER, delimiter=","):
    path.write_text("\n".join(delimiter.join(map(str, row)) for row in [header, *table]), encoding="utf-8")
    return path


def write_parquet(path, table, *, header=HEADER):
    pq.write_table(pa.Table.from_arrays([*map(pa.array, zip(*table, strict=True))], header), path)
    return path


WRITERS = {"csv": write_csv, "parquet": write_parquet}


def ninety_rows(*columns):
    """Rows of three units; each column is a function of the number of its row."""
    return [(1 + n // 30, *(column(n) for column in columns)) for n in range(90)]


def day(n):
    return 1 + n % 30


def flow(n):
    return n * 0.37 % 5


@pytest.fixture
def drafted(tmp_path):
    """Draft a fleet from a file of these rows."""

    def draft(table, *header, form="csv"):
        return draft_fleet([WRITERS[form](tmp_path / f"x.{form}", table, header=header)])

    return draft


def test_unit_cycle_setting_sensor_failure_and_what_is_left_out_are_guessed(tmp_path):
    draft = draft_fleet([write_csv(tmp_path / "pumps.csv", rows())])

    assert (draft.unit_column, draft.cycle_column, draft.units) == ("Pump No.", "day", 12)
    assert list(draft.columns.items()) == [
        ("Speed (rpm)", Column("speed", "setting", "rpm")),
        ("vibration", Column("vibration", "sensor")),
    ]
    assert dict(draft.left_out) == {
        "note": "text",
        "RUL": "the answer: it counts down to the failure",
        "spare": "constant",
    }
    assert draft.failure is not None
    assert draft.failure == FailureRule("vibration", at_least=draft.failure.at_least)
    assert 7 < draft.failure.at_least < 8  # near which units end


def test_a_column_that_falls_gives_a_bound_from_above(tmp_path):
    mirrored = [(u, d, s, 10 - v, *rest) for u, d, s, v, *rest in rows()]

    draft = draft_fleet([write_csv(tmp_path / "pumps.csv", mirrored)])

    assert draft.failure is not None
    assert draft.failure.at_most is not None
    assert 2 < draft.failure.at_most < 3


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_written_file_is_a_fleet_with_comments_whatever_the_delimiter(tmp_path, delimiter):
    draft = draft_fleet([write_csv(tmp_path / "pumps.csv", rows(), delimiter=delimiter)])
    (tmp_path / "pumps.toml").write_text(draft_toml(draft, name="pumps"), encoding="utf-8")

    fleet = load_fleet(tmp_path / "pumps.toml")

    assert fleet.sources == ("Speed (rpm)", "vibration")
    assert (fleet.unit_column, fleet.cycle_column, fleet.failure) == ("Pump No.", "day", None)
    assert (fleet.cap, fleet.context) == (draft.suggested.cap, draft.suggested.context)
    text = draft_toml(draft, name="pumps")
    assert "# at_least = " in text
    assert '#   "RUL": the answer' in text
    assert max(map(len, text.splitlines())) <= 110


def test_parquet_gives_the_same_draft_as_csv(tmp_path):
    table = list(rows())

    from_parquet = draft_fleet([write_parquet(tmp_path / "pumps.parquet", table)])
    from_csv = draft_fleet([write_csv(tmp_path / "pumps.csv", table)])

    assert from_parquet.form == "parquet"
    assert [*from_parquet.columns.items()] == [*from_csv.columns.items()]
    assert from_parquet.failure == from_csv.failure


def test_files_without_a_unit_column_are_one_unit_each_and_rows_are_cycles(tmp_path):
    files = []
    for unit in worn_pumps(units=4, seed=1):
        text = csv_text([unit], PUMP_SCHEMA).decode()
        files.append(tmp_path / f"{unit.unit}.csv")
        files[-1].write_text("\n".join(line.split(",", 2)[2] for line in text.splitlines()))

    draft = draft_fleet(files)

    assert (draft.unit_column, draft.cycle_column, draft.units) == ("file", None, 4)
    assert any(said.startswith("the cycle:") for said in draft.unsure)


def test_a_single_unnamed_unit_is_said(drafted):
    draft = drafted([(n, 3.0 + n % 7) for n in range(50)], "day", "flow")

    assert (draft.unit_column, draft.cycle_column) == ("file", "day")
    assert any(said.startswith("the unit:") for said in draft.unsure)


def test_a_column_that_some_files_lack_is_left_out(tmp_path):
    first = write_csv(
        tmp_path / "a.csv", [(1, n, n % 5, n % 3) for n in range(9)], header=("unit", "day", "x", "y")
    )
    second = write_csv(tmp_path / "b.csv", [(2, n, n % 5) for n in range(9)], header=("unit", "day", "x"))

    draft = draft_fleet([first, second])

    assert draft.left_out == (("y", "not in every file"),)


COUNTDOWNS = ("days_left", "cycles until failure", "time to failure", "countdown")


@pytest.mark.parametrize(
    ("columns", "cycle", "reason"),
    [
        (
            {"hour": lambda n: n % 30, "Time (d)": lambda n: n % 30 / 24},
            "hour",
            "time: the cycle number tells it",
        ),
        ({"time": lambda n: 1_764_072_000 + 60 * n}, None, "time: the cycle number tells it"),
        ({"cycle": day, "on": lambda n: f"2026-03-{day(n):02}"}, "cycle", "time: the cycle number tells it"),
        ({"cycle": day, "on": lambda n: f"2026-03-{1 + (n > 40):02}"}, "cycle", "time, as dates"),
        ({"cycle": lambda n: "" if n % 7 == 6 else day(n)}, None, "time, but 12 of its numbers are missing"),
        (
            {"cycle": lambda n: n % 30 // 10},
            None,
            "time that repeats, 10 rows each; for cycles keep one row of each, or their mean",
        ),
        ({"minute": lambda n: 10 * n % 60}, None, "part of a time of day"),
        *[
            ({name: lambda n: 31 - day(n)}, None, "the answer: it counts down to the failure")
            for name in COUNTDOWNS
        ],
        (
            {"cycle": day, "other": lambda n: "off" if n == 7 else n % 9},
            "cycle",
            "text: 1 of 90 cells is no number, such as 'off'",
        ),
        (
            {"cycle": day, "mode": lambda n: ("eco", "normal", "boost")[n % 3]},
            "cycle",
            "text of 3 words ('boost', 'eco', 'normal'): write each as a number if it matters",
        ),
        (  # a unit that was repaired
            {"cycle": day, "status": lambda n: "FAILED" if n in {10, 29, 59} else "ok"},
            "cycle",
            (
                "text of 2 words ('FAILED', 'ok'): write each as a number if it matters; if 'FAILED' is a "
                "failure, write a column failed of 1 and 0"
            ),
        ),
        ({"cycle": day, "remark": lambda n: f"by {n % 40}"}, "cycle", "text"),
        ({"cycle": day, "other": lambda n: f'"{n},5"'}, "cycle", "numbers as text: '0,5'"),
        ({"cycle": day, "id": lambda n: 2**60 + n}, "cycle", "whole numbers beyond 2^53: an id, or a time"),
    ],
)
def test_a_column_that_holds_neither_cycles_nor_readings_is_left_out_with_the_reason(
    drafted, columns, cycle, reason
):
    draft = drafted(ninety_rows(*columns.values(), flow), "unit", *columns, "flow")

    assert draft.cycle_column == cycle
    assert [column.name for column in draft.columns.values()] == ["flow"]
    assert draft.left_out == (([*columns][-1], reason),)


def test_cycles_above_the_largest_number_are_not_guessed_and_the_limit_is_said(drafted):
    draft = drafted(ninety_rows(lambda n: 10**9 + day(n), flow), "unit", "cycle", "flow")

    assert draft.cycle_column is None
    assert any("whole numbers up to 16777216 rises in each unit by ones" in said for said in draft.unsure)


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        ("second_stage", lambda n: n * n % 53),
        ("time_of_repair", lambda n: 7 * (n % 30 // 10)),
        ("time_zone", lambda n: int(n > 40)),
    ],
)
def test_whole_readings_under_the_name_of_a_time_stay_readings(drafted, name, reading):
    draft = drafted(ninety_rows(day, reading), "unit", "cycle", name)

    assert [column.name for column in draft.columns.values()] == [name]


@pytest.mark.parametrize("name", ["date", "day"])
def test_files_whose_newest_row_is_first_have_the_cycle_and_the_sensors_of_those_in_order(tmp_path, name):
    when = {"date": lambda day: f"2026-03-{day:02}", "day": int}[name]
    table = [(unit, when(day), day * day * 0.37 % 5 + day) for unit in (1, 2, 3) for day in range(1, 31)]
    header = ("unit", name, "flow")

    newest = draft_fleet([write_csv(tmp_path / "newest.csv", table[::-1], header=header)])

    assert newest.cycle_column == name
    assert newest == draft_fleet([write_csv(tmp_path / "oldest.csv", table, header=header)])


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("us", "Mars/Olympus"), pa.date32()])
def test_times_with_a_type_are_the_cycle(drafted, kind):
    days = pa.array([20_000 + n % 30 for n in range(90)], pa.int32()).cast(pa.date32()).cast(kind)

    draft = drafted(ninety_rows(days.__getitem__, flow), "unit", "when", "flow", form="parquet")

    assert (draft.cycle_column, list(draft.columns)) == ("when", ["flow"])


def test_a_time_that_python_cannot_hold_does_not_hide_the_other_columns(drafted):
    beyond = pa.scalar(253_402_300_800, pa.int64()).cast(pa.timestamp("s"))  # the year 10000

    draft = drafted(ninety_rows(day, lambda n: beyond, flow), "unit", "cycle", "due", "flow", form="parquet")

    assert (draft.cycle_column, list(draft.columns)) == ("cycle", ["flow"])
    assert draft.left_out == (("due", "text"),)


def test_a_row_that_is_twice_does_not_hide_the_cycle(drafted):
    table = ninety_rows(day, lambda n: n / 7, flow)

    draft = drafted([*table, table[40]], "unit", "cycle", "hour", "flow")

    assert draft.cycle_column == "cycle"
    assert list(draft.columns) == ["flow"]


@pytest.mark.parametrize("cell", [" ", " - "])
def test_a_column_of_numbers_with_a_missing_one_between_blanks_is_drafted_as_it_is_read(drafted, cell):
    table = ninety_rows(lambda n: cell if n == 7 else flow(n), lambda n: f" {day(n)}")

    draft = drafted(table, "unit", " flow", " cycle")

    assert list(draft.columns) == ["flow"]
    assert draft.cycle_column == "cycle"
    assert not draft.left_out


@pytest.mark.parametrize("days", [1, 4])
@pytest.mark.parametrize("values", [("ok", "failed"), ("", "x"), ("run", "end")])
def test_a_column_with_a_word_in_last_rows_alone_is_left_out_with_what_to_do(drafted, values, days):
    table = ninety_rows(day, flow, lambda n: values[day(n) > 30 - days])

    draft = drafted(table, "unit", "cycle", "flow", "state")

    reason = (
        f"text; last rows alone have {values[1]!r}: if that is a failure, write it as 1 and all else as 0"
    )
    assert draft.left_out == (("state", reason),)


@pytest.mark.parametrize("values", [(0, 1), ("false", "true"), ("", 1)])
def test_a_column_that_changes_in_last_rows_alone_says_which_units_failed(tmp_path, values):
    table = [
        (unit, day, day * 0.37 % 5, values[day == 30 and unit != 4]) for unit in range(5) for day in range(31)
    ]
    data = write_csv(tmp_path / "x.csv", table, header=("unit", "day", "flow", "broken"))
    out = tmp_path / "x.toml"

    said = rul("fleet", "init", data, "--output", out).stdout

    assert load_fleet(out).failure == FailureRule("broken", at_least=1.0)
    assert list(load_fleet(out).sources) == ["flow"]
    assert "failure: 4 of 5 units, those whose last 'broken' is 1" in said
    assert "when a unit has failed" not in said


FIVE_LIVES = [(unit, day) for unit in range(5) for day in range(1, 32)]


@pytest.mark.parametrize(("name", "days", "failure"), [
    ("has failed", 3, FailureRule("has failed", at_least=1.0)),  # and stays so
    ("warning lamp", 3, None),  # may come before the failure
    ("failed", 31, None),  # of the whole unit
])  # fmt: skip
def test_only_a_column_named_for_it_may_say_in_several_last_rows_that_a_unit_failed(
    drafted, name, days, failure
):
    table = [(u, d, (7 * d + u) % 31, int(d > 31 - days and u != 4)) for u, d in FIVE_LIVES]

    draft = drafted(table, "unit", "day", "flow", name)

    said = failure is not None
    assert (draft.failed, draft.failure) == ((4, failure) if said else (None, draft.failure))
    if name != "warning lamp":
        because = "it says which units failed" if said else "its name says so"
        assert draft.left_out == ((name, f"the answer: {because}"),)


def test_a_column_named_for_it_says_which_units_failed_before_others_and_of_one_unit(drafted):
    table = [(u, d, (7 * d + u) % 31, int(d == 31), int(d == 31 and u == 4)) for u, d in FIVE_LIVES]

    draft = drafted(table, "unit", "day", "flow", "valve", "failed")

    assert (draft.failed, draft.failure) == (1, FailureRule("failed", at_least=1.0))


@given(
    st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True),
    st.text(min_size=1),
    st.sampled_from([None, 2]),
)
def test_a_draft_of_any_names_can_be_read_back(tmp_path_factory, sources, unit, failed):
    columns: dict[str, Column] = {}
    for source in sources:
        name, of = column_name(source, [column.name for column in columns.values()])
        columns[source] = Column(name, "sensor", of)
    suggested = Suggested(100.0, 30, (10, 30))
    left_out = ((unit, "text"),)
    draft = Draft(
        "csv",
        unit,
        unit,
        3,
        columns,
        left_out,
        FailureRule(unit, at_most=0.5),
        failed,
        suggested,
        25.0,
        80.0,
        (),
    )
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(draft_toml(draft, name="x"), encoding="utf-8")

    fleet = load_fleet(path)

    assert fleet.sources == tuple(sources)
    assert (fleet.unit_column, fleet.cycle_column) == (unit, unit)


def test_infinite_and_missing_readings_do_not_hide_a_sensor(drafted):
    table = ninety_rows(day, lambda n: "" if n % 7 == 0 else "inf" if n % 11 == 0 else n * 0.37)

    draft = drafted(table, "unit", "day", "flow")

    assert [column.name for column in draft.columns.values()] == ["flow"]


HEADER_AGAIN = [("unit", "day", "flow") if n == 40 else (1 + n // 30, 1 + n % 30, n % 7) for n in range(90)]


@pytest.mark.parametrize(
    ("form", "header", "table", "message"),
    [
        ("csv", ("unit", "day", "note"), [("a", n, "text") for n in range(9)],
         "no column of numbers that change, got unit, day, note"),
        ("csv", ("unit", "day", "flow"), HEADER_AGAIN,
         r"x\.csv: line 42, column 'day': expected a number, got 'day'"),
        ("parquet", ("unit", "flow"), [(1 + n // 20, "off" if n == 9 else "1.5") for n in range(40)],
         r"x\.parquet: row 10, column 'flow': expected a number, got 'off'"),
        ("csv", ("a", "b"), [(1, 2), (1, 2, 3)], r"x\.csv: line 3: expected 2 columns, got 3"),
        *[(form, ("unit", "day", "flow", "flow"), [(1 + n // 30, n % 30, n % 7, n % 5) for n in range(90)],
           rf"x\.{form}: the header has flow more than once: rename all but one") for form in WRITERS],
    ],
)  # fmt: skip
def test_a_file_without_a_column_for_a_model_is_refused_with_the_place(drafted, form, header, table, message):
    with pytest.raises(InvalidData, match=message):
        drafted(table, *header, form=form)


def test_files_that_share_no_column_are_refused_by_the_first_that_has_none_of_the_others(tmp_path):
    one = write_csv(tmp_path / "a.csv", [(1, 2, 3)], header=("unit", "day", "flow"))
    other = write_csv(tmp_path / "b.csv", [(1, 2)], header=("unit", "machine"))
    third = write_csv(tmp_path / "c.csv", [(1, 2)], header=("day", "machine"))

    expected = r"c\.csv: no column that all files before it have: expected one of unit, got day, machine$"
    with pytest.raises(InvalidData, match=expected):
        draft_fleet([one, one, other, third])


@pytest.mark.parametrize(
    ("source", "taken", "expected"),
    [
        ("Vib. (mm/s)", [], ("vib", "mm/s")),
        ("Oil temp", [], ("oil_temp", "")),
        ("flow", ["flow"], ("flow_2", "")),
        ("Flow [l/min]", ["flow", "flow_2"], ("flow_3", "l/min")),
        ("(%)", [], ("column", "")),
        ("flow (l\n)", [], ("flow", "l?")),
        ("温度", [], ("column", "")),
    ],
)
def test_a_name_is_plain_and_taken_once(source, taken, expected):
    name, unit = column_name(source, taken)

    assert (name, unit) == expected


def test_rul_fleet_init_writes_a_file_that_rul_inspect_reads(tmp_path):
    data = write_csv(tmp_path / "pumps.csv", rows(pumps=24))

    result = rul("fleet", "init", data, "--output", tmp_path / "pumps.toml")

    assert result.exit_code == 0, result.exception
    for said in ("unit: 'Pump No.', 24 units", "settings: speed", "left out: note (text)",
                 "not guessed: when a unit",
                 f"Next: rul inspect {tmp_path / 'pumps.toml'} {data}"):  # fmt: skip
        assert said in result.stdout
    inspected = rul("inspect", tmp_path / "pumps.toml", data)
    assert inspected.exit_code == 0, inspected.output


def test_a_fleet_file_is_not_overwritten_unasked_and_its_folder_is_made(tmp_path):
    data, out = write_csv(tmp_path / "pumps.csv", rows()), tmp_path / "new" / "pumps.toml"

    assert rul("fleet", "init", data, "--output", out).exit_code == 0
    out.write_text("mine")
    result = rul("fleet", "init", data, "--output", out)

    assert isinstance(result.exception, FleetExists)
    assert out.read_text() == "mine"
    assert rul("fleet", "init", data, "--output", out, "--overwrite").exit_code == 0


@pytest.mark.parametrize("form", WRITERS)
def test_units_with_numbers_beyond_those_of_float64_stay_apart(drafted, form):
    table = [(2**60 + n // 30, day(n), flow(n)) for n in range(90)]

    draft = drafted(table, "id", "day", "flow", form=form)

    assert (draft.unit_column, draft.units) == ("id", 3)


def test_a_fleet_file_that_cannot_be_written_is_one_clear_line(tmp_path):
    data = write_csv(tmp_path / "pumps.csv", rows())

    result = rul("fleet", "init", data, "--output", data / "x.toml")

    assert isinstance(result.exception, CannotWrite)
    assert str(result.exception) == f"{data}: cannot be written: File exists"


def test_c_mapss_text_needs_no_header(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{unit} {cycle} " + " ".join(f"{value:.3f}" for value in rng.normal(cycle, 1, 24))
        for unit in (1, 2, 3)
        for cycle in range(1, 40)
    ]
    (tmp_path / "train.txt").write_text("\n".join(lines))

    draft = draft_fleet([tmp_path / "train.txt"])

    assert (draft.unit_column, draft.cycle_column) == ("unit", "cycle")
    assert (draft.form, len(draft.columns)) == ("cmapss", 24)


def test_the_trend_of_each_unit_is_computed_only_of_columns_that_may_be_settings(tmp_path):
    rng = np.random.default_rng(0)
    units, cycles = np.repeat(np.arange(40), 10), np.tile(np.arange(1, 11), 40)
    columns = {"unit": units, "cycle": cycles, "flow": rng.normal(size=400), "load": np.tile([0, 1], 200)}
    pq.write_table(pa.table(columns), tmp_path / "pumps.parquet")

    with cProfile.Profile() as profile:
        draft = draft_fleet([tmp_path / "pumps.parquet"])

    roles = {column.name: column.role for column in draft.columns.values()}
    means = sum(each.callcount for each in profile.getstats() if "'mean'" in str(each.code))
    assert roles == {"flow": "sensor", "load": "setting"}
    assert means < 2 * 2 * 40


def test_codes_for_missing_do_not_turn_a_sensor_with_a_trend_into_a_setting(drafted):
    def force(n):
        return -9999 if day(n) == 15 else 200 + 5 * day(n) + flow(n)

    draft = drafted(ninety_rows(day, flow, force), "unit", "day", "flow", "force")

    assert draft.columns["force"].role == "sensor"
