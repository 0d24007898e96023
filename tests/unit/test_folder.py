"""The folder of a running service is its own, and a killed service's folder goes with the next start."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from service.errors import FrontEndFailed
from service.processes.folder import PREFIX, service_folder


@pytest.fixture(autouse=True)
def base(short_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    return short_path


def left(base, name):
    folder = base / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / "board").touch()
    return folder


def test_only_its_owner_opens_the_folder_and_it_ends_with_the_service():
    with service_folder() as folder:
        mode = stat.S_IMODE(folder.stat().st_mode)

    assert mode == 0o700
    assert not folder.exists()


def test_without_a_temporary_folder_the_error_names_the_remedy(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/']")

    monkeypatch.setattr(tempfile, "gettempdir", none)

    with pytest.raises(FrontEndFailed, match=r"found in \['/tmp', '/'\]; set TMPDIR to a folder"):
        service_folder().__enter__()


def test_a_temporary_folder_too_long_for_sockets_is_refused_with_its_remedy(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * 70}")

    with pytest.raises(FrontEndFailed, match=r"at most 69 bytes, .* got 75; set TMPDIR"):
        service_folder().__enter__()


def test_the_folder_of_a_killed_service_is_removed(base):
    killed = left(base, "killed")

    with service_folder():
        assert not killed.exists()


def test_the_folder_of_a_running_service_stays():
    with service_folder() as first:
        with service_folder() as second:
            assert first.exists()
            assert second != first
        assert first.exists()


def test_links_and_folders_of_other_programs_stay(base):
    target = base / "target"
    target.mkdir()
    (base / f"{PREFIX}link").symlink_to(target)
    (base / "rul-pg-1").mkdir()

    with service_folder():
        pass

    assert sorted(path.name for path in base.iterdir()) == ["rul-pg-1", f"{PREFIX}link", "target"]


def test_the_folder_of_another_user_stays(base, monkeypatch):
    theirs = left(base, "theirs")
    monkeypatch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 1)

    with service_folder():
        pass

    assert theirs.exists()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(base, monkeypatch):
    make, made = tempfile.mkdtemp, []

    def made_and_lost(**options):
        made.append(make(**options))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_lost)

    with service_folder() as folder:
        assert [str(folder)] == made[1:]
