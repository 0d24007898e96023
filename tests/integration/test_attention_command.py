"""`rul attention` on a real bundle: its tables, and its picture for one head and for several."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matplotlib.image import imread

from export.attention import head_redundancy, report_head
from export.attention_cli import heads_table, redundancy_table, redundant_pairs
from export.attention_picture import attention_picture, life_map
from export.bundle import EntropyReference
from export.evaluation_windows import spread_windows
from export.pictures import CannotDraw
from export.session import open_bundle
from model.domain import InvalidData
from model.outputs import CannotWrite
from tests.commands import rul, write_pumps
from tests.tiny_bundle import pumps


@pytest.fixture
def attention(tiny_bundle, tmp_path):
    """The command for pumps that the tiny bundle has not seen."""
    data, _ = write_pumps(tmp_path, units=5, seed=21)
    return partial(rul, "attention", tiny_bundle.path, "--input", data)


class TwoHeads:
    """The session of a network with two heads: one as the attention is, one on the first cycle."""

    def __init__(self, session):
        self.session = session

    def answer_all(self, windows):
        answers = self.session.answer_all(windows)
        first = np.zeros_like(answers["attention"])
        first[:, 0] = 1.0
        return answers | {"head_attention": np.stack([answers["attention"], first], axis=1)}


def test_the_tables_say_where_attention_lies_and_what_hiding_cycles_does(attention):
    result = attention("--windows", 40)

    assert result.exit_code == 0, result.exception
    for said in (
        "40 windows of 5 units", "mean", "x equal", "20% hidden", "50% kept alone", "leak", "sudden wear",
    ):  # fmt: skip
        assert said in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_same_seed_says_the_same(attention):
    first, again, other = (attention("--windows", 20, "--seed", seed).stdout for seed in (3, 3, 4))

    assert first == again != other


def test_a_run_is_measured_as_its_bundle_is(tiny_bundle, tmp_path):
    data, _ = write_pumps(tmp_path, units=3, seed=21)

    of_run, of_bundle = (
        rul("attention", path, "--input", data, "--windows", 20)
        for path in (tiny_bundle.path.parent / "tiny-run", tiny_bundle.path)
    )

    assert of_run.exit_code == 0, of_run.exception
    assert of_run.stdout == of_bundle.stdout


def test_the_figures_of_one_unit_have_no_interval(attention):
    result = attention("--unit", "pump-3")

    assert "unit pump-3" in result.stdout
    assert re.search("│ none +│", result.stdout)


def test_of_more_units_than_windows_one_window_each_of_some_is_cut(attention):
    assert "3 windows of 3 units" in attention("--windows", 3, "--no-hide").stdout


def test_hiding_can_be_left_out(attention):
    result = attention("--no-hide")

    assert result.exit_code == 0, result.exception
    assert "hidden" not in result.stdout


def test_a_unit_that_is_not_there_is_named(attention):
    result = attention("--unit", "pump-99")

    assert isinstance(result.exception, InvalidData)
    assert "no unit 'pump-99'" in str(result.exception)


def test_the_picture_is_drawn_and_named(attention, tmp_path):
    out = tmp_path / "new" / "attention.png"

    result = attention("--windows", 5, "--no-hide", "--output", out)

    assert result.exit_code == 0, result.exception
    assert "attention.png" in result.stdout.replace("\n", "")
    assert imread(out).std() > 0.05


@pytest.mark.parametrize(
    ("name", "error", "named"),
    [("attention.what", CannotDraw, "attention.what"), ("taken/attention.png", CannotWrite, "taken")],
)
def test_a_picture_that_cannot_be_written_is_named(attention, tmp_path, name, error, named):
    (tmp_path / "taken").write_text("a file")

    result = attention("--windows", 5, "--no-hide", "--output", tmp_path / name)

    assert isinstance(result.exception, error)
    assert str(result.exception).startswith(f"{tmp_path / named}: ")


def test_the_picture_of_several_heads_shows_each(tiny_bundle):
    session, manifest = open_bundle(tiny_bundle)

    figure = attention_picture(TwoHeads(session), manifest, replace(pumps(units=1, seed=2)[0], failed=False))

    heads = figure.axes[-1]
    assert [label.get_text() for label in heads.get_yticklabels()] == ["mean", "0", "1"]
    shown = heads.images[0].get_array()
    np.testing.assert_allclose(shown[0], shown[1])
    assert shown[2, 0] == manifest.context


def test_a_prediction_is_drawn_at_its_cycle_also_after_cycles_without_a_reading(tiny_bundle):
    session, manifest = open_bundle(tiny_bundle)
    unit = replace(pumps(units=1, seed=2)[0], failed=False)
    kept = np.delete(np.arange(len(unit)), np.arange(5, 15))
    gapped = replace(unit, cycles=unit.cycles[kept], readings=unit.readings[kept])

    life = attention_picture(session, manifest, gapped).axes[0]

    (mesh,) = life.collections
    edges, shown = mesh.get_coordinates()[:, 0, 1], np.ma.getmaskarray(mesh.get_array())
    assert edges[:-1][~shown.all(axis=1)].tolist() == (gapped.cycles - 0.5).tolist()
    assert edges[-1] == gapped.cycles[-1] + 0.5
    assert life.get_xlim()[0] > life.get_xlim()[1] == -0.5


def test_the_map_of_a_life_counts_attended_cycles_before_the_last():
    attention = np.array([[1.0, 0, 0], [0.25, 0.75, 0], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])

    shown = life_map(attention, np.array([1, 2, 3, 3]))

    nan = np.nan
    np.testing.assert_allclose(shown, [[nan, nan, 1], [nan, 0.5, 1.5], [0.6, 0.9, 1.5], [0.3, 0.3, 2.4]])


def test_redundancy_is_shown_for_each_pair_of_heads_and_named_where_it_is():
    heads = np.stack([np.eye(4)[:2], np.eye(4)[:2], np.eye(4)[2:]], axis=1)
    apart = head_redundancy(heads, np.array([4, 4]))

    table = redundancy_table(apart)

    assert redundant_pairs(apart).endswith("Redundant (below 0.01): 0 and 1.")
    assert redundant_pairs(apart[1:, 1:]).endswith(": none.")

    assert [list(column.cells) for column in table.columns[1:]] == [
        ["", "0.00", "1.00"],
        ["0.00", "", "1.00"],
        ["1.00", "1.00", ""],
    ]


@pytest.mark.parametrize(
    ("weights", "band", "verdict"),
    [
        ([0.25, 0.25, 0.25, 0.25], (0.999, 1.0), "\nUNIFORM"),
        ([0.0, 0.0, 1.0, 0.0], (0.0, 0.1), "ONE CYCLE"),
        ([0.1, 0.1, 0.1, 0.7], (0.8, 0.9), "100% COLLAPSED"),
        ([0.1, 0.1, 0.1, 0.7], (0.1, 0.2), "100% UNIFORM"),
        ([0.1, 0.1, 0.1, 0.7], (0.1, 0.9), "100.0% inside"),
        ([0.1, 0.1, 0.1, 0.7], None, "no band"),
    ],
)
def test_a_head_is_judged_in_itself_before_it_is_held_against_its_band(tiny_bundle, weights, band, verdict):
    _, manifest = open_bundle(tiny_bundle)
    limits = band and EntropyReference(head="mean", low=band[0], median=0.5, high=band[1]).limits(4)
    windows = spread_windows(pumps(units=1, seed=1), manifest, per_unit=3)
    attention, lengths = np.array([weights] * 3), np.full(3, 4)

    table = heads_table(manifest, [report_head("mean", attention, lengths, limits)], windows)

    assert verdict in next(iter(list(table.columns)[-1].cells))
