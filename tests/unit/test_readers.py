import contextlib
import hashlib
import logging
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.domain import Column, InvalidData, Schema, Trajectory
from model.files import content, data_sha256, format_of
from model.fleet import FAILED, FailureRule, Fleet, fleet_named
from model.readers import read_rows, read_trajectories, read_with_report
from model.tables import names_of
from model.writers import csv_text, write_parquet
from tests.examples import examples
from tests.fleets import PUMP_SCHEMA, PUMPS

HEADER = "unit,cycle,load,vibration,pressure"
FILE_A_UNIT = replace(PUMPS, unit_column="file", cycle_column=None)
in_a_folder = examples(30)


def write(folder, *lines, name="pumps.csv", end="\n"):
    path = folder / name
    path.write_bytes(end.join(lines).encode() + end.encode())
    return path


def cmapss_row(unit, cycle, first=0.5):
    return " ".join([str(unit), str(cycle), *(f"{first + i}" for i in range(24))])


def assert_same(got, expected):
    assert [unit.unit for unit in got] == [unit.unit for unit in expected]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a.cycles, b.cycles)
        np.testing.assert_array_equal(a.readings, b.readings)
        assert a.failed == b.failed


def test_cmapss_text_is_read_with_blanks_in_any_number_and_place(tmp_path):
    rows = [
        cmapss_row(1, 1) + "  ",
        "  " + cmapss_row(1, 2, first=1.5).replace(" ", "   "),
        "",
        "   ",
        cmapss_row(2, 1).replace(" ", "\t"),
    ]

    first, second = read_trajectories(write(tmp_path, *rows, name="train.txt"), fleet_named("cmapss"))

    assert (first.unit, second.unit) == ("1", "2")
    assert first.cycles.tolist() == [1, 2]
    # Columns are 3 settings and sensors 2, 3, 4, 7, ...: numbers 1 to 3 and 5, 6, 7, 10, ... of 24.
    assert first.readings[0, :7].tolist() == [0.5, 1.5, 2.5, 4.5, 5.5, 6.5, 9.5]
    assert first.readings[1, 0] == 1.5


@pytest.mark.parametrize(
    ("before", "end"), [("\ufeff", "\n"), ("", "\r\n"), ("", "\r"), ("\n  \n", "\n"), ("\ufeff", "\r\n")]
)
def test_byte_order_marks_line_ends_and_empty_lines_change_nothing(tmp_path, before, end):
    plain = write(tmp_path, HEADER, "a,1,40,2.5,9", "a,2,75,2.75,8.5", name="plain.csv")
    odd = write(
        tmp_path, before + HEADER, "a,1,40,2.5,9  ", "", "a,2,75,2.75,8.5", "  ", name="odd.csv", end=end
    )

    assert_same(read_trajectories(odd, PUMPS), read_trajectories(plain, PUMPS))


def test_a_unit_may_go_on_in_another_file(tmp_path):
    write(tmp_path, HEADER, "a,1,0,1,0", name="january.csv")
    write(tmp_path, HEADER, "a,2,0,2,0", name="may.csv")
    write(tmp_path, "not data", name="notes.md")

    (unit,) = read_trajectories(tmp_path, PUMPS)

    assert unit.cycles.tolist() == [1, 2]


def test_one_file_a_unit_takes_its_name_and_counts_its_rows(tmp_path):
    write(tmp_path, "vibration,load,pressure", "1,0,0", "2,0,0", name="pump-7.csv")
    write(tmp_path, "load,vibration,pressure", "0,5,0", name="pump-8.csv")

    first, second = read_trajectories(tmp_path, FILE_A_UNIT)

    assert (first.unit, second.unit) == ("pump-7", "pump-8")
    assert first.cycles.tolist() == [1, 2]
    assert first.readings[:, 1].tolist() == [1, 2]


def test_two_files_of_one_unit_are_refused_where_each_file_is_a_unit(tmp_path):
    for site in ("north", "south"):
        (tmp_path / site / "pumps").mkdir(parents=True)
        write(tmp_path, "vibration,load,pressure", "1,0,0", name=f"{site}/pumps/7.csv")

    with pytest.raises(
        InvalidData, match=r"south/pumps/7.csv: its unit would be pumps_7, as that of .*north"
    ):
        read_trajectories(tmp_path, FILE_A_UNIT)


