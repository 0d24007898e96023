"""Where the store is: what an operator wrote, as what a database driver is told.

Needs no driver and no SQLAlchemy: start-up can refuse a wrong address before anything is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from model.domain import RulError

SQLITE: Final = "sqlite:///"
POSTGRESQL: Final = "postgresql+psycopg://"


class InvalidStoreUrl(RulError):
    """An address of a store that cannot be used."""


def store_url(given: str, *, environ: Mapping[str, str] | None = None) -> str:
    """The address as SQLAlchemy reads it; an empty one is a file in the user's state folder.

    Raises:
        InvalidStoreUrl: it names another kind of database, or one whose driver is not installed.

    >>> store_url("postgres://rul:secret@db/rul")
    'postgresql+psycopg://rul:secret@db/rul'
    """
    if not given:
        return SQLITE + str(state_folder(os.environ if environ is None else environ) / "rulserve.db")
    scheme, separator, rest = given.partition("://")
    if not separator or scheme not in {"sqlite", "postgres", "postgresql", "postgresql+psycopg"}:
        # Not the address itself: it may hold a password.
        raise InvalidStoreUrl("RUL_STORE_URL: expected sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    if scheme == "sqlite":
        if not rest.removeprefix("/") or ":memory:" in rest:
            raise InvalidStoreUrl("RUL_STORE_URL: expected a file, sqlite:///FILE: workers share it")
        return given
    if find_spec("psycopg") is None:
        raise InvalidStoreUrl(
            "RUL_STORE_URL: PostgreSQL needs its driver: pip install 'rulserve[postgresql]'"
        )
    return POSTGRESQL + rest


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where programs keep what outlives them, by the XDG base directory specification."""
    given = environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    return base / "rulserve"
