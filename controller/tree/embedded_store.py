"""The znode tree of one broker, kept in a SQLite file in the data directory.

The tree is in memory (embedded_tree.py), and reads use only that. A write is applied in memory,
then committed to the file (tree_file.py), and the call returns after the commit. A read may see a
change some milliseconds before it is durable.

While the file cannot be written (a full disk, a lock of another program, a file system that does
not respond) reads go on, and writes raise ConnectionLost before they change anything. The store
tries again every second and then goes on by itself, with the same session.

Sessions end with the process, so ephemeral znodes are never written.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from ottla.controller.tree.embedded_tree import EmbeddedTree, TreeWatch
from ottla.controller.tree.store import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    REARMED,
    SESSION_CONNECTED,
    SESSION_EXPIRED,
    CreateOp,
    DeleteOp,
    Op,
    OpResult,
    SessionCallback,
    SetOp,
    Stat,
    StoreError,
    TooLarge,
    WatchCallback,
    WatchEvent,
    WatchHandle,
    ancestors_of,
)
from ottla.controller.tree.tree_file import (
    COMMIT_SECONDS,
    TreeCommits,
    TreeFile,
    WriteProblem,
    open_in_thread,
)
from ottla.protocol.steps import Turn, over

RETRY_SECONDS = 1.0
"""From a failed attempt to write the file to the next one."""
VERIFY_SECONDS = 5.0
"""The interval at which the store checks that the file exists; a commit checks it, too."""


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


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
    """A session on an embedded tree; implements `ZnodeStore`.

    `EmbeddedStore(path)` has a file and a tree. `EmbeddedStore(tree=tree)` is another session
    on a tree in memory, for tests with several brokers, without a file.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        tree: EmbeddedTree | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        synchronous: str = "FULL",
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        """`commit_seconds` is the deadline of a write."""
        self.path = path
        self.tree = tree if tree is not None else EmbeddedTree(now_ms)
        self.synchronous = synchronous
        self.watches: dict[_Watch, None] = {}  # in the order they were set
        self._session_id = 0
        self._session_callbacks: list[SessionCallback] = []
        self._commits: TreeCommits | None = None
        self._commit_seconds = commit_seconds
        self._timers: list[asyncio.TimerHandle] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return 0

    @property
    def write_problem(self) -> WriteProblem | None:
        """Why writes fail now, and the fix; None if they do not."""
        return None if self._commits is None else self._commits.problem

    def call_soon(self, callback: Callable[[WatchEvent], None], event: WatchEvent) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(callback, event)

    # Session

    async def connect(self) -> None:
        """Open and load the file (a few milliseconds) and start a session. Raises StoreError."""
        self._loop = asyncio.get_running_loop()
        if self.path is not None and self._commits is None:
            file = await open_in_thread(self._open, self.path)
            self._commits = TreeCommits(self.tree, file, commit_seconds=self._commit_seconds)
            self._every(RETRY_SECONDS, self._commits.retry)
            self._every(VERIFY_SECONDS, self._commits.verify)
        self._open_session()

    def _open(self, path: str) -> TreeFile:
        """In a thread, while nothing else uses the tree."""
        file = TreeFile(path, self.synchronous)
        file.load(self.tree)
        file.reserve_zxids(self.tree)
        return file

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        assert self._loop is not None
        index = len(self._timers)

        def run() -> None:
            call()
            self._timers[index] = loop.call_later(seconds, run)

        loop = self._loop
        self._timers.append(loop.call_later(seconds, run))

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
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        commits, self._commits = self._commits, None
        if commits is not None:
            await commits.finish()

    def lose_session(self) -> None:
        """Expire the session on the side of the server, for tests: its ephemeral znodes are
        deleted and calls raise SessionExpired; there is no callback yet."""
        self.tree.end_session(self._session_id)

    def expire_session(self) -> None:
        """Expire the session with callbacks, for tests: SESSION_EXPIRED, a new session, and each
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
            async for path in over(paths)
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
    ) -> str:
        ops: list[Op] = []
        if make_parents:
            ops = [CreateOp(each) for each in ancestors_of(path) if each not in self.tree.nodes]
        ops.append(CreateOp(path, data, ephemeral, sequential))
        self._check_writable()
        made = self._apply(ops)[-1]
        assert isinstance(made, str)
        await self._durable()
        return made

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write([DeleteOp(path, version)])

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._write(ops)

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        results: list[list[OpResult] | StoreError] = []
        turn = Turn()
        for ops in batches:
            self._check_writable()
            try:
                results.append(self._apply(ops))
            except StoreError as error:
                if not error.path:  # the session, not an operation
                    raise
                results.append(error)
            await turn.share()
        await self._durable()
        return results

    async def _write(self, ops: Sequence[Op]) -> list[OpResult]:
        self._check_writable()
        results = self._apply(ops)
        await self._durable()
        return results

    def _apply(self, ops: Sequence[Op]) -> list[OpResult]:
        for op in ops:
            # Settings only: a topic of very many partitions has a long znode.
            if (
                isinstance(op, SetOp | CreateOp)
                and len(op.data) > MAX_DATA_BYTES
                and op.path.startswith("/config/")
            ):
                raise TooLarge(
                    op.path,
                    f"{op.path} would have {len(op.data)} bytes; the settings of one entity have "
                    f"at most {MAX_DATA_BYTES}, as in ZooKeeper.",
                )
        return self.tree.apply(self._session_id, ops)

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

    def _check_writable(self) -> None:
        """Raise ConnectionLost before anything is changed that cannot be written."""
        if self._commits is not None:
            self._commits.check()

    async def _durable(self) -> None:
        """Return when all writes so far are committed to the file."""
        if self._commits is None:
            self.tree.dirty.clear()
        elif (barrier := self._commits.barrier()) is not None:
            await barrier
