"""Address of the store: translates the operator's URL for SQLAlchemy.

It imports neither SQLAlchemy nor a driver, so that the start can refuse a wrong address early.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from model.domain import RulError

SQLITE: Final = "sqlite:///"
POSTGRESQL: Final = "postgresql+psycopg://"


class InvalidStoreUrl(RulError):
    """The address of the store is malformed or missing, or needs a driver that is not installed."""


def store_url(given: str, *, name: str = "RUL_STORE_URL") -> str:
    """Translate an address for SQLAlchemy; an empty one is a file in the user's state folder.

    `name` is the variable or option that gave it, for errors.

    Raises:
        InvalidStoreUrl: the address is malformed or of another database, its driver is not installed, or the
            user has no home folder.

    >>> store_url("postgres://rul:secret@db/rul")
    'postgresql+psycopg://rul:secret@db/rul'
    """
    if not given:
        return SQLITE + str(_state_folder() / "rulserve.db")
    scheme, separator, rest = given.partition("://")
    if not separator or scheme not in {"sqlite", "postgres", "postgresql", "postgresql+psycopg"}:
        # The address itself may hold a password.
        raise InvalidStoreUrl(f"{name}: expected sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    if scheme == "sqlite":
        if not rest.startswith("/") or rest == "/" or ":memory:" in rest:
            raise InvalidStoreUrl(f"{name}: expected sqlite:///FILE, a file that all workers share")
        return given
    if "@" in rest.partition("?")[0].partition("@")[2]:  # SQLAlchemy takes the rest of the password as a host
        raise InvalidStoreUrl(f"{name}: expected one @, before the host; write one of a password as %40")
    place = rest.partition("@")[2] or rest  # as SQLAlchemy splits it
    try:
        _ = urlsplit("//" + place).port
    except ValueError:
        form = (
            "ports of several hosts in options, postgresql://USER@/DATABASE?host=HOST:5432&host=HOST:5432"
            if "," in place.partition("/")[0]
            else "a port from 0 to 65535, as in postgresql://USER@HOST:5432/DATABASE; @ in a password is %40"
        )
        raise InvalidStoreUrl(f"{name}: expected {form}") from None
    if find_spec("psycopg") is None:
        raise InvalidStoreUrl(f"{name}: PostgreSQL needs its driver: pip install 'rulserve[postgresql]'")
    return POSTGRESQL + rest


def _state_folder() -> Path:
    """Find the folder for state, by the XDG base directory specification."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        return Path(given) / "rulserve"
    try:
        return Path.home() / ".local" / "state" / "rulserve"
    except RuntimeError:
        raise InvalidStoreUrl(
            "this user has no home folder: set RUL_STORE_URL or XDG_STATE_HOME, or RUL_STORE=false"
        ) from None
