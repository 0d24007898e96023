"""Cores and GPU of this machine."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NVIDIA_DRIVER: Final = Path("/dev/nvidiactl")
CUDA_LIBRARY: Final = "capi/libonnxruntime_providers_cuda.so"
"""A file that only `onnxruntime-gpu` has."""


def usable_gpu(driver: Path = NVIDIA_DRIVER) -> bool:
    """Return whether there is an NVIDIA driver, and an ONNX Runtime for it."""
    found = find_spec("onnxruntime")
    folders = [] if found is None else found.submodule_search_locations or []
    return driver.exists() and any((Path(folder) / CUDA_LIBRARY).exists() for folder in folders)


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores of this process: its affinity, or its container's quota if that is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return cores
