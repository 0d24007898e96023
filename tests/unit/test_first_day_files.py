"""Frictions of a first day: files as people have them."""

import ast
import gzip
import logging
import re
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from model.cells import MISSING, TRUTHS
from model.domain import InvalidData
from model.fleet import fleet_named
from model.fleet_draft import draft_fleet
from model.readers import read_trajectories
from model.tables import read_columns
from rul_client.commands.predict.input_file import read_units
from tests.fakes import make_manifest
from tests.fleets import PUMPS
from tests.spreadsheets import write_xlsx

PAGE = Path(__file__).parents[2] / "service" / "page"
HEADER = ("unit", "cycle", "load", "vibration", "pressure")
ROWS = (("a", 1, 40, 2.5, 9), ("a", 2, 75, 2.75, 8.5), ("b", 7, 40, 3, None))
MANIFEST = make_manifest(columns=("load", "vibration", "pressure"))


def csv_file(path, header=HEADER, rows=ROWS, delimiter=",", decimal="."):
    lines = [delimiter.join("" if c is None else str(c).replace(".", decimal) for c in row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([delimiter.join(header), *lines]) + "\n")
    return path


def columns(rows=ROWS):
    return pa.Table.from_arrays([*map(pa.array, zip(*rows, strict=True))], HEADER)


def a_file(path, rows=ROWS):
    """Write rows in the format of the path's suffix."""
    if path.suffix == ".csv":
        csv_file(path, rows=rows)
    elif path.suffix == ".parquet":
        pq.write_table(columns(rows), path)
    elif path.suffix == ".xlsx":
        write_xlsx(path, [HEADER, *rows])
    else:
        feather.write_feather(columns(rows), path)
    return path


def assert_rows(units):
    assert [(u.unit, u.cycles.tolist()) for u in units] == [("a", [1, 2]), ("b", [7])]
    np.testing.assert_array_equal(units[0].readings, np.float32([[40, 2.5, 9], [75, 2.75, 8.5]]))
    np.testing.assert_array_equal(units[1].readings, np.float32([[40, 3, np.nan]]))


# Formats


def test_a_spreadsheet_is_read_and_its_whole_numbers_are_units(tmp_path):
    numbered = [({"a": 1, "b": 2}[unit], *rest) for unit, *rest in ROWS]
    units = read_trajectories(write_xlsx(tmp_path / "pumps.xlsx", [HEADER, *numbered]), PUMPS)

    assert [unit.unit for unit in units] == ["1", "2"]
    assert_rows([replace(unit, unit="ab"[i]) for i, unit in enumerate(units)])


def test_further_sheets_of_a_spreadsheet_are_said_to_be_unread(tmp_path, caplog):
    assert_rows(
        read_trajectories(write_xlsx(tmp_path / "p.xlsx", [HEADER, *ROWS], sheets=("May", "June")), PUMPS)
    )

    assert "only the first sheet is read, 'May'" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": [HEADER, ROWS[0], (None,) * 5, ("a", 2, "broken", 1, 1)]},
         r"pumps\.xlsx: line 4, column 'load': .* got 'broken'"),
        ({"rows": [HEADER, *ROWS], "stray": "XFD1048576"}, "up to row 1,048,576: delete what stands far"),
    ],
    ids=["a wrong cell", "a cell far outside of the table"],
)  # fmt: skip
def test_a_wrong_spreadsheet_is_refused_with_the_place(tmp_path, given, message):
    with pytest.raises(InvalidData, match=message):
        read_trajectories(write_xlsx(tmp_path / "pumps.xlsx", **given), PUMPS)


@pytest.mark.parametrize(
    "read", [lambda path: read_trajectories(path, PUMPS), lambda path: read_units(path, MANIFEST, fleet=None)]
)
def test_a_feather_file_whose_texts_lie_outside_it_is_refused(tmp_path, read):
    path, ends = tmp_path / "pumps.feather", np.array([0, 1, 2, 3], np.int32)
    feather.write_feather(columns(), path, compression="uncompressed")
    stored, outside = path.read_bytes(), np.array([0, -(2**30), 2, 3], np.int32)
    assert stored.count(ends.tobytes()) == 1
    path.write_bytes(stored.replace(ends.tobytes(), outside.tobytes()))

    with pytest.raises(InvalidData, match=r"pumps\.feather: cannot be read"):
        read(path)


