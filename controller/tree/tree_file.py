"""The SQLite file of a znode tree, and group commits to it.

A change is applied to the tree in memory first. ``TreeCommits`` then writes the changed znodes
and sessions in a worker thread; changes that arrive during a commit share the next one. A commit
survives ``kill -9``, and with ``synchronous="FULL"`` a power failure.

Transaction ids have to increase across restarts (the broker epoch is one of them): the file has an
upper bound that is raised a block at a time, and a restart continues from that bound.

The file is opened with an exclusive lock: a second process gets a ``StoreError``.
"""

import asyncio
import json
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from ottla.controller.tree.embedded_tree import EmbeddedTree, Node
from ottla.controller.tree.store import NULL_DATA, Acl, ConnectionLost, StoreError

ZXID_BLOCK = 1_000_000
"""By how much a write raises the bound of transaction ids; large, so that it is rarely needed."""

_REASON_CHARACTERS = 200
# Half of it is for those that follow.
_ZXID_MAX = 1 << 62

_SCHEMA = """
CREATE TABLE IF NOT EXISTS znodes (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL,
    created_children INTEGER NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,
    pzxid INTEGER NOT NULL, ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL DEFAULT 0, acl TEXT, acl_version INTEGER NOT NULL DEFAULT 0,
    null_data INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bounds (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY, password BLOB NOT NULL, timeout_ms INTEGER NOT NULL
);
"""
# Columns that files of earlier versions lack.
_NEW_COLUMNS = {
    "ephemeral_owner": "INTEGER NOT NULL DEFAULT 0",
    "acl": "TEXT",
    "acl_version": "INTEGER NOT NULL DEFAULT 0",
    "null_data": "INTEGER NOT NULL DEFAULT 0",
}
_COLUMNS = (
    "path, data, version, created_children, czxid, mzxid, pzxid, ctime_ms, mtime_ms, "
    "ephemeral_owner, acl, acl_version, null_data"
)
_UPSERT = f"INSERT OR REPLACE INTO znodes ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"

Row = tuple[str, bytes, int, int, int, int, int, int, int, int, str | None, int, int]


# Of the file and its journals.
FILE_MODE = 0o600

# SQLite moves the journal into the file when it has 4 MB, and continues if that fails. With a
# journal that is so much longer, a failure ends the commit: it would grow until the disk is full.
LONGEST_JOURNAL_BYTES = 16 << 20


def _restrict(path: str) -> None:
    """For its owner only: it has the credentials of users. SQLite gives its journals the same
    mode. An error is left to SQLite, which says what is wrong with the file."""
    with suppress(OSError):
        # Only a new file is opened: closing one that SQLite has open would release its locks.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    for each in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            os.chmod(each, FILE_MODE)


class StoredSession(NamedTuple):
    """A session of a ZooKeeper client, which outlives a restart of the server."""

    session_id: int
    password: bytes
    timeout_ms: int


