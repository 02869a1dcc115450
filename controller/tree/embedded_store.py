"""The znode tree of one broker, kept in a SQLite file in the data directory.

The tree is in memory (embedded_tree.py), and reads use only that. A write is applied in memory,
then committed to the file by a worker thread, and the call returns after the commit: the write
survives ``kill -9``, and with ``synchronous="FULL"`` (the default) a power failure. Writes that
arrive during a commit share the next one. A read may see a change some milliseconds before it is
durable.

Sessions end with the process, so ephemeral znodes are never written. Transaction ids have to
increase across restarts (the broker epoch is one of them): the file has an upper bound that is
raised a block at a time, and a restart continues from that bound.

The file is opened with an exclusive lock: a second process with the same directory gets a
``StoreError``.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ottla.controller.tree.embedded_tree import EmbeddedTree, Node, TreeWatch
from ottla.controller.tree.store import (
    ANY_VERSION,
    REARMED,
    SESSION_CONNECTED,
    SESSION_EXPIRED,
    ConnectionLost,
    CreateOp,
    DeleteOp,
    Op,
    OpResult,
    SessionCallback,
    SetOp,
    Stat,
    StoreError,
    WatchCallback,
    WatchEvent,
    WatchHandle,
    ancestors_of,
)

ZXID_BLOCK = 1_000_000
"""By how much a write raises the bound of transaction ids; large, so that it is rarely needed."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS znodes (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL,
    created_children INTEGER NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,
    pzxid INTEGER NOT NULL, ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bounds (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_UPSERT = "INSERT OR REPLACE INTO znodes VALUES (?,?,?,?,?,?,?,?,?)"

Row = tuple[str, bytes, int, int, int, int, int, int, int]


# Of the file and its journals.
FILE_MODE = 0o600


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _restrict(path: str) -> None:
    """For its owner only: it has the credentials of users. SQLite gives its journals the same
    mode. An error is left to SQLite, which says what is wrong with the file."""
    with suppress(OSError):
        # Only a new file is opened: closing one that SQLite has open would release its locks.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    for each in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            os.chmod(each, FILE_MODE)


class TreeFile:
    """The SQLite file: loaded once, then commits of changed znodes. One caller at a time."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        _restrict(path)
        try:
            # The loop opens and loads, the worker thread commits, never both at once.
            self.connection = sqlite3.connect(path, timeout=0, check_same_thread=False)
            self.connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute(f"PRAGMA synchronous={synchronous}")
            self.connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(
                    path, f"{path} is in use by another broker process; stop that one first"
                ) from None
            raise StoreError(
                path,
                f"{path} cannot be opened: {error}; "
                "the first directory of log.dirs must exist and be writable",
            ) from None
        except sqlite3.DatabaseError as error:
            raise StoreError(path, f"{path} is not a readable znode file: {error}") from None

    def load(self, tree: EmbeddedTree) -> None:
        bound = self.connection.execute("SELECT value FROM bounds WHERE name='zxid'").fetchone()
        tree.zxid = bound[0] if bound else 0
        rows = self.connection.execute("SELECT * FROM znodes ORDER BY path")
        for path, data, version, created, czxid, mzxid, pzxid, ctime_ms, mtime_ms in rows:
            node = tree.nodes["/"] if path == "/" else Node(data, czxid, ctime_ms)
            node.version = version
            node.created_children = created
            node.mzxid = mzxid
            node.pzxid = pzxid
            node.mtime_ms = mtime_ms
            if path != "/":
                tree.nodes[path] = node
        for path in tree.nodes:
            if path != "/":
                cut = path.rfind("/")
                tree.nodes[path[:cut] or "/"].children.add(path[cut + 1 :])

    def commit(self, rows: list[Row], removed: list[tuple[str]], zxid_bound: int) -> None:
        with self.connection:
            if removed:
                self.connection.executemany("DELETE FROM znodes WHERE path=?", removed)
            if rows:
                self.connection.executemany(_UPSERT, rows)
            if zxid_bound:
                self.connection.execute(
                    "INSERT OR REPLACE INTO bounds VALUES ('zxid', ?)", (zxid_bound,)
                )

    def close(self) -> None:
        self.connection.close()


class _Subscription:
    __slots__ = ("callback", "callbacks")

    def __init__(self, callbacks: list[SessionCallback], callback: SessionCallback) -> None:
        self.callbacks = callbacks
        self.callback = callback
        callbacks.append(callback)

    def cancel(self) -> None:
        if self.callback in self.callbacks:
            self.callbacks.remove(self.callback)


class _Watch:
    """The handle of a watch, which is set again on the next session."""

    __slots__ = ("callback", "cancelled", "on_children", "path", "store", "tree_watch")

    def __init__(
        self, store: "EmbeddedStore", path: str, on_children: bool, callback: WatchCallback
    ) -> None:
        self.store = store
        self.path = path
        self.on_children = on_children
        self.callback = callback
        self.cancelled = False
        self.tree_watch: TreeWatch | None = None

    def arm(self) -> None:
        self.tree_watch = self.store.tree.watch(
            self.store.session_id, self.path, self.on_children, self.deliver
        )

    def deliver(self, event: WatchEvent) -> None:
        self.store.call_soon(self._run, event)

    def _run(self, event: WatchEvent) -> None:
        if not self.cancelled:
            self.callback(event)

    def cancel(self) -> None:
        self.cancelled = True
        if self.tree_watch is not None:
            self.tree_watch.cancel()
        self.store.watches.pop(self, None)


class EmbeddedStore:
    """A session on an embedded tree; implements ``ZnodeStore``.

    ``EmbeddedStore(path)`` has a file and a tree. ``EmbeddedStore(tree=tree)`` is another session
    on a tree in memory, for tests with several brokers, without a file.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        tree: EmbeddedTree | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        synchronous: str = "FULL",
    ) -> None:
        self.path = path
        self.tree = tree if tree is not None else EmbeddedTree(now_ms)
        self.synchronous = synchronous
        self.watches: dict[_Watch, None] = {}  # in the order they were set
        self._session_id = 0
        self._session_callbacks: list[SessionCallback] = []
        self._file: TreeFile | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._committing = False
        self._failure: StoreError | None = None
        self._zxid_bound = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def session_id(self) -> int:
        return self._session_id

    def call_soon(self, callback: Callable[[WatchEvent], None], event: WatchEvent) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(callback, event)

    # Session

    async def connect(self) -> None:
        """Opens and loads the file (a few milliseconds) and starts a session."""
        self._loop = asyncio.get_running_loop()
        if self.path is not None and self._file is None:
            self._file = TreeFile(self.path, self.synchronous)
            self._file.load(self.tree)
            self._zxid_bound = self.tree.zxid + ZXID_BLOCK
            self._file.commit([], [], self._zxid_bound)
            # One thread, as commits are serial.
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="ottla-znodes")
        self._open_session()

    def _open_session(self) -> None:
        self._session_id = self.tree.open_session()
        for callback in list(self._session_callbacks):
            callback(SESSION_CONNECTED)

    async def close(self) -> None:
        if self._session_id:
            self.tree.end_session(self._session_id)
            self._session_id = 0
        for watch in list(self.watches):
            watch.cancel()
        with suppress(ConnectionLost):  # the writers got the error
            await self._durable()
        if self._worker is not None:
            self._worker.shutdown(wait=True)
            self._worker = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def lose_session(self) -> None:
        """Expires the session on the side of the server, for tests: its ephemeral znodes are
        deleted and calls raise SessionExpired; there is no callback yet."""
        self.tree.end_session(self._session_id)

    def expire_session(self) -> None:
        """Expires the session with callbacks, for tests: SESSION_EXPIRED, a new session, and each
        watch is set again and called once."""
        self.lose_session()
        for callback in list(self._session_callbacks):
            callback(SESSION_EXPIRED)
        self._session_id = self.tree.open_session()
        for watch in list(self.watches):
            watch.arm()
            watch.deliver(WatchEvent(REARMED, watch.path))
        for callback in list(self._session_callbacks):
            callback(SESSION_CONNECTED)

    # Reads

    async def get(self, path: str) -> tuple[bytes, Stat]:
        return self.tree.get(self._session_id, path)

    async def exists(self, path: str) -> Stat | None:
        return self.tree.exists(self._session_id, path)

    async def children(self, path: str) -> list[str]:
        return self.tree.children(self._session_id, path)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        tree, session_id = self.tree, self._session_id
        return [
            tree.get(session_id, path) if tree.exists(session_id, path) is not None else None
            for path in paths
        ]

    # Writes

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        result = await self._write([SetOp(path, data, version)])
        stat = result[0]
        assert isinstance(stat, Stat)
        return stat

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        ops: list[Op] = []
        if make_parents:
            ops = [CreateOp(each) for each in ancestors_of(path) if each not in self.tree.nodes]
        ops.append(CreateOp(path, data, ephemeral, sequential))
        made = self.tree.apply(self._session_id, ops)[-1]
        assert isinstance(made, str)
        stat = self.tree.nodes[made].stat()
        await self._durable()
        return made, stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write([DeleteOp(path, version)])

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._write(ops)

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        results: list[list[OpResult] | StoreError] = []
        for ops in batches:
            try:
                results.append(self.tree.apply(self._session_id, ops))
            except StoreError as error:
                if not error.path:  # the session, not an operation
                    raise
                results.append(error)
        await self._durable()
        return results

    async def _write(self, ops: Sequence[Op]) -> list[OpResult]:
        results = self.tree.apply(self._session_id, ops)
        await self._durable()
        return results

    # Watches

    async def watch_data(self, path: str, callback: WatchCallback) -> WatchHandle:
        return self._watch(path, False, callback)

    async def watch_data_many(
        self, watches: Sequence[tuple[str, WatchCallback]]
    ) -> list[WatchHandle]:
        return [self._watch(path, False, callback) for path, callback in watches]

    async def watch_children(self, path: str, callback: WatchCallback) -> WatchHandle:
        return self._watch(path, True, callback)

    def _watch(self, path: str, on_children: bool, callback: WatchCallback) -> WatchHandle:
        watch = _Watch(self, path, on_children, callback)
        watch.arm()
        self.watches[watch] = None
        return watch

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        return _Subscription(self._session_callbacks, callback)

    # Durability

    async def _durable(self) -> None:
        """Returns when all writes so far are committed to the file."""
        if self._file is None or self._loop is None:
            self.tree.dirty.clear()
            return
        if self._failure is not None:
            raise self._failure
        if not self.tree.dirty and self.tree.zxid < self._zxid_bound and not self._committing:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if not self._committing:
            self._start_commit()
        await waiter

    def _start_commit(self) -> None:
        assert self._loop is not None
        assert self._worker is not None
        assert self._file is not None
        rows: list[Row] = []
        removed: list[tuple[str]] = []
        for path in self.tree.dirty:
            node = self.tree.nodes.get(path)
            if node is None:
                removed.append((path,))
            elif not node.ephemeral_owner:
                rows.append(_row(path, node))
        self.tree.dirty.clear()
        bound = 0
        if self.tree.zxid >= self._zxid_bound:
            bound = self._zxid_bound = self.tree.zxid + ZXID_BLOCK
        waiters, self._waiters = self._waiters, []
        self._committing = True
        commit = self._loop.run_in_executor(self._worker, self._file.commit, rows, removed, bound)
        commit.add_done_callback(lambda done: self._committed(done, waiters))

    def _committed(
        self, commit: "asyncio.Future[None]", waiters: "list[asyncio.Future[None]]"
    ) -> None:
        self._committing = False
        error = None if commit.cancelled() else commit.exception()
        if error is not None:
            # Memory and file differ now: all later calls fail.
            self._failure = ConnectionLost(
                self.path or "", f"the znode file {self.path} cannot be written: {error}"
            )
        for waiter in waiters:
            if waiter.done():
                continue
            if self._failure is not None:
                waiter.set_exception(self._failure)
            else:
                waiter.set_result(None)
        if self._waiters and self._failure is None:
            self._start_commit()
        elif self._waiters:
            waiting, self._waiters = self._waiters, []
            for waiter in waiting:
                waiter.set_exception(self._failure or ConnectionLost())


def _row(path: str, node: Node) -> Row:
    return (
        path,
        node.data,
        node.version,
        node.created_children,
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime_ms,
        node.mtime_ms,
    )
