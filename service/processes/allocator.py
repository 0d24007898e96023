"""How a worker's memory is kept: by Envoy's allocator, TCMalloc, which serves Python and ONNX Runtime too.

Envoy is linked with it, so that `malloc` is its own for every library in the process; what glibc is told of
its arenas (`MALLOC_ARENA_MAX`) says nothing there. TCMalloc keeps what is free by processor where
restartable sequences are left to it, and else by thread, of which a worker has a dozen, each with what no
other can use. glibc takes the sequences for itself unless it is told not to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TUNABLES: Final = "GLIBC_TUNABLES"
SEQUENCES: Final = "glibc.pthread.rseq"
"""Leaves restartable sequences to the allocator where it is 0; a glibc that has none ignores it."""
KEPT_BYTES: Final = 4 << 20
"""What the caches of all processors together may keep; a worker's threads come by every one of them."""
LEAST_BYTES: Final = 128 << 10
MOST_BYTES: Final = 3 << 19
"""What the cache of one processor may keep; the most is TCMalloc's own choice."""
RELEASED_BYTES: Final = 4 << 20
RELEASE_SECONDS: Final = 2
"""How often so much of what is free goes back to the system."""


def by_processor(environment: Mapping[str, str]) -> dict[str, str]:
    """What Envoy's environment needs besides, so that free memory is kept by processor."""
    tunables = environment.get(TUNABLES, "")
    if SEQUENCES in tunables:
        return {}  # the operator has decided
    return {TUNABLES: ":".join(filter(None, [tunables, f"{SEQUENCES}=0"]))}


def sparing(config: dict[str, Any], *, processors: int) -> dict[str, Any]:
    """Envoy's configuration, with an allocator that keeps little of what is free."""
    kept = max(LEAST_BYTES, min(KEPT_BYTES // processors, MOST_BYTES))
    config["memory_allocator_manager"] = {
        "max_per_cpu_cache_size_bytes": kept,
        "bytes_to_release": RELEASED_BYTES,
        "memory_release_interval": f"{RELEASE_SECONDS}s",
    }
    return config
