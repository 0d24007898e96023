"""File descriptors: how many connections a worker can hold."""

from __future__ import annotations

import resource
from typing import Final

from service import logs
from service.settings import Settings

RESERVED: Final = 96
"""Descriptors of a worker beside its connections: files, sockets and pipes of its own."""
LEAST: Final = 16
FEW: Final = 1000
"""Fewer connections are worth a warning."""


def prepare_descriptors(settings: Settings) -> None:
    """Raise the limit of open files as far as allowed, and warn where it stays small."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
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
    return max(LEAST, min(wanted, soft - RESERVED))
