"""Protects a service without API keys from web pages in its callers' browsers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from service.errors import ForeignSite

LOCAL: Final = frozenset({"", "localhost"})
MAX_KNOWN: Final = 64


class Hosts:
    """Protect a service without API keys from web pages in its callers' browsers.

    A page of another site is recognised by `Origin`, and by `Host` if its name resolves to this machine (DNS
    rebinding). IP addresses are always accepted.

    Args:
        allowed: Host names of this service, and of pages that may call it.
        any_name: Whether unlisted host names are accepted.

    Attributes:
        known: Values of `Host` that passed.
    """

    def __init__(self, allowed: Iterable[str], *, any_name: bool) -> None:
        self._allowed: Final = frozenset(allowed)
        self._any_name: Final = any_name
        self.known: Final[set[bytes | None]] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the headers `host` and `origin`.

        Raises:
            ForeignSite: the request comes from a page of another site.
        """
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        _, _, origin_host = origin.partition("://")
        if origin and origin_host != host and _name(origin_host) not in self._allowed:
            raise ForeignSite(
                f"a page of {origin[:80]!r} may not call this service; RUL_ALLOWED_HOSTS permits it"
            )
        name = _name(host)
        if not (self._any_name or name in LOCAL or name in self._allowed or _is_address(name)):
            raise ForeignSite(f"this service is not {host[:80]!r}; RUL_ALLOWED_HOSTS lists its names")
        if len(self.known) < MAX_KNOWN:
            self.known.add(headers.get(b"host"))


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return None


def _is_address(name: str | None) -> bool:
    try:
        return bool(ipaddress.ip_address(name or ""))
    except ValueError:
        return False
