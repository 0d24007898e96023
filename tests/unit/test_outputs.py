"""Files that commands write appear only when they are complete."""

import io
import resource
import sys
import traceback
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from model.checkpoint import save_tensors
from model.outputs import CannotWrite, whole_file
from model.screen import save_picture
from rul_client.commands.score.locations import Location


@pytest.fixture
def full_disk(monkeypatch):
    """Let no file grow beyond 100 bytes."""
    # Python 3.11 cuts a compiled module at the limit without an error, and no later process can import it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_picture_that_does_not_fit_on_the_disk_leaves_the_earlier_one(tmp_path):
    path = tmp_path / "picture.png"
    path.write_text("of yesterday")

    with pytest.raises(CannotWrite, match=r"picture.png: cannot be written: File too large"):
        save_picture(Figure(), path)

    assert path.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["picture", "picture."])
def test_a_picture_without_a_suffix_is_a_png_of_that_name_and_the_only_file(tmp_path, name):
    save_picture(Figure(), tmp_path / name)

    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("full_disk")
def test_a_run_that_does_not_fit_on_the_disk_is_one_clear_line(tmp_path):
    path = tmp_path / "state.pt"

    with pytest.raises(CannotWrite, match=r"state.pt: cannot be written: File too large"):
        save_tensors(path, {"weights": torch.zeros(9999)})

    assert not list(tmp_path.iterdir())


# Collected with its view, a buffer is a line of noise in Python 3.13 and a segmentation fault in 3.12.
@pytest.mark.usefixtures("full_disk")
def test_a_run_that_does_not_fit_on_the_disk_leaves_no_view_of_its_bytes(tmp_path):
    with pytest.raises(CannotWrite) as failed:
        save_tensors(tmp_path / "state.pt", {"weights": torch.zeros(9999)})

    variables = [
        value for frame, _ in traceback.walk_tb(failed.tb) for value in list(frame.f_locals.values())
    ]
    [content] = [value for value in variables if isinstance(value, io.BytesIO)]
    content.close()  # BufferError while a view of it is alive


@pytest.mark.usefixtures("full_disk")
def test_scores_that_do_not_fit_on_the_disk_leave_no_part(tmp_path):
    with pytest.raises(CannotWrite, match="part-1 cannot be written"):
        Location.of(str(tmp_path)).write("part-1", bytes(999))

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_there", [True, False])
def test_an_output_behind_a_link_replaces_the_file_to_which_it_leads(tmp_path, is_there):
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    if is_there:
        target.write_text("of yesterday")

    with whole_file(link) as part:
        part.write_text("new")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_two_commands_with_one_output_leave_the_later_answer_whole(tmp_path):
    with whole_file(tmp_path / "a") as first:
        first.write_text("first")
        with whole_file(tmp_path / "a") as second:
            second.write_text("second, longer")

    assert (tmp_path / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_device_is_written_as_it_is():
    with whole_file(Path("/dev/null")) as part:
        part.write_text("nothing")

    assert part == Path("/dev/null")


def test_an_output_in_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(CannotWrite, match=r"none/a: cannot be written: No such file or directory"),
        whole_file(tmp_path / "none" / "a") as part,
    ):
        part.write_text("new")
