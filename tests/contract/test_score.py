"""`rul score`: the service's own answers, whole units in each part, and reasons for what is refused."""

import asyncio
import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.session import open_bundle
from model.dataset import windows_ending_at
from model.domain import InvalidData, Trajectory
from rul_client.commands.output import NothingAnswered
from rul_client.commands.predict.offline import open_offline
from rul_client.commands.predict.rows import rows
from rul_client.commands.score.plan import MOST_MIXED_ROWS
from rul_client.commands.score.run import OtherRun, print_report, score
from rul_client.commands.score.scorer import BATCH_WINDOWS
from rul_client.unit_windows import UnitWindows
from tests.scoring import (
    LAST_ONLY,
    in_this_process,
    make_job,
    plan_of,
    refused,
    score_here,
    scored,
    tree,
    write_pumps,
)
from tests.tiny_bundle import FLEET, pumps

pytestmark = pytest.mark.usefixtures("no_settings")
CONTEXT = FLEET.context
SCORE_PAGE = Path(__file__).parents[2] / "docs" / "score.md"


@pytest.fixture
def fleet(tmp_path):
    write_pumps(tmp_path / "in" / "pumps.parquet")
    return tmp_path / "in"


def unit(name, steps, *, seed=0):
    readings = np.random.default_rng(seed).normal(size=(len(steps), 3)).astype(np.float32)
    return Trajectory(name, np.cumsum(steps), readings, failed=False)


def last_of_each(cycles, every):
    """Of each `every` cycles, counted back from the last, the place of the last one with a reading."""
    back = cycles[-1] - cycles
    places = (
        np.flatnonzero((back >= start) & (back < start + every)) for start in range(0, back[0] + 1, every)
    )
    return np.array(sorted(each[-1] for each in places if len(each)))


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=40), min_size=1, max_size=6),
    st.integers(1, 15),
    st.sampled_from([1, 2, 3, 7, LAST_ONLY["every"]]),
    st.integers(1, 50),
)
def test_windows_of_many_units_equal_those_of_each_unit(steps, context, every, count):
    units = [unit(str(i), own, seed=i) for i, own in enumerate(steps)]
    windows = UnitWindows(units, context=context, every=every)
    wanted = [windows_ending_at(each, last_of_each(each.cycles, every), length=context) for each in units]

    batches = list(windows.by_length(count))

    readings = np.full((len(windows), context, 3), np.nan, np.float32)
    for which in batches:
        cut = windows.readings(which)
        readings[which, : cut.shape[1]] = cut
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(windows)))
    np.testing.assert_array_equal(readings, np.concatenate([each.readings for each in wanted]))
    np.testing.assert_array_equal(windows.lengths, np.concatenate([each.lengths for each in wanted]))
    np.testing.assert_array_equal(windows.last_cycle, np.concatenate([each.last_cycle for each in wanted]))


async def predicted(bundle, units):
    async with open_offline(str(bundle.path)) as offline:
        manifest = offline.manifest
        windows = UnitWindows(units, context=manifest.context, every=1)
        found = [row async for some in rows(windows, offline, last_only=False, unanswered=[]) for row in some]
    return manifest, found


