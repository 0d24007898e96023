"""`rul explain`: one unit of a file, its sentence and its picture."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.explanation_picture import explanation_picture, leading
from model.domain import InvalidData, Trajectory
from model.screen import save_picture
from rul_client.commands.explain.run import chosen, up_to
from rul_client.commands.explain.run import explained as explain
from rul_client.commands.predict.offline import answerer_of
from tests.fakes import FakeRuntime, make_manifest
from tests.unit.test_offline import make_batcher

FILE = Path("units.csv")


def unit(name="7", *, cycles=20):
    """A unit whose first sensor leaves its healthy range."""
    readings = np.full((cycles, 3), 20.0, np.float32)
    readings[:, 0] = 0.0
    readings[-6:, 1] = 90.0
    return Trajectory(name, np.arange(1, cycles + 1), readings, failed=False)


@pytest.fixture
async def explained():
    runtime = FakeRuntime(make_manifest(context=8, explains_readings=True))
    with ThreadPoolExecutor(2) as threads:
        offline = answerer_of(runtime, make_batcher(runtime, threads), max_windows=6, threads=2)
        yield await explain(offline, unit())


async def test_an_answer_comes_with_the_answers_before_it(explained):
    assert explained.life[:, 0].tolist() == [*range(1, 21)]
    assert explained.life[-1].tolist() == [20, 110, 105, 115]


async def test_readings_stand_beside_their_healthy_range_and_contributions(explained):
    assert explained.cycles.tolist() == [*range(13, 21)]
    assert explained.names == ["sensor_1", "sensor_2"]
    assert explained.readings[:, 0].tolist() == [20.0] * 2 + [90.0] * 6
    np.testing.assert_allclose(explained.lower, np.full((8, 2), -6.86), atol=0.01)
    np.testing.assert_allclose(explained.upper, np.full((8, 2), 73.53), atol=0.01)
    assert explained.contributions.tolist() == [[0.0, 0.0]] * 7 + [[90.0, 20.0]]
    assert explained.since == {"sensor_1": 15}
    assert leading(explained) == [0, 1]
    assert explained.title == ("fake: unit 7 at cycle 20: RUL 110.0 cycles, estimated (90%: 105.0 to 115.0)")


async def test_trust_of_a_short_window_says_that_it_has_too_few_cycles(explained):
    assert explained.trust == (
        "Trust: unsupported. Too few cycles with readings to judge it. "
        "Skill in the average life: 1.00 (0.5 needed)."
    )


async def test_the_picture_has_a_panel_for_each_part(explained, tmp_path):
    figure = explanation_picture(explained)

    words, *panels = figure.axes
    assert words.texts[0].get_text().startswith(explained.sentence[:50])
    assert [axes.get_title(loc="left") or axes.get_ylabel() for axes in panels] == [
        "RUL, cycles",
        "sensor_1: +90.0 cycles in all (psia)",
        "sensor_2: +20.0 cycles in all (psia)",
        "contribution and evidence of each cycle",
        "contribution of each reading",
        "evidence",  # on an axis of its own
        "",  # the scale of colours
    ]
    save_picture(figure, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


async def test_each_panel_with_numbers_of_cycles_says_that_they_are_cycles(explained):
    figure = explanation_picture(explained)

    figure.draw_without_rendering()
    numbered = [
        axes.get_xlabel()
        for axes in figure.axes
        if axes.axison
        and axes.xaxis.get_visible()
        and any(label.get_visible() and label.get_text() for label in axes.get_xticklabels())
    ]
    assert [name for name in numbered if not name.startswith("cycle")] == []


@pytest.mark.parametrize("name", ["$\\foo$", "$1$", "x" * 200])
async def test_any_name_of_a_unit_stands_in_the_picture_as_it_is(explained, name, tmp_path):
    figure = explanation_picture(replace(explained, title=f"unit {name} at cycle 9"))
    save_picture(figure, tmp_path / "picture.png")

    [title] = figure.texts
    assert title.get_text().replace("\n", "").replace(" ", "") == f"unit{name}atcycle9"
    assert not title.get_parse_math()
    figure.draw_without_rendering()
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_the_only_unit_of_a_file_needs_no_name():
    assert chosen([unit("7")], None, FILE).unit == "7"


@pytest.mark.parametrize(
    ("units", "name", "error"),
    [
        (["7", "8"], None, r"units.csv has 2 units: name one of them with --unit \(7, 8\)"),
        (["7", "8"], "9", r"units.csv has no unit '9': name one of them with --unit \(7, 8\)"),
    ],
)
def test_a_unit_that_is_not_clear_is_asked_for(units, name, error):
    with pytest.raises(InvalidData, match=error):
        chosen([unit(each) for each in units], name, FILE)


def test_an_answer_is_explained_at_any_cycle():
    assert up_to(unit(), 5).cycles.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("cycle", "before"),
    [(0, ""), (7, "; the last one before it is 6"), (21, "; the last one before it is 20")],
)
def test_a_cycle_without_a_reading_is_refused(cycle, before):
    whole = unit()
    kept = whole.cycles != 7
    gappy = Trajectory("7", whole.cycles[kept], whole.readings[kept], failed=False)

    with pytest.raises(
        InvalidData, match=f"unit 7 has readings of cycles 1 to 20, and none of --cycle {cycle}{before}$"
    ):
        up_to(gappy, cycle)
