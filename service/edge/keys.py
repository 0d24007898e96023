"""The key file in TOML: API keys with their scopes and tenants.

A key is 256 random bits and cannot be guessed, so its SHA-256 is enough at rest; a slow password hash would
cost milliseconds per request. The file never holds a key, and the log never shows one.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from stat import S_IMODE
from typing import Annotated, Final, NamedTuple

import msgspec

from model.domain import RulError

MARK: Final = "rul_"
"""Prefix of every key, so that scanners of repositories find committed keys."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HEADER: Final = "# API keys of rulserve, as SHA-256. Written by `rul keys add` and `rul keys revoke`.\n"


class KeyScope(StrEnum):
    """The scope that a route needs; a key has some of the first five."""

    PREDICT = "predict"
    INGEST = "ingest"
    OUTCOMES = "outcomes"
    METRICS = "metrics"
    ADMIN = "admin"
    PAGES = "pages"
    """Any valid key; no key with RUL_OPEN_PAGES."""
    ANY = "any"
    """Any valid key."""
    OPEN = "open"
    """No key."""


GRANTABLE: Final = (KeyScope.PREDICT, KeyScope.INGEST, KeyScope.OUTCOMES, KeyScope.METRICS, KeyScope.ADMIN)


class InvalidKeys(RulError):
    """The key file cannot be used, or a command on it is invalid."""


class Grant(NamedTuple):
    """Scopes and tenant of a key. A tenant sees only its own units; "" is the tenant of keys without one."""

    name: str
    scopes: frozenset[KeyScope]
    tenant: str = ""
    digest: bytes = b""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key in the file."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: tuple[str, ...]
    tenant: str = ""
    created: date | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, Entry] = {}


def digest_of(key: str) -> bytes:
    """Return the digest by which a key is stored and looked up."""
    return hashlib.sha256(key.encode()).digest()


def read_keys(path: Path) -> dict[str, Entry]:
    """Read the keys by name.

    Raises:
        InvalidKeys: the file cannot be read, or one of its keys cannot be used.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).keys
    except OSError as error:
        raise InvalidKeys(
            f"key file {path}: {error.strerror}; `rul keys add NAME --scope predict` makes one"
        ) from None
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, and msgspec's ValidationError
        raise InvalidKeys(f"key file {path}: {error}") from None
    for name, entry in found.items():
        _check(name, entry, f"key file {path}: ")
    if len({entry.sha256 for entry in found.values()}) < len(found):
        raise InvalidKeys(f"key file {path}: one key has two names")
    return found


def grants_of(entries: Mapping[str, Entry]) -> dict[bytes, Grant]:
    """Return what each key allows, by its digest."""
    return {
        digest: Grant(name, frozenset(map(KeyScope, entry.scopes)), entry.tenant, digest)
        for name, entry in entries.items()
        for digest in [bytes.fromhex(entry.sha256)]
    }


def add_key(path: Path, name: str, scopes: Iterable[str], tenant: str = "") -> str:
    """Make a key and add it to the file, which need not exist; return the key, which is not stored.

    Raises:
        InvalidKeys: the name is taken, name, scope or tenant cannot be used, or the file cannot be read or
            written.
    """
    key = MARK + secrets.token_urlsafe(32)
    today = datetime.now(UTC).date()
    entry = Entry(digest_of(key).hex(), tuple(dict.fromkeys(scopes)), tenant, today)
    _check(name, entry)
    with _locked(path):
        entries = read_keys(path) if path.exists() else {}
        if name in entries:
            raise InvalidKeys(f"key file {path} has a key {name!r}: revoke it, or choose another name")
        _write(path, entries | {name: entry})
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key from the file.

    Raises:
        InvalidKeys: there is no such key, or the file cannot be read or written.
    """
    with _locked(path):
        entries = read_keys(path)
        if name not in entries:
            raise InvalidKeys(f"key file {path} has no key {name!r}, only: {', '.join(entries) or 'none'}")
        _write(path, {kept: entry for kept, entry in entries.items() if kept != name})


def _check(name: str, entry: Entry, where: str = "") -> None:
    for kind, text in (("name", name), *((("tenant", entry.tenant),) if entry.tenant else ())):
        if not NAME.fullmatch(text):
            wanted = f"{kind} of at most 64 letters, digits, dots, dashes and underscores"
            raise InvalidKeys(f"{where}expected a {wanted}, got {text[:80]!r}")
    unknown = [scope for scope in entry.scopes if scope not in GRANTABLE]
    if unknown or not entry.scopes:
        got = f"{unknown[0]!r}" if unknown else "none"
        raise InvalidKeys(f"{where}key {name!r}: expected scopes among {', '.join(GRANTABLE)}, got {got}")


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Lock the folder of the file, so that two commands cannot undo each other's changes."""
    import fcntl  # noqa: PLC0415 not on Windows, where the service reads key files all the same

    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidKeys(f"key file {path}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the file atomically, so that a service reads the old keys or the new ones."""
    text = HEADER + "".join(_block(name, entry) for name, entry in entries.items())
    try:
        path = path.resolve()
        number, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # mode 0600
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):  # no file yet
                kept = path.stat()
                os.chown(temporary, kept.st_uid, kept.st_gid)
                Path(temporary).chmod(S_IMODE(kept.st_mode))  # the service may read it through its group
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidKeys(f"key file {path}: {error.strerror}") from None


def _block(name: str, entry: Entry) -> str:
    scopes = ", ".join(f'"{scope}"' for scope in entry.scopes)
    lines = [f'\n[keys."{name}"]', f'sha256 = "{entry.sha256}"', f"scopes = [{scopes}]"]
    lines += [f'tenant = "{entry.tenant}"'] if entry.tenant else []
    lines += [f"created = {entry.created.isoformat()}"] if entry.created else []
    return "\n".join([*lines, ""])
