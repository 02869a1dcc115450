"""PostgreSQL of the machine (Debian: postgresql), on a free port, for change data capture."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli.zookeeper_server import free_port

_USER_ID = 65534  # PostgreSQL does not run as root; this one has no rights


class Postgres:
    """A server with the database `postgres` and logical decoding."""

    def __init__(self, directory: Path, binaries: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._binaries = binaries

    def start(self) -> None:
        """Creates the database and starts the server."""
        self._directory.mkdir()
        if os.geteuid() == 0:
            os.chown(self._directory, _USER_ID, -1)
        data = str(self._directory / "data")
        self._call("initdb", "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8")
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c wal_level=logical "
            f"-c fsync=off -c unix_socket_directories={self._directory}"
        )
        log = str(self._directory / "log.txt")
        self._call("pg_ctl", "-D", data, "-w", "-t", "120", "-o", options, "-l", log, "start")

    def execute(self, *statements: str) -> None:
        """Runs SQL statements in one transaction."""
        self._call(
            *("psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-q", "-1"),
            *("-v", "ON_ERROR_STOP=1", "-c", "; ".join(statements)),
        )

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self._directory / "data"), "-m", "immediate", "stop")

    def _call(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={_USER_ID}", "--clear-groups", *command]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            timeout=300,
        )
        assert done.returncode == 0, f"{name}: {done.stderr.decode()[-500:]}"


def _binaries() -> Path:
    for place in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (place / "initdb").exists():
            return place
    found = shutil.which("initdb")
    if found is None:
        pytest.skip("there is no PostgreSQL server on this machine (Debian: postgresql)")
    return Path(found).parent


@contextmanager
def start_postgres(directory: Path) -> Iterator[Postgres]:
    """A started server; always stopped."""
    server = Postgres(directory, _binaries())
    server.start()
    try:
        yield server
    finally:
        server.stop()