@pytest.mark.parametrize("network", ["flagship", "amnl"])
def test_numbers_are_those_of_the_service(network, tiny_bundles, tmp_path):
    units = pumps(units=2 + BATCH_WINDOWS // 30, seed=21)
    write_pumps(tmp_path / "in" / "pumps.parquet", units)
    bundle = tiny_bundles(network)

    score_here(bundle, tmp_path / "in", tmp_path / "out")

    manifest, wanted = asyncio.run(predicted(bundle, units))
    got = scored(tmp_path / "out")
    assert len(got) == len(wanted) > BATCH_WINDOWS
    columns = [name for name in got[0] if name != "novelty"]
    for row, answer in zip(got, wanted, strict=True):
        for name in columns:
            value, scale = answer[name], manifest.cap if name.startswith("rul") else 1.0
            # A bound near 0 is a difference of float32 as large as the cap.
            near = pytest.approx(value, rel=1e-6, abs=1e-6 * scale) if isinstance(value, float) else value
            assert row[name] == near, name
    assert manifest.explains_readings == ("top_sensor" in columns)


@pytest.mark.parametrize("column", ["unit", "cycle", "vibration"])
def test_a_column_that_a_file_has_twice_is_refused(column, tiny_bundle, fleet, tmp_path):
    table = pq.read_table(fleet / "pumps.parquet")
    names = [*table.column_names, column]
    pq.write_table(pa.table([*table.columns, table[column]], names=names), fleet / "pumps.parquet")

    with pytest.raises(InvalidData, match=rf"pumps.parquet: the header has {column} more than once"):
        score_here(tiny_bundle, fleet, tmp_path / "out")


@pytest.mark.parametrize(("units", "is_said"), [(5, True), (400, False)])
def test_the_report_says_where_windows_are_too_few_to_judge_drift(
    tiny_bundle, tmp_path, capsys, units, is_said
):
    write_pumps(tmp_path / "pumps.parquet", pumps(units=units, seed=21))
    summary = score_here(tiny_bundle, tmp_path / "pumps.parquet", tmp_path / "out", **LAST_ONLY)

    print_report(summary, make_job(tiny_bundle, "in", "out"), as_json=False)

    lines = capsys.readouterr().out.splitlines()
    assert ("drift: not judged, no operating regime has 200 windows" in lines) is is_said
    assert ("drift: none beyond its limit" in lines) is False


def test_drift_counts_windows_of_every_unit_that_are_eight_cycles_apart(tiny_bundle, tmp_path):
    young = [replace(u, cycles=u.cycles[:15], readings=u.readings[:15]) for u in pumps(units=9, seed=21)]
    write_pumps(tmp_path / "in" / "pumps.parquet", young)

    every, apart = (
        score_here(tiny_bundle, tmp_path / "in", tmp_path / f"{every}", every=every) for every in (1, 8)
    )

    assert (every["windows"], apart["windows"]) == (9 * 15, 9 * 2)
    assert every["drift"]["columns"] == apart["drift"]["columns"]


def test_last_answers_each_units_last_cycle(tiny_bundle, fleet, tmp_path):
    score_here(tiny_bundle, fleet, tmp_path / "out", **LAST_ONLY)

    assert [(row["unit"], row["last_cycle"]) for row in scored(tmp_path / "out")] == [
        (each.unit, each.cycles[-1]) for each in pumps(units=5, seed=21)
    ]


def test_every_n_counts_back_from_the_last_cycle(tiny_bundle, fleet, tmp_path):
    score_here(tiny_bundle, fleet, tmp_path / "out", every=10)

    first = [row["last_cycle"] for row in scored(tmp_path / "out") if row["unit"] == "pump-1"]
    last = pumps(units=1, seed=21)[0].cycles[-1]
    assert first == list(range(last % 10 or 10, last + 1, 10))


def test_attention_and_contributions_are_lists_of_the_windows_cycles(tiny_bundle, fleet, tmp_path):
    score_here(tiny_bundle, fleet, tmp_path / "out", attention=True, contributions=True)

    rows = scored(tmp_path / "out")
    _, manifest = open_bundle(tiny_bundle)
    sensors = len(manifest.schema_of_columns.indices("sensor"))
    assert [len(row["attention"]) for row in rows[:20]] == [min(n, CONTEXT) for n in range(1, 21)]
    for row in rows:
        assert sum(row["attention"]) == pytest.approx(1, abs=1e-5)
        assert sum(row["evidence"]) == pytest.approx(1, abs=1e-5)
        assert len(row["contributions"]) == len(row["attention"])
        assert len(row["sensor_contributions"]) == sensors
        assert max(row["sensor_contributions"], key=abs) == pytest.approx(row["top_sensor_cycles"], rel=1e-5)


def test_columns_and_their_types_are_those_of_the_documentation(tiny_bundle, fleet, tmp_path):
    described = {
        re.sub("_N$", "", name): kind.strip()
        for names, kind in re.findall(
            r"^\| (`.*?) \| ([^|]*) \|", SCORE_PAGE.read_text("utf-8"), re.MULTILINE
        )
        for name in re.findall("`([a-z_N]+)`", names)
    }

    score_here(tiny_bundle, fleet, tmp_path / "out", attention=True, contributions=True)

    schema = pq.read_schema(tmp_path / "out" / "part-000000.parquet")
    kinds = {re.sub(r"_\d+$", "", field.name): str(field.type) for field in schema}
    assert {name: described[name] for name in kinds} == {
        name: "list of float" if kind.startswith("list") else kind for name, kind in kinds.items()
    }


def test_readings_without_a_place_are_refused_with_file_row_and_reason(tiny_bundle, tmp_path):
    table = write_pumps(tmp_path / "in" / "pumps.parquet")
    units, cycles = table["unit"].to_pylist(), table["cycle"].cast(pa.float64()).to_pylist()
    units[0], cycles[2], cycles[5] = None, 2.5, cycles[4]
    table = table.set_column(0, "unit", pa.array(units)).set_column(1, "cycle", pa.array(cycles))
    pq.write_table(table, tmp_path / "in" / "pumps.parquet")

    summary = score_here(tiny_bundle, tmp_path / "in", tmp_path / "out")

    found = [
        (row["file"], row["row"], row["unit"], row["cycle"], row["column"])
        for row in refused(tmp_path / "out")
    ]
    assert found == [
        ("pumps.parquet", 1, None, 1.0, "unit"),
        ("pumps.parquet", 3, "pump-1", 2.5, "cycle"),
        ("pumps.parquet", 6, "pump-1", 5.0, "cycle"),
    ]
    assert "expected a whole number from 0 to 16777216, got 2.5" in refused(tmp_path / "out")[1]["reason"]
    assert (summary["refused_readings"], summary["windows"]) == (3, len(table) - 3)


def test_a_window_that_misses_too_much_is_refused_and_the_others_are_answered(tiny_bundle, tmp_path):
    units = pumps(units=2, seed=21)
    units[0].readings[0] = np.nan
    write_pumps(tmp_path / "in" / "pumps.parquet", units)

    summary = score_here(tiny_bundle, tmp_path / "in", tmp_path / "out")

    (row,) = refused(tmp_path / "out")
    assert (row["unit"], row["cycle"], row["row"]) == ("pump-1", 1.0, None)
    assert "at most 50% of the readings missing, got 100%" in row["reason"]
    assert summary["windows"] == sum(map(len, units)) - 1


def test_missing_and_infinite_readings_are_counted_by_column_in_the_summary_and_on_the_screen(
    tiny_bundle, tmp_path, capsys
):
    units = pumps(units=3, seed=21)
    units[0].readings[:4, 1] = np.nan
    units[1].readings[3, 2] = np.inf
    units[2].readings[2, 2] = np.nan
    write_pumps(tmp_path / "in" / "pumps.parquet", units)

    summary = score_here(tiny_bundle, tmp_path / "in", tmp_path / "out", part_readings=1)
    print_report(summary, make_job(tiny_bundle, "in", "out"), as_json=False)

    columns = [column.name for column in FLEET.schema.columns]
    assert (summary["missing"], summary["infinite"]) == ({columns[1]: 4, columns[2]: 1}, 1)
    assert json.loads((tmp_path / "out" / "_summary.json").read_text())["missing"] == summary["missing"]
    counted = f"missing values, of {summary['readings']:,} readings: {columns[1]} 4, {columns[2]} 1"
    assert counted in capsys.readouterr().out


def test_files_that_lack_a_column_of_others_are_named_while_planning(tiny_bundle, fleet, tmp_path, capsys):
    other = [replace(each, unit=f"x{each.unit}") for each in pumps(units=2, seed=3)]
    table = write_pumps(fleet / "more.parquet", other)
    pq.write_table(table.drop_columns(["vibration"]), fleet / "more.parquet")

    score_here(tiny_bundle, fleet, tmp_path / "out")

    said = "vibration is not in 1 of 2 files, treated as missing there: more.parquet"
    assert said in capsys.readouterr().err


def test_no_answer_at_all_is_an_error(tiny_bundle, tmp_path):
    units = pumps(units=1, seed=21)
    units[0].readings[:] = np.nan
    write_pumps(tmp_path / "in" / "pumps.parquet", units)

    with pytest.raises(NothingAnswered, match="no window has an answer"):
        score_here(tiny_bundle, tmp_path / "in", tmp_path / "out")


def test_the_order_of_rows_in_a_small_file_changes_nothing(tiny_bundle, fleet, tmp_path):
    table = pq.read_table(fleet)
    shuffled = table.take(np.random.default_rng(1).permutation(len(table)))
    (tmp_path / "shuffled").mkdir()
    pq.write_table(shuffled, tmp_path / "shuffled" / "pumps.parquet")

    score_here(tiny_bundle, tmp_path / "shuffled", tmp_path / "mixed")
    score_here(tiny_bundle, fleet, tmp_path / "sorted")

    def by_place(rows):
        return sorted(rows, key=lambda row: (row["unit"], row["last_cycle"]))

    one, other = ([row["rul"] for row in by_place(scored(tmp_path / name))] for name in ("mixed", "sorted"))
    assert one == pytest.approx(other, rel=1e-6)


def test_a_url_of_fsspec_is_read_and_written(tiny_bundle, fleet, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(fleet / "pumps.parquet"), "/scored-in/pumps.parquet")

    try:
        score_here(tiny_bundle, "memory://scored-in", "memory://scored-out", part_readings=100)
        score_here(tiny_bundle, fleet.as_uri(), tmp_path / "out", part_readings=100)

        assert (
            memory.cat("/scored-out/part-000001.parquet")
            == (tmp_path / "out" / "part-000001.parquet").read_bytes()
        )
    finally:
        for folder in ("/scored-in", "/scored-out"):
            with suppress(FileNotFoundError):
                memory.rm(folder, recursive=True)


def test_a_url_that_nothing_opens_is_a_clear_error(tiny_bundle, tmp_path):
    with pytest.raises(InvalidData, match="nowhere://x: neither pyarrow nor fsspec opens it"):
        score_here(tiny_bundle, "nowhere://x", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"every": 2}, "--windows was all, now 2"),
        ({"attention": True}, "--attention was not given, now given"),
        ({"part_readings": 100}, "--part-readings was 65536, now 100"),
    ],
)
def test_a_run_with_other_options_is_refused_with_these_alone(
    options, difference, tiny_bundle, fleet, tmp_path
):
    score_here(tiny_bundle, fleet, tmp_path / "out")
    before = tree(tmp_path / "out")

    with pytest.raises(OtherRun, match=rf"holds another run: {difference}; choose another --output"):
        score_here(tiny_bundle, fleet, tmp_path / "out", **options)

    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("record", ["", "x", "[]", "{}", '{"rul": "0.0.1"}', '{"rul": 5, "bundle": "fd001"}'])
