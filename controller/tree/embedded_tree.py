"""The znode tree in memory: ZooKeeper's data model without network, clock or disk.

An `EmbeddedTree` stands for the ensemble, and has any number of sessions. The embedded store
writes it to a SQLite file; tests and simulations use it without a file, with several sessions.

Each change is a plain call without an await, so a multi is atomic: its operations are applied one
by one with an undo list, and rolled back when one fails. The paths of changed znodes are in
`dirty` until they are committed; watch callbacks are passed to `notify` in the order of the
changes.

Sequence numbers and `cversion` are those of ZooKeeper: a parent counts the children ever created,
the number appended to a sequential name is that count, and the `cversion` in the Stat is
creations plus deletions.
"""

from collections.abc import Callable, Sequence

from ottla.controller.tree.store import (
    ANY_VERSION,
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    Acl,
    BadVersion,
    CreateOp,
    DeleteOp,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SessionExpired,
    SetOp,
    Stat,
    StoreError,
    WatchCallback,
    WatchEvent,
    parent_of,
)


class Node:
    """A znode; `acl` None stands for ZooKeeper's open ACL: all clients may do everything."""

    __slots__ = (
        "acl",
        "acl_version",
        "children",
        "created_children",
        "ctime_ms",
        "czxid",
        "data",
        "ephemeral_owner",
        "mtime_ms",
        "mzxid",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes, zxid: int, now_ms: int, ephemeral_owner: int = 0) -> None:
        self.data = data
        self.version = 0
        self.created_children = 0
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime_ms = self.mtime_ms = now_ms
        self.ephemeral_owner = ephemeral_owner
        self.acl: tuple[Acl, ...] | None = None
        self.acl_version = 0
        self.children: set[str] = set()

    def stat(self) -> Stat:
        return Stat(
            version=self.version,
            czxid=self.czxid,
            mzxid=self.mzxid,
            ephemeral_owner=self.ephemeral_owner,
            children_count=len(self.children),
            cversion=self.created_children * 2 - len(self.children),
            pzxid=self.pzxid,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            data_length=len(self.data),
            acl_version=self.acl_version,
        )


class TreeWatch:
    """A persistent watch, until `cancel`."""

    __slots__ = ("callback", "cancelled", "on_children", "path", "session_id", "tree")

    def __init__(
        self,
        tree: "EmbeddedTree",
        path: str,
        on_children: bool,
        callback: WatchCallback,
        session_id: int,
    ) -> None:
        self.tree = tree
        self.path = path
        self.on_children = on_children
        self.callback = callback
        self.session_id = session_id
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        watches = self.tree.watches.get(self.path)
        if watches is not None and self in watches:
            watches.remove(self)
            if not watches:
                del self.tree.watches[self.path]

    def fire(self, event: WatchEvent) -> None:
        if not self.cancelled:
            self.callback(event)


Undo = Callable[[], None]
Notify = Callable[[TreeWatch, WatchEvent], None]
Guard = Callable[[int, Op], None]
Observer = Callable[[Sequence[tuple[str, str]]], None]


