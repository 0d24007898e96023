"""`rul score` reads Parquet as other programs write it: any types, groups of rows and folders."""

from __future__ import annotations

import re
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from model.domain import InvalidData
from model.fleet import fleet_of_schema
from rul_client.commands.score.locations import Location
from rul_client.commands.score.part_readings import read_part
from rul_client.commands.score.run import score
from tests.scoring import in_this_process, make_job, plan_of, refused, score_here, scored, write_pumps
from tests.tiny_bundle import FLEET, pumps

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def table(tmp_path):
    return write_pumps(tmp_path / "pumps.parquet", pumps(units=3, seed=21))


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def named(table, names):
    of = dict(zip(dict.fromkeys(table["unit"].to_pylist()), names, strict=True))
    return with_column(table, "unit", [of[unit] for unit in table["unit"].to_pylist()])


def reasons(folder):
    return [(row["file"], row["row"], row["column"], row["reason"]) for row in refused(folder)]


def test_names_and_windows_of_units_do_not_depend_on_groups_of_rows_and_parts(tiny_bundle, table, tmp_path):
    pq.write_table(named(table, ["1.0", "1.1", "2.0"]), tmp_path / "one.parquet")
    pq.write_table(named(table, ["1.0", "1.1", "2.0"]), tmp_path / "many.parquet", row_group_size=7)

    one = score_here(tiny_bundle, tmp_path / "one.parquet", tmp_path / "one")
    many = score_here(tiny_bundle, tmp_path / "many.parquet", tmp_path / "many", part_readings=1)

    found = [
        [(row["unit"], row["last_cycle"]) for row in scored(tmp_path / name)] for name in ("one", "many")
    ]
    assert found[0] == found[1]
    assert one == many
    assert {unit for unit, _ in found[0]} == {"1.0", "1.1", "2.0"}
    assert one["units"] == 3


def test_folders_name_units_literally(tiny_bundle, table, tmp_path):
    names = ["1.0", "1", "a/b"]
    of_a_file = named(table, names)
    pq.write_table(of_a_file, tmp_path / "pumps.parquet")
    for name in names:
        own = of_a_file.filter(pa.compute.equal(of_a_file["unit"], name)).drop(["unit"])
        folder = tmp_path / "in" / f"unit={quote(name, safe='')}"
        folder.mkdir(parents=True)
        pq.write_table(own, folder / "x.parquet")

    for source in ("in", "pumps.parquet"):
        score_here(tiny_bundle, tmp_path / source, tmp_path / f"of {source}")

    assert scored(tmp_path / "of in") == scored(tmp_path / "of pumps.parquet")


def test_readings_in_folders_without_a_unit_are_refused(tiny_bundle, table, tmp_path):
    folder = tmp_path / "in" / "unit=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        pq.write_table(table.drop(["unit"]).slice(0, 1), folder / f"{name}.parquet")
    pq.write_table(table, tmp_path / "in" / "pumps.parquet")

    summary = score_here(tiny_bundle, tmp_path / "in", tmp_path / "out")

    reason = "expected a name, got nothing"
    assert reasons(tmp_path / "out") == [
        (f"{folder.name}/{name}.parquet", 1, "unit", reason) for name in ("a", "b")
    ]
    assert (summary["units"], summary["windows"]) == (3, len(table))


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (pa.scalar(None, pa.timestamp("ns")), "expected a date such as .*, got nothing"),
        (pa.scalar(None, pa.date32()), "expected a date such as .*, got nothing"),
        (pa.scalar(None, pa.string()), "expected a whole number from 0 to 16777216, got nothing"),
        (pa.scalar("new"), "expected a whole number from 0 to 16777216, got 'new'"),
    ],
)
def test_a_reading_without_a_date_or_number_is_refused_and_the_others_are_answered(
    tiny_bundle, table, tmp_path, cell, reason
):
    days = table["cycle"].cast(pa.int32()).cast(pa.date32())
    cycles = (table["cycle"] if cell.type == pa.string() else days).cast(cell.type).to_pylist()
    cycles[4] = cell.as_py()
    pq.write_table(with_column(table, "cycle", pa.array(cycles, cell.type)), tmp_path / "pumps.parquet")

    summary = score_here(tiny_bundle, tmp_path / "pumps.parquet", tmp_path / "out")

    [(file, row, column, said)] = reasons(tmp_path / "out")
    assert (file, row, column, summary["windows"]) == ("pumps.parquet", 5, "cycle", len(table) - 1)
    assert re.fullmatch(reason, said)