@pytest.mark.parametrize(
    ("form", "names"),
    [("parquet", pa.string()), ("feather", pa.large_string()), ("feather", pa.string_view())],
)
def test_categories_are_read_as_their_values(tmp_path, form, names):
    _, *numbers = columns().columns
    known = pa.array(["a", "b"], names)
    categories = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.uint8()), known)
    table = pa.Table.from_arrays([categories, *(each.dictionary_encode() for each in numbers)], HEADER)
    path = tmp_path / f"pumps.{form}"
    {"parquet": pq.write_table, "feather": feather.write_feather}[form](table, path)

    assert_rows(read_trajectories(path, PUMPS))
    assert_rows(read_units(path, MANIFEST, fleet=None)[0])
    assert read_columns(path, form=form)["vibration"].tolist() == [2.5, 2.75, 3]


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_names_over_two_lines_and_empty_rows_below_the_table_are_read_as_in_the_spreadsheet(
    tmp_path, delimiter, end
):
    path, names = csv_file(tmp_path / "p.csv", delimiter=delimiter), (*HEADER[:-1], '"note, free\nof shift"')
    _, *lines = path.read_text().splitlines()
    empty = delimiter * 4
    path.write_text(end.join([delimiter.join(names), *lines, empty, empty, empty]), newline="")
    spread = write_xlsx(tmp_path / "p.xlsx", [(*HEADER[:-1], "note, free\nof shift"), *ROWS, (None,) * 5])

    read = [read_columns(path, form="csv"), read_columns(spread, form="xlsx")]

    assert [*read[0]] == [*read[1]] == [*HEADER[:-1], "note, free of shift"]
    assert read[0]["cycle"].tolist() == read[1]["cycle"].tolist() == [1, 2, 7]


def test_the_line_of_an_error_below_a_name_over_two_lines_is_that_of_the_file(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('unit,cycle,load,vibration,pressure,"note\nof shift"\na,1,1,1,1,\na,2,x,1,1,\n')

    with pytest.raises(InvalidData, match="line 4, column 'load': expected a number, got 'x'"):
        read_trajectories(path, PUMPS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["csv", "parquet", "feather", "arrow", "xlsx"])
def test_every_format_is_read_packed_or_not_without_a_fleet(tmp_path, form, packed):
    path = a_file(tmp_path / f"pumps.{form}")
    if packed:
        path = path.rename(tmp_path / "plain")
        (tmp_path / f"pumps.{form}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / f"pumps.{form}.gz"

    units, absent = read_units(path, MANIFEST, fleet=None)

    assert_rows(units)
    assert absent == []


@pytest.mark.parametrize(
    ("name", "stored", "message"),
    [
        ("pumps.csv.gz", gzip.compress(b"unit,cycle\n" * 1000)[:-20], "cannot be read"),
        ("pumps.xlsx", b"unit,cycle", "cannot be read as a spreadsheet"),
        ("pumps.csv", f"{','.join(HEADER)},oil (°C)".encode("cp1252"),
         r"expected UTF-8 text, got the byte 0xb0\. .*: iconv -f WINDOWS-1252"),
    ],
    ids=["cut off", "no spreadsheet", "another encoding"],
)  # fmt: skip
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path, name, stored, message):
    (tmp_path / name).write_bytes(stored)

    with pytest.raises(InvalidData, match=f"{name}: {message}"):
        read_trajectories(tmp_path / name, PUMPS)


@pytest.mark.parametrize(
    "read", [lambda path: read_trajectories(path, PUMPS), lambda path: draft_fleet([path])]
)
@pytest.mark.parametrize(
    ("notes", "message"),
    [
        (("", '"worn', "", ""), "line 5: cannot be read as text: unexpected end of data"),
        (("", '"worn', "", '"torn'), "line 5: cannot be read as text: ',' expected after '\"'"),
    ],
    ids=["one", "two"],
)
def test_quotes_that_hide_rows_are_refused_with_their_line(tmp_path, read, notes, message):
    rows = [("a", cycle, 40, cycle * 0.5, 9, note) for cycle, note in enumerate(notes)]
    path = csv_file(tmp_path / "p.csv", header=(*HEADER, "note"), rows=rows)

    with pytest.raises(InvalidData, match=message):
        read(path)


def test_line_breaks_in_quotes_are_read_in_large_files_too(tmp_path):
    rows = [
        (i // 50, i % 50, i % 3, i * 0.37 % 5, i % 7, f'"{i},\n""{"x" * 400}""\n{i}"') for i in range(5000)
    ]
    path = csv_file(tmp_path / "p.csv", header=(*HEADER, "note"), rows=rows)

    units, draft = read_trajectories(path, PUMPS), draft_fleet([path])

    assert [len(unit) for unit in units] == [50] * 100
    assert (draft.unit_column, draft.cycle_column, draft.units) == ("unit", "cycle", 100)


@pytest.mark.parametrize("name", ["pumps.xls", "pumps.xlsx"])
def test_a_spreadsheet_of_excel_97_or_with_a_password_is_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504))

    with pytest.raises(
        InvalidData, match=r"cannot be read as a spreadsheet: .*save it as \.xlsx without a password"
    ):
        read_units(tmp_path / name, MANIFEST, fleet=None)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_txt_that_is_csv_is_read_as_csv(tmp_path, delimiter):
    assert_rows(read_trajectories(csv_file(tmp_path / "pumps.txt", delimiter=delimiter), PUMPS))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_are_read_and_said(tmp_path, delimiter, caplog):
    path = csv_file(tmp_path / "pumps.csv", delimiter=delimiter, decimal=",")

    assert_rows(read_trajectories(path, PUMPS))
    assert "decimal commas: 2,5 is read as 2.5" in caplog.text


