"""The SQLite file of a znode tree, and group commits to it.

A change is applied to the tree in memory first. `TreeCommits` then writes the changed znodes
and sessions in a worker thread; changes that arrive during a commit share the next one. A commit
survives `kill -9`, and with `synchronous="FULL"` a power failure.

A commit that fails is repeated at once on a file that is opened anew. If that fails, too, the
writers get ConnectionLost, which says that a change may or may not be applied: it stays in memory,
and the owner of the commits decides whether it is written later (`TreeCommits.retry`). A server
that ends with the first failure, as ZooKeeper does, repeats only what a deleted file needs.

Transaction ids have to increase across restarts (the broker epoch is one of them): the file has an
upper bound that is raised a block at a time, and a restart continues from that bound.

The file is opened with an exclusive lock: a second process gets a `StoreError`.
"""

import asyncio
import errno
import json
import logging
import os
import queue
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ottla.controller.tree.embedded_tree import EmbeddedTree, Node
from ottla.controller.tree.store import NULL_DATA, Acl, ConnectionLost, StoreError

logger = logging.getLogger("ottla.znodes")

ZXID_BLOCK = 1_000_000
"""By how much a write raises the bound of transaction ids; large, so that it is rarely needed."""

Opened = TypeVar("Opened")

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

COMMIT_SECONDS = 10.0
"""A commit takes milliseconds. After so long its writers get an error, and clients retry."""
OPEN_SECONDS = 60.0
"""To open and load the file: seconds, if a long journal has to be moved into it first."""
CLOSE_SECONDS = 5.0
"""For each of the last commit and the close; a process that stops must not wait for a disk."""

# How many files that took the place of this one are kept beside it: more come from a program that
# does so again and again.
_MAX_KEPT = 10
# A file system on which only the time of the file is another one so often changes it by itself, as
# the server of a network file system may.
_MAX_TIME_CHANGES = 3


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


class FileMoved(Exception):
    """The file is not the one that was opened, so what is written to it is not where it belongs."""


class _Seen(NamedTuple):
    device: int
    inode: int
    size: int
    mtime_ns: int


class WriteProblem(NamedTuple):
    """Why the file cannot be written now, and what to do about it."""

    problem: str
    fix: str


