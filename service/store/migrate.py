"""Bring a store's tables up to date; loaded only where they are not.

A migration runs in the transaction that it is handed, so that one which fails leaves nothing behind,
and several processes that start together take turns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

MIGRATIONS: Final = Path(__file__).with_name("migrations")


def upgrade(connection: Connection) -> None:
    """To the newest revision, within the transaction of this connection."""
    command.upgrade(configuration(connection), "head")


def configuration(connection: Connection) -> Config:
    """What alembic needs to know."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
