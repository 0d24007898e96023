"""Folders and files of any file system: a path, or a URL that pyarrow or fsspec opens."""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    FSSpecHandler,
    LocalFileSystem,
    PyFileSystem,
)

from model.domain import InvalidData
from rul_client.commands.output import CannotWrite

SUFFIXES = (".parquet", ".pq")
Version = tuple[int, int | None]
"""Size of a file and time of its last change."""


class Location:
    """A folder of a file system; names are paths below it."""

    def __init__(self, url: str, files: FileSystem, root: str) -> None:
        self.url, self.files, self.root = url, files, root.rstrip("/")

    @classmethod
    def of(cls, url: str) -> Location:
        """Find the folder or file of a path or URL.

        Raises:
            InvalidData: no library opens such a URL.
        """
        if not url:
            raise InvalidData("expected a path or a URL of files, got nothing")
        if "://" not in url:
            return cls(url, LocalFileSystem(), Path(url).absolute().as_posix())
        try:
            return cls(url, *FileSystem.from_uri(url))
        except (pa.ArrowInvalid, NotImplementedError):  # a scheme that pyarrow does not know
            return cls(url, *_by_fsspec(url))

    def path(self, name: str) -> str:
        """Return the path of a name in the file system."""
        return f"{self.root}/{name}"

    def open(self, name: str) -> Any:  # noqa: ANN401 pyarrow is untyped
        """Open a file to read anywhere in it."""
        return self.files.open_input_file(self.path(name))

    def version(self, name: str) -> Version:
        """Look up the version of a file: lists of some S3 servers have finer times."""
        found = self.files.get_file_info(self.path(name))
        return found.size, found.mtime_ns

    def folder(self) -> Location:
        """Return the folder of a file; a folder is its own."""
        is_file = self.files.get_file_info(self.root).is_file
        return Location(self.url, self.files, self.root.rpartition("/")[0]) if is_file else self

    def parquet_files(self) -> list[FileInfo]:
        """List this file, or the Parquet files below this folder by path.

        Raises:
            InvalidData: there is no such file, it is neither a file nor a folder, or it has no Parquet file.
        """
        found = self.files.get_file_info(self.root)
        if found.type == FileType.NotFound:
            raise InvalidData(f"{self.url}: no such file or folder")
        if found.type == FileType.Unknown:
            raise InvalidData(
                f"{self.url}: expected a file or a folder, got a pipe or a device: save it first"
            )
        if found.is_file:
            listed = [found]
        else:
            below = self.files.get_file_info(FileSelector(self.root, recursive=True))
            listed = [file for file in below if file.is_file and _is_shown(self.name(file))]
        files = sorted(
            (file for file in listed if file.path.lower().endswith(SUFFIXES)), key=attrgetter("path")
        )
        if not files:
            raise InvalidData(
                f"{self.url}: expected Parquet files (.parquet, .pq), found none; "
                "rul predict reads other formats"
            )
        return files

    def name(self, file: FileInfo) -> str:
        """Return the name of a file below this folder."""
        return file.path.removeprefix(self.root).lstrip("/")

    def write(self, name: str, content: bytes) -> None:
        """Write a file that appears only when complete.

        Raises:
            CannotWrite: the file system refuses.
        """
        folder, _, last = self.path(name).rpartition("/")
        part = f"{folder}/.{last}.{token_hex(8)}.tmp"  # another run may write the same file
        try:
            self.files.create_dir(folder)
            with self.files.open_output_stream(part) as stream:
                stream.write(content)
            self.files.move(part, self.path(name))
        except (OSError, pa.ArrowException) as error:
            with suppress(OSError, pa.ArrowException):  # no part, or no file system
                self.files.delete_file(part)
            raise CannotWrite(f"{self.url}: {name} cannot be written: {error}") from error


def _is_shown(name: str) -> bool:
    return not any(part[0] in "._" for part in PurePosixPath(name).parts)


def _by_fsspec(url: str) -> tuple[FileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 optional
    except ModuleNotFoundError:
        raise InvalidData(f"{url}: pyarrow does not open it, and fsspec is not installed") from None
    try:
        files, root = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InvalidData(f"{url}: neither pyarrow nor fsspec opens it: {error}") from error
    return PyFileSystem(FSSpecHandler(files)), root