@pytest.mark.parametrize(
    ("cell", "delimiter", "message"),
    [
        ("x", ";", r"got 'x'"),
        ("9.062", ";", r"got '9\.062': .* decimal commas"),
        ("1.234,5", ";", r"got '1\.234,5'"),
        ('"1,500"', ",", "got '1,500': write a decimal point; decimal commas"),
    ],
    ids=["text", "a point beside commas", "a point and a comma", "a comma between commas"],
)
def test_a_cell_that_is_no_number_as_the_file_writes_them_is_refused(tmp_path, cell, delimiter, message):
    rows = [("a", 1, "40,5" if delimiter == ";" else 40, 2, 9), ("a", 2, 1, cell, 9)]

    with pytest.raises(InvalidData, match=f"line 3, column 'vibration': expected a number, {message}"):
        read_trajectories(csv_file(tmp_path / "pumps.csv", rows=rows, delimiter=delimiter), PUMPS)


@pytest.mark.parametrize("exponent", ["", "E+00"])
def test_quoted_decimal_commas_are_read_between_semicolons(tmp_path, exponent):
    rows = [
        [f'"{str(cell).replace(".", ",")}{exponent}"' if isinstance(cell, float) else cell for cell in row]
        for row in ROWS
    ]

    assert_rows(read_trajectories(csv_file(tmp_path / "p.csv", rows=rows, delimiter=";"), PUMPS))


@pytest.mark.parametrize("cell", ["#NV", "#DIV/0!", "#VALUE!", "-", "<NA>"])
def test_an_error_of_a_spreadsheet_and_a_dash_are_missing_readings(tmp_path, cell):
    path = csv_file(tmp_path / "p.csv", rows=[("a", 1, 40, cell, 9), ("a", 2, 41, 2.5, 9)])

    (unit,) = read_trajectories(path, PUMPS)

    assert np.isnan(unit.readings[:, 1]).tolist() == [True, False]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_with_its_mark_is_read(tmp_path, encoding):
    text = csv_file(tmp_path / "p.csv", delimiter="\t").read_text()
    mark = "" if encoding == "utf-16" else "\ufeff"
    (tmp_path / "p.csv").write_bytes((mark + text).encode(encoding))

    assert_rows(read_trajectories(tmp_path / "p.csv", PUMPS))


