"""Requests that are JSON alone, without their numbers: what stands around the lists of `data`, and these.

This module knows where a list begins and ends, and that a decoder has once read the request with care.
"""

from __future__ import annotations

import struct
from typing import Final, Generic, TypeVar

import msgspec

from service.errors import InvalidRequest
from service.http.oip_body import decoded
from service.oip.inference import MAX_TENSORS
from service.oip.plan import Plan
from service.oip.tensors import Contents
from service.oip.windows import Group

Asked = TypeVar("Asked")

DATA: Final = b'"data":'

_numbers: Final = msgspec.json.Decoder(list[int | float | None]).decode


class TextPlan(Generic[Asked]):
    """The plan of what the lists of a request hold, once they are packed as raw contents."""

    __slots__ = ("_packs", "plan")

    def __init__(self, plan: Plan[Asked]) -> None:
        self._packs: Final = [struct.Struct(f"<{layout}").pack for layout in plan.layouts]
        self.plan: Final = plan

    def read(self, texts: list[bytes]) -> Group | None:
        """The windows of such lists; None where a value is missing, or no number of its datatype.

        Raises:
            InvalidTensor: a window cannot be read.
        """
        try:
            contents = [pack(*_numbers(text)) for pack, text in zip(self._packs, texts, strict=True)]
        except (msgspec.DecodeError, UnicodeDecodeError, struct.error, OverflowError):
            return None
        return self.plan.read(b"".join(contents))


def parted(body: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """What stands around the lists of `data` in a body, and the lists.

    >>> parted(b'{"data":[1,2], "b":[3]}')
    ((b'{"data":', b', "b":[3]}'), [b'[1,2]'])
    """
    around: list[bytes] = []
    texts: list[bytes] = []
    stop = 0
    while (start := body.find(DATA, stop)) >= 0 and len(texts) < MAX_TENSORS:
        start += len(DATA)
        if body.startswith(b" [", start):  # as Python writes it
            start += 1
        end = body.find(b"]", start) + 1
        if not end or not body.startswith(b"[", start):
            break
        around.append(body[stop:start])
        texts.append(body[start:end])
        stop = end
    around.append(body[stop:])
    return tuple(around), texts


def is_head(around: tuple[bytes, ...], *, inputs: int) -> bool:
    """Whether the lists that were cut out of a request are the data of its inputs, in their order.

    Read again with other lists in their place, it has these for its data: whatever else it may hold.
    """
    if len(around) != inputs + 1:
        return False
    return all(_data_of(around, first) == [[first + i] for i in range(inputs)] for first in (0, 1))


def _data_of(around: tuple[bytes, ...], first: int) -> list[Contents]:
    """The data of a request whose lists are replaced by [first], [first + 1], ..."""
    lists = [b"[%d]" % (first + i) for i in range(len(around) - 1)]
    body = b"".join([part for pair in zip(around[:-1], lists, strict=True) for part in pair]) + around[-1]
    try:
        return [given.contents for given in decoded(body, b"").query.inputs]
    except InvalidRequest:
        return []
