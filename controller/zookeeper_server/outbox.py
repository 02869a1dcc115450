"""What waits to be sent, in the order of the changes of all clients.

A response or watch event is sent when every change before it is durable, so no client learns of a
change that a crash of the server takes back.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from ottla.controller.tree.tree_file import TreeCommits
from ottla.controller.zookeeper_server.connection import Connection

Entry = tuple[Connection, bytes | None]
"""None stands for the end of the connection."""


class Outbox:
    """``commits`` None: the tree is in memory only, and nothing has to wait."""

    def __init__(
        self, commits: TreeCommits | None, on_failure: Callable[[Exception], None]
    ) -> None:
        self._commits = commits
        self._on_failure = on_failure
        # Bounded by the requests in the connections' receive buffers: while a response waits,
        # at most one commit is running.
        self._entries: list[Entry] = []
        # By commit. The last group is also there between the end of its commit and its callback,
        # when a read already needs no commit but must not overtake it.
        self._waiting: deque[list[Entry]] = deque()

    def add(self, connection: Connection, data: bytes | None) -> None:
        self._entries.append((connection, data))

    def flush(self) -> None:
        """Sends the entries, at once or after the commit that they wait for."""
        if not self._entries:
            return
        entries, self._entries = self._entries, []
        if self._commits is None:
            _send(entries)
            return
        try:
            barrier = self._commits.barrier()
        except Exception as error:
            self._on_failure(error)
            return
        if barrier is not None:
            self._waiting.append(entries)
            barrier.add_done_callback(self._committed)
        elif self._waiting:
            self._waiting[-1].extend(entries)
        else:
            _send(entries)

    def _committed(self, barrier: "asyncio.Future[None]") -> None:
        entries = self._waiting.popleft()
        error = None if barrier.cancelled() else barrier.exception()
        if isinstance(error, Exception):
            self._on_failure(error)
        elif not barrier.cancelled():
            _send(entries)


def _send(entries: list[Entry]) -> None:
    """One write for the entries of a connection that follow each other."""
    parts: dict[Connection, list[bytes]] = {}
    for connection, data in entries:
        if data is not None:
            parts.setdefault(connection, []).append(data)
    for connection, texts in parts.items():
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            transport.write(b"".join(texts))
    for connection, data in entries:
        if data is None and connection.transport is not None:
            connection.transport.close()
