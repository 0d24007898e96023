"""Tensors of the Open Inference Protocol: inputs and outputs of a model, and checked conversion to arrays.

Name, datatype, shape and contents of a tensor may contradict each other. `array_of` checks that they agree,
sizes first, before it allocates an array. This module must not know what the numbers mean or how they were
sent.
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
"""The datatypes of our tensors; the protocol's raw contents are little-endian."""
PACKED: Final = {FP32: "f", INT64: "q"}
"""The same in the format of `struct`."""

ANY: Final = -1

READINGS: Final = "readings"
LENGTHS: Final = "lengths"
LAST_CYCLE: Final = "last_cycle"

Contents = bytes | memoryview | NDArray[Any] | Sequence[float | None]
"""Row-major contents: raw bytes, an array of the datatype, or single numbers (None: missing)."""


class TensorSpec(NamedTuple):
    """A tensor in a model's metadata.

    Attributes:
        shape: -1 for a size that each request chooses.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def sized(self, *, windows: int, cycles: int) -> tuple[int, ...]:
        """Return the shape of an output for this number of windows and cycles."""
        return (windows, *(cycles if size == ANY else size for size in self.shape[1:]))


class GivenTensor(msgspec.Struct, frozen=True, eq=False):
    """An input as it was sent, unchecked."""

    name: str
    datatype: str
    shape: Sequence[int]
    contents: Contents


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of one model: those of its graph, in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_name: dict[str, TensorSpec]

    @classmethod
    def of(cls, manifest: Manifest) -> Signature:
        """Describe inputs and outputs of a model: any B windows of any T cycles, with F columns."""
        inputs = (
            TensorSpec(READINGS, FP32, (ANY, ANY, len(manifest.columns))),
            TensorSpec(LENGTHS, INT64, (ANY,)),
            TensorSpec(LAST_CYCLE, FP32, (ANY,)),
        )
        shapes = output_shapes(manifest, windows=ANY, cycles=ANY)
        outputs = tuple(TensorSpec(name, FP32, shape) for name, shape in shapes.items())
        return cls(inputs, outputs, {spec.name: spec for spec in inputs})

    def read(self, given: Sequence[GivenTensor]) -> dict[str, NDArray[Any]]:
        """Return the inputs as arrays by name.

        Raises:
            InvalidTensor: one is unknown, given twice or unreadable, or the readings are missing.
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
        """Return the outputs of these names in this order; without names, all of them.

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
    """Convert a tensor to an array of its shape: a view of the contents if they are aligned.

    Raises:
        InvalidTensor: datatype, shape or contents do not fit the model, or contradict each other.
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
        # ONNX Runtime and numpy are fastest on aligned values, and promise correct results only for these.
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
    """Convert single numbers to an array; in FP32 None is NaN, and a value beyond float32 is infinite.

    Raises:
        InvalidTensor: a value is not a number of the datatype.
    """
    dtype = DTYPES[datatype]
    try:  # several times as fast as numpy
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