def test_without_a_cycle_column_the_rows_of_each_unit_are_counted(tmp_path):
    path = write(tmp_path, "unit,load,vibration,pressure", "a,0,1,0", "b,0,10,0", "a,0,2,0")

    first, second = read_trajectories(path, replace(PUMPS, cycle_column=None))

    assert first.cycles.tolist() == [1, 2]
    assert first.readings[:, 1].tolist() == [1, 2]
    assert second.cycles.tolist() == [1]


@pytest.mark.parametrize("cell", ["", " ", "NaN", "nan", "null", "NA", " NULL "])
def test_a_missing_value_is_nan(tmp_path, cell):
    (unit,) = read_trajectories(write(tmp_path, HEADER, f"a,1,40,{cell},9"), PUMPS)

    assert np.isnan(unit.readings[0, 1])
    assert unit.readings[0, [0, 2]].tolist() == [40, 9]


def test_infinite_values_become_missing_and_are_counted_and_reported(tmp_path, caplog):
    path = write(tmp_path, HEADER, "a,1,inf,-inf,9", "a,2,40,1e39,", "a,3,40,2,8")

    with caplog.at_level(logging.WARNING):
        (unit,), report = read_with_report(path, PUMPS)

    assert np.isnan(unit.readings[0, :2]).all()
    assert np.isnan(unit.readings[1, 1:]).all()
    assert report.infinite == {"load": 1, "vibration": 2}
    assert report.missing == {"pressure": 1}
    assert report.rows == 3
    infinite, missing = caplog.messages
    assert infinite.splitlines() == [
        "infinite values, read as missing: 3",
        f"  {path}, column 'load': 1, the first in line 2",
        f"  {path}, column 'vibration': 2, the first in line 2",
    ]
    assert missing == "missing values, of 3 readings: pressure 1"


def test_infinite_values_are_reported_by_file_and_by_the_files_own_name_of_the_column(tmp_path, caplog):
    fleet = replace(FILE_A_UNIT, sources=("load", "Vib (mm/s)", "pressure"))
    header = "load,Vib (mm/s),pressure"
    write(tmp_path, header, "1,2,3", "1,2,3", name="sound.csv")
    second = write(tmp_path, header, "1,2,3", "", "1,inf,3", "1,-inf,3", name="worn.csv")

    with caplog.at_level(logging.WARNING):
        read_trajectories(tmp_path, fleet)

    assert f"{second}, column 'Vib (mm/s)': 2, the first in line 4" in caplog.text
    assert "sound.csv" not in caplog.text


def test_a_warning_names_no_more_places_than_a_person_reads(tmp_path, caplog):
    for i in range(23):
        write(tmp_path, "load,vibration,pressure", "1,inf,3", name=f"pump-{i:02}.csv")

    with caplog.at_level(logging.WARNING):
        read_trajectories(tmp_path, FILE_A_UNIT)

    assert "infinite values, read as missing: 23" in caplog.text
    assert "pump-19.csv" in caplog.text
    assert "pump-20.csv" not in caplog.text
    assert "and 3 in 3 more places" in caplog.text


def test_data_without_a_gap_is_read_without_a_word(tmp_path, caplog):
    path = write(tmp_path, HEADER, "a,1,40,2,9")

    with caplog.at_level(logging.WARNING):
        read_trajectories(path, PUMPS)

    assert caplog.messages == []


@pytest.mark.parametrize("value", ["inf", "-inf", "NaN"])
@pytest.mark.parametrize(
    ("rule", "failed"),
    [(FailureRule("wear", at_least=0.5), False), (FailureRule("wear", at_most=0.5), True)],
)
def test_a_last_reading_that_is_no_number_leaves_the_one_before_it_to_say_whether_a_unit_failed(
    tmp_path, rule, failed, value
):
    path = write(tmp_path, HEADER + ",wear", "a,1,0,0,0,0.1", f"a,2,0,0,0,{value}")

    (unit,) = read_trajectories(path, replace(PUMPS, failure=rule))

    assert unit.failed == failed


