"""The folder of a running service: sockets and board of its workers, copies of bundles, TLS configuration.

The service holds a lock on it while it runs, so that the next service can remove the folders of killed ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from service.errors import FrontEndFailed

PREFIX: Final = "rulserve-"
MOST_BYTES: Final = 103 - len("/worker-99.admin")
"""Maximum bytes of the folder's path: a socket's has at most 103 on macOS, four more on Linux."""


@contextmanager
def service_folder() -> Generator[Path]:
    """Make a folder that only its owner can open, and remove it at the end; remove those of killed services.

    Raises:
        FrontEndFailed: there is no temporary folder, or its path is too long for sockets.
        OSError: the temporary folder cannot be written to.
    """
    try:
        base = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise FrontEndFailed(
            f"{error.strerror}; set TMPDIR to a folder that the service can write to"
        ) from error
    most, got = MOST_BYTES - len(f"/{PREFIX}12345678"), len(os.fsencode(base))
    if got > most:
        raise FrontEndFailed(
            f"the temporary folder {base}: expected a path of at most {most} bytes, for sockets, got {got}; "
            "set TMPDIR to a shorter one"
        )
    for left in base.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    folder, lock = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):  # another start may remove it before it is locked
            lock = _opened(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a service that has ended; keep folders of other users."""
    try:
        lock = _opened(folder)
    except OSError:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:  # its service runs
        pass
    finally:
        os.close(lock)
