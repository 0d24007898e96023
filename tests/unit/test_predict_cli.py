"""`rul predict`: usage, what a file may look like, and the four ways to write a row."""

import csv
import io
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from model.decision import Costs
from model.domain import Column, InvalidData, Schema, Trajectory
from model.fleet import Fleet, fleet_toml
from model.writers import csv_text, write_parquet
from rul_client.address import Credentials
from rul_client.answers import ModelName, Prediction, Refused
from rul_client.commands.output import CannotWrite, NothingAnswered, open_output
from rul_client.commands.predict import remote
from rul_client.commands.predict.cli import TableFormat, format_of
from rul_client.commands.predict.input_file import read_units
from rul_client.commands.predict.rows import COLUMNS, GROUNDS, columns_of
from rul_client.commands.predict.run import predict_file
from rul_client.commands.predict.table import PeopleTable
from rul_client.commands.predict.writers import CsvWriter, JsonWriter, ParquetWriter
from service.core.queries import WindowError
from tests.commands import rul
from tests.fakes import make_manifest
from tests.in_process import in_process, json_window

MODEL = ModelName("fake", "1.0", "abc")
MANIFEST = make_manifest()
SCHEMA = MANIFEST.schema_of_columns
EVIDENT = make_manifest(explains_readings=True)


def row(*values, columns=COLUMNS, **more):
    return dict.fromkeys(columns) | dict(zip(COLUMNS, values, strict=False)) | more


ROWS = [
    row("pump 7", 31, 38.25, "estimated", 27.5, 51.0, "degrading", 0.5, 30),
    row("pump 8", 12, 125.0, "at_least_cap", 104.0, 125.0, "healthy", 0.9, 12),
    row("pump 9", 1),
    row("pump 10", 90, 3.5, "estimated", 0.0, 9.0, "critical", None, 90),
    row("pump 11", 5, 60.0, "out_of_distribution", 10.0, 90.0, "unknown", 0.4, 5),
]
FAILURE = {"failure_within_10": 0.25, "failure_within_30": 0.875}
EVIDENT_ROWS = [
    dict.fromkeys(columns_of(EVIDENT))
    | ROWS[0]
    | dict(zip(GROUNDS, ("sensor_2", -12.25, "sensor_1", 3.5, "supported"), strict=True))
    | FAILURE,
    row(*ROWS[2].values(), columns=columns_of(EVIDENT)),
]
DECIDED = columns_of(MANIFEST, decides=True)
DECIDED_ROWS = [
    row(*ROWS[0].values(), columns=DECIDED, act_at_cycle=55, cost_ratio=0.125, **FAILURE),
    row(*ROWS[1].values(), columns=DECIDED, cost_ratio=1.0, **dict.fromkeys(FAILURE, 0.0)),
    row(*ROWS[2].values(), columns=DECIDED),
]
UNITS = [
    Trajectory(each["unit"], np.array([each["last_cycle"]]), np.zeros((1, 3)), failed=False) for each in ROWS
]


def unit(name="1", cycles=4):
    readings = np.arange(cycles * 3, dtype=np.float32).reshape(cycles, 3)
    return Trajectory(name, np.arange(1, cycles + 1), readings, failed=False)


# Usage