def test_a_life_ends_where_the_failure_column_crosses_its_bound_for_good(tmp_path):
    wear = [0.1, 0.6, 0.4, 0.7, "", 0.8, 0.9]
    path = write(tmp_path, HEADER + ",wear", *(f"a,{n + 1},0,0,0,{value}" for n, value in enumerate(wear)))
    fleet = replace(PUMPS, failure=FailureRule("wear", at_least=0.5))

    (unit,) = read_trajectories(path, fleet)
    (asked,) = read_trajectories(path, fleet, run_to_failure=False)

    assert unit.failed
    assert unit.cycles.tolist() == [1, 2, 3, 4]
    assert len(asked) == len(wear)


def test_a_unit_may_be_called_anything_and_blanks_around_its_name_do_not_count(tmp_path):
    path = write(tmp_path, HEADER, "NA,1,0,0,0", " NA,2,0,0,0", '"a, b",1,0, ,0', "NA ,3,0,0,0")

    units = read_trajectories(path, PUMPS)

    assert {unit.unit: len(unit) for unit in units} == {"NA": 3, "a, b": 1}


def test_columns_that_nobody_reads_may_hold_anything(tmp_path):
    path = write(tmp_path, HEADER + ",note,note,", 'a,1,40,2,9,"fine, so far",x,')

    (unit,) = read_trajectories(path, PUMPS)

    assert unit.readings.tolist() == [[40, 2, 9]]


def test_columns_are_found_by_the_name_that_the_file_gives_them(tmp_path):
    fleet = replace(PUMPS, sources=("Load (kW)", "Vib", "pressure"), unit_column="Pump", cycle_column="h")
    path = write(tmp_path, "h,Vib,Pump,pressure,Load (kW)", "4,2,a,9,40")

    (unit,) = read_trajectories(path, fleet)

    assert unit.cycles.tolist() == [4]
    assert unit.readings.tolist() == [[40, 2, 9]]


@pytest.mark.parametrize(
    ("override", "expected"), [(None, [True, False]), (False, [False] * 2), (True, [True] * 2)]
)
def test_the_failure_rule_looks_at_the_last_cycle_unless_it_is_overridden(tmp_path, override, expected):
    fleet = replace(PUMPS, failure=FailureRule("efficiency", at_most=0.5))
    path = write(
        tmp_path, HEADER + ",efficiency", "a,2,0,0,0,0.5", "a,1,0,0,0,0.9", "b,1,0,0,0,0.1", "b,2,0,0,0,0.6"
    )

    units = read_trajectories(path, fleet, run_to_failure=override)

    assert [unit.failed for unit in units] == expected


def test_a_column_failed_that_denies_failures_contradicts_run_to_failure(tmp_path):
    rows = ("a,2,0,0,0,1", "a,1,0,0,0,0", "b,1,0,0,0,0", "b,2,0,0,0,0", "c,1,0,0,0,0")
    path = write(tmp_path, HEADER + ",failed", *rows)

    with pytest.raises(
        InvalidData, match=r"'failed' says that 2 of 3 units have not failed, such as b: write"
    ):
        read_trajectories(path, PUMPS)
    by_rule = read_trajectories(path, replace(PUMPS, failure=FAILED))
    assert [unit.failed for unit in by_rule] == [True, False, False]
    assert len(read_trajectories(path, PUMPS, run_to_failure=False)) == 3


@pytest.mark.parametrize("cells", [("0", "1"), ("no", "yes"), ("", "")])
def test_a_column_failed_that_denies_no_failure_changes_nothing(tmp_path, cells):
    first, second = cells
    path = write(tmp_path, HEADER + ",failed,note,note", f"a,1,0,0,0,{first},,", f"a,2,0,0,0,{second},x,y")

    (unit,) = read_trajectories(path, PUMPS)

    assert unit.failed


def test_the_failure_rules_column_is_not_needed_where_the_rule_is_not(tmp_path):
    fleet = replace(PUMPS, failure=FailureRule("efficiency", at_most=0.5))

    (unit,) = read_trajectories(write(tmp_path, HEADER, "a,1,0,0,0"), fleet, run_to_failure=False)

    assert not unit.failed


