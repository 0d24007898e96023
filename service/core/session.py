"""Sessions of ONNX Runtime, with the options that are served.

Beside `runtime_cuda` the only module that imports `onnxruntime`.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from export.arrays import one_line
from export.bundle import InvalidBundle
from service.core.providers import CPU, Wanted


def available_providers() -> list[str]:
    """Return the providers that this ONNX Runtime was built with."""
    return ort.get_available_providers()


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


def gpu_session(stored: bytes, wanted: Wanted) -> tuple[Any, str | None]:
    """Open a graph on the best provider that works; also return the first provider's error."""
    # TensorFloat-32 rounds to 10 bits: answers would leave the golden windows' tolerance. The option
    # `use_tf32` does not reach the LSTM of cuDNN, and TensorRT has none.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    with redirect_stdout(sys.stderr):  # it prints what it misses, and a command's output may be piped
        if hasattr(ort, "preload_dlls"):  # CUDA from pip packages lies where the loader does not look
            ort.preload_dlls()
    failure = None
    for first in range(len(wanted) - 1):
        try:
            return _session(stored, wanted[first:]), failure
        except Exception as error:  # noqa: BLE001 - providers raise errors of any kind
            failure = failure or one_line(error)
    return _session(stored, wanted[-1:]), failure


def _session(stored: bytes, providers: Wanted) -> Any:  # noqa: ANN401 - untyped library
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # A plan is kept for each shape of input, and ragged batches come in thousands of shapes.
    options.enable_mem_pattern = False
    _register_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # A thread that waits for the next batch must not burn the core that another one computes on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # ONNX Runtime's own fallback drops the options of the providers that are left.
    return ort.InferenceSession(stored, sess_options=options, providers=providers, enable_fallback=0)


@cache
def _register_arena() -> None:
    """Give all sessions of this process one arena: each of their own would grow to the largest batch."""
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg({}))
