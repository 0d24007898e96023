"""Envoy's admin interface, on a Unix socket beside the worker's own; what Envoy refuses by itself.

Such a refusal reaches no code of the service: it has no request id and no log line, so it is counted here.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from service.labels import REFUSED_BY_ENVOY

LOOK_SECONDS: Final = 2.0
"""Seconds between reads of Envoy's counters: how far the metric may lag."""
COUNTERS: Final = rf"^(listener|http\.ingress_http)\..*({'|'.join(REFUSED_BY_ENVOY)})$"
COUNTED: Final = re.compile(rb"(\w+): (\d+)\r?$", re.MULTILINE)


def admin_of(control: Path) -> Path:
    """Return the admin socket of the worker with this control socket."""
    return control.with_suffix(".admin")


async def exchange(admin: Path, method: str, path: str) -> bytes:
    """Return the whole answer of the admin interface; empty if there is none."""
    try:
        reader, writer = await asyncio.open_unix_connection(admin)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()
    except OSError:  # not listening yet, or ended
        return b""


async def count_refusals(
    admin: Path, count: Callable[[str, int], None], *, seconds: float = LOOK_SECONDS
) -> None:
    """Pass on how many requests Envoy has refused since the last look, by reason, until cancelled."""
    path, before = f"/stats?usedonly&filter={quote(COUNTERS)}", Counter[str]()
    while True:
        await asyncio.sleep(seconds)
        now = Counter[str]()
        for name, total in COUNTED.findall(await exchange(admin, "GET", path)):
            if (reason := REFUSED_BY_ENVOY.get(name.decode())) is not None:
                now[reason] += int(total)
        for reason, more in (now - before).items():
            count(reason, more)
        before |= now
