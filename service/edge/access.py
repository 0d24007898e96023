"""Access: API keys, compared in constant time, and protection from web pages where there are none."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from service.errors import Forbidden, ForeignSite, Unauthenticated

BEARER: Final = "bearer "
LOCAL: Final = frozenset({"", "localhost"})
MAX_KNOWN: Final = 64


class Credentials:
    """The accepted API keys; without any, everyone may ask.

    Attributes:
        asked_for: Whether a key is needed.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: Final = [key.encode() for key in keys]
        self.asked_for: Final = bool(self._keys)

    def check(self, authorization: str, api_key: str) -> None:
        """Check the headers `authorization: Bearer KEY` and `x-api-key: KEY`; one of them is enough.

        Raises:
            Unauthenticated: a key is needed and none came.
            Forbidden: the key is not one of ours.
        """
        if not self._keys:
            return
        given = api_key or (authorization[len(BEARER) :] if authorization.lower().startswith(BEARER) else "")
        if not given:
            raise Unauthenticated(
                "expected an API key in `authorization: Bearer KEY` or `x-api-key`, got none"
            )
        # Every key is compared, so that the time taken does not tell which one came close.
        if not any([hmac.compare_digest(given.encode(), key) for key in self._keys]):  # noqa: C419
            raise Forbidden("the API key is not valid")


class Hosts:
    """Protect a service without API keys from web pages in its callers' browsers.

    A page of another site shows itself by `Origin`, and by `Host` if its name resolves to this machine (DNS
    rebinding). An IP address needs no name, so it is always accepted.

    Args:
        allowed: Host names of this service, and of pages that may call it.
        any_name: Whether the service is reached by names that nobody has listed.

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