class EmbeddedTree:
    """`now_ms` is for the times of znodes; `notify` delivers a watch event, at once or later.

    `guard(session_id, op)` runs before each operation of a change and may raise a StoreError;
    `observer(events)` gets the kinds and paths of each change. `keeps_ephemerals` puts
    ephemeral znodes among the `dirty` ones.

    Calls with a session id that is not open raise SessionExpired.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        first_zxid: int = 0,
        keeps_ephemerals: bool = False,
        guard: Guard | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.now_ms = now_ms
        self.keeps_ephemerals = keeps_ephemerals
        self.guard = guard
        self.observer = observer
        self.zxid = first_zxid
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0)}
        self.dirty: dict[str, None] = {}
        self.watches: dict[str, list[TreeWatch]] = {}
        self.sessions: dict[int, set[str]] = {}
        self.notify: Notify = TreeWatch.fire
        self.last_session_id = 0

    # Sessions

    def open_session(self, session_id: int = 0) -> int:
        """A new session, with the next id unless one is given."""
        if not session_id:
            session_id = self.last_session_id = self.last_session_id + 1
        self.sessions[session_id] = set()
        return session_id

    def end_session(self, session_id: int) -> None:
        """Close or expire a session: delete its ephemeral znodes and its watches."""
        owned = self.sessions.pop(session_id, None)
        if owned is None:
            return
        self.zxid += 1
        events: list[tuple[str, str]] = []
        for path in sorted(owned, reverse=True):
            self._remove(path, self.zxid, events)
        self._drop_watches_of(session_id)
        self._publish(events)

    def _drop_watches_of(self, session_id: int) -> None:
        for watches in list(self.watches.values()):
            for watch in [watch for watch in watches if watch.session_id == session_id]:
                watch.cancel()

    def _check_session(self, session_id: int) -> None:
        if session_id not in self.sessions:
            raise SessionExpired("", f"session {session_id} has ended")

    # Reads

    def get(self, session_id: int, path: str) -> tuple[bytes, Stat]:
        self._check_session(session_id)
        node = self._node(path)
        return node.data, node.stat()

    def exists(self, session_id: int, path: str) -> Stat | None:
        self._check_session(session_id)
        node = self.nodes.get(path)
        return None if node is None else node.stat()

    def children(self, session_id: int, path: str) -> list[str]:
        self._check_session(session_id)
        return sorted(self._node(path).children)

    def watch(
        self, session_id: int, path: str, on_children: bool, callback: WatchCallback
    ) -> TreeWatch:
        self._check_session(session_id)
        watch = TreeWatch(self, path, on_children, callback, session_id)
        self.watches.setdefault(path, []).append(watch)
        return watch

    # Writes

    def apply(self, session_id: int, ops: Sequence[Op]) -> list[OpResult]:
        """Apply all operations with one zxid, or none and raise the first error."""
        self._check_session(session_id)
        zxid = self.zxid + 1
        undo: list[Undo] = []
        events: list[tuple[str, str]] = []
        results: list[OpResult] = []
        dirty_before = dict(self.dirty)
        for index, op in enumerate(ops):
            try:
                if self.guard is not None:
                    self.guard(session_id, op)
                results.append(self._apply_one(session_id, op, zxid, undo, events))
            except StoreError as error:
                for step in reversed(undo):
                    step()
                self.dirty = dirty_before
                error.index = index
                raise
        self.zxid = zxid
        self._publish(events)
        return results

    def set_acl(
        self, session_id: int, path: str, acl: tuple[Acl, ...] | None, version: int = ANY_VERSION
    ) -> Stat:
        """Replace the ACL if its version is the expected one; no watch is notified."""
        self._check_session(session_id)
        node = self._node(path)
        if version not in (ANY_VERSION, node.acl_version):
            raise BadVersion(
                path, f"the ACL of {path} has version {node.acl_version}, expected {version}"
            )
        self.zxid += 1
        node.acl = acl
        node.acl_version += 1
        self._mark(path, node)
        return node.stat()

    def _apply_one(
        self,
        session_id: int,
        op: Op,
        zxid: int,
        undo: list[Undo],
        events: list[tuple[str, str]],
    ) -> OpResult:
        if isinstance(op, CreateOp):
            return self._create(session_id, op, zxid, undo, events)
        node = self._node(op.path)
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion(
                op.path, f"{op.path} has version {node.version}, expected {op.version}"
            )
        if isinstance(op, SetOp):
            before = (node.data, node.version, node.mzxid, node.mtime_ms)
            undo.append(lambda: self._restore_data(node, before))
            node.data = op.data
            node.version += 1
            node.mzxid = zxid
            node.mtime_ms = self.now_ms()
            self._mark(op.path, node)
            events.append((CHANGED, op.path))
            return node.stat()
        if isinstance(op, DeleteOp):
            if op.path == "/":
                raise NotEmpty(op.path, "The root cannot be deleted.")
            if node.children:
                raise NotEmpty(op.path, f"{op.path} has {len(node.children)} children")
            parent = self.nodes[parent_of(op.path)]
            pzxid = parent.pzxid
            undo.append(lambda: self._restore_node(op.path, node, parent, pzxid))
            self._remove(op.path, zxid, events)
        return None

    def _create(
        self,
        session_id: int,
        op: CreateOp,
        zxid: int,
        undo: list[Undo],
        events: list[tuple[str, str]],
    ) -> str:
        parent_path = parent_of(op.path)
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise NoNode(op.path, f"{op.path} cannot be created: its parent does not exist")
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(op.path, f"{parent_path} is ephemeral")
        path = f"{op.path}{parent.created_children:010d}" if op.sequential else op.path
        if path in self.nodes:
            raise NodeExists(path, f"{path} exists already")
        owner = session_id if op.ephemeral else 0
        before = (parent.created_children, parent.pzxid)
        undo.append(lambda: self._undo_create(path, parent, before, owner))
        node = self.nodes[path] = Node(op.data, zxid, self.now_ms(), owner)
        node.acl = op.acl
        parent.children.add(path[path.rfind("/") + 1 :])
        parent.created_children += 1
        parent.pzxid = zxid
        if owner:
            self.sessions[owner].add(path)
        self._mark(path, node, parent_path)
        events.append((CREATED, path))
        return path

    def _remove(self, path: str, zxid: int, events: list[tuple[str, str]]) -> None:
        node = self.nodes.pop(path)
        parent_path = parent_of(path)
        parent = self.nodes[parent_path]
        parent.children.discard(path[path.rfind("/") + 1 :])
        parent.pzxid = zxid
        if node.ephemeral_owner:
            owned = self.sessions.get(node.ephemeral_owner)
            if owned is not None:
                owned.discard(path)
        self._mark(path, node, parent_path)
        events.append((DELETED, path))

    def _mark(self, path: str, node: Node, parent_path: str | None = None) -> None:
        """The znode, and its parent's counters, differ from the file."""
        if node.ephemeral_owner and not self.keeps_ephemerals:
            return  # not written, nor is its parent's counter
        self.dirty[path] = None
        if parent_path is not None:
            self.dirty[parent_path] = None

    @staticmethod
    def _restore_data(node: Node, before: tuple[bytes, int, int, int]) -> None:
        node.data, node.version, node.mzxid, node.mtime_ms = before

    def _restore_node(self, path: str, node: Node, parent: Node, pzxid: int) -> None:
        self.nodes[path] = node
        parent.children.add(path[path.rfind("/") + 1 :])
        parent.pzxid = pzxid
        if node.ephemeral_owner:
            self.sessions[node.ephemeral_owner].add(path)

    def _undo_create(self, path: str, parent: Node, before: tuple[int, int], owner: int) -> None:
        del self.nodes[path]
        parent.children.discard(path[path.rfind("/") + 1 :])
        parent.created_children, parent.pzxid = before
        if owner:
            self.sessions[owner].discard(path)

    def _node(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path, f"{path} does not exist")
        return node

    def _publish(self, events: list[tuple[str, str]]) -> None:
        """Notify the watches of each changed znode, and those of its parent's children."""
        if self.observer is not None:
            self.observer(events)
        for kind, path in events:
            for watch in list(self.watches.get(path, ())):
                # A watch on children is also notified when the znode is created or deleted.
                if not watch.on_children or kind != CHANGED:
                    self.notify(watch, WatchEvent(kind, path))
            if kind != CHANGED:
                parent_path = parent_of(path)
                for watch in list(self.watches.get(parent_path, ())):
                    if watch.on_children:
                        self.notify(watch, WatchEvent(CHILDREN, parent_path))