def test_a_run_whose_record_is_damaged_or_of_another_version_is_refused_and_kept(
    record, tiny_bundle, fleet, tmp_path
):
    score_here(tiny_bundle, fleet, tmp_path / "out")
    (tmp_path / "out" / "_run.json").write_text(record)
    before = tree(tmp_path / "out")

    with pytest.raises(
        OtherRun, match="its record is damaged or of another version; choose another --output"
    ):
        score_here(tiny_bundle, fleet, tmp_path / "out")

    assert tree(tmp_path / "out") == before


def add_a_unit(fleet):
    write_pumps(fleet / "more.parquet", [replace(pumps(units=1, seed=3)[0], unit="x")])


def write_again(fleet):
    os.utime(fleet / "pumps.parquet", (0, 0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_a_unit, r"input was 1 file, 5 units, [\d,]+ readings, now 2 files, 6 units, [\d,]+ readings;"),
        (write_again, "the input's files have other names, sizes or times;"),
    ],
)
def test_a_run_over_other_input_is_refused(change, words, tiny_bundle, fleet, tmp_path):
    score_here(tiny_bundle, fleet, tmp_path / "out")
    change(fleet)

    with pytest.raises(OtherRun, match=f"{words} choose"):
        score_here(tiny_bundle, fleet, tmp_path / "out")


