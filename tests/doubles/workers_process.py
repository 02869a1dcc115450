"""`ottla start --workers N` in a process of its own, and what its HTTP port says of workers."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually


class WorkersProcess(BrokerProcess):
    """The supervisor. `port` is the bootstrap port, which is another one after a restart."""

    def restart(self) -> None:
        """Stops it, if it runs, and starts it again on the same data."""
        if self.is_running:
            self.stop()
        self.port = 0
        self.start()

    def set_workers(self, workers: int) -> None:
        """Starts one that was stopped with another number of workers."""
        self._extra_arguments = [f"--workers={workers}"]
        self.restart()

    def wait_until_empty(self, *workers: int) -> None:
        """Waits until these workers have no partitions on disk."""
        folders = [self.data_directory / "ottla-workers" / str(number) for number in workers]
        eventually(
            lambda: (
                not [
                    path
                    for folder in folders
                    for path in folder.glob("*-*")
                    if re.search(r"-\d+$", path.name)
                ]
            ),
            self.log,
            seconds=60,
        )

    @property
    def http(self) -> str:
        """host:port of the HTTP port."""
        found = re.findall(r"metrics http://(\S+)/metrics", self.log())
        return str(found[-1])

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body of a request to the HTTP port."""
        try:
            request = Request(f"http://{self.http}{path}", headers=headers)
            with urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def workers(self) -> list[dict[str, Any]]:
        """The rows of /statusz."""
        rows: list[dict[str, Any]] = json.loads(self.get("/statusz")[1])["workers"]
        return rows

    def kill_worker(self, number: int) -> int:
        """SIGKILL; returns its process id."""
        pid = int(self.workers()[number]["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_until_ready(self) -> None:
        """Waits until all workers serve clients."""
        eventually(
            lambda: self.get("/readyz")[0] == 200,
            lambda: f"{self.get('/readyz')}\n{self.log()}",
            seconds=60,
        )


@contextmanager
def start_workers(
    directory: Path,
    workers: int = 2,
    /,
    *,
    max_descriptors: int | None = None,
    **settings: object,
) -> Iterator[WorkersProcess]:
    """Started workers with free ports; ended when the block ends. Each process may have so many
    descriptors."""
    texts = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "ottla.metrics.address": "127.0.0.1:0",
        **{name.replace("_", "."): str(value) for name, value in settings.items()},
    }
    process = WorkersProcess(directory / "workers", texts, [f"--workers={workers}"])
    process.max_descriptors = max_descriptors
    try:
        process.start()
        yield process
    finally:
        if process.is_running:
            process.kill()