@pytest.mark.parametrize("cells", [("true", "false"), ("TRUE", "FALSE"), ("True", "False")])
def test_true_and_false_are_one_and_zero(tmp_path, cells):
    path = csv_file(tmp_path / "p.csv", rows=[("a", n, 40, cell, 9) for n, cell in enumerate(cells)])
    typed = a_file(tmp_path / "p.parquet", [("a", 0, 40, True, 9), ("a", 1, 40, False, 9)])

    for file in (path, typed):
        assert read_trajectories(file, PUMPS)[0].readings[:, 1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("cells", [(1, 2), (1.0, 2.0), ("1.000e+00", "2.000e+00"), ("1", "2")])
def test_whole_numbers_are_names_of_units_however_they_are_written(tmp_path, cells):
    path = csv_file(tmp_path / "pumps.csv", rows=[(cell, 1, 40, 2, 9) for cell in cells])

    assert [unit.unit for unit in read_trajectories(path, PUMPS)] == ["1", "2"]


# Dates as cycles


@pytest.mark.parametrize(
    "dates",
    [
        ("2026-03-01", "2026-03-02", "2026-02-28"),
        ("01.03.2026", "2.3.2026 13:00", "28.02.2026 23:59:59"),
        ("2026/03/01", "2026/03/02 01:00", "2026/02/28"),
        ("2026-03-01T00:00:00Z", "2026-03-01T00:00:01Z", "2026-03-01T00:30:00+01:00"),
    ],
)
def test_dates_number_the_readings_of_each_unit_in_order_of_time(tmp_path, dates, caplog):
    rows = [("a", day, 40, number, 9) for number, day in enumerate(dates)] + [("b", dates[1], 40, 7, 9)]

    first, second = read_trajectories(csv_file(tmp_path / "pumps.csv", rows=rows), PUMPS)

    assert (first.cycles.tolist(), second.cycles.tolist()) == ([1, 2, 3], [1])
    assert first.readings[:, 1].tolist() == [2, 0, 1]
    assert "column 'cycle' holds dates" in caplog.text


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "Europe/Berlin"), pa.date32()])
def test_dates_with_a_type_number_the_readings_too(tmp_path, kind):
    days = [3 * 86_400_000_000_000 + 1, 0, 86_400_000_000_000]  # one nanosecond is no part of a microsecond
    cycles = pa.array(days, pa.timestamp("ns")).cast(kind, safe=False)
    rows = [("a", 0, 40, number, 9) for number in range(3)]
    a_file(tmp_path / "pumps.parquet", rows)
    table = pq.read_table(tmp_path / "pumps.parquet").set_column(1, "cycle", cycles)
    pq.write_table(table, tmp_path / "pumps.parquet")

    [unit] = read_trajectories(tmp_path / "pumps.parquet", PUMPS)

    assert (unit.cycles.tolist(), unit.readings[:, 1].tolist()) == ([1, 2, 3], [1, 2, 0])


def test_dates_of_one_unit_in_several_files_go_on(tmp_path):
    csv_file(tmp_path / "may.csv", rows=[("a", "2026-05-01", 40, 2, 9)])
    csv_file(tmp_path / "june.csv", rows=[("a", "2026-06-01", 40, 3, 9)])

    (unit,) = read_trajectories(tmp_path, PUMPS)

    assert unit.cycles.tolist() == [1, 2]
    assert unit.readings[:, 1].tolist() == [2, 3]


@pytest.mark.parametrize("form", ["parquet", "xlsx"])
def test_typed_dates_are_cycles_too(tmp_path, form):
    of = {"xlsx": date, "parquet": datetime}[form]
    rows = [("a", of(2026, 3, 2), 40, 2, 9), ("a", of(2026, 3, 1), 40, 1, 9)]

    (unit,) = read_trajectories(a_file(tmp_path / f"pumps.{form}", rows), PUMPS)

    assert unit.readings[:, 1].tolist() == [1, 2]


CYCLES_WANTED = (
    "'cycle': expected a whole number, or a date such as 2026-03-01 or 01.03.2026, got '01/02/2024'"
)


@pytest.mark.parametrize(
    ("form", "cycles", "message"),
    [
        ("csv", ("2026-03-01", "2026-03-01"), r"line 3: unit a, cycle 1: duplicate of .*line 2"),
        ("csv", ("2026-03-01", "2026-13-01"),
         "line 3, column 'cycle': expected a date such as 2026-03-01"),
        ("csv", ("", "2026-03-01"), "line 2, column 'cycle': expected a date .*, got ''"),
        ("csv", ("01/02/2024", "01/03/2024"), CYCLES_WANTED),
        ("parquet", ("01/02/2024", "01/03/2024"), CYCLES_WANTED),
    ],
    ids=["twice", "no day", "missing in the first row", "no date in csv", "no date in parquet"],
)  # fmt: skip
def test_a_wrong_date_is_refused_with_its_place(tmp_path, form, cycles, message):
    path = a_file(tmp_path / f"p.{form}", [("a", cycle, 40, 2, 9) for cycle in cycles])

    with pytest.raises(InvalidData, match=message):
        read_trajectories(path, PUMPS)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_whole_numbers_stored_as_text_are_cycles(tmp_path, kind):
    rows = [("a", str(cycle), 40, cycle, 9) for cycle in (9, 10)]
    table = columns(rows)
    place = table.column_names.index("cycle")
    pq.write_table(table.set_column(place, "cycle", table["cycle"].cast(kind)), tmp_path / "p.parquet")

    (unit,) = read_trajectories(tmp_path / "p.parquet", PUMPS)

    assert unit.cycles.tolist() == [9, 10]


