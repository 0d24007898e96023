"""API keys and their scopes: the one place that checks them, for every protocol."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from service.edge.keys import GRANTABLE, Grant, InvalidKeys, KeyScope, digest_of, grants_of, read_keys
from service.errors import Forbidden, Unauthenticated

BEARER: Final = "bearer "
BASIC: Final = "basic "
SETTING: Final = "RUL_API_KEYS"
LOOK_SECONDS: Final = 0.5
"""Seconds between polls of the key file; a revoked key is valid for two of them at most."""
NOBODY: Final = Grant("", frozenset())
"""The caller if no key is needed."""
EVERY_KEY: Final = frozenset({KeyScope.ANY, KeyScope.PAGES})


class Credentials:
    """The accepted API keys; without any, everyone may do everything but change the service.

    Keys are looked up by their SHA-256. The time of the lookup reveals nothing about a key, because nobody
    can choose the digest of a guess.

    Attributes:
        asked_for: Whether a key is needed.
    """

    def __init__(
        self,
        keys: Iterable[str],
        file: Path | None = None,
        *,
        open_pages: bool = False,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        """Accept the keys of the settings, which have every scope but `admin`, and those of a key file.

        With `open_pages`, pages and metrics need no key. Changes of the file are logged.
        """
        scopes = frozenset(GRANTABLE) - {KeyScope.ADMIN}
        self._fixed: Final = {digest_of(key): Grant(SETTING, scopes, "", digest_of(key)) for key in keys}
        self._file: Final = file
        self._log: Final = log
        self._open: Final = {KeyScope.OPEN, *((KeyScope.PAGES, KeyScope.METRICS) if open_pages else ())}
        self._listeners: Final[list[Callable[[], None]]] = []
        self._grants = self._fixed
        self._seen: object = None
        self._read: object = None
        self.asked_for: Final = bool(self._fixed) or file is not None
        if file is not None:
            self._seen = self._read = _state(file)
            self._reload(file)

    def check(
        self,
        scope: KeyScope,
        authorization: str,
        api_key: str,
        *,
        basic: bool = False,
        asks: bool = False,
    ) -> Grant:
        """Check the headers `authorization: Bearer KEY` and `x-api-key: KEY`; one of them is enough.

        With `basic`, `authorization` may also be HTTP Basic, with the key as password and any user. This is
        only for requests that change nothing, because browsers also send it for other sites. With `asks`, a
        browser is to ask its user for the key.

        Raises:
            Unauthenticated: a key is needed, and it is missing or not valid.
            Forbidden: the key does not have the scope.
        """
        if scope in self._open or (not self.asked_for and scope is not KeyScope.ADMIN):
            return NOBODY
        if not self.asked_for:
            raise Unauthenticated(
                "changes need an API key with scope `admin`, and the service has no keys: "
                "`rul keys add NAME --scope admin` makes one, RUL_KEYS_FILE names its file"
            )
        given = api_key or _given(authorization, basic=basic)
        if not given:
            raise Unauthenticated(
                "expected an API key in `authorization: Bearer KEY` or `x-api-key`, got none", basic=asks
            )
        grant = self._grants.get(digest_of(given))
        if grant is None:
            raise Unauthenticated("the API key is not valid", basic=asks)
        if scope not in grant.scopes and scope not in EVERY_KEY:
            granted = ", ".join(f"`{scope}`" for scope in GRANTABLE if scope in grant.scopes)
            detail = f"expected an API key with scope `{scope}`, got one with {granted}"
            raise Forbidden(detail, key=grant.name)
        return grant

    def holds(self, grant: Grant, scope: KeyScope) -> bool:
        """Return whether `check` would still accept a key that it accepted earlier."""
        if grant is NOBODY:
            return True
        now = self._grants.get(grant.digest)
        return now is not None and scope in now.scopes and now.tenant == grant.tenant

    def when_changed(self, listener: Callable[[], None]) -> None:
        """Call this after each change of the keys."""
        self._listeners.append(listener)

    async def watch(self) -> None:
        """Poll the key file until cancelled."""
        while self._file is not None:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Read a changed key file once two polls find it equal: it may still be written to.

        A bad file leaves the keys as they are, and is logged once.
        """
        if self._file is None:
            return
        before, self._seen = self._seen, _state(self._file)
        if self._seen == before and self._seen != self._read:
            self._read = self._seen
            self._reload(self._file)

    def _reload(self, file: Path) -> None:
        try:
            self._grants = grants_of(read_keys(file)) | self._fixed
        except InvalidKeys as error:
            if self._log is not None:
                self._log.error("key file refused", reason=str(error), keys=len(self._grants))
            return
        if self._log is not None:
            self._log.info("key file loaded", keys=len(self._grants))
        for listener in self._listeners:
            listener()


def _given(authorization: str, *, basic: bool) -> str:
    """Return the key in an `authorization` header, or ""."""
    kind = authorization[: len(BEARER)].lower()
    if kind == BEARER:
        return authorization[len(BEARER) :]
    if not basic or kind[: len(BASIC)] != BASIC:
        return ""
    try:
        return base64.b64decode(authorization[len(BASIC) :]).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _state(file: Path) -> object:
    """Return a stamp that changes with the file or its permissions, or the error of reading it."""
    try:
        found = os.stat(file)  # noqa: PTH116 follows the links by which Kubernetes replaces a secret
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
