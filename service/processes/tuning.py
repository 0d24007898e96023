"""Tuning of a serving process: memory allocator, scheduling policy, open files and interpreter.

Envoy is linked with TCMalloc, which serves `malloc` for every library in the process, including Python and
ONNX Runtime; glibc's arena settings (`MALLOC_ARENA_MAX`) have no effect. TCMalloc caches free memory per
processor if glibc leaves restartable sequences (rseq) to it, otherwise per thread.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

from service import logs
from service.errors import FrontEndFailed
from service.settings import Settings

TUNABLES: Final = "GLIBC_TUNABLES"
SEQUENCES: Final = "glibc.pthread.rseq"
"""0 leaves restartable sequences to the allocator; a glibc without the tunable ignores it."""
BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""Number of BLAS threads; by default NumPy starts one per core of the machine in every worker."""
CACHE_BYTES: Final = 4 << 20
"""Maximum free memory in the caches of all processors together, as far as `MIN_CACHE_BYTES` allows."""
MIN_CACHE_BYTES: Final = 128 << 10
MAX_CACHE_BYTES: Final = 3 << 19
"""Limits of one processor's cache; the upper one is TCMalloc's default."""
RELEASE_BYTES: Final = 32 << 20
RELEASE_SECONDS: Final = 1
"""How much free memory TCMalloc returns to the system, and how often."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_THP_DISABLE: Final = 41
"""Option numbers of Linux's prctl."""

RESERVED: Final = 96
"""Descriptors of a worker beside its connections: files, sockets and pipes."""
LEAST: Final = 16
"""The service does not start with room for fewer connections."""
FEW: Final = 1000
"""Fewer connections cause a warning."""

COLLECT_AFTER_OBJECTS: Final = 20_000
SWITCH_SECONDS: Final = 0.0005
"""Seconds that the event loop keeps the GIL while an inference thread waits for it. With Python's default of
5 ms, as long as a batch, a core would idle while the loop parses requests. If batches run on the loop itself,
the default is 5 % faster, because Envoy's thread interrupts the loop less often."""


def library_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a worker's libraries: memory cached per processor, one BLAS thread.

    Variables set by the operator are not changed.
    """
    tunables = environment.get(TUNABLES, "")
    if SEQUENCES not in tunables:
        tunables = ":".join(filter(None, [tunables, f"{SEQUENCES}=0"]))
    return {TUNABLES: tunables, BLAS_THREADS: environment.get(BLAS_THREADS, "1")}


def limit_caches(config: dict[str, Any], *, processors: int) -> dict[str, Any]:
    """Return Envoy's configuration with small allocator caches."""
    config["memory_allocator_manager"] = {
        "max_per_cpu_cache_size_bytes": max(MIN_CACHE_BYTES, min(CACHE_BYTES // processors, MAX_CACHE_BYTES)),
        "bytes_to_release": RELEASE_BYTES,
        "memory_release_interval": f"{RELEASE_SECONDS}s",
    }
    return config


def schedule_as_batch() -> bool:
    """Set SCHED_BATCH for this process and its children: woken threads do not preempt running ones.

    A request passes through four threads. If each woken thread preempts its waker, the next request is read
    with cold caches and batches leave half full.

    Returns:
        False if the system has no such policy or does not allow it.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox forbids it
        return False
    return True


def end_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it dies (Linux)."""
    _set_option(PR_SET_PDEATHSIG, signal.SIGTERM)


def disable_huge_pages() -> None:
    """Disable huge pages for this process and its children (Linux).

    TCMalloc returns free pages each second and asks the kernel to copy what is left into huge pages
    (`MADV_COLLAPSE`), which took up to 12 % of a worker's CPU under load.
    """
    _set_option(PR_SET_THP_DISABLE, 1)


def _set_option(option: int, value: int) -> None:
    """Set an option of this process if the system has `prctl`."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)


def settle_interpreter(*, inference_threads: bool) -> None:
    """Freeze start-up objects, collect garbage less often and, for inference threads, switch sooner.

    Reference counting frees the objects of requests. With Python's default threshold the collector took a
    tenth of the event loop's time and found nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])
    if inference_threads:
        sys.setswitchinterval(SWITCH_SECONDS)


def prepare_descriptors(settings: Settings) -> None:
    """Raise the limit of open files as far as allowed, and warn if it stays small.

    Raises:
        FrontEndFailed: the limit is too small for a worker.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < RESERVED + LEAST:
        raise FrontEndFailed(
            f"a worker needs {RESERVED + LEAST} open files at least, got {hard}; raise `ulimit -n`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = most_connections(settings.max_connections)
    if most < min(FEW, settings.max_connections):
        logs.logger().warning(
            "few connections possible",
            connections=most,
            open_files=hard,
            advice="raise the limit of open files (ulimit -n)",
        )


def most_connections(wanted: int) -> int:
    """Return how many connections a worker may hold: the configured number, or what open files allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, soft - RESERVED)
