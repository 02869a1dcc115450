"""The interface of the znode tree, with two implementations.

`ZooKeeperStore` (zookeeper_store.py) uses a ZooKeeper ensemble, `EmbeddedStore`
(embedded_store.py) a SQLite file, for one broker. Both have the guarantees of ZooKeeper:

* each change has a transaction id (zxid), and zxids increase; the `czxid` of a znode is the zxid
  of its creation (the broker epoch is the czxid of the broker's znode);
* a write is durable when it returns; the writes of a store are applied in the order of the calls;
* `version` counts the changes of the data, for compare-and-set; -1 matches any version;
* an ephemeral znode is deleted at the end of the session that created it; sequential znodes get ten
  digits appended that increase under one parent;
* a multi is atomic.

Watches are persistent (those of ZooKeeper fire once): a callback runs on the event loop at least
once after each change that follows the return of `watch_data` or `watch_children`. One call may
stand for several changes, so a callback has to read the tree again. After the session has expired
the watches are set again on the next one, and each callback is called once.

Each call has a deadline: if the ensemble does not respond in time `ConnectionLost` is raised, and
a write may or may not have been applied. No call blocks the event loop.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1

SESSION_CONNECTED = "connected"
"""The session is connected, for the first time or again."""
SESSION_SUSPENDED = "suspended"
"""The connection is lost; the session may still exist on the server."""
SESSION_EXPIRED = "expired"
"""The session has expired, and its ephemeral znodes are deleted; the next one is a new session."""


class StoreError(Exception):
    """A znode operation failed: `path` of the znode, `index` of the operation in a multi."""

    def __init__(self, path: str = "", message: str = "", index: int = -1) -> None:
        super().__init__(message or path)
        self.path = path
        self.index = index


class NoNode(StoreError):
    """The znode, or for a create its parent, does not exist."""


class NodeExists(StoreError):
    """A znode with this path exists already."""


class BadVersion(StoreError):
    """The version of the znode is not the expected one."""


class NotEmpty(StoreError):
    """A znode with children cannot be deleted."""


class NoChildrenForEphemerals(StoreError):
    """An ephemeral znode cannot have children."""


class InvalidPath(StoreError):
    """No znode of ZooKeeper can have this path, such as one with a part `..`."""


class NotPermitted(StoreError):
    """The ACL of the znode, or a failed authentication, denies the operation."""


MAX_DATA_BYTES = 1_000_000
"""A little less than jute.maxbuffer of a ZooKeeper server that has no other limit, for the paths
beside the data."""


class TooLarge(StoreError):
    """The znode would have more bytes than the server accepts."""


class ConnectionLost(StoreError):
    """No response before the deadline; a write may or may not have been applied."""


class ZooKeeperUnreachable(ConnectionLost):
    """No connection could be made at the start."""


class SessionExpired(StoreError):
    """The session has expired; nothing was applied after that."""


class Stat(NamedTuple):
    """The metadata of a znode; the fields are those of ZooKeeper's `Stat`."""

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
    acl_version: int = 0


class _NullData(bytes):
    __slots__ = ()


NULL_DATA = _NullData()
"""The data of a znode that a ZooKeeper client created with null: equal to no bytes. Clients of the
server without Java get null again, as null and empty data differ for Kafka."""


class Acl(NamedTuple):
    """One entry of a znode's ACL: permission bits, scheme and id, as in ZooKeeper."""

    permissions: int
    scheme: str
    name: str


class CreateOp(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[Acl, ...] | None = None
    """The embedded tree keeps it; the store of a ZooKeeper ensemble has one ACL for all znodes."""


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
"""The created path of a create, the new Stat of a set, None of a delete or check."""

CREATED = "created"
DELETED = "deleted"
CHANGED = "changed"
CHILDREN = "children"
REARMED = "rearmed"
"""The watch was set again after a reconnection; there may have been changes before that."""


class WatchEvent(NamedTuple):
    kind: str  # one of the five constants above
    path: str


WatchCallback = Callable[[WatchEvent], None]
SessionCallback = Callable[[str], None]


class WatchHandle(Protocol):
    def cancel(self) -> None:
        """No callback runs after this has returned."""


class ZnodeStore(Protocol):
    """See the module for the guarantees of all implementations."""

    @property
    def session_id(self) -> int:
        """The id of the session, as in `Stat.ephemeral_owner` of its znodes; 0 without one."""

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that the server agreed to; 0 before, and where no session expires."""

    async def connect(self) -> None:
        """Open the first session; raise ConnectionLost after the connection timeout."""

    async def close(self) -> None:
        """Close the session, which deletes its ephemeral znodes, and release all resources."""

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
    ) -> str:
        """Return the created path, with the digits if sequential."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def children(self, path: str) -> list[str]:
        """The names of the children, sorted."""

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """An entry for each path, None without a znode; requests are pipelined.

        A path that no znode can have has none: a name in a notification may be anything.
        """

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Atomic; raises the error of the first failed operation."""

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        """Independent multis, pipelined; a list of results or an error for each.

        Only ConnectionLost and SessionExpired are raised, as they hit all of them.
        """

    async def watch_data(self, path: str, callback: WatchCallback) -> WatchHandle:
        """Watch creation, change and deletion of a znode, which may not exist yet."""

    async def watch_data_many(
        self, watches: Sequence[tuple[str, WatchCallback]]
    ) -> list[WatchHandle]:
        """Several `watch_data`, pipelined."""

    async def watch_children(self, path: str, callback: WatchCallback) -> WatchHandle:
        """Watch creation and deletion of children; the znode may not exist yet."""

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        """Call back with SESSION_CONNECTED, SESSION_SUSPENDED or SESSION_EXPIRED, on the loop."""


def parent_of(path: str) -> str:
    """`/a/b` -> `/a`; `/a` -> `/`."""
    return path[: path.rfind("/")] or "/"


def ancestors_of(path: str) -> list[str]:
    """The ancestors without the root, from the top: `/a/b/c` -> `[/a, /a/b]`."""
    return [path[:end] for end, letter in enumerate(path) if letter == "/" and end > 0]


async def set_or_create(store: ZnodeStore, path: str, data: bytes) -> None:
    """Write `data` whether or not the znode exists; create missing parents."""
    try:
        await store.set(path, data)
    except NoNode:
        try:
            await store.create(path, data, make_parents=True)
        except NodeExists:  # another client created it meanwhile
            await store.set(path, data)


async def paths_below(store: ZnodeStore, path: str) -> list[str]:
    """The znode and all below it, parents before children; empty if it does not exist."""
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
    """The children; empty if the znode does not exist."""
    try:
        return await store.children(path)
    except NoNode:
        return []


async def get_permitted(
    store: ZnodeStore, paths: Sequence[str]
) -> list[tuple[bytes, Stat] | NotPermitted | None]:
    """As `get_many`, with the error for a znode that may not be read: the others are read."""
    try:
        return list(await store.get_many(paths))
    except NotPermitted:
        pass
    found: list[tuple[bytes, Stat] | NotPermitted | None] = []
    for path in paths:
        try:
            found += await store.get_many([path])
        except NotPermitted as error:
            found.append(error)
    return found


async def make_paths(store: ZnodeStore, paths: Iterable[str]) -> None:
    """Create the missing persistent znodes and their parents, with few requests."""
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
    except NodeExists:  # another broker creates them at the same time: one by one
        for path in missing:
            try:
                await store.create(path)
            except NodeExists:
                continue