def test_a_run_over_another_model_is_refused_with_both(tiny_bundles, fleet, tmp_path):
    score_here(tiny_bundles("flagship"), fleet, tmp_path / "out")

    with pytest.raises(OtherRun, match=r"model was \S+ \S+ \([0-9a-f]{12}\), now \S+ \S+ \([0-9a-f]{12}\)"):
        score_here(tiny_bundles("amnl"), fleet, tmp_path / "out")


def test_two_runs_into_one_folder_at_the_same_time_are_noticed(tiny_bundle, fleet, tmp_path):
    def beside_another(job, parts):
        yield from in_this_process(replace(job, run="other", every=2), parts)

    with pytest.raises(InvalidData, match=r"part-000000.parquet: another run wrote to .* at the same time"):
        score(make_job(tiny_bundle, fleet, tmp_path / "out"), beside_another)


def test_a_run_that_finished_no_part_gives_way_to_another(tiny_bundle, fleet, tmp_path):
    score_here(tiny_bundle, fleet, tmp_path / "out")
    (tmp_path / "out" / "part-000000.parquet").unlink()

    score_here(tiny_bundle, fleet, tmp_path / "out", every=2)

    score_here(tiny_bundle, fleet, tmp_path / "new", every=2)
    assert tree(tmp_path / "out") == tree(tmp_path / "new")


