"""Cores and GPU of this machine."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NVIDIA_DRIVER: Final = Path("/dev/nvidiactl")
CUDA_LIBRARY: Final = "capi/libonnxruntime_providers_cuda.so"
"""A file that only `onnxruntime-gpu` has."""
CGROUPS: Final = Path("/sys/fs/cgroup")
QUOTA_FILES: Final = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Files with CPU quota and period, of cgroup 2 and of cgroup 1."""


def usable_gpu(driver: Path = NVIDIA_DRIVER) -> bool:
    """Return whether there is an NVIDIA driver, and an ONNX Runtime for it."""
    found = find_spec("onnxruntime")
    folders = [] if found is None else found.submodule_search_locations or []
    return driver.exists() and any((Path(folder) / CUDA_LIBRARY).exists() for folder in folders)


def usable_cores(cgroups: Path = CGROUPS) -> int:
    """Return the cores of this process: its affinity, or its container's quota if that is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in QUOTA_FILES:
        with suppress(OSError, ValueError):  # no such file, or the quota is "max"
            quota, period = " ".join((cgroups / name).read_text("ascii") for name in names).split()
            if int(quota) > 0:  # without a quota cgroup 1 has -1
                return max(1, min(cores, math.ceil(int(quota) / int(period))))
    return cores
