"""A command `docker` for tests that stop and start a broker by `docker compose stop kafka-2`.

There is no Docker: the command asks the runner, which has the brokers, over a Unix socket.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.compat.ecosystem.clusters import Node

_COMMAND = """#!{python}
import socket, sys
words = sys.argv[1:]
if words[:1] != ["compose"] or len(words) != 3 or words[1] not in ("start", "stop"):
    sys.exit("only compose start and stop")
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({path!r})
    connection.sendall(" ".join(words[1:]).encode())
    response = connection.recv(4096).decode()
sys.exit(0 if response == "done" else response or "no response")
"""


class StandIn:
    """The directory with the command, and the brokers that it has stopped."""

    def __init__(self, place: Path, nodes: Mapping[int, Node]) -> None:
        self.place = place
        self._nodes = nodes
        self._stopped: set[int] = set()

    def run(self, action: str, service: str) -> None:
        """`docker compose ACTION SERVICE`; nothing happens to one that is started or stopped."""
        number = int(service.removeprefix("kafka-"))
        if action == "start" and number in self._stopped:
            self._nodes[number].start()
            self._stopped.discard(number)
        elif action == "stop" and number not in self._stopped:
            self._stopped.add(number)
            self._nodes[number].stop()

    def start_all(self) -> None:
        """Starts the brokers that a test has stopped and not started."""
        for number in sorted(self._stopped):
            self._nodes[number].start()
        self._stopped.clear()


@contextmanager
def stand_in(directory: Path, nodes: Mapping[int, Node]) -> Iterator[StandIn]:
    """The command; it stops and starts `nodes` by their id."""
    place = directory / "bin"
    place.mkdir()
    path = directory / "docker.socket"
    command = place / "docker"
    command.write_text(_COMMAND.format(python=sys.executable, path=str(path)))
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        command_line = StandIn(place, nodes)
        thread = threading.Thread(target=_serve, args=(listener, command_line), daemon=True)
        thread.start()
        try:
            yield command_line
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def _serve(listener: socket.socket, command: StandIn) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down
            return
        with connection:
            action, _, service = connection.recv(4096).decode().partition(" ")
            try:
                command.run(action, service)
            except Exception as error:
                connection.sendall(f"{type(error).__name__}: {error}".encode()[:4000])
            else:
                connection.sendall(b"done")