class TreeFile:
    """Loaded once, then commits of changed znodes. One caller at a time."""

    def __init__(self, path: str, synchronous: str) -> None:
        """Raise StoreError."""
        self.path = path
        self.synchronous = synchronous
        self._seen: tuple[_Seen | None, _Seen | None] | None = None
        self._kept: tuple[_Seen | None, _Seen | None] | None = None
        self._must_write_all = self._is_damaged = False
        self._trusts_times = True
        self._time_changes = 0
        try:
            self._open()
        except sqlite3.Error as error:
            raise StoreError(path, _cannot_be_opened(path, error)) from None

    def _open(self) -> None:
        _restrict(self.path)
        # The thread that opens is not always the one that commits, but never both at once.
        self.connection = sqlite3.connect(self.path, timeout=0, check_same_thread=False)
        try:
            self.connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute(f"PRAGMA synchronous={self.synchronous}")
            # After a failed flush the kernel shows what the disk does not have, and what is
            # appended to such a journal is lost with it. So a journal that a crash has left is
            # moved into the file first.
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.connection.execute(f"PRAGMA journal_size_limit={LONGEST_JOURNAL_BYTES}")
            self.connection.executescript(_SCHEMA)
            self._add_columns()
        except UnicodeDecodeError as error:
            # SQLite quotes the damaged schema, and Python cannot decode the message.
            self._close_connection()
            raise sqlite3.DatabaseError("malformed database schema") from error
        except BaseException:
            self._close_connection()
            raise
        self._seen = self._look()

    def _look(self) -> tuple[_Seen | None, _Seen | None]:
        """The file and its journal, as they were after our last change of them."""
        return _seen(self.path), _seen(f"{self.path}-wal")

    def _close_connection(self) -> None:
        self.connection.close()
        if self._seen is not None:
            self._seen = self._look()  # the close moves the journal into the file

    def is_in_place(self) -> bool:
        """Whether no other process deleted, replaced or changed the file or its journal."""
        now = self._look()
        return now == self._seen or (
            not self._trusts_times and _without_times(now) == _without_times(self._seen)
        )

    def reopen(self, failure: BaseException | None = None) -> bool:
        """Open the file again after a failure; return whether all znodes have to be written.

        That is so when the file or its journal was deleted, replaced, changed by others or damaged:
        the commit of all then puts a new file in its place. Raises sqlite3.Error or OSError, and
        can be called again then.
        """
        if not self._must_write_all:
            self._is_damaged = _is_damage(failure)
            self._must_write_all = self._is_damaged or not self.is_in_place()
        if not self._must_write_all:
            self._close_connection()
            self._open()
        return self._must_write_all

    def _replace(self, rows: list[Row], zxid_bound: int, sessions: Sequence[StoredSession]) -> None:
        """A new file in the place of the old one; at each moment there is one of the two."""
        new = f"{self.path}.new"
        for path in (new, f"{new}-journal"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        _restrict(new)
        connection = sqlite3.connect(new, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(_SCHEMA)
            with connection:
                _fill(connection, rows, [], zxid_bound, sessions, ())
        finally:
            connection.close()
        self._keep_others()
        # This moves our journal into our file, and deletes what has the name of the journal. A
        # journal beside another file than its own would damage that.
        self.connection.close()
        with suppress(FileNotFoundError):
            os.unlink(f"{self.path}-wal")
        self._kept = self._look()
        os.replace(new, self.path)
        _sync_directory(os.path.dirname(self.path))
        self._open()
        self._must_write_all = self._is_damaged = False

    def _keep_others(self) -> None:
        """Under another name: a copy at that place may be the only one."""
        found = self._look()
        if found == self._kept:
            return  # by an attempt that failed later
        assert self._seen is not None
        paths = (self.path, f"{self.path}-wal")
        changed = [
            (path, ours is not None and now.inode == ours.inode)
            for path, ours, now in zip(paths, self._seen, found, strict=True)
            if now is not None and (self._is_damaged or now != ours)
        ]
        name = self._free_name() if changed else ""
        for path, is_ours in changed:
            target = name + path[len(self.path) :]
            try:
                if is_ours:
                    shutil.copyfile(path, target)  # the close of the connection changes it
                    os.chmod(target, FILE_MODE)
                else:
                    os.link(path, target)
            except OSError:
                with suppress(OSError):
                    os.unlink(target)
                raise
        self._kept = found
        if not self._is_damaged and _without_times(found) == _without_times(self._seen):
            self._time_changes += 1
            self._trusts_times = self._time_changes < _MAX_TIME_CHANGES
        logger.warning(
            "The znode file %s was %s while in use, writing it again from memory%s",
            self.path,
            "damaged" if self._is_damaged else "replaced or changed" if changed else "deleted",
            f": the other file is kept as {name}; to restore a copy, stop the broker first"
            if changed
            else "",
        )

    def _free_name(self) -> str:
        for number in range(_MAX_KEPT):
            name = f"{self.path}.replaced-{number}"
            if not os.path.lexists(name) and not os.path.lexists(f"{name}-wal"):
                return name
        raise FileMoved(
            f"another program replaces or changes it, and {_MAX_KEPT} files {self.path}.replaced-* "
            "are kept; end that program, and move these files away"
        )

    def problem_of(self, error: BaseException) -> WriteProblem:
        """Describe the failure, with the system's error if small files cannot be written either."""
        return _write_problem(self.path, error, _system_error(f"{self.path}-check"))

    def reserve_zxids(self, tree: EmbeddedTree) -> None:
        """Raise the bound of transaction ids above that of the loaded tree. Raises StoreError."""
        try:
            self.commit([], [], tree.zxid + ZXID_BLOCK)
        except (sqlite3.Error, OSError, FileMoved) as error:
            found = self.problem_of(error)
            fix = found.fix.partition(";")[0]  # the rest is about a broker that runs
            raise StoreError(self.path, f"{found.problem}; {fix}") from None

    def _add_columns(self) -> None:
        present = {row[1] for row in self.connection.execute("PRAGMA table_info(znodes)")}
        for name, kind in _NEW_COLUMNS.items():
            if name not in present:
                self.connection.execute(f"ALTER TABLE znodes ADD COLUMN {name} {kind}")

    def load(self, tree: EmbeddedTree) -> None:
        """Fill the tree. Ephemeral znodes are loaded if their session is open in the tree;
        others are removed with the next commit. Raises StoreError."""
        try:
            # SQLite reads a damaged file as far as it can: a znode that is missing then would be a
            # topic that does not exist. 1 us for each znode.
            for (problem,) in self.connection.execute("PRAGMA quick_check(1)"):
                if problem != "ok":
                    raise _DamagedRow(problem)
            self._load(tree)
        except (sqlite3.DatabaseError, _DamagedRow) as error:
            raise StoreError(self.path, _is_damaged(self.path, str(error))) from None

    def _load(self, tree: EmbeddedTree) -> None:
        bound = self.connection.execute("SELECT value FROM bounds WHERE name='zxid'").fetchone()
        if bound and not (isinstance(bound[0], int) and 0 <= bound[0] <= _ZXID_MAX):
            raise _DamagedRow(f"the bound of transaction ids is {bound[0]!r}")
        tree.zxid = bound[0] if bound else 0
        for row in self.connection.execute(f"SELECT {_COLUMNS} FROM znodes ORDER BY path"):
            path, owner = row[0], row[9]
            if owner and owner not in tree.sessions:
                tree.dirty[path] = None
                continue
            if not _is_row(row):
                raise _DamagedRow(f"the row of the znode {path!r} is damaged")
            tree.nodes[path] = _node_of(row, tree.nodes.get(path))
            if owner:
                tree.sessions[owner].add(path)
        for path in tree.nodes:
            if path != "/":
                cut = path.rfind("/")
                parent = tree.nodes.get(path[:cut] or "/")
                if parent is None or cut < 0 or cut == len(path) - 1:
                    raise _DamagedRow(f"the znode {path!r} has no parent")
                parent.children.add(path[cut + 1 :])

    def sessions(self) -> list[StoredSession]:
        """The sessions that were open when the file was written last. Raises StoreError."""
        query = "SELECT id, password, timeout_ms FROM sessions ORDER BY id"
        try:
            found = [StoredSession(*row) for row in self.connection.execute(query)]
            for each in found:
                if not (isinstance(each.password, bytes) and isinstance(each.timeout_ms, int)):
                    raise _DamagedRow(f"session {each.session_id} is invalid")
            return found
        except (sqlite3.DatabaseError, _DamagedRow) as error:
            raise StoreError(self.path, _is_damaged(self.path, str(error))) from None

    def commit(
        self,
        rows: list[Row],
        removed: list[tuple[str]],
        zxid_bound: int,
        opened: Sequence[StoredSession] = (),
        ended: Sequence[tuple[int]] = (),
        is_all: bool = False,
    ) -> None:
        """Write one transaction, which is durable on return; `is_all`: to a new file.

        Raises sqlite3.Error, OSError or FileMoved; the transaction may have been written all the
        same.
        """
        if is_all:
            self._replace(rows, zxid_bound, opened)
            return
        if not self.is_in_place():
            raise FileMoved(f"{self.path} was deleted, replaced or changed by another program")
        before = self._seen
        try:
            self._write(rows, removed, zxid_bound, opened, ended)
        finally:
            # What a failed write has left is ours, too.
            now = self._look()
            if _inodes(before) == _inodes(now):
                self._seen = now
        if self._seen != now:
            raise FileMoved(f"{self.path} was deleted or replaced by another program")
        if os.stat(f"{self.path}-wal").st_size > LONGEST_JOURNAL_BYTES:
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._seen = self._look()

    def _write(
        self,
        rows: list[Row],
        removed: list[tuple[str]],
        zxid_bound: int,
        opened: Sequence[StoredSession],
        ended: Sequence[tuple[int]],
    ) -> None:
        with self.connection:
            _fill(self.connection, rows, removed, zxid_bound, opened, ended)

    def close(self) -> None:
        self.connection.close()


def _fill(
    connection: sqlite3.Connection,
    rows: list[Row],
    removed: list[tuple[str]],
    zxid_bound: int,
    opened: Sequence[StoredSession],
    ended: Sequence[tuple[int]],
) -> None:
    if removed:
        connection.executemany("DELETE FROM znodes WHERE path=?", removed)
    if rows:
        connection.executemany(_UPSERT, rows)
    if zxid_bound:
        connection.execute("INSERT OR REPLACE INTO bounds VALUES ('zxid', ?)", (zxid_bound,))
    if opened:
        connection.executemany(
            "INSERT OR REPLACE INTO sessions (id, password, timeout_ms) VALUES (?,?,?)", opened
        )
    if ended:
        connection.executemany("DELETE FROM sessions WHERE id=?", ended)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Worker:
    """One daemon thread: a call that hangs in a file system does not keep the process from ending.

    The queue is bounded by its user, which waits for a call before the next one.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[
            tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None
        ]
        self._calls = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._calls.put((future, function, arguments))
        return future

    def end(self) -> None:
        """The thread ends after the calls that were submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)


async def open_in_thread(open_file: Callable[[str], Opened], path: str) -> Opened:
    """Open and load a file in a daemon thread. Raises StoreError, also if the disk does not respond
    in time; the thread may go on then."""
    worker = _Worker("ottla-znodes-open")
    future = worker.submit(open_file, path)
    worker.end()
    try:
        opened: Opened = await asyncio.wait_for(asyncio.wrap_future(future), OPEN_SECONDS)
    except TimeoutError:
        raise StoreError(
            path,
            f"{path} cannot be opened: no response of the file system for {OPEN_SECONDS:g} "
            "seconds; check the disk and the log of the kernel",
        ) from None
    return opened


class TreeCommits:
    """Group commits of a tree on the running event loop.

    After a failure memory and file differ: each call raises ConnectionLost until `retry` has
    written all that differs.
    """

    def __init__(
        self,
        tree: EmbeddedTree,
        file: TreeFile,
        sessions: Sequence[StoredSession] = (),
        *,
        commit_seconds: float = COMMIT_SECONDS,
        repeats: bool = True,
    ) -> None:
        """`file` has the bound of transaction ids from `TreeFile.reserve_zxids`; `sessions`
        are those in the file. `repeats`: whether a commit that fails is repeated at once."""
        self.tree = tree
        self.file = file
        self.problem: WriteProblem | None = None
        self._commit_seconds = commit_seconds
        self._repeats = repeats
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._writers: list[asyncio.Future[None]] = []  # of the call in progress
        self._call: asyncio.Future[Any] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None  # of the last call
        self._is_repeated = False
        self._closed = False
        self._open_sessions = {session.session_id: session for session in sessions}
        # What differs from the file; None stands for a session that has ended.
        self._sessions: dict[int, StoredSession | None] = {}
        self._zxid_bound = tree.zxid + ZXID_BLOCK
        # One thread, as commits are serial.
        self._worker = _Worker("ottla-znodes")

    def session_opened(self, session: StoredSession) -> None:
        self._sessions[session.session_id] = self._open_sessions[session.session_id] = session

    def session_ended(self, session_id: int) -> None:
        self._sessions[session_id] = None
        self._open_sessions.pop(session_id, None)

    def check(self) -> None:
        """Raise ConnectionLost while the file cannot be written."""
        if self.problem is not None:
            raise ConnectionLost(self.file.path, self.problem.problem)

    def barrier(self) -> "asyncio.Future[None] | None":
        """A future that is done when all changes so far are durable; None if they are already.

        It fails with ConnectionLost if the file cannot be written, or not in time.
        """
        self.check()
        if not self._has_changes() and self._call is None:
            return None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._call is None:
            self._commit()
        return waiter

    def verify(self) -> None:
        """Write the file again if others have deleted, replaced or changed it."""
        if self._call is None and self.problem is None:
            self._run(self.file.is_in_place, self._verified)

    def retry(self) -> None:
        """After a failure, writes all that differs, unless an attempt is in progress."""
        if self._call is None and self.problem is not None:
            self._run(self.file.reopen, self._reopened, self._error)

    # Calls in the worker thread, one at a time

    def _run(
        self,
        function: Callable[..., Any],
        ended: Callable[[BaseException | None, Any], None],
        *arguments: Any,
    ) -> None:
        """Give the waiters the result of this call, or of what follows from it."""
        self._writers += self._waiters
        self._waiters = []
        if self._closed:
            self._fail(WriteProblem(f"the znode file {self.file.path} is closed", ""))
            return
        self._deadline = self._loop.call_later(self._commit_seconds, self._is_overdue)
        call = self._call = asyncio.wrap_future(
            self._worker.submit(function, *arguments), loop=self._loop
        )
        call.add_done_callback(lambda done: self._ended(done, ended))

    def _ended(
        self, call: "asyncio.Future[Any]", ended: Callable[[BaseException | None, Any], None]
    ) -> None:
        self._call = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is not None:
            self._error = error
        ended(error, None if error is not None else call.result())

    def _is_overdue(self) -> None:
        """The call goes on; if it succeeds in the end, so does the failure end."""
        self._deadline = None
        text = f"no response of the file system for {self._commit_seconds:g} seconds"
        self._fail(_write_problem(self.file.path, TimeoutError(text), None))

    def _has_changes(self) -> bool:
        return bool(self.tree.dirty or self._sessions) or self.tree.zxid >= self._zxid_bound

    def _commit(self, *, is_all: bool = False) -> None:
        """With `is_all` in one turn, too, for no change may be written in part."""
        if is_all:
            self.tree.dirty = {**self.tree.dirty, **dict.fromkeys(self.tree.nodes)}
            self._sessions = {**self._sessions, **self._open_sessions}
        rows: list[Row] = []
        removed: list[tuple[str]] = []
        changed = list(self.tree.dirty)
        for path in changed:
            node = self.tree.nodes.get(path)
            if node is None:
                removed.append((path,))
            elif not node.ephemeral_owner or self.tree.keeps_ephemerals:
                rows.append(_row_of(path, node))
        self.tree.dirty.clear()
        sessions, self._sessions = self._sessions, {}
        opened = [session for session in sessions.values() if session is not None]
        ended = [(number,) for number, session in sessions.items() if session is None]
        bound_before, bound = self._zxid_bound, 0
        # After a failure something has to be written, to know whether that is possible.
        if is_all or self.problem is not None or self.tree.zxid >= bound_before:
            bound = self._zxid_bound = self.tree.zxid + ZXID_BLOCK

        def committed(error: BaseException | None, _: object) -> None:
            if error is None:
                self._committed()
                return
            # They differ still. What has changed since is newer.
            self.tree.dirty = {**dict.fromkeys(changed), **self.tree.dirty}
            self._sessions = {**sessions, **self._sessions}
            self._zxid_bound = bound_before
            self._failed(error)

        self._run(self.file.commit, committed, rows, removed, bound, opened, ended, is_all)

    def _committed(self) -> None:
        writers, self._writers = self._writers, []
        if not self._has_changes():
            # Callers that have waited since the commit began only read.
            writers += self._waiters
            self._waiters = []
        self._is_repeated = False
        if self.problem is not None:
            self.problem = None
            logger.info("The znode file %s can be written again", self.file.path)
        for waiter in writers:
            if not waiter.done():
                waiter.set_result(None)
        if self._waiters:
            self._commit()

    def _failed(self, error: BaseException) -> None:
        """At first the file is opened again at once: an error may be one of a moment."""
        repeats = self._repeats or isinstance(error, FileMoved)
        if repeats and self.problem is None and not self._is_repeated:
            self._is_repeated = True
            self._run(self.file.reopen, self._reopened, error)
        else:
            self._run(self.file.problem_of, self._explained, error)

    def _reopened(self, error: BaseException | None, must_write_all: bool | None) -> None:
        if error is None:
            self._commit(is_all=bool(must_write_all))
        else:
            self._failed(error)

    def _explained(self, error: BaseException | None, found: WriteProblem | None) -> None:
        self._is_repeated = False
        if found is None:
            assert error is not None
            found = _write_problem(self.file.path, error, None)
        self._fail(found)

    def _fail(self, problem: WriteProblem) -> None:
        is_new = self.problem is None
        self.problem = problem
        failed = self._writers + self._waiters
        self._writers, self._waiters = [], []
        for waiter in failed:
            if not waiter.done():
                waiter.set_exception(ConnectionLost(self.file.path, problem.problem))
        if is_new and not self._closed:
            logger.error("%s; %s", problem.problem, problem.fix)

    def _verified(self, error: BaseException | None, is_in_place: bool | None) -> None:
        if error is not None or not is_in_place:
            self._run(self.file.reopen, self._reopened)
        elif self._writers or self._waiters:
            self._commit()

    # Close

    async def finish(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what differs if that is possible, and close the file; wait for each of the two
        `seconds` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until_idle()
                if self.problem is not None:
                    self.retry()
                elif self._has_changes():
                    self._commit()
                else:
                    self.verify()
                await self._until_idle()
        if self.tree.dirty or self._call is not None:
            logger.error(
                "The last changes of the znode tree are not in %s: %s",
                self.file.path,
                "a write is in progress" if self.problem is None else self.problem.problem,
            )
        await self.close(seconds)

    async def _until_idle(self) -> None:
        while self._call is not None:
            await asyncio.wait([self._call])  # whose callback may begin the next one

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close the file after the call in the worker thread, which may hang in a file system: wait
        `seconds` at most."""
        self._closed = True
        closing = asyncio.wrap_future(self._worker.submit(self.file.close), loop=self._loop)
        self._worker.end()
        await asyncio.wait([closing], timeout=seconds)


_FIX_SPACE = (
    "free disk space or enlarge the disk; the broker writes again by itself, no restart is needed"
)
_FIX_QUOTA = (
    "raise the disk quota of the broker's user, or delete files of that user; no restart is needed"
)
_FIX_READ_ONLY = (
    "mount the file system read-write again, and check the log of the kernel for why it is not; no "
    "restart is needed"
)
_FIX_LOCKED = (
    "end the other program that has the file open (such as sqlite3 or a backup tool); no restart "
    "is needed"
)
_FIX_RIGHTS = (
    "give the broker's user the right to write the file and its directory; no restart is needed"
)
_FIX_DISK = (
    "check the disk and the log of the kernel; the broker tries again every second, and no restart "
    "is needed when the disk works"
)
_FIX_DAMAGED = (
    "stop the broker, copy the file, and restore it from a backup or with `sqlite3 FILE .recover`"
)
# By a part of SQLite's text; Python 3.10 has no error codes. The first one that fits.
_FIXES = (
    ("is full", _FIX_SPACE),
    ("locked", _FIX_LOCKED),
    ("readonly", _FIX_READ_ONLY),
    ("malformed", _FIX_DAMAGED),
    ("not a database", _FIX_DAMAGED),
)
_FIXES_BY_NUMBER = {
    errno.ENOSPC: _FIX_SPACE,
    errno.EDQUOT: _FIX_QUOTA,
    errno.EROFS: _FIX_READ_ONLY,
    errno.EACCES: _FIX_RIGHTS,
    errno.EPERM: _FIX_RIGHTS,
}


def _write_problem(path: str, error: BaseException, system: OSError | None) -> WriteProblem:
    text = str(error) or type(error).__name__
    fix = next((fix for part, fix in _FIXES if part in text), _FIX_DISK)
    if system is None and isinstance(error, OSError) and error.errno is not None:
        system = error
    elif system is not None and system.strerror:
        text = f"{text} ({system.strerror})"
    if system is not None and system.errno is not None:
        fix = _FIXES_BY_NUMBER.get(system.errno, fix)
    return WriteProblem(f"the znode file {path} cannot be written: {text}", fix)


def _system_error(path: str) -> OSError | None:
    """The error of writing a small file there; SQLite's own errors do not tell a quota from a
    broken disk."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(path)
    except OSError as error:
        return error
    return None


def _seen(path: str) -> _Seen | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return _Seen(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _inodes(seen: "tuple[_Seen | None, ...] | None") -> list[tuple[int, int] | None]:
    return [None if each is None else each[:2] for each in seen or ()]


def _without_times(seen: "tuple[_Seen | None, ...] | None") -> list[tuple[int, ...] | None]:
    return [None if each is None else each[:3] for each in seen or ()]


def _is_damage(error: BaseException | None) -> bool:
    """Whether SQLite has read what cannot be right, rather than failed to read or write."""
    return isinstance(error, sqlite3.DatabaseError) and type(error) is sqlite3.DatabaseError


def _cannot_be_opened(path: str, error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text:
        return (
            f"{path} is in use by another broker process, or by a program such as sqlite3; stop "
            "that one first"
        )
    if not isinstance(error, sqlite3.OperationalError):
        return _is_damaged(path, text)
    system = _system_error(f"{path}-check")
    if system is None and "I/O" not in text and "unable to open" not in text:
        return _is_damaged(path, text)
    for each in (path, f"{path}-wal"):
        if os.path.lexists(each) and not os.path.isfile(each):
            return f"{each} is no file; move it away, and restore the znode file from a backup"
    found = _write_problem(path, error, system)
    if system is None or system.errno not in _FIXES_BY_NUMBER:
        fix = "the first directory of log.dirs must exist and be writable"
    else:
        fix = found.fix.partition(";")[0]
    return f"{path} cannot be opened: {found.problem.partition(' cannot be written: ')[2]}; {fix}"


def _is_damaged(path: str, text: str) -> str:
    # One line, with what SQLite quotes of the damaged file.
    text = " ".join(text.encode("ascii", "backslashreplace").decode().split())[:_REASON_CHARACTERS]
    return (
        f"{path} is not a readable znode file: {text}; keep a copy, and restore it from a backup or"
        f" with `sqlite3 {path} .recover`"
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


class _DamagedRow(Exception):
    """SQLite could read it, and it cannot be right."""


def _is_row(row: tuple[object, ...]) -> bool:
    """Whether the columns have the types of `Row`, which SQLite does not check."""
    path, data, *numbers, acl, acl_version, null_data = row
    if acl is not None:
        try:
            isinstance(acl, str) and [Acl(*entry) for entry in json.loads(acl)]
        except (ValueError, TypeError, RecursionError):
            return False
    return (
        isinstance(path, str)
        and isinstance(data, bytes)
        and isinstance(acl, str | None)
        and all(isinstance(each, int) for each in (*numbers, acl_version, null_data))
    )


def _node_of(row: Row, root: Node | None) -> Node:
    _, data, version, created, czxid, mzxid, pzxid, ctime_ms, mtime_ms, owner = row[:10]
    acl, acl_version, null_data = row[10:]
    node = root if root is not None else Node(data, czxid, ctime_ms, owner)
    node.data = NULL_DATA if null_data else data
    node.version = version
    node.created_children = created
    node.mzxid = mzxid
    node.pzxid = pzxid
    node.mtime_ms = mtime_ms
    node.acl = None if acl is None else tuple(Acl(*entry) for entry in json.loads(acl))
    node.acl_version = acl_version
    return node