def test_files_with_dates_and_with_numbers_as_cycles_are_answered_in_one_part(tiny_bundle, table, tmp_path):
    days = table["cycle"].cast(pa.int32()).cast(pa.date32()).to_pylist()
    (tmp_path / "in").mkdir()
    pq.write_table(with_column(named(table, "abc"), "cycle", days), tmp_path / "in" / "dates.parquet")
    pq.write_table(named(table, "def"), tmp_path / "in" / "numbers.parquet")

    summary = score_here(tiny_bundle, tmp_path / "in", tmp_path / "out")

    answers = [(row["last_cycle"], row["rul"]) for row in scored(tmp_path / "out")]
    assert summary["windows"] == 2 * len(table)
    assert answers[: len(table)] == answers[len(table) :]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.binary()])
def test_units_are_texts_of_any_type(tiny_bundle, table, tmp_path, kind):
    names = pa.array(table["unit"].to_pylist(), kind)
    pq.write_table(with_column(table, "unit", names), tmp_path / "pumps.parquet")

    assert score_here(tiny_bundle, tmp_path / "pumps.parquet", tmp_path / "out")["windows"] == len(table)


def test_units_that_are_no_names_are_refused_with_their_file(table, tmp_path):
    pq.write_table(with_column(table, "unit", [[1]] * len(table)), tmp_path / "pumps.parquet")

    with pytest.raises(
        InvalidData, match=r"pumps\.parquet: column 'unit': expected names or numbers, got list"
    ):
        plan_of(tmp_path)


def test_a_large_group_of_rows_is_planned_in_little_memory(tmp_path):
    count = 1_000_000
    units = pa.array(np.char.add("a-rather-long-name-", (np.arange(count) // 500).astype(str)))
    zeros = {name: pa.nulls(count, pa.float32()) for name in FLEET.schema.names}
    large = pa.table({"unit": units, "cycle": np.arange(count) % 500} | zeros)
    pq.write_table(large, tmp_path / "large.parquet", row_group_size=count)
    del large, units, zeros
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)

    try:
        plan = plan_of(tmp_path)
    finally:
        pa.set_memory_pool(before)

    assert plan.units == 2_000
    assert counted.max_memory() < 8 * 2**20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda table, file: pq.write_table(table.slice(0, 10), file),
            "the file changed after the run began",
        ),
        (
            lambda table, file: pq.write_table(named(table, ["x", "y", "z"]), file),
            "the file changed after the run began",
        ),
        (lambda table, file: file.unlink(), "cannot be read: .*No such file"),
    ],
    ids=["shorter", "other units", "removed"],
)
def test_a_file_that_changes_during_the_run_ends_it(tiny_bundle, table, tmp_path, change, reason):
    file = tmp_path / "pumps.parquet"
    job = make_job(tiny_bundle, file, tmp_path / "out", part_readings=1)

    def changing(job, parts):
        yield from in_this_process(job, parts[:1])
        change(table, file)
        yield from in_this_process(job, parts[1:])

    with pytest.raises(InvalidData, match=rf"pumps\.parquet: {reason}"):
        score(job, changing)


class FineLists(LocalFileSystem):
    """Lists times of files more finely than it looks them up, as some S3 servers do."""

    def find(self, *args, **options):
        found = super().find(*args, **options)
        return {name: info | {"mtime": info["mtime"] + 0.25} for name, info in found.items()}


def test_files_are_the_same_where_lists_have_finer_times_than_a_file(table, tmp_path):
    source = Location("s3://fleet", PyFileSystem(FSSpecHandler(FineLists())), str(tmp_path))
    fleet = fleet_of_schema("pumps", FLEET.schema)

    read = read_part(source, plan_of(source).parts[0], fleet, optional=())

    assert read.readings == len(table)


def test_a_file_that_is_named_is_read_even_if_folders_hide_it(tiny_bundle, table, tmp_path):
    pq.write_table(table, tmp_path / "_latest.parquet")

    assert score_here(tiny_bundle, tmp_path / "_latest.parquet", tmp_path / "out")["windows"] == len(table)


def test_an_empty_path_is_not_the_working_folder():
    with pytest.raises(InvalidData, match="expected a path or a URL of files, got nothing"):
        Location.of("")


def test_a_file_with_other_names_of_columns_is_refused_with_the_way_to_describe_it(
    tiny_bundle, table, tmp_path
):
    renamed = table.rename_columns(["machine", *table.column_names[1:]])
    pq.write_table(renamed, tmp_path / "pumps.parquet")

    with pytest.raises(InvalidData, match=r"1 column missing: unit; .*`rul fleet init` writes a first one"):
        score_here(tiny_bundle, tmp_path / "pumps.parquet", tmp_path / "out")
