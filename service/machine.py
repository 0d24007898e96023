"""Cores and GPU of this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NVIDIA_DRIVER: Final = Path("/dev/nvidiactl")
CUDA_LIBRARY: Final = "capi/libonnxruntime_providers_cuda.so"
"""A file that only `onnxruntime-gpu` has."""
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
"""Lines `number:controllers:path`, the groups of this process. A container's path is /, or has no folder."""
QUOTA_FILES: Final = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
"""Files with CPU quota and period, by the folder of cgroup 2 and of cgroup 1."""


def usable_gpu(driver: Path = NVIDIA_DRIVER) -> bool:
    """Return whether there is an NVIDIA driver, and an ONNX Runtime for it."""
    found = find_spec("onnxruntime")
    folders = [] if found is None else found.submodule_search_locations or []
    return driver.exists() and any((Path(folder) / CUDA_LIBRARY).exists() for folder in folders)


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN_GROUPS) -> int:
    """Return the cores of this process: its affinity, or fewer if a quota of its groups is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder, names in _quota_folders(cgroups, own):
        with suppress(OSError, ValueError):  # no such file, or the quota is "max"
            quota, period = " ".join((folder / name).read_text("ascii") for name in names).split()
            if int(quota) > 0:  # without a quota cgroup 1 has -1
                cores = max(1, min(cores, math.ceil(int(quota) / int(period))))
    return cores


def _quota_folders(cgroups: Path, own: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the groups of this process, from the root down, with the names of their files."""
    lines: list[str] = []
    with suppress(OSError):  # not on Linux
        lines = own.read_text("utf-8", errors="surrogateescape").splitlines()
    for controller, names in QUOTA_FILES.items():
        yield cgroups / controller, names
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                inner = path.strip("/").split("/")
                yield from ((cgroups.joinpath(controller, *inner[: n + 1]), names) for n in range(len(inner)))