class TreeFile:
    """Loaded once, then commits of changed znodes. One caller at a time."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        _restrict(path)
        try:
            # The loop opens and loads, the worker thread commits, never both at once.
            self.connection = sqlite3.connect(path, timeout=0, check_same_thread=False)
            self.connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute(f"PRAGMA synchronous={synchronous}")
            # After a failed flush the kernel shows what the disk does not have, and what is
            # appended to such a journal is lost with it. So a journal that a crash has left is
            # moved into the file first.
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.connection.execute(f"PRAGMA journal_size_limit={LONGEST_JOURNAL_BYTES}")
            self.connection.executescript(_SCHEMA)
            self._add_columns()
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
            raise StoreError(path, _is_damaged(path, error)) from None

    def _add_columns(self) -> None:
        present = {row[1] for row in self.connection.execute("PRAGMA table_info(znodes)")}
        for name, kind in _NEW_COLUMNS.items():
            if name not in present:
                self.connection.execute(f"ALTER TABLE znodes ADD COLUMN {name} {kind}")

    def load(self, tree: EmbeddedTree) -> None:
        """Fills the tree. Ephemeral znodes are loaded if their session is open in the tree;
        others are removed with the next commit. Raises StoreError."""
        try:
            # SQLite reads a damaged file as far as it can: a znode that is missing then would be a
            # topic that does not exist. 1 us for each znode.
            for (problem,) in self.connection.execute("PRAGMA quick_check(1)"):
                if problem != "ok":
                    raise ValueError(problem)
            self._load(tree)
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StoreError(self.path, _is_damaged(self.path, error)) from None

    def _load(self, tree: EmbeddedTree) -> None:
        bound = self.connection.execute("SELECT value FROM bounds WHERE name='zxid'").fetchone()
        tree.zxid = bound[0] if bound else 0
        if not isinstance(tree.zxid, int) or not 0 <= tree.zxid <= _ZXID_MAX:
            raise ValueError(f"the bound of transaction ids is {tree.zxid!r}")
        for row in self.connection.execute(f"SELECT {_COLUMNS} FROM znodes ORDER BY path"):
            path, owner = row[0], row[9]
            if owner and owner not in tree.sessions:
                tree.dirty[path] = None
                continue
            tree.nodes[path] = _node_of(row, tree.nodes.get(path))
            if owner:
                tree.sessions[owner].add(path)
        for path in tree.nodes:
            if path != "/":
                cut = path.rfind("/")
                parent = tree.nodes.get(path[:cut] or "/")
                if parent is None or not path.startswith("/"):
                    raise ValueError(f"znode {path} has no parent")
                parent.children.add(path[cut + 1 :])

    def sessions(self) -> list[StoredSession]:
        """The sessions that were open when the file was written last. Raises StoreError."""
        query = "SELECT id, password, timeout_ms FROM sessions ORDER BY id"
        try:
            found = [StoredSession(*row) for row in self.connection.execute(query)]
            for each in found:
                if not (isinstance(each.password, bytes) and isinstance(each.timeout_ms, int)):
                    raise ValueError(f"session {each.session_id} is invalid")
            return found
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StoreError(self.path, _is_damaged(self.path, error)) from None

    def commit(
        self,
        rows: list[Row],
        removed: list[tuple[str]],
        zxid_bound: int,
        opened: Sequence[StoredSession] = (),
        ended: Sequence[tuple[int]] = (),
    ) -> None:
        """Writes one transaction, which is durable on return."""
        with self.connection:
            if removed:
                self.connection.executemany("DELETE FROM znodes WHERE path=?", removed)
            if rows:
                self.connection.executemany(_UPSERT, rows)
            if zxid_bound:
                self.connection.execute(
                    "INSERT OR REPLACE INTO bounds VALUES ('zxid', ?)", (zxid_bound,)
                )
            if opened:
                self.connection.executemany(
                    "INSERT OR REPLACE INTO sessions (id, password, timeout_ms) VALUES (?,?,?)",
                    opened,
                )
            if ended:
                self.connection.executemany("DELETE FROM sessions WHERE id=?", ended)
        if os.stat(f"{self.path}-wal").st_size > LONGEST_JOURNAL_BYTES:
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self.connection.close()


class TreeCommits:
    """Group commits of a tree on the running event loop.

    A failed commit leaves memory and file different, so each later call fails with it. The
    constructor commits, too, and raises StoreError.
    """

    def __init__(self, tree: EmbeddedTree, file: TreeFile) -> None:
        self.tree = tree
        self.file = file
        self.failure: StoreError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._committing = False
        # None stands for a session that has ended.
        self._sessions: dict[int, StoredSession | None] = {}
        self._zxid_bound = tree.zxid + ZXID_BLOCK
        try:
            file.commit([], [], self._zxid_bound)
        except sqlite3.DatabaseError as error:
            raise StoreError(file.path, _cannot_be_written(file.path, error)) from None
        # One thread, as commits are serial.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ottla-znodes")

    def session_opened(self, session: StoredSession) -> None:
        self._sessions[session.session_id] = session

    def session_ended(self, session_id: int) -> None:
        self._sessions[session_id] = None

    def barrier(self) -> "asyncio.Future[None] | None":
        """A future that is done when all changes so far are durable; None if they are already.

        It fails with ConnectionLost if the file cannot be written.
        """
        if self.failure is not None:
            raise self.failure
        if not self._has_changes() and not self._committing:
            return None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if not self._committing:
            self._start()
        return waiter

    def _has_changes(self) -> bool:
        return bool(self.tree.dirty or self._sessions) or self.tree.zxid >= self._zxid_bound

    def _start(self) -> None:
        rows: list[Row] = []
        removed: list[tuple[str]] = []
        for path in self.tree.dirty:
            node = self.tree.nodes.get(path)
            if node is None:
                removed.append((path,))
            elif not node.ephemeral_owner or self.tree.keeps_ephemerals:
                rows.append(_row_of(path, node))
        self.tree.dirty.clear()
        opened = [session for session in self._sessions.values() if session is not None]
        ended = [(number,) for number, session in self._sessions.items() if session is None]
        self._sessions.clear()
        bound = 0
        if self.tree.zxid >= self._zxid_bound:
            bound = self._zxid_bound = self.tree.zxid + ZXID_BLOCK
        waiters, self._waiters = self._waiters, []
        self._committing = True
        commit = self._loop.run_in_executor(
            self._worker, self.file.commit, rows, removed, bound, opened, ended
        )
        commit.add_done_callback(lambda done: self._committed(done, waiters))

    def _committed(
        self, commit: "asyncio.Future[None]", waiters: "list[asyncio.Future[None]]"
    ) -> None:
        self._committing = False
        error = None if commit.cancelled() else commit.exception()
        if error is not None:
            self.failure = ConnectionLost(self.file.path, _cannot_be_written(self.file.path, error))
        if self.failure is not None or not self._has_changes():
            # Who waited since the commit began only read, or cannot be served any more.
            waiters += self._waiters
            self._waiters = []
        for waiter in waiters:
            if waiter.done():
                continue
            if self.failure is not None:
                waiter.set_exception(self.failure)
            else:
                waiter.set_result(None)
        if self._waiters:
            self._start()

    def close(self) -> None:
        """Waits for the commit in the worker thread and closes the file."""
        self._worker.shutdown(wait=True)
        self.file.close()


def _cannot_be_written(path: str, error: BaseException) -> str:
    return f"the znode file {path} cannot be written: {error}"


def _is_damaged(path: str, error: Exception) -> str:
    # One line of text, with what SQLite quotes of the damaged file.
    reason = " ".join(str(error).encode("ascii", "backslashreplace").decode().split())
    return (
        f"the znode file {path} is damaged: {reason[:_REASON_CHARACTERS]}; restore a backup of it,"
        f" or what `sqlite3 {path} .recover` can read; without it the broker has no topics"
    )


def _row_of(path: str, node: Node) -> Row:
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
        node.ephemeral_owner,
        None if node.acl is None else json.dumps(node.acl),
        node.acl_version,
        int(node.data is NULL_DATA),
    )


def _node_of(row: Row, root: Node | None) -> Node:
    path, data, version, created, czxid, mzxid, pzxid, ctime_ms, mtime_ms, owner = row[:10]
    acl, acl_version, null_data = row[10:]
    # SQLite has types for values, not for columns: a flipped bit may make a text of a number.
    numbers = (*row[2:10], acl_version, null_data)
    if not (
        isinstance(path, str)
        and isinstance(data, bytes)
        and all(isinstance(number, int) for number in numbers)
        and (acl is None or isinstance(acl, str))
    ):
        raise ValueError(f"znode {path!r} is invalid")
    node = root if root is not None else Node(data, czxid, ctime_ms, owner)
    node.data = NULL_DATA if null_data else data
    node.version = version
    node.created_children = created
    node.mzxid = mzxid
    node.pzxid = pzxid
    node.mtime_ms = mtime_ms
    try:
        node.acl = None if acl is None else tuple(Acl(*entry) for entry in json.loads(acl))
    except (TypeError, RecursionError):
        raise ValueError(f"the ACL of znode {path} is invalid") from None
    node.acl_version = acl_version
    return node
