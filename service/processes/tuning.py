"""Tuning of a serving process: memory allocator, scheduling policy, open files and interpreter.

Envoy is linked with TCMalloc, which serves `malloc` for every library in the process, Python and ONNX
Runtime included; glibc's arena settings (`MALLOC_ARENA_MAX`) have no effect there. TCMalloc caches free
memory per processor if glibc leaves restartable sequences (rseq) to it, and else per thread.
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
"""NumPy's BLAS starts a thread for each core of the machine, in every worker, unless this says how many."""
CACHE_BYTES: Final = 4 << 20
"""Free memory in the caches of all processors together."""
MIN_CACHE_BYTES: Final = 128 << 10
MAX_CACHE_BYTES: Final = 3 << 19
"""Limits of one processor's cache; the upper one is TCMalloc's default."""
RELEASE_BYTES: Final = 32 << 20
RELEASE_SECONDS: Final = 1
"""TCMalloc returns this much free memory to the system, this often."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_THP_DISABLE: Final = 41
"""Numbers of options in Linux' prctl."""

RESERVED: Final = 96
"""Descriptors of a worker beside its connections: files, sockets and pipes of its own."""
LEAST: Final = 16
"""With room for fewer connections the service does not start."""
FEW: Final = 1000
"""Fewer connections are worth a warning."""

COLLECT_AFTER_OBJECTS: Final = 20_000
SWITCH_SECONDS: Final = 0.0005
"""How long the event loop keeps the GIL while an inference thread waits for it. Python's default, 5 ms, is
the time of a batch: a core would idle while the loop parses requests. Where batches run on the loop itself,
the default is quicker by 5 %: the thread that hands requests over interrupts the loop less often."""


def library_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a worker's libraries: free memory is cached per processor, BLAS has one thread.

    Variables that the operator has set stay as they are.
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
        False where the system has no such policy or does not allow it.
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
    """Set an option of this process, where the system has `prctl`."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)


def settle_interpreter(*, inference_threads: bool) -> None:
    """Freeze the objects of start-up, collect garbage less often and, for inference threads, switch sooner.

    Objects of a request are freed by reference counting. With Python's default threshold the collector took
    a tenth of the event loop's time and found nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])
    if inference_threads:
        sys.setswitchinterval(SWITCH_SECONDS)


def prepare_descriptors(settings: Settings) -> None:
    """Raise the limit of open files as far as allowed, and warn where it stays small.

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
    """Return how many connections a worker may hold: the wanted ones, or as many as it can open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, soft - RESERVED)