ADDRESS = "expected http, https, grpc, grpcs://HOST:PORT"
NO_ADDRESSES = ("localhost:3000", "ftp://localhost", "http://", "grpc://localhost:port")
WINDOWS = "expected last, all or a number from 1"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("predict --input a.csv", "give one of --bundle and --url"),
        ("predict --input a.csv --bundle a --url http://localhost:1", "give one of --bundle and --url"),
        ("predict --input a.csv --bundle fd001 --format parquet", "parquet needs --output FILE"),
        ("predict --input a.csv --bundle fd001 --model fd001", "--model: needs --url"),
        ("predict --input a.csv --bundle fd001 --store", "--store: needs --url"),
        ("predict --input a.csv --bundle fd001 --ca ca.pem", "--ca: needs --url"),
        ("predict --input a.csv --bundle fd001 --costs 10", "--costs"),
        ("predict --input a.csv --bundle fd001 --costs 10:1", "--costs"),
        *((f"predict --input a.csv --url {url}", ADDRESS) for url in NO_ADDRESSES),
        ("outcomes --format xml", "'table', 'csv', 'json'"),
        ("outcomes --replace", "Invalid value for --replace: needs --report"),
        ("outcomes --since 0001-01-01", "Invalid value for '--since': expected a year from 2 to 9998"),
        ("outcomes --report a.csv --since 2026-01-01", "does nothing with --report"),
        ("bench grpc://localhost:3000", "expected http, https://HOST:PORT"),
        ("bench http://localhost:3000 --protocol json,soap", "json, binary, grpc, oip-grpc"),
        ("bench http://localhost:3000 --callers 1,zero", "expected numbers above 0"),
        ("bench http://localhost:3000 --windows 0", "expected numbers above 0"),
        ("bench http://localhost:3000 --seconds 0", "--seconds"),
        ("bench http://localhost:3000 --processes 0", "--processes"),
        ("bench http://localhost:3000 --grpc localhost:port", "got 'http://localhost:port'"),
        ("top grpc://localhost:1", "expected http, https://HOST:PORT"),
        ("top http://localhost:1 --interval 0", "--interval"),
        *((f"score --bundle a --input b --output c --windows={n}", WINDOWS) for n in (0, -1, "some")),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_was_expected(command, words):
    result = rul(*command.split())

    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("output", "given", "terminal", "form"),
    [
        (None, None, True, TableFormat.TABLE),
        (None, None, False, TableFormat.CSV),
        (Path("a.csv"), None, True, TableFormat.CSV),
        (Path("a.PQ"), None, True, TableFormat.PARQUET),
        (Path("a.json"), None, True, TableFormat.JSON),
        (Path("a.txt"), None, True, TableFormat.TABLE),
        (Path("a"), None, True, TableFormat.CSV),
        (Path("a.dat"), TableFormat.JSON, True, TableFormat.JSON),
    ],
)
def test_the_format_is_that_of_the_suffix_or_the_given_one_or_follows_the_terminal(
    output, given, terminal, form
):
    assert format_of(output, given, terminal=terminal) is form


# Files


@pytest.mark.parametrize("name", ["test.txt", "test.dat", "test"])
def test_cmapss_text_is_recognised_by_its_26_numbers(tmp_path, name):
    path = tmp_path / name
    path.write_text("".join(f"1 {c} " + " ".join(str(i) for i in range(24)) + "  \n" for c in (1, 2)))

    (read,), _ = read_units(path, make_manifest(columns=("setting_1", "sensor_21")), fleet=None)

    assert read.readings.tolist() == [[0.0, 23.0]] * 2


def test_columns_that_a_file_lacks_are_missing_readings_and_named(tmp_path, caplog):
    lacking = Schema(SCHEMA.columns[:2])
    short = Trajectory("1", np.arange(3), np.ones((3, 2), dtype=np.float32), failed=False)
    (tmp_path / "units.csv").write_bytes(csv_text([short], lacking))

    read, absent = read_units(tmp_path / "units.csv", MANIFEST, fleet=None)

    assert absent == ["sensor_2"]
    assert "units.csv has no readings of sensor_2: treated as missing" in caplog.text
    assert np.isnan(read[0].readings[:, 2]).all()


def test_cmapss_text_is_refused_for_a_model_of_something_else(tmp_path):
    (tmp_path / "a.txt").write_text("1 1 " + "0 " * 24 + "\n")

    with pytest.raises(InvalidData, match=r"C-MAPSS text, and fake reads vibration"):
        read_units(tmp_path / "a.txt", make_manifest(columns=("vibration",)), fleet=None)


def fleet_file(path, *columns, **fields):
    schema = Schema(tuple(columns))
    sources = fields.pop("sources", schema.names)
    fleet = Fleet(name="pumps", schema=schema, sources=tuple(sources), **fields)
    path.write_text(fleet_toml(fleet), encoding="utf-8")
    return str(path)


def test_a_fleet_says_what_a_file_calls_its_columns(tmp_path):
    columns = [*reversed(SCHEMA.columns), Column("more", "sensor")]
    fleet = fleet_file(
        tmp_path / "f.toml",
        *sorted(columns, key=lambda c: c.role != "setting"),
        sources=["s0", "s2", "s1", "more"],
        unit_column="machine",
        cycle_column=None,
    )
    (tmp_path / "a.csv").write_text("machine,s0,s1,s2\nm,0,1,2\nm,0,1,2\n")

    (read,), _ = read_units(tmp_path / "a.csv", MANIFEST, fleet=fleet)

    assert read.unit == "m"
    assert read.cycles.tolist() == [1, 2]
    assert read.readings.tolist() == [[0.0, 1.0, 2.0]] * 2