GROUPED = replace(PUMPS, group_column="plant")


def grouped(path, *groups):
    lines = [f"{i // 2},{i},1,2,3,{group}" for i, group in enumerate(groups)]
    path.write_text("\n".join((f"{HEADER},plant", *lines)))
    return path


def test_each_unit_has_the_group_of_its_rows(tmp_path):
    rows, _ = read_rows(grouped(tmp_path / "a.csv", "X", "X", "7", "7"), GROUPED, with_groups=True)

    assert [each.group for each in rows.trajectories(GROUPED, run_to_failure=None)] == ["X", "7"]


def test_each_file_of_one_unit_has_a_group(tmp_path):
    fleet = replace(FILE_A_UNIT, group_column="plant")
    files = [grouped(tmp_path / f"{plant}.csv", plant, plant) for plant in "BA"]

    rows, _ = read_rows(files, fleet, with_groups=True)

    assert [each.group for each in rows.trajectories(fleet, run_to_failure=None)] == ["B", "A"]


def test_a_unit_of_two_groups_is_refused_with_its_line(tmp_path):
    with pytest.raises(InvalidData, match=r"line 3, column 'plant': expected 'X', as .* unit 0, got 'Y'"):
        read_rows(grouped(tmp_path / "a.csv", "X", "Y"), GROUPED, with_groups=True)


def test_the_column_of_groups_is_not_needed_where_units_are_only_predicted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER}\n1,1,1,2,3")

    assert [each.group for each in read_trajectories(path, GROUPED)] == [""]
    with pytest.raises(InvalidData, match=r"1 column missing: plant \(key group\)"):
        read_rows(path, GROUPED, with_groups=True)


def test_a_file_with_none_of_a_models_columns_is_refused_with_the_way_to_describe_it(tmp_path):
    path = write(tmp_path, "unit,cycle,shaking", "a,1,2")

    with pytest.raises(
        InvalidData, match=r"the file has unit, cycle, shaking. If its columns .* `rul fleet init`"
    ):
        read_trajectories(path, PUMPS, allow_absent=True)  # as `rul predict`, `score` and `attention` do
    with pytest.raises(InvalidData, match=r"the file has unit, cycle, shaking$"):
        read_trajectories(path, PUMPS)


def test_an_absent_column_may_be_allowed_and_is_then_missing(tmp_path):
    path = write(tmp_path, "unit,cycle,vibration", "a,1,2")

    (unit,) = read_trajectories(path, PUMPS, allow_absent=True)

    assert np.isnan(unit.readings[0, [0, 2]]).all()
    assert unit.readings[0, 1] == 2


