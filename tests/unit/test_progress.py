"""Progress of a training where standard error is no terminal."""

from itertools import count

from model.screen import log_lines
from model.training import Check


def written(steps, *, since=1, check_at=()):
    lines = []
    ticks = count()
    watch = log_lines(steps, lines.append, clock=lambda: float(next(ticks)))
    for step in range(since, steps + 1):
        watch(step, 0.5, Check(step, 0.5, 12.345, 0.01) if step in check_at else None)
    return lines


def test_a_long_training_writes_twenty_lines_and_one_at_the_end_of_its_updates():
    *lines, end = written(3000)

    assert len(lines) == 20
    assert lines[-1].startswith("training: 3000 of 3000 updates, loss 0.5000")
    assert lines[-1].endswith("about 0 s left")
    assert end == "training: all updates done, calibrating on all units"


def test_a_training_of_few_updates_writes_a_line_for_each():
    assert [line.split(",")[0] for line in written(3)[:-1]] == [
        f"training: {n} of 3 updates" for n in (1, 2, 3)
    ]


def test_a_line_has_the_held_out_rmse_of_the_last_check():
    lines = written(40, check_at={4})[:-1]

    assert "held-out RMSE -" in lines[0]
    assert all("held-out RMSE 12.35" in line for line in lines[1:])


def test_the_time_left_follows_from_the_time_spent():
    assert [line.rsplit(", ", 2)[1:] for line in written(4)[:-1]] == [
        ["1 s", "about 3 s left"],
        ["2 s", "about 2 s left"],
        ["3 s", "about 1 s left"],
        ["4 s", "about 0 s left"],
    ]


def test_the_time_left_of_a_resumed_training_is_that_of_its_own_updates():
    lines = []
    ticks = iter([0.0, 90.0, 100.0])
    watch = log_lines(1500, lines.append, clock=lambda: next(ticks))

    for step in (1101, 1125):
        watch(step, 0.5, None)

    (line,) = lines
    assert line.endswith("10 s, about 156 s left")
