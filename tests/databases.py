"""A private PostgreSQL server for the store, also behind a pooler, that ends with the test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import program
from tests.waiting import wait_until

START_SECONDS = 60


@dataclass
class PostgreSql:
    """A private server on a unix socket, with no port open.

    Attributes:
        url: Value for RUL_STORE_URL.
    """

    folder: Path
    url: str

    def start(self) -> None:
        """Start or restart the server."""
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        log = self.folder / "server.log"
        _as_postgres("pg_ctl", "-D", self.folder / "data", "-o", options, "-l", log, "-w", "start")
        socket = self.folder / ".s.PGSQL.5432"
        wait_until(socket.exists, START_SECONDS, what="the server's socket")

    def stop(self) -> None:
        """Stop the server at once, despite open connections."""
        _as_postgres("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")

    def database(self, name: str) -> str:
        """Create an empty database and return its address."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url.replace("/postgres?", f"/{name}?")


@contextmanager
def postgresql() -> Iterator[PostgreSql]:
    """Make a server, stopped and deleted at the end; skip if its programs or the user's name are missing."""
    program("initdb")
    try:
        user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        pytest.skip(f"PostgreSQL needs a user with a name, and user {os.getuid()} has none")
    # Not below a test's folder: a socket's path has at most 107 bytes, and other users must have access.
    folder = Path(tempfile.mkdtemp(prefix="rul-pg-"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = PostgreSql(folder, f"postgresql://{user}@/postgres?host={folder}")
    try:
        _as_postgres("initdb", "-D", folder / "data", "-A", "trust", "-E", "UTF8", "--no-sync")
        server.start()
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder)


@contextmanager
def pgbouncer(server: PostgreSql) -> Iterator[str]:
    """Pool the server's connections by transaction; yield what an address needs to lead through the pool."""
    folder, port = server.folder, 6432
    file = folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n* = host={folder} pool_size=2\n"
        f"[pgbouncer]\nlisten_port={port}\nunix_socket_dir={folder}\nauth_type=trust\n"
        f"auth_file={folder}/users\npool_mode=transaction\nignore_startup_parameters=options\n"
        f"logfile={folder}/pgbouncer.log\npidfile={folder}/pgbouncer.pid\n"
    )
    user = server.url.partition("//")[2].partition("@")[0]
    (folder / "users").write_text(f'"{user}" ""\n')
    _as_postgres("pgbouncer", "-d", file)
    try:
        wait_until((folder / f".s.PGSQL.{port}").exists, START_SECONDS, what="the socket of PgBouncer")
        yield f"&port={port}"
    finally:
        os.kill(int((folder / "pgbouncer.pid").read_text()), signal.SIGTERM)


def _as_postgres(name: str, *arguments: str | Path) -> None:
    """Run a program of PostgreSQL; under root as the package's user, because the server refuses root."""
    command = [program(name), *map(str, arguments)]
    if os.getuid() == 0:
        command = [program("runuser"), "-u", "postgres", "--", *command]
    # Output goes to a file: the server would keep a pipe open, and reading would never end.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd="/", check=False)
        output.seek(0)
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{output.read().decode()}"
