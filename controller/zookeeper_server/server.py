"""The server: listener, sessions and their expiry, and the order of what is sent.

All state changes in one turn of the event loop; the only thing that waits is the commit of the
znode file. Without a path the tree is in memory, and all of it is gone when the server stops.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.controller.tree.embedded_tree import EmbeddedTree, Node
from ottla.controller.tree.store import parent_of
from ottla.controller.tree.tree_file import (
    StoredSession,
    TreeCommits,
    TreeFile,
    open_in_thread,
)
from ottla.controller.zookeeper_server.connection import Connection, Outbox
from ottla.controller.zookeeper_server.four_letter_words import WORDS
from ottla.controller.zookeeper_server.jute import Reader
from ottla.controller.zookeeper_server.requests import SYSTEM_PATHS, Client, RequestProcessor
from ottla.controller.zookeeper_server.sessions import Session, Sessions
from ottla.controller.zookeeper_server.watches import EventType, WatchTable

DEFAULT_TICK_TIME_MS = 2000
MAX_CONNECTIONS = 1000
"""A development cluster has a handful; each has buffers and a descriptor."""
EXPIRY_CHECKS_PER_TICK = 4

_LOGGER = logging.getLogger(__name__)


class ZooKeeperServer:
    """A ZooKeeper for development and tests: one process, not highly available.

    `path` is a znode file, also one of a broker that ran without ZooKeeper. `synchronous` is
    SQLite's: with FULL a change survives a power failure, with NORMAL the end of the process.
    Raises StoreError if the file cannot be used, OSError if the port cannot.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        tick_time_ms: int = DEFAULT_TICK_TIME_MS,
        synchronous: str = "FULL",
        max_connections: int = MAX_CONNECTIONS,
        process_of: Callable[[asyncio.Transport], int] | None = None,
    ) -> None:
        """`process_of` returns the id of the process at the other end of a Unix socket."""
        self.path = path
        self.process_of = process_of
        self.tick_time_ms = tick_time_ms
        self.max_connections = max_connections
        self.watches: WatchTable[Client] = WatchTable(_deliver)
        self.tree = EmbeddedTree(
            lambda: time.time_ns() // 1_000_000,
            # Clients that have seen a later zxid than the server's are refused, so the tree in
            # memory of a new process begins above all of the last one.
            first_zxid=0 if path is not None else int(time.time()) << 32,
            keeps_ephemerals=True,
            observer=self.watches.publish,
        )
        self.sessions = Sessions(time.monotonic, tick_time_ms)
        self.connections: dict[Connection, None] = {}
        self.received = 0
        self.sent = 0
        self.port = 0
        self.failure: asyncio.Future[None] | None = None
        self._processor = RequestProcessor(self.tree, self.watches)
        self._synchronous = synchronous
        self._commits: TreeCommits | None = None
        self._outbox = Outbox(None, self._failed)
        self._listener: asyncio.Server | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_due = 0.0

    @property
    def last_zxid(self) -> int:
        return self.tree.zxid

    # Start and stop

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Load the file and listen; `port` is then the port that was bound."""
        loop = asyncio.get_running_loop()
        await self._start(loop.create_server(lambda: Connection(self), host, port))
        assert self._listener is not None
        self.port = self._listener.sockets[0].getsockname()[1]

    async def start_unix(self, path: str) -> None:
        """Load the file and listen on a Unix socket, which replaces one that is there."""
        loop = asyncio.get_running_loop()
        await self._start(loop.create_unix_server(lambda: Connection(self), path))

    async def _start(self, listening: Coroutine[Any, Any, asyncio.Server]) -> None:
        self.failure = asyncio.get_running_loop().create_future()
        try:
            if self.path is not None:
                await self._load(self.path)
            self._create_system_paths()
        except BaseException:
            listening.close()
            raise
        try:
            self._listener = await listening
        except OSError:
            await self._close_file()
            raise
        self._schedule_expiry()

    def _open_file(self, path: str) -> tuple[TreeFile, list[StoredSession]]:
        """In a thread, while nothing else uses the tree."""
        file = TreeFile(path, self._synchronous)
        stored = file.sessions()
        for session in stored:
            self.tree.open_session(session.session_id)
        file.load(self.tree)
        file.reserve_zxids(self.tree)
        return file, stored

    async def _load(self, path: str) -> None:
        file, stored = await open_in_thread(self._open_file, path)
        self._commits = TreeCommits(self.tree, file, stored, repeats=False)
        self._outbox = Outbox(self._commits, self._failed)
        self.sessions = Sessions(time.monotonic, self.tick_time_ms, stored)

    def _create_system_paths(self) -> None:
        """They are older than every change: no zxid, and not counted by their parents."""
        nodes = self.tree.nodes
        for path in SYSTEM_PATHS:
            if path not in nodes:
                nodes[path] = Node(b"", 0, 0)
                nodes[parent_of(path)].children.add(path.rpartition("/")[2])
                self.tree.dirty[path] = None

    async def stop(self) -> None:
        """Close all connections. Sessions stay in the file; their clients come back."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.connections):
            connection.is_closing = True
            if connection.transport is not None:
                connection.transport.abort()
        await self._close_file()

    async def _close_file(self) -> None:
        commits, self._commits = self._commits, None
        if commits is not None:
            await commits.close()

    def _failed(self, error: Exception) -> None:
        """The file cannot be written: no client gets a response any more."""
        if self.failure is not None and not self.failure.done():
            self.failure.set_exception(error)
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

    # Connections

    def connection_opened(self, connection: Connection) -> None:
        self.connections[connection] = None
        if len(self.connections) > self.max_connections:
            _LOGGER.warning(
                "Closing connection of %s: the limit is %d connections",
                connection.peer,
                self.max_connections,
            )
            connection.close()
            self.flush()

    def connection_closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if connection.client is not None:
            self.watches.drop(connection.client)
        session = connection.session
        if session is not None and session.connection is connection:
            session.connection = None

    def send(self, connection: Connection, data: bytes) -> None:
        self.sent += 1
        self._outbox.add(connection, data)

    def close(self, connection: Connection) -> None:
        self._outbox.add(connection, None)

    def flush(self) -> None:
        self._outbox.flush()

    # Sessions

    def open_session(self, connection: Connection, timeout_ms: int) -> Session:
        session = self.sessions.open(timeout_ms)
        self.tree.open_session(session.session_id)
        if self._commits is not None:
            self._commits.session_opened(session.stored)
        session.connection, session.process = connection, connection.process
        _LOGGER.info(
            "Established session 0x%x with negotiated timeout %d for client %s",
            session.session_id,
            session.stored.timeout_ms,
            connection.peer,
        )
        return session

    def resume_session(
        self, connection: Connection, session_id: int, password: bytes
    ) -> Session | None:
        session = self.sessions.resume(session_id, password)
        if session is None:
            _LOGGER.info("Session 0x%x of client %s has expired", session_id, connection.peer)
            return None
        earlier = session.connection
        if isinstance(earlier, Connection):  # the client has given that connection up
            earlier.close()
        session.connection, session.process = connection, connection.process
        return session

    def touch(self, session: Session) -> None:
        self.received += 1
        self.sessions.touch(session)

    def end_session(self, session: Session) -> None:
        """Delete its ephemeral znodes and notify their watchers."""
        self.sessions.end(session)
        self.tree.end_session(session.session_id)
        if self._commits is not None:
            self._commits.session_ended(session.session_id)

    def end_sessions(self, process: int | None = None) -> int:
        """End the sessions of a process that has died, or all, before their timeouts. Returns how
        many there were."""
        ended = [
            session
            for session in self.sessions.by_id.values()
            if process is None or session.process == process
        ]
        for session in ended:
            self.end_session(session)
            if isinstance(session.connection, Connection):
                session.connection.close()
        self.flush()
        return len(ended)

    def _schedule_expiry(self) -> None:
        delay = self.tick_time_ms / 1000 / EXPIRY_CHECKS_PER_TICK
        self._expiry_due = time.monotonic() + delay
        self._expiry = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        late = time.monotonic() - self._expiry_due
        if late > self.tick_time_ms / 1000:
            # This process stood still, and so could not receive what its clients sent.
            self.sessions.extend(late)
        for session in self.sessions.expired():
            _LOGGER.info(
                "Expiring session 0x%x, timeout of %d ms exceeded",
                session.session_id,
                session.stored.timeout_ms,
            )
            self.end_session(session)
            if isinstance(session.connection, Connection):
                session.connection.close()
        self.flush()
        self._schedule_expiry()

    # Requests

    def process(self, client: Client, op_code: int, reader: Reader) -> bytes:
        return self._processor.process(client, op_code, reader)

    @staticmethod
    def is_four_letter_word(first: bytes) -> bool:
        return WORDS.get(first) is not None

    def four_letter_word(self, connection: Connection, word: bytes) -> None:
        self._outbox.add(connection, WORDS[word](self).encode())
        connection.close()


def _deliver(client: Client, event: EventType, path: str) -> None:
    client.deliver(event, path)