def test_a_fleet_in_other_engineering_units_is_refused(tmp_path):
    fleet = fleet_file(tmp_path / "f.toml", *SCHEMA.columns[:2], Column("sensor_2", "sensor", "bar"))

    with pytest.raises(InvalidData, match="sensor_2 is in bar in fleet pumps, the model reads psia"):
        read_units(tmp_path / "a.csv", MANIFEST, fleet=fleet)


# Formats


def bytes_of(writer_class, *options, rows=ROWS):
    file = io.BytesIO()
    writer = writer_class(file, *options)
    writer.write(rows[:2])
    writer.write(rows[2:])
    writer.close()
    return file.getvalue()


def csv_of(columns, rows=ROWS):
    return [*csv.DictReader(io.StringIO(bytes_of(CsvWriter, columns, rows=rows).decode()))]


def parquet_of(columns, rows=ROWS):
    return pq.read_table(io.BytesIO(bytes_of(ParquetWriter, columns, MODEL, rows=rows)))


def test_csv_keeps_the_numbers_and_leaves_what_is_unknown_empty():
    header, first, _, unknown, *_ = bytes_of(CsvWriter, COLUMNS).decode().splitlines()

    assert header == "unit,last_cycle,rul,rul_state,rul_lower,rul_upper,health_state,entropy_ratio,top_cycle"
    assert first == "pump 7,31,38.25,estimated,27.5,51.0,degrading,0.5,30"
    assert unknown == "pump 9,1,,,,,,,"


def test_json_is_a_list_of_objects():
    read = json.loads(bytes_of(JsonWriter))

    assert [tuple(row) for row in read] == [COLUMNS] * len(ROWS)
    assert read[0]["rul"] == 38.25
    assert read[2]["rul"] is None


def test_parquet_is_typed_and_says_which_model_answered():
    table = parquet_of(COLUMNS)

    assert table.column_names == list(COLUMNS)
    assert table["rul"].to_pylist() == [38.25, 125.0, None, 3.5, 60.0]
    assert str(table.schema.field("top_cycle").type) == "int64"
    assert table.schema.metadata[b"rul.sha256"] == b"abc"


def test_rows_of_a_model_that_explains_readings_have_further_columns():
    columns = columns_of(EVIDENT)

    first, second = csv_of(columns, EVIDENT_ROWS)
    table = parquet_of(columns, EVIDENT_ROWS)

    assert {name: first[name] for name in columns[len(COLUMNS) :]} == {
        "top_sensor": "sensor_2",
        "top_sensor_cycles": "-12.25",
        "second_sensor": "sensor_1",
        "second_sensor_cycles": "3.5",
        "trust": "supported",
        "failure_within_10": "0.25",
        "failure_within_30": "0.875",
    }
    assert tuple(second) == columns
    assert second["trust"] == ""
    assert table["failure_within_30"].to_pylist() == [0.875, None]
    assert table["trust"].to_pylist() == ["supported", None]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_that_cannot_be_written_is_one_clear_line(monkeypatch):
    full = io.TextIOWrapper(io.FileIO("/dev/full", "wb"))
    monkeypatch.setattr("sys.stdout", full)

    with (
        pytest.raises(CannotWrite, match="standard output: cannot be written: No space left on device"),
        open_output(None) as file,
    ):
        file.write(b"x")

    full.detach().close()


def test_rows_with_costs_say_when_to_stop_and_at_what_cost():
    table = parquet_of(DECIDED, DECIDED_ROWS)
    read = json.loads(bytes_of(JsonWriter, rows=DECIDED_ROWS))

    stops = [(row["act_at_cycle"], row["cost_ratio"]) for row in csv_of(DECIDED, DECIDED_ROWS)]
    assert stops == [("55", "0.125"), ("", "1.0"), ("", "")]
    assert str(table.schema.field("act_at_cycle").type) == "int64"
    assert table["cost_ratio"].to_pylist() == [row["cost_ratio"] for row in read] == [0.125, 1.0, None]
    assert read[0]["failure_within_30"] == 0.875


# The table for people


