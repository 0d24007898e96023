"""Sessions of ONNX Runtime, with the options for serving.

On a GPU a graph runs on fixed buffers: each batch is copied in and out once, and CUDA replays the kernels
that it captured in the first run of a size (docs/adr/0019). Buffers have fixed shapes, so batches are padded
to the next power of two of windows and to the cycles that the model reads. The same code also runs on the
device `cpu` with the same answers, and is tested there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from export.arrays import one_line
from export.bundle import InvalidBundle, Manifest
from export.onnx_runtime import ort, session_options
from export.outputs import PER_CYCLE, cycles_of, output_shapes
from model.domain import FloatArray, IntArray
from service.core.providers import CPU, Wanted

available_providers: Final = ort.get_available_providers
"""Return the providers that this ONNX Runtime was built with."""


def cpu_session(path: Path, stored: bytes) -> Any:  # noqa: ANN401 - untyped library
    """Open a graph on the CPU.

    Raises:
        InvalidBundle: `path` holds no graph that ONNX Runtime can run.
    """
    try:
        return _session(stored, [CPU])
    except Exception as error:
        raise InvalidBundle(
            f"{path}: ONNX Runtime cannot open it, export it again: {one_line(error)}"
        ) from error


def gpu_session(stored: bytes, attempts: Sequence[Wanted]) -> tuple[Any, str | None]:
    """Open a graph by the first attempt that works; also return the first error."""
    return _gpu_thread().submit(_gpu_session, stored, attempts).result()


@cache
def _gpu_thread() -> ThreadPoolExecutor:
    """Return the one thread of this process that uses the GPU.

    CUDA captures for one thread; while it does, GPU calls of other threads fail.
    """
    return ThreadPoolExecutor(1, "gpu")


def _gpu_session(stored: bytes, attempts: Sequence[Wanted]) -> tuple[Any, str | None]:
    # TensorFloat-32 rounds to 10 bits: answers would leave the golden windows' tolerance. The option
    # `use_tf32` does not reach the LSTM of cuDNN, and TensorRT has none.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    with redirect_stdout(sys.stderr):  # it prints missing libraries, and a command's output may be piped
        if hasattr(ort, "preload_dlls"):  # CUDA from pip packages lies where the loader does not look
            ort.preload_dlls()
    failure = None
    for wanted in attempts[:-1]:
        try:
            session = _session(stored, wanted)
        except Exception as error:  # noqa: BLE001 - providers raise errors of any kind
            failure = failure or one_line(error)
        else:
            if session.get_providers()[0] == wanted[0][0]:  # one whose library is missing is left out
                return session, failure
    return _session(stored, attempts[-1]), failure


def _session(stored: bytes, providers: Wanted) -> Any:  # noqa: ANN401 - untyped library
    options = session_options()
    options.log_severity_level = 3
    # ONNX Runtime plans memory by shape. A GPU replays without allocating, and was measured without plans.
    options.enable_mem_pattern = providers == [CPU]
    _register_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # ONNX Runtime's own fallback drops the options of the remaining providers.
    return ort.InferenceSession(stored, sess_options=options, providers=providers, enable_fallback=0)


@cache
def _register_arena() -> None:
    """Share one arena among all sessions: separate ones would each grow to the largest batch."""
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg({}))


def bucket(windows: int) -> int:
    """The next power of two: batches of thousands of sizes share some ten buffers.

    >>> [bucket(windows) for windows in (1, 2, 3, 16, 17)]
    [1, 2, 4, 16, 32]
    """
    return 1 << (windows - 1).bit_length()


class BoundSession:
    """A session with buffers for each size of batch. Threads may share it."""

    def __init__(self, session: Any, manifest: Manifest, *, device: str) -> None:  # noqa: ANN401
        self._session: Final = session
        self._manifest: Final = manifest
        self._device: Final = device
        self._buffers: Final[dict[tuple[int, int], _Buffers]] = {}

    def run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> dict[str, FloatArray]:
        """float32 [B, T, F], int64 [B], float32 [B] -> each output by its name, [B, ...]."""
        return _gpu_thread().submit(self._run, readings, lengths, last_cycle).result()

    def _run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> dict[str, FloatArray]:
        b, t = readings.shape[:2]
        size = bucket(b), max(t, self._manifest.context)
        if (buffers := self._buffers.get(size)) is None:
            number = len(self._buffers) + 1
            buffers = self._buffers[size] = _Buffers(
                self._session, self._manifest, size, device=self._device, number=number
            )
        answers = buffers.run(*padded(readings, lengths, last_cycle, windows=size[0], cycles=size[1]))
        asked = {name: answer[:b] for name, answer in answers.items()}
        return {name: x[cycles_of(name, slice(t))] if name in PER_CYCLE else x for name, x in asked.items()}

    def warm_up(self, most_windows: int) -> None:
        """Run a batch of each size: the first of a size allocates buffers and captures kernels."""
        for power in range(bucket(most_windows).bit_length()):
            b = 1 << power
            nothing = np.full((b, 1, len(self._manifest.columns)), np.nan, np.float32)
            self.run(nothing, np.ones(b, np.int64), np.full(b, np.nan, np.float32))


def padded(
    readings: FloatArray, lengths: IntArray, last_cycle: FloatArray, *, windows: int, cycles: int
) -> tuple[FloatArray, IntArray, FloatArray]:
    """The batch, padded with windows of one cycle without readings, which the graph allows."""
    b, t, f = readings.shape
    if (b, t) == (windows, cycles):
        return readings, lengths, last_cycle
    more = np.full((windows, cycles, f), np.nan, np.float32)
    more[:b, :t] = readings
    return (
        more,
        np.concatenate([lengths, np.ones(windows - b, np.int64)]),
        np.concatenate([last_cycle, np.full(windows - b, np.nan, np.float32)]),
    )


class _Buffers:
    """Inputs and outputs of one size on the device, bound to the session once."""

    def __init__(
        self,
        session: Any,  # noqa: ANN401
        manifest: Manifest,
        size: tuple[int, int],
        *,
        device: str,
        number: int,
    ) -> None:
        windows, cycles = size
        self._session: Final = session
        self._binding: Final[Any] = session.io_binding()
        self._options: Final[Any] = ort.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(number))  # id of the captured graph

        def made(shape: tuple[int, ...], kind: type = np.float32) -> Any:  # noqa: ANN401
            return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, device, 0)

        self._inputs: Final = {
            "readings": made((windows, cycles, len(manifest.columns))),
            "lengths": made((windows,), np.int64),
            "last_cycle": made((windows,)),
        }
        shapes = output_shapes(manifest, windows=windows, cycles=cycles)
        self._outputs: Final = {name: made(shape) for name, shape in shapes.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> dict[str, FloatArray]:
        """Copy in, compute, copy out; one caller at a time."""
        given = {"readings": readings, "lengths": lengths, "last_cycle": last_cycle}
        for name, value in given.items():
            self._inputs[name].update_inplace(np.ascontiguousarray(value))
        self._session.run_with_iobinding(self._binding, self._options)
        # On the CPU `numpy` shows the buffer itself, which the next batch overwrites.
        return {name: np.array(value.numpy()) for name, value in self._outputs.items()}
