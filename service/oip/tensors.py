"""Tensors of the Open Inference Protocol: what a model takes and gives, and the one door to an array.

A tensor arrives as four things that may contradict each other: a name, a datatype, a shape and its
contents. `array_of` lets them in when they agree, and looks at sizes before it makes anything. This
module must not know what the numbers mean, nor how they came.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from export.bundle import Manifest
from export.outputs import output_shapes
from service.errors import InvalidTensor, short

FP32: Final = "FP32"
INT64: Final = "INT64"
DTYPES: Final = {FP32: np.dtype("<f4"), INT64: np.dtype("<i8")}
PACKED: Final = {FP32: "f", INT64: "q"}  # as `struct` calls them
"""The datatypes of our tensors; the protocol's raw contents are little-endian."""

ANY: Final = -1

READINGS: Final = "readings"
LENGTHS: Final = "lengths"
LAST_CYCLE: Final = "last_cycle"

Contents = bytes | memoryview | NDArray[Any] | Sequence[float | None]
"""Raw, or the numbers: an array of the datatype, or one by one (None: missing). In row-major order."""


class TensorSpec(NamedTuple):
    """A tensor as a model's metadata announces it.

    Attributes:
        shape: -1 for a size that each request chooses.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def sized(self, *, windows: int, cycles: int) -> tuple[int, ...]:
        """The shape of an output for so many windows of so many cycles."""
        return (windows, *(cycles if size == ANY else size for size in self.shape[1:]))


class GivenTensor(msgspec.Struct, frozen=True, eq=False):
    """An input as it was declared and sent; nothing about it is known to be true."""

    name: str
    datatype: str
    shape: Sequence[int]
    contents: Contents


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of one model: those of its graph (DESIGN: the model contract), in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_name: dict[str, TensorSpec]

    @classmethod
    def of(cls, manifest: Manifest) -> Signature:
        """What a model takes and gives: B windows of T cycles and F columns, each B and T any."""
        inputs = (
            TensorSpec(READINGS, FP32, (ANY, ANY, len(manifest.columns))),
            TensorSpec(LENGTHS, INT64, (ANY,)),
            TensorSpec(LAST_CYCLE, FP32, (ANY,)),
        )
        shapes = output_shapes(manifest, windows=ANY, cycles=ANY)
        outputs = tuple(TensorSpec(name, FP32, shape) for name, shape in shapes.items())
        return cls(inputs, outputs, {spec.name: spec for spec in inputs})

    def read(self, given: Sequence[GivenTensor]) -> dict[str, NDArray[Any]]:
        """The inputs as arrays, by their names.

        Raises:
            InvalidTensor: one is unknown, comes twice or cannot be read, or the readings are missing.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for tensor in given:
            spec = self.by_name.get(tensor.name)
            if spec is None:
                raise InvalidTensor(f"expected the inputs {_names(self.inputs)}, got {short(tensor.name)}")
            if spec.name in arrays:
                raise InvalidTensor(f"input {spec.name}: expected once, got twice")
            arrays[spec.name] = array_of(tensor, spec)
        if READINGS not in arrays:
            raise InvalidTensor(f"expected the input {READINGS}, got {', '.join(arrays) or 'none'}")
        return arrays

    def wanted(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """The outputs of these names, in this order; without names, all of them.

        Raises:
            InvalidTensor: there is no such output, or it is named twice.
        """
        if not names:
            return self.outputs
        specs = {spec.name: spec for spec in self.outputs}
        for name in names:
            if name not in specs:
                raise InvalidTensor(f"expected outputs among {_names(self.outputs)}, got {short(name)}")
        if len(set(names)) < len(names):
            raise InvalidTensor(f"expected each output once, got {', '.join(names[: len(specs) + 1])}")
        return tuple(specs[name] for name in names)


def array_of(given: GivenTensor, spec: TensorSpec) -> NDArray[Any]:
    """A tensor as an array of its shape: a view of what came, where that is aligned.

    Raises:
        InvalidTensor: datatype, shape and contents are not what the model takes, or do not agree.
    """
    where = f"input {spec.name}"
    if given.datatype != spec.datatype:
        raise InvalidTensor(f"{where}: expected datatype {spec.datatype}, got {short(given.datatype)}")
    shape = _checked_shape(given.shape, spec, where)
    count, dtype = math.prod(shape), DTYPES[spec.datatype]
    contents = given.contents
    if isinstance(contents, bytes | memoryview):
        if len(contents) != count * dtype.itemsize:
            raise InvalidTensor(
                f"{where}: shape {list(shape)} of {spec.datatype} takes {count * dtype.itemsize} bytes, "
                f"got {len(contents)}"
            )
        raw: Any = contents  # a memoryview is also a Sequence of anything, to a type checker
        # ONNX Runtime and numpy are quickest, and only promise to be right, on aligned values.
        values = np.frombuffer(raw, dtype)
        return (values if values.flags.aligned else values.copy()).reshape(shape)
    if len(contents) != count:
        raise InvalidTensor(f"{where}: shape {list(shape)} takes {count} values, got {len(contents)}")
    if isinstance(contents, np.ndarray):
        return contents.reshape(shape)
    return numbers(contents, spec.datatype, where).reshape(shape)


def _checked_shape(given: Sequence[int], spec: TensorSpec, where: str) -> tuple[int, ...]:
    fits = len(given) == len(spec.shape)
    for size, wanted in zip(given, spec.shape, strict=False):
        fits = fits and (size > 0 if wanted == ANY else size == wanted)
    if not fits:
        announced = f"{list(spec.shape)}, -1 for any size above 0" if ANY in spec.shape else list(spec.shape)
        raise InvalidTensor(f"{where}: expected shape {announced}, got {short(list(given[:8]))}")
    return tuple(given)


def numbers(values: Sequence[float | None], datatype: str, where: str) -> NDArray[Any]:
    """`struct` is several times as fast as numpy, and refuses None and what the datatype cannot hold."""
    dtype = DTYPES[datatype]
    try:
        return np.frombuffer(struct.pack(f"<{len(values)}{PACKED[datatype]}", *values), dtype)
    except (struct.error, OverflowError) as error:
        if datatype != FP32:  # numpy would round
            raise InvalidTensor(f"{where}: a value is not a number of {datatype}") from error
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which the window's check refuses with its place
            return np.array(values, dtype=dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidTensor(f"{where}: a value is not a number of {datatype}") from error


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.name for spec in specs)
