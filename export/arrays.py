"""Arrays from an untrusted `npz`: limited sizes, known names, types and shapes; nothing is executed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from model.domain import printable

MOST_BYTES: Final = 128 * 2**20
"""Maximum size of a file of a bundle, and of the arrays in one `npz`."""

Arrays = dict[str, NDArray[Any]]
Layout = Mapping[str, tuple[str, str]]
"""Type and axes of each array by its name, such as ("float32", "BTF")."""


def read_arrays(stored: bytes) -> Arrays:
    """Read every array of an `npz`.

    Raises:
        ValueError: it is damaged, too large, or holds something else; the message is one line.
    """
    try:
        with NpzFile(io.BytesIO(stored), allow_pickle=False) as archive:
            unpacked = sum(entry.file_size for entry in archive.zip.infolist()) if archive.zip else 0
            if unpacked > MOST_BYTES:
                raise ValueError(f"{unpacked:,} bytes when unpacked, expected at most {MOST_BYTES:,}")  # noqa: TRY301
            arrays: Arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy share no root
        raise ValueError(one_line(error)) from error
    foreign = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if foreign:
        raise ValueError(f"{foreign[0]!r} is no array")
    return arrays


def check_layout(arrays: Mapping[str, NDArray[Any]], layout: Layout, sizes: dict[str, int]) -> None:
    """Compare arrays with their layout; `sizes` has known sizes of axes, and gets those that are found.

    >>> sizes = {"F": 3}
    >>> check_layout({"mean": np.zeros((2, 3))}, {"mean": ("float64", "RF")}, sizes)
    >>> sizes["R"]
    2

    Raises:
        ValueError: a name, a type or a shape differs; the message is one line.
    """
    if set(arrays) != set(layout):
        raise ValueError(f"expected the arrays {', '.join(layout)}, got {', '.join(arrays) or 'none'}"[:500])
    for name, (dtype, axes) in layout.items():
        array = arrays[name]
        found = "str" if array.dtype.kind == "U" else array.dtype.str
        if found != ("str" if dtype == "str" else np.dtype(dtype).str):
            raise ValueError(f"expected {name} as {dtype}, got {array.dtype}")
        if array.ndim == len(axes):
            for axis, size in zip(axes, array.shape, strict=True):
                sizes.setdefault(axis, size)
        expected = tuple(sizes.get(axis, -1) for axis in axes)
        if array.shape != expected:
            raise ValueError(f"expected {name} with shape {expected}, got {array.shape}")


def one_line(error: BaseException) -> str:
    """Return the text of a library's error as one printable line, at most 300 letters."""
    return printable(" ".join(str(error).split()) or type(error).__name__, 300)
