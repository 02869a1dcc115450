"""The znode tree as the rest of Ottla sees it: one interface, two implementations.

``ZooKeeperStore`` (zookeeper_store.py) talks to a ZooKeeper ensemble, ``EmbeddedStore``
(embedded_store.py) keeps the same tree in a SQLite file for one broker. Both promise what
ZooKeeper promises:

* every change gets a transaction id (zxid) that only grows; a node's ``czxid`` is the zxid of its
  creation (the broker epoch is the czxid of the broker's node);
* a write that returned is durable; writes of one store are applied in the order they were called;
* ``version`` counts the changes of the data and makes compare-and-set possible; -1 matches any;
* ephemeral nodes live as long as the session that made them; sequential nodes get ten digits
  appended that only grow under one parent;
* a multi is applied as a whole or not at all.

A watch, once set, stays set (ZooKeeper's own fire once): its callback runs on the event loop at
least once after every change that follows the return of ``watch_data``/``watch_children``. Several
changes may be reported by one call, so a callback says "look again", never "this is the change".
After a lost session the watches are set again on the next one and every callback is called once.

Every call has a deadline: when the ensemble cannot be reached in time ``ConnectionLost`` is raised
and the caller cannot know whether a write was applied. Nothing here ever blocks the event loop.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1

SESSION_CONNECTED = "connected"
"""The first connection of a session, or its reconnection in time."""
SESSION_SUSPENDED = "suspended"
"""The connection is lost; the session may still live on the server."""
SESSION_EXPIRED = "expired"
"""The session is gone, and with it every ephemeral node; the next "connected" is a new one."""


class StoreError(Exception):
    """A znode operation failed; ``path`` names the node, ``index`` the operation of a multi."""

    def __init__(self, path: str = "", message: str = "", index: int = -1) -> None:
        super().__init__(message or path)
        self.path = path
        self.index = index


class NoNode(StoreError):
    """The node, or for a create its parent, does not exist."""


class NodeExists(StoreError):
    """A node with this path exists already."""


class BadVersion(StoreError):
    """The node's version is not the expected one."""


class NotEmpty(StoreError):
    """A node with children cannot be deleted."""


class NoChildrenForEphemerals(StoreError):
    """An ephemeral node cannot have children."""


class NotPermitted(StoreError):
    """The ACL of the node, or failed authentication, forbids the operation."""


class ConnectionLost(StoreError):
    """No answer within the deadline; a write may or may not have been applied."""


class SessionExpired(StoreError):
    """The session of the call is gone; nothing was applied after its end."""


class Stat(NamedTuple):
    """What the tree knows about a node, with ZooKeeper's meanings."""

    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int  # session id, 0 for a persistent node
    children_count: int
    cversion: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    data_length: int


class CreateOp(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetOp(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteOp(NamedTuple):
    path: str
    version: int = ANY_VERSION


class CheckOp(NamedTuple):
    path: str
    version: int


Op = CreateOp | SetOp | DeleteOp | CheckOp
OpResult = str | Stat | None
"""Of a create the path made, of a set the new Stat, of a delete or check None."""

CREATED = "created"
DELETED = "deleted"
CHANGED = "changed"
CHILDREN = "children"
REARMED = "rearmed"
"""The watch was set again on a new session; anything may have happened since."""


class WatchEvent(NamedTuple):
    kind: str  # one of the five words above
    path: str


WatchCallback = Callable[[WatchEvent], None]
SessionCallback = Callable[[str], None]


class WatchHandle(Protocol):
    def cancel(self) -> None:
        """No callback runs after this returned."""


class ZnodeStore(Protocol):
    """See the head of the module for what every implementation promises."""

    @property
    def session_id(self) -> int:
        """Of the living session, equal to ``Stat.ephemeral_owner`` of its nodes; 0 when none."""

    async def connect(self) -> None:
        """Opens the first session; raises ConnectionLost after the connection deadline."""

    async def close(self) -> None:
        """Ends the session (its ephemeral nodes go at once) and frees everything."""

    async def get(self, path: str) -> tuple[bytes, Stat]: ...

    async def exists(self, path: str) -> Stat | None: ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """Returns the path made (digits appended when sequential) and its Stat."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def children(self, path: str) -> list[str]:
        """Names without the path, sorted."""

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """One entry a path, None where no node is; requests are pipelined."""

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All or nothing; raises the error of the first operation that failed."""

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        """Independent multis, pipelined; one result list or one error each.

        Only a lost connection or session is raised, since it hits all of them.
        """

    async def watch_data(self, path: str, callback: WatchCallback) -> WatchHandle:
        """Creation, change and deletion of the node; it need not exist yet."""

    async def watch_data_many(
        self, watches: Sequence[tuple[str, WatchCallback]]
    ) -> list[WatchHandle]:
        """As many ``watch_data``, pipelined."""

    async def watch_children(self, path: str, callback: WatchCallback) -> WatchHandle:
        """Coming and going of children; waits for the node itself if it does not exist."""

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        """Calls back with SESSION_CONNECTED, SESSION_SUSPENDED or SESSION_EXPIRED, on the loop."""


def parent_of(path: str) -> str:
    """``/a/b`` -> ``/a``; ``/a`` -> ``/``."""
    return path[: path.rfind("/")] or "/"


def ancestors_of(path: str) -> list[str]:
    """Every proper ancestor below the root, from the top: ``/a/b/c`` -> ``[/a, /a/b]``."""
    return [path[:end] for end, letter in enumerate(path) if letter == "/" and end > 0]


async def set_or_create(store: ZnodeStore, path: str, data: bytes) -> None:
    """Writes ``data`` whether or not the node exists; makes missing parents."""
    try:
        await store.set(path, data)
    except NoNode:
        try:
            await store.create(path, data, make_parents=True)
        except NodeExists:  # somebody else made it in between
            await store.set(path, data)


async def delete_recursively(store: ZnodeStore, path: str) -> None:
    """Deletes the node with everything below it; not atomic, fine if it is gone already."""
    for below in reversed(await paths_below(store, path)):
        try:
            await store.delete(below)
        except NoNode:
            continue


async def paths_below(store: ZnodeStore, path: str) -> list[str]:
    """The node and everything below it, parents before children; empty if it does not exist."""
    found: list[str] = []
    pending = [path]
    while pending:
        current = pending.pop()
        try:
            names = await store.children(current)
        except NoNode:
            continue
        found.append(current)
        pending.extend(f"{current}/{name}" for name in names)
    return found


async def children_or_empty(store: ZnodeStore, path: str) -> list[str]:
    """The children, or none when the node does not exist."""
    try:
        return await store.children(path)
    except NoNode:
        return []


async def make_paths(store: ZnodeStore, paths: Iterable[str]) -> None:
    """Makes persistent empty nodes with their parents, as many as are missing, in few trips."""
    wanted: dict[str, None] = {}
    for path in paths:
        for ancestor in (*ancestors_of(path), path):
            wanted[ancestor] = None
    present = await store.get_many(list(wanted))
    missing = [path for path, found in zip(wanted, present, strict=True) if found is None]
    if not missing:
        return
    try:
        await store.multi([CreateOp(path) for path in missing])
    except NodeExists:  # another broker starts at the same time: one by one
        for path in missing:
            try:
                await store.create(path)
            except NodeExists:
                continue