CYCLE = "line 3, column 'cycle': expected a whole number from 0 to 16777216, got"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [HEADER, "a,1,40,2,9", "", "a,2,40,high,9"],
            "line 4, column 'vibration': expected a number, got 'high'",
        ),
        ([HEADER, "a,1,40,1e400x,9"], "line 2, column 'vibration': expected a number"),
        ([HEADER, "a,1,40,2,9", "a,2,40,2"], "line 3: expected 5 columns, got 4: 'a,2,40,2'"),
        ([HEADER, "a,1,40,2,9", "", "a,2,40,2,9,1"], "line 4: expected 5 columns, got 6"),
        *(([HEADER, "a,1,0,0,0", f"a,{n},0,0,0"], f"{CYCLE} {n or 'nan'}") for n in ("1.5", "", "-1", "inf")),
        (
            [HEADER, "a,1,0,0,0", "a,1764072000,0,0,0"],
            f"{CYCLE} 1764072000: number the cycles of each",
        ),
        ([HEADER, "a,1,0,0,0", ",2,0,0,0"], "line 3, column 'unit': expected a name, got nothing"),
        (
            [HEADER, "a,1,0,0,0", "b,1,0,0,0", "a,1,0,1,0"],
            r"line 4: unit a, cycle 1: duplicate of .*csv: line 2",
        ),
        (
            ["unit,cycle,load,Vibration", "a,1,0,0"],
            r"2 columns missing: vibration \(\[\[sensors\]\] vibration; did you mean Vibration\?\), press",
        ),
        ([HEADER + ",load", "a,1,0,0,0,0"], "the header has load more than once"),
        ([HEADER], "the file has no reading"),
        ([HEADER, "", "  "], "the file has no reading"),
        ([""], "expected a header with column names, got an empty file"),
    ],
)
def test_a_wrong_csv_file_is_refused_with_file_line_column_expected_and_got(tmp_path, lines, message):
    path = write(tmp_path, *lines)

    with pytest.raises(InvalidData, match=message) as caught:
        read_trajectories(path, PUMPS)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([cmapss_row(1, 1), cmapss_row(1, 2) + " 7"], "line 2: expected 26 columns, got 27"),
        ([cmapss_row(1, 1), "", cmapss_row(1, 2).rsplit(" ", 1)[0]], "line 3: expected 26 columns, got 25"),
        (
            [cmapss_row(1, 1), cmapss_row(1, 2).replace("1.5", "x")],
            "line 2, column 'setting_2': expected a number",
        ),
        ([cmapss_row(1, 1), cmapss_row(1, 1)], "line 2: unit 1, cycle 1: duplicate"),
        ([""], "the file has no reading"),
    ],
)
def test_a_wrong_cmapss_file_is_refused_with_its_line(tmp_path, lines, message):
    with pytest.raises(InvalidData, match=message):
        read_trajectories(write(tmp_path, *lines, name="train.txt"), fleet_named("cmapss"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (Path("nowhere/pumps.csv"), r"pumps\.csv: no such file"),
        (Path(), "no csv file in this folder; it has no file of readings$"),
        ([], "no file to read was given"),
    ],
)
def test_files_that_are_not_there_are_named(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidData, match=message):
        read_trajectories(path, PUMPS)


@pytest.mark.parametrize("name", ["pumps.csv", "pumps", "pumps.parquet"])
@pytest.mark.parametrize(
    "read", [lambda path: read_trajectories(path, PUMPS), format_of, content], ids=["read", "tell", "content"]
)
def test_a_pipe_is_refused_before_a_byte_is_taken_from_it(tmp_path, name, read):
    path = tmp_path / name
    os.mkfifo(path)

    with pytest.raises(InvalidData, match=rf"{name}: expected a file or a folder, got a pipe: save it first"):
        read(path)


def parquet(folder, name="pumps.parquet", **columns):
    usual = {"unit": [1, 1], "cycle": [1, 2], "load": [0.0, 1], "vibration": [2, 3], "pressure": [4.0, None]}
    pq.write_table(pa.table(usual | columns), folder / name)
    return folder / name


@pytest.mark.parametrize(
    ("units", "name"),
    [
        ([1, 1], "1"),
        ([1.0, 1.0], "1"),
        ([1.5, 1.5], "1.5"),
        ([Decimal("1.00"), Decimal("1.00")], "1"),
        ([Decimal("1.50"), Decimal("1.50")], "1.50"),
        (["x", "x"], "x"),
        (pa.array(["x", "x"]).dictionary_encode(), "x"),
    ],
)
def test_parquet_is_read_whatever_type_its_units_have(tmp_path, units, name):
    (unit,) = read_trajectories(parquet(tmp_path, unit=units), PUMPS)

    assert unit.unit == name
    np.testing.assert_array_equal(unit.readings, np.array([[0, 2, 4], [1, 3, np.nan]], dtype=np.float32))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"vibration": ["a", "b"]}, "column 'vibration': expected numbers, got string"),
        ({"cycle": [1, None]}, "row 2, column 'cycle': expected a whole number"),
        ({"cycle": [1, 1]}, "row 2: unit 1, cycle 1: duplicate of .*row 1"),
        ({"unit": ["a", None]}, "row 2, column 'unit': expected a name"),
        ({"unit": pa.array([1.0, float("nan")])}, "row 2, column 'unit': expected a name, got nothing"),
        ({"unit": [["a"], ["b"]]}, "column 'unit': expected names or numbers, got list<"),
        ({"unit": [{"a": 1}, {"a": 2}]}, "column 'unit': expected names or numbers, got struct<"),
        ({"unit": [b"a", b"\xff"]}, "column 'unit': expected names or numbers, got binary"),
    ],
)
def test_a_wrong_parquet_file_is_refused_with_its_row(tmp_path, columns, message):
    with pytest.raises(InvalidData, match=message):
        read_trajectories(parquet(tmp_path, **columns), PUMPS)