def test_dates_in_one_file_and_numbers_in_another_are_refused(tmp_path):
    csv_file(tmp_path / "may.csv", rows=[("a", "2026-05-01", 40, 2, 9)])
    csv_file(tmp_path / "june.csv", rows=[("a", 2, 40, 3, 9)])

    with pytest.raises(InvalidData, match=r"june\.csv: line 2, column 'cycle': expected a date"):
        read_trajectories(tmp_path, PUMPS)


def test_a_drafted_fleet_takes_dates_for_the_cycle(tmp_path):
    rows = [(u, f"2026-03-{d:02}", d % 3, d * 1.5, d**2) for u in ("a", "b", "c") for d in range(1, 21)]

    draft = draft_fleet([csv_file(tmp_path / "p.csv", ("unit", "when", *HEADER[2:]), rows)])

    assert draft.cycle_column == "when"
    assert draft.suggested.cap == 12.5


# Folders


def test_folders_are_read_with_the_folders_in_them_and_without_hidden_ones(tmp_path):
    csv_file(tmp_path / "2025" / "may.csv", rows=ROWS[:1])
    csv_file(tmp_path / "2026" / "may.csv", rows=ROWS[1:])
    csv_file(tmp_path / ".trash" / "old.csv")

    assert_rows(read_trajectories(tmp_path, PUMPS))


def test_files_of_one_name_in_several_folders_are_different_units(tmp_path):
    for folder in ("east", "west"):
        csv_file(tmp_path / folder / "pump-1.csv", HEADER[2:], [(40, 2.5, 9)])

    units = read_trajectories(tmp_path, replace(PUMPS, unit_column="file", cycle_column=None))

    assert [unit.unit for unit in units] == ["east_pump-1", "west_pump-1"]


def test_the_readme_of_the_c_mapss_folder_is_skipped_with_a_word(tmp_path, caplog):
    (tmp_path / "readme.txt").write_text("Data Set: FD001\nTrain trajectories: 100\n")
    (tmp_path / "RUL_FD001.txt").write_text("112 \n98 \n")
    (tmp_path / "train_FD001.txt").write_text("1 1 " + "0.5 " * 24 + "\n")

    with caplog.at_level(logging.WARNING):
        (unit,) = read_trajectories(tmp_path, fleet_named("cmapss"))

    assert len(unit) == 1
    assert "skipped, neither C-MAPSS text nor CSV: " in caplog.text
    assert "readme.txt" in caplog.text


def test_prose_beside_csv_files_is_skipped(tmp_path):
    csv_file(tmp_path / "pumps.csv")
    (tmp_path / "readme.txt").write_text("Pumps, as measured,\nby the plant in May\n")

    assert_rows(read_trajectories(tmp_path, PUMPS))


def test_a_folder_without_such_a_file_says_what_it_has(tmp_path):
    write_xlsx(tmp_path / "a.xlsx", [HEADER])
    (tmp_path / "readme.txt").write_text("about\n")

    with pytest.raises(
        InvalidData,
        match=r"no csv file in this folder; it has 1 xlsx, 1 text without readings: .* --fleet FILE$",
    ):
        read_trajectories(tmp_path, PUMPS)


# Errors


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (("pump", "day", "load", "vib", "bar"), r"cycle, unit; the file has pump, day, load, vib.*--fleet"),
        (("unit", "cycle", "kW", "vib", "bar"), r"the file has unit, cycle, kW, vib, bar.*--fleet"),
    ],
    ids=["no unit and cycle", "no column of the model"],
)
def test_columns_that_are_missing_are_listed_beside_those_of_the_file_and_fleet_is_offered(
    tmp_path, header, message
):
    with pytest.raises(InvalidData, match=message):
        read_units(csv_file(tmp_path / "p.csv", header), MANIFEST, fleet=None)


def test_the_page_reads_the_same_cells_as_missing():
    script = (PAGE / "csv.js").read_text("utf-8")

    (listed,) = re.findall(r"const MISSING = new Set\((\[.*?\])\)", script, re.DOTALL)
    (truths,) = re.findall(r"const TRUTHS = new Map\((\[.*?\])\);", script)

    assert set(ast.literal_eval(listed)) == set(MISSING)
    assert dict(ast.literal_eval(truths)) == TRUTHS
