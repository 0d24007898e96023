"""Protobuf's wire format, as far as it is read and written without the library.

A message is its fields one after the other: a tag, which says the field's number and how its content
ends, and the content (protobuf.dev/programming-guides/encoding). This module must not know messages.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

DELIMITED: Final = 2
"""The wire type of what is preceded by its length: messages, strings and packed numbers."""

FIXED32: Final = 5
"""The wire type of a float."""

MOST_IN_ONE_BYTE: Final = 0x7F

LONGEST_HEAD: Final = 6
"""A tag of one byte, and a size as large as a message can be."""

FLOAT32: Final = np.dtype("<f4")


def varint(value: int) -> bytes:
    """A whole number on the wire: seven bits a byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    written = bytearray()
    while value > MOST_IN_ONE_BYTE:
        written.append(value & MOST_IN_ONE_BYTE | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


@lru_cache(maxsize=4096)
def tag(field: int, size: int) -> bytes:
    """What precedes a delimited field on the wire: its number and type, and its size in bytes.

    >>> tag(1, 300).hex()
    '0aac02'
    """
    return bytes((field << 3 | DELIMITED,)) + varint(size)


def delimited(field: int, content: bytes) -> bytes:
    """A string or a message as a field of the message that holds it."""
    return tag(field, len(content)) + content


def before_float(field: int) -> bytes:
    """What precedes a float on the wire."""
    return bytes((field << 3 | FIXED32,))


def before_entry(field: int, key: bytes) -> bytes:
    """What precedes the number of a map's entry, which is a message of its key and that number."""
    before = before_float(2)
    return tag(field, len(key) + len(before) + FLOAT32.itemsize) + key + before


@lru_cache(maxsize=4096)
def filling(size: int, *fields: int) -> bytes | None:
    """What so many bytes begin with where they are one delimited field, whose content is one, and so on.

    None: none of that size is.

    >>> filling(5, 4, 1).hex()
    '22030a01'
    """
    if not fields:
        return b""
    for length in range(2, min(size, LONGEST_HEAD) + 1):
        head = tag(fields[0], size - length)
        if len(head) == length:
            inner = filling(size - length, *fields[1:])
            return None if inner is None else head + inner
    return None