number = st.floats(width=32, allow_nan=True, allow_infinity=False)
name = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@st.composite
def fleets_of_units(draw):
    units = draw(st.lists(name, min_size=1, max_size=4, unique=True))
    made = []
    for unit in units:
        cycles = np.cumsum(draw(st.lists(st.integers(1, 1000), min_size=1, max_size=5)))
        rows = st.lists(number, min_size=3, max_size=3)
        readings = draw(st.lists(rows, min_size=len(cycles), max_size=len(cycles)))
        made.append(Trajectory(unit, cycles, np.array(readings, dtype=np.float32), failed=True))
    return made


@in_a_folder
@given(units=fleets_of_units())
def test_what_is_written_as_csv_or_parquet_is_read_back_bit_by_bit(tmp_path, units):
    (tmp_path / "u.csv").write_bytes(csv_text(units, PUMP_SCHEMA))
    write_parquet(tmp_path / "u.parquet", units, PUMP_SCHEMA)

    assert_same(read_trajectories(tmp_path / "u.csv", PUMPS), units)
    assert_same(read_trajectories(tmp_path / "u.parquet", PUMPS), units)


@in_a_folder
@given(units=fleets_of_units(), order=st.randoms(use_true_random=False))
def test_the_order_of_rows_makes_no_difference_to_a_unit(tmp_path, units, order):
    header, *rows = csv_text(units, PUMP_SCHEMA).decode().splitlines()
    order.shuffle(rows)
    path = write(tmp_path, header, *rows)

    got = read_trajectories(path, PUMPS)

    by_name = {unit.unit: unit for unit in units}
    assert_same(got, [by_name[unit.unit] for unit in got])
    assert len(got) == len(units)


@in_a_folder
@given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_but_invalid_data(tmp_path, data):
    for name, fleet in (("x.csv", PUMPS), ("x.txt", fleet_named("cmapss")), ("x.parquet", PUMPS)):
        (tmp_path / name).write_bytes(data)

        with pytest.raises(InvalidData):
            read_trajectories(tmp_path / name, fleet)


@in_a_folder
@given(rows=st.lists(st.text(st.sampled_from('1a.,- \t";ine\n'), max_size=20), max_size=5))
def test_nearly_right_rows_are_read_or_refused_with_invalid_data(tmp_path, rows):
    fleet = Fleet(name="x", schema=Schema((Column("s", "sensor"),)), sources=("s",))
    path = write(tmp_path, "unit,cycle,s", *rows)

    with contextlib.suppress(InvalidData):
        units = read_trajectories(path, fleet)

        assert 1 <= sum(map(len, units)) <= sum("," in line for row in rows for line in row.split("\n"))


def test_the_digest_of_one_file_is_its_sha256_and_of_several_does_not_depend_on_order(tmp_path):
    a, b = write(tmp_path, "1", name="a"), write(tmp_path, "2", name="b")

    assert data_sha256([a]) == hashlib.sha256(a.read_bytes()).hexdigest()
    assert data_sha256([a, b]) == data_sha256([b, a]) != data_sha256([a])


def test_a_unit_in_decimals_has_the_same_name_in_every_batch():
    column = pa.chunked_array([[Decimal("2.00"), Decimal("2.50")]])

    names = [names_of(batch)[0] for batch in (column, column.slice(0, 1), column.slice(1))]

    assert names == [("2", "2.50"), ("2",), ("2.50",)]


def test_unit_0_in_decimals_of_many_places_is_named_0():
    column = pa.chunked_array([pa.array([Decimal(0), Decimal(10)], pa.decimal128(38, 10))])

    assert names_of(column)[0] == ("0", "10")