def people_lines(
    *,
    width=120,
    encoding="utf-8",
    rows=ROWS,
    last_only=True,
    colour=False,
    manifest=MANIFEST,
    costs=None,
    units=UNITS,
):
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding, write_through=True)
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    answerer = SimpleNamespace(manifest=manifest, name=MODEL, costs=costs)
    table = PeopleTable(console, answerer, units, last_only=last_only)
    table.write(rows)
    table.close()
    return buffer.getvalue().decode(encoding).splitlines()


def evident_lines(*, width=200, rows=EVIDENT_ROWS, **options):
    return people_lines(width=width, rows=rows, manifest=EVIDENT, **options)


def test_a_capped_answer_is_at_least_never_exact():
    line = people_lines()[3]

    assert line.split()[:6] == ["pump", "8", "12", "≥", "125", "104.0"]
    assert "125.0" not in line


def test_no_digit_of_a_large_cycle_number_is_cut_off():
    units = [Trajectory("pump 7", np.array([16_777_010]), np.zeros((1, 3)), failed=False)]
    cycles = {"last_cycle": 16_777_010, "top_cycle": 16_777_005, "act_at_cycle": 116_777_010}

    line = evident_lines(rows=[EVIDENT_ROWS[0] | cycles | {"cost_ratio": 0.5}], units=units, costs=(1, 10))[2]

    assert set(map(str, cycles.values())) <= set(line.split())


def test_the_table_names_what_has_no_answer_and_what_is_strange():
    lines = people_lines()

    assert lines[4].split() == ["pump", "9", "1", "none"]
    assert lines[6].rstrip().endswith("out of distribution")


def test_the_interval_is_drawn_on_a_line_from_0_to_the_cap():
    lines = people_lines(width=150)

    start = lines[0].index("0", lines[0].index("interval"))
    assert lines[0][start : start + 25] == "0" + "125".rjust(24)
    assert lines[2][start : start + 25] == "     ──●───".ljust(25)
    assert lines[3][start : start + 25] == "────●".rjust(25)


def test_models_that_explain_readings_show_what_an_answer_rests_on():
    heading, _, line, *_ = evident_lines()

    assert "top cycle" not in heading
    assert re.search(r"evident +top sensors, cycles +trust +fails in 10/30", heading)
    assert re.search(r" 30  sensor_2 -12.2, sensor_1 \+3.5 +supported +0.25 0.88", line)


def test_contributions_of_hundreds_of_cycles_are_whole():
    weights = {"top_sensor_cycles": -122.1, "second_sensor_cycles": 103.5}

    line = evident_lines(rows=[EVIDENT_ROWS[0] | weights])[2]

    assert " sensor_2 -122.1, sensor_1 +103.5 " in line


def test_the_table_says_when_to_stop_where_costs_are_given():
    heading, _, first, second, *_ = people_lines(width=200, rows=DECIDED_ROWS, costs=Costs(1.0, 10.0))

    assert re.search(r"stop at +cost ratio +fails in 10/30", heading)
    assert re.search(r" 55 +0\.12 +0\.25 0\.88", first)
    assert re.search(r" never +1\.00 ", second)
    assert "stop at" not in people_lines(width=200)[0]


def test_a_narrow_terminal_keeps_the_interval_and_the_failure_probabilities():
    heading, *lines = evident_lines(width=80)

    assert {"RUL", "interval", "health", "fails"} <= set(heading.split())
    assert max(map(len, lines[:3])) <= 80


def test_only_one_row_a_unit_has_a_column_for_trust():
    assert "trust" not in evident_lines(last_only=False)[0]


def test_what_it_amounts_to_stands_below():
    *_, counts, urgent = people_lines()

    assert counts == (
        "5 units · 1 unknown: readings unlike the training data · 1 critical · 1 degrading · 1 healthy · "
        "1 without an answer · model fake 1.0"
    )
    assert urgent == "fewest cycles left: pump 10 (3.5), pump 7 (38.2)"


def test_rows_of_cycles_are_counted_as_windows():
    rows = [row("a", cycle, 50.0, "estimated", 1.0, 90.0, "degrading", 0.5, cycle) for cycle in (1, 2, 3)]

    last = people_lines(rows=rows, last_only=False)[-1]

    assert last.startswith("3 windows of 5 units")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_the_rul_is_always_there(width):
    lines = people_lines(width=width)

    assert max(map(len, lines[: 2 + len(ROWS)])) <= width
    assert " 38.2" in lines[2]


