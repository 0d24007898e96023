"""Envoy's configuration: what ours has beyond pyvoy's, one function per concern.

Each function changes the configuration that it is given and returns it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def allow_silence(config: dict[str, Any], *, idle_seconds: float) -> dict[str, Any]:
    """Return Envoy's configuration with streams that may be silent this long."""
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                one["typed_config"]["stream_idle_timeout"] = f"{idle_seconds:.3f}s"
    return config


def hide_admin(config: dict[str, Any], *, socket: Path) -> dict[str, Any]:
    """Return Envoy's configuration with its admin interface on a Unix socket.

    The interface asks for no key and can stop the process; a folder of the service's user guards the socket.
    """
    config["admin"] = {"address": {"pipe": {"path": str(socket), "mode": 0o600}}}
    return config