def test_a_folder_with_other_files_or_within_the_input_is_refused(tiny_bundle, fleet, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")

    with pytest.raises(OtherRun, match=r"expected an empty folder.*thesis\.txt"):
        score_here(tiny_bundle, fleet, tmp_path / "out")
    with pytest.raises(OtherRun, match="lies in the input"):
        score_here(tiny_bundle, fleet, fleet / "out")
    (tmp_path / "link").symlink_to(fleet)
    with pytest.raises(OtherRun, match="lies in the input"):
        score_here(tiny_bundle, fleet, tmp_path / "link" / "out")


def test_an_output_beside_an_input_file_is_written(tiny_bundle, fleet):
    [file] = fleet.glob("*.parquet")

    score_here(tiny_bundle, file, fleet / "out")

    assert (fleet / "out" / "part-000000.parquet").is_file()


def test_finished_parts_are_not_scored_again(tiny_bundle, fleet, tmp_path):
    score_here(tiny_bundle, fleet, tmp_path / "out", part_readings=60)
    whole = tree(tmp_path / "out")
    kept = tmp_path / "out" / "part-000001.parquet"
    written = kept.stat().st_mtime_ns
    (tmp_path / "out" / "part-000000.parquet").unlink()
    (tmp_path / "out" / "_summary.json").unlink()

    score_here(tiny_bundle, fleet, tmp_path / "out", part_readings=60)

    assert tree(tmp_path / "out") == whole
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize("group", [10, 64, 10_000])
def test_parts_hold_whole_units_whatever_the_groups_of_rows(group, fleet):
    table = pq.read_table(fleet)
    pq.write_table(table, fleet / "pumps.parquet", row_group_size=group)
    units = np.array(table["unit"].to_pylist())

    plan = plan_of(fleet, part_readings=100)

    assert len(plan.parts) > 1
    taken = [slice_ for part in plan.parts for slice_ in part.slices]
    assert sum(each.rows for each in taken) == len(table) == plan.rows
    of_part = [set(units[each.first_row : each.first_row + each.rows]) for each in taken]
    assert sum(map(len, of_part)) == len(set.union(*of_part)) == plan.units == 5


def test_small_files_share_a_part(tmp_path):
    for i, each in enumerate(pumps(units=4, seed=21)):
        write_pumps(tmp_path / f"{i}.parquet", [each])

    (part,) = plan_of(tmp_path).parts

    assert [each.file for each in part.slices] == ["0.parquet", "1.parquet", "2.parquet", "3.parquet"]


def mixed_in_a_large_file(folder):
    count = MOST_MIXED_ROWS + 1
    columns = {"unit": pa.array(["a", "b"] * (count // 2) + ["a"]), "cycle": pa.array(np.arange(count))}
    zeros = {name: pa.nulls(count, pa.float32()) for name in FLEET.schema.names}
    pq.write_table(pa.table(columns | zeros), folder / "large.parquet")


def in_two_files(folder):
    write_pumps(folder / "a.parquet", pumps(units=2, seed=1))
    write_pumps(folder / "b.parquet", pumps(units=1, seed=2))


def without_a_column(folder):
    table = write_pumps(folder / "pumps.parquet")
    pq.write_table(table.drop(["vibration"]), folder / "pumps.parquet")


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (in_two_files, r"unit pump-1 is in a\.parquet and in b\.parquet"),
        (mixed_in_a_large_file, r"large\.parquet: the rows of unit a are not together"),
        (without_a_column, r"pumps\.parquet: 1 column missing: vibration"),
        (lambda folder: (folder / "pumps.csv").write_text("unit,cycle\n"), "expected Parquet files"),
        (
            lambda folder: (folder / "broken.parquet").write_bytes(b"PAR1 and no more"),
            r"broken\.parquet: cannot be read",
        ),
    ],
    ids=["a unit in two files", "mixed units", "a missing column", "no Parquet", "a damaged file"],
)
def test_an_input_that_cannot_be_scored_is_named_before_any_work(write, line, tmp_path):
    write(tmp_path)

    with pytest.raises(InvalidData, match=line):
        plan_of(tmp_path)