@pytest.mark.parametrize("width", [10, 20, 30, 40])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_units_cycles_and_ruls_stay_whole_however_narrow_the_terminal(width, encoding):
    heading, *lines = people_lines(width=width, encoding=encoding)

    assert heading.split()[:4] == ["unit", "last", "cycle", "RUL"]
    assert any(re.match(r"pump 7 +31 +38\.2\b", line) for line in lines)
    assert any(re.match(r"pump 8 +12 +(?:≥|>=) 125\b", line) for line in lines)
    assert len(heading) <= max(width, 27)


def test_a_terminal_without_unicode_gets_plain_signs():
    lines = people_lines(encoding="ascii")

    assert any(">= 125" in line for line in lines)
    assert any("27.5 -   51.0" in line for line in lines)


def test_health_has_its_colour():
    lines = people_lines(colour=True)

    for colour, health in (("1;31", "critical"), ("33", "degrading"), ("32", "healthy")):
        assert any(f"\x1b[{colour}m● {health}" in line for line in lines)


# Frictions of a first day


@pytest.mark.parametrize(
    ("output", "form", "words"),
    [
        ("rul.xlsx", None, "expected .csv, .parquet, .pq, .json, .txt, got .xlsx"),
        ("rul.xlsx", "csv", "expected .csv, got .xlsx"),
        ("rul.csv.gz", None, "got .gz"),
        ("rul.parquet", "json", "expected .json, got .parquet"),
        ("rul.dat", None, "got .dat"),
    ],
)
def test_an_output_says_what_it_is_or_is_refused(tmp_path, output, form, words):
    chosen = [] if form is None else ["--format", form]

    result = rul("predict", "--bundle", "fd001", "--input", "a.csv", "--output", tmp_path / output, *chosen)

    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


REFUSED = Refused(WindowError("too_much_missing", "nothing is known", []))


class RefusesAll:
    """Answers no window."""

    name, manifest, costs, windows_per_request, max_in_flight = MODEL, MANIFEST, None, 4, 1
    others = frozenset()

    async def answer(self, windows, explain):
        return [REFUSED] * len(windows)


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("json", lambda file: json.loads(file.read_text())),
        ("parquet", lambda file: pq.read_table(file).to_pylist()),
    ],
)
async def test_a_file_without_any_answer_is_still_a_whole_one(form, read, tmp_path, capfdbinary):
    write_parquet(tmp_path / "units.parquet", [unit()], SCHEMA)
    opened = nullcontext(RefusesAll())
    given = {"fleet": None, "last_only": True, "form": TableFormat(form), "output": None}

    with pytest.raises(NothingAnswered, match="no window has an answer; the first: unit 1, cycle 4: nothing"):
        await predict_file(opened, tmp_path / "units.parquet", **given)

    (tmp_path / "written").write_bytes(capfdbinary.readouterr().out)
    assert [found["rul"] for found in read(tmp_path / "written")] == [None]


class Swapped:
    """A service whose model is swapped after each request."""

    def __init__(self, versions):
        self.versions = iter(versions)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def choose(self, _model):
        return MODEL

    async def manifest(self, _name):
        return MANIFEST

    async def ask(self, windows, **_options):
        return ModelName("fake", next(self.versions), "abc"), await answers_to(windows)


async def answers_to(windows):
    """Read an answer of the service as the client does."""
    async with in_process() as service:
        reply = await service.predict_http(windows=[json_window()] * len(windows))
    return msgspec.convert(reply.json()["predictions"], list[Prediction])


OTHER = "rul: fake 1.0 did not answer all windows, also 2.0: the model was swapped, or has a canary\n"


@pytest.mark.parametrize(("versions", "said"), [(["1.0", "1.0"], ""), (["1.0", "2.0"], OTHER)])
async def test_answers_of_other_versions_are_said(monkeypatch, tmp_path, capfd, versions, said):
    monkeypatch.setattr(remote, "AsyncClient", lambda *_, **__: Swapped(versions))
    monkeypatch.setattr(remote, "windows_per_request", lambda _: 1)
    write_parquet(tmp_path / "units.parquet", [unit("1"), unit("2")], SCHEMA)
    opened = remote.open_remote("http://rul", Credentials(), model=None, store=False, costs=None)
    given = {"fleet": None, "last_only": True, "form": TableFormat.CSV, "output": tmp_path / "rows.csv"}

    await predict_file(opened, tmp_path / "units.parquet", **given)

    assert capfd.readouterr().err == said
