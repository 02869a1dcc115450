"""Decodes the requests of a session and applies them to the tree, as ZooKeeper's processors do."""

import re
from collections.abc import Callable

from ottla.controller.tree.embedded_tree import EmbeddedTree, Node
from ottla.controller.tree.store import (
    CheckOp,
    CreateOp,
    DeleteOp,
    NoNode,
    NotPermitted,
    Op,
    SetOp,
    Stat,
    StoreError,
    parent_of,
)
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server.codes import (
    Code,
    OpCode,
    Permission,
    RequestError,
    code_of,
)
from ottla.controller.zookeeper_server.jute import MarshallingError, Reader
from ottla.controller.zookeeper_server.sessions import OPEN, Identity, effective_acl, is_permitted
from ottla.controller.zookeeper_server.watches import EventType, WatchKind, WatchTable

MAX_RESPONSE_BYTES = 64 << 20
"""Of a multi read, which can name a znode of 1 MB ten thousand times. Brokers read what fits into
some megabytes."""
SYSTEM_PATHS = ("/zookeeper", "/zookeeper/config", "/zookeeper/quota")


class Client:
    """The session and the connection that a request comes from.

    `deliver` sends a watch event to the client.
    """

    __slots__ = ("address", "deliver", "identities", "session_id")

    def __init__(
        self,
        session_id: int,
        address: str,
        identities: list[Identity],
        deliver: Callable[[EventType, str], None],
    ) -> None:
        self.session_id = session_id
        self.address = address
        self.identities = identities
        self.deliver = deliver


class RequestProcessor:
    """`process` returns the body of the response, or raises RequestError, StoreError or
    MarshallingError. Each request is applied in one turn of the event loop."""

    def __init__(self, tree: EmbeddedTree, watches: WatchTable[Client]) -> None:
        self._tree = tree
        self._watches = watches
        self._client: Client | None = None
        tree.guard = self._check_permission
        self._handlers: dict[int, Callable[[Client, Reader], bytes]] = {
            OpCode.CREATE: self._create,
            OpCode.CREATE2: self._create2,
            OpCode.DELETE: self._delete,
            OpCode.EXISTS: self._exists,
            OpCode.GET_DATA: self._get_data,
            OpCode.SET_DATA: self._set_data,
            OpCode.GET_ACL: self._get_acl,
            OpCode.SET_ACL: self._set_acl,
            OpCode.GET_CHILDREN: self._get_children,
            OpCode.GET_CHILDREN2: self._get_children2,
            OpCode.SYNC: self._sync,
            OpCode.PING: lambda client, reader: b"",
            OpCode.CHECK: self._check,
            OpCode.MULTI: self._multi,
            OpCode.MULTI_READ: self._multi_read,
            OpCode.SET_WATCHES: self._set_watches,
            OpCode.SET_WATCHES2: self._set_watches2,
            OpCode.ADD_WATCH: self._add_watch,
            OpCode.CHECK_WATCHES: self._check_watches,
            OpCode.REMOVE_WATCHES: self._remove_watches,
            OpCode.GET_EPHEMERALS: self._get_ephemerals,
            OpCode.GET_ALL_CHILDREN_NUMBER: self._get_all_children_number,
            OpCode.WHO_AM_I: self._who_am_i,
        }

    def process(self, client: Client, op_code: int, reader: Reader) -> bytes:
        handler = self._handlers.get(op_code)
        if handler is None:
            raise RequestError(Code.UNIMPLEMENTED)
        self._client = client
        try:
            return handler(client, reader)
        finally:
            self._client = None

    # Access

    def _check_permission(self, session_id: int, op: Op) -> None:
        """Run before each operation of a change; a missing znode is an error of the operation."""
        client = self._client
        assert client is not None
        if isinstance(op, CreateOp):
            self._permit(client, self._tree.nodes.get(parent_of(op.path)), Permission.CREATE)
        elif isinstance(op, DeleteOp):
            self._permit(client, self._tree.nodes.get(parent_of(op.path)), Permission.DELETE)
        elif isinstance(op, SetOp):
            self._permit(client, self._tree.nodes.get(op.path), Permission.WRITE)
        else:
            self._permit(client, self._tree.nodes.get(op.path), Permission.READ)

    @staticmethod
    def _permit(client: Client, node: Node | None, permission: Permission | int) -> None:
        if node is None or node.acl is None:
            return
        if not is_permitted(node.acl, permission, client.identities, client.address):
            raise NotPermitted("", f"the ACL denies {client.address} this operation")

    def _readable(self, client: Client, path: str, permission: int = Permission.READ) -> Node:
        node = self._tree.nodes.get(path)
        if node is None:
            raise NoNode(path, f"{path} does not exist")
        self._permit(client, node, permission)
        return node

    # Changes

    def _create_op(self, client: Client, reader: Reader) -> CreateOp:
        path, data, acl, flags = reader.string(), reader.buffer(), reader.acl(), reader.int32()
        if not 0 <= flags <= 3:  # containers and znodes with a time to live
            raise RequestError(Code.UNIMPLEMENTED)
        sequential = flags >= 2
        check_path(path + "1" if sequential else path)
        return CreateOp(
            path, data, bool(flags & 1), sequential, effective_acl(acl, client.identities)
        )

    def _apply(self, client: Client, op: Op) -> object:
        return self._tree.apply(client.session_id, [op])[0]

    def _create(self, client: Client, reader: Reader) -> bytes:
        return jute.string(str(self._apply(client, self._create_op(client, reader))))

    def _create2(self, client: Client, reader: Reader) -> bytes:
        path = str(self._apply(client, self._create_op(client, reader)))
        return jute.string(path) + jute.stat(self._tree.nodes[path].stat())

    @staticmethod
    def _delete_op(reader: Reader) -> DeleteOp:
        path, version = reader.string(), reader.int32()
        check_path(path)
        if path == "/" or path in SYSTEM_PATHS:
            raise RequestError(Code.BAD_ARGUMENTS)
        return DeleteOp(path, version)

    def _delete(self, client: Client, reader: Reader) -> bytes:
        self._apply(client, self._delete_op(reader))
        return b""

    @staticmethod
    def _set_op(reader: Reader) -> SetOp:
        path, data, version = reader.string(), reader.buffer(), reader.int32()
        check_path(path)
        return SetOp(path, data, version)

    def _set_data(self, client: Client, reader: Reader) -> bytes:
        stat = self._apply(client, self._set_op(reader))
        assert isinstance(stat, Stat)
        return jute.stat(stat)

    @staticmethod
    def _check_op(reader: Reader) -> CheckOp:
        path, version = reader.string(), reader.int32()
        check_path(path)
        return CheckOp(path, version)

    def _check(self, client: Client, reader: Reader) -> bytes:
        self._apply(client, self._check_op(reader))
        return b""

    def _set_acl(self, client: Client, reader: Reader) -> bytes:
        path, acl, version = reader.string(), reader.acl(), reader.int32()
        check_path(path)
        entries = effective_acl(acl, client.identities)
        self._readable(client, path, Permission.ADMIN)
        return jute.stat(self._tree.set_acl(client.session_id, path, entries, version))

    # Multi

    def _multi(self, client: Client, reader: Reader) -> bytes:
        """All operations or none; in the second case each result is an error."""
        ops: list[Op] = []
        kinds: list[OpCode] = []
        invalid: RequestError | None = None
        while True:
            kind, done, _ = jute.read_multi_header(reader)
            if done:
                break
            try:
                ops.append(self._op_of(client, kind, reader))
                kinds.append(OpCode(kind))
            except RequestError as error:
                invalid = error
                break  # what follows is not decoded: all fail
        if invalid is not None:
            return _failed_multi(len(ops), len(ops) + 1, invalid.code)
        try:
            results = self._tree.apply(client.session_id, ops)
        except StoreError as error:
            if error.index < 0:
                raise
            return _failed_multi(error.index, len(ops), code_of(error))
        parts: list[bytes] = []
        for kind, result in zip(kinds, results, strict=True):
            parts.append(jute.multi_header(kind, False, 0))
            if isinstance(result, str):
                parts.append(jute.string(result))
                if kind == OpCode.CREATE2:
                    parts.append(jute.stat(self._tree.nodes[result].stat()))
            elif isinstance(result, Stat):
                parts.append(jute.stat(result))
        parts.append(jute.multi_header(-1, True, -1))
        return b"".join(parts)

    def _op_of(self, client: Client, kind: int, reader: Reader) -> Op:
        if kind in (OpCode.CREATE, OpCode.CREATE2):
            return self._create_op(client, reader)
        if kind == OpCode.DELETE:
            return self._delete_op(reader)
        if kind == OpCode.SET_DATA:
            return self._set_op(reader)
        if kind == OpCode.CHECK:
            return self._check_op(reader)
        raise RequestError(Code.UNIMPLEMENTED)

    def _multi_read(self, client: Client, reader: Reader) -> bytes:
        """Each operation has a result of its own."""
        parts: list[bytes] = []
        size = 0
        while True:
            kind, done, _ = jute.read_multi_header(reader)
            if done:
                break
            path, _watch = reader.string(), reader.boolean()
            try:
                check_path(path)
                node = self._readable(client, path)
            except (RequestError, StoreError) as error:
                code = error.code if isinstance(error, RequestError) else code_of(error)
                parts += (jute.multi_header(OpCode.ERROR, False, code), jute.int32(code))
                continue
            parts.append(jute.multi_header(kind, False, 0))
            if kind == OpCode.GET_DATA:
                size += len(node.data)
                parts += (jute.buffer(node.data), jute.stat(node.stat()))
            elif kind == OpCode.GET_CHILDREN:
                parts.append(jute.strings(sorted(node.children)))
                size += len(parts[-1])
            else:
                raise RequestError(Code.UNIMPLEMENTED)
            if size > MAX_RESPONSE_BYTES:
                raise MarshallingError(f"its response has more than {MAX_RESPONSE_BYTES} bytes")
        parts.append(jute.multi_header(-1, True, -1))
        return b"".join(parts)

    # Reads

    def _exists(self, client: Client, reader: Reader) -> bytes:
        path, watch = self._path_and_watch(reader)
        if watch:  # also on a znode that does not exist yet
            self._watches.add(WatchKind.DATA, path, client)
        node = self._tree.nodes.get(path)
        if node is None:
            raise NoNode(path, f"{path} does not exist")
        return jute.stat(node.stat())

    def _get_data(self, client: Client, reader: Reader) -> bytes:
        path, watch = self._path_and_watch(reader)
        node = self._readable(client, path)
        if watch:
            self._watches.add(WatchKind.DATA, path, client)
        return jute.buffer(node.data) + jute.stat(node.stat())

    def _children(self, client: Client, reader: Reader) -> Node:
        path, watch = self._path_and_watch(reader)
        node = self._readable(client, path)
        if watch:
            self._watches.add(WatchKind.CHILDREN, path, client)
        return node

    def _get_children(self, client: Client, reader: Reader) -> bytes:
        return jute.strings(sorted(self._children(client, reader).children))

    def _get_children2(self, client: Client, reader: Reader) -> bytes:
        node = self._children(client, reader)
        return jute.strings(sorted(node.children)) + jute.stat(node.stat())

    @staticmethod
    def _path_and_watch(reader: Reader) -> tuple[str, bool]:
        path, watch = reader.string(), reader.boolean()
        check_path(path)
        return path, watch

    @staticmethod
    def _sync(client: Client, reader: Reader) -> bytes:
        return jute.string(reader.string())

    def _get_acl(self, client: Client, reader: Reader) -> bytes:
        path = reader.string()
        node = self._readable(client, path, Permission.READ | Permission.ADMIN)
        return jute.acl(OPEN if node.acl is None else node.acl) + jute.stat(node.stat())

    def _get_ephemerals(self, client: Client, reader: Reader) -> bytes:
        prefix = reader.string()
        owned = self._tree.sessions.get(client.session_id, set())
        return jute.strings(sorted(path for path in owned if path.startswith(prefix)))

    def _get_all_children_number(self, client: Client, reader: Reader) -> bytes:
        path = reader.string()
        self._readable(client, path)
        prefix = "/" if path == "/" else f"{path}/"
        below = sum(each.startswith(prefix) for each in self._tree.nodes)
        return jute.int32(below - (path == "/"))

    @staticmethod
    def _who_am_i(client: Client, reader: Reader) -> bytes:
        identities = [*client.identities, ("ip", client.address)]
        parts = [jute.int32(len(identities))]
        for scheme, name in identities:
            shown = name.partition(":")[0] if scheme == "digest" else name
            parts += (jute.string(scheme), jute.string(shown))
        return b"".join(parts)

    # Watches

    def _set_watches(self, client: Client, reader: Reader) -> bytes:
        """Of a client that has reconnected: what changed since `zxid` is an event at once."""
        zxid = reader.int64()
        data, exist, children = reader.strings(), reader.strings(), reader.strings()
        nodes = self._tree.nodes
        for path in data:
            node = nodes.get(path)
            if node is None:
                client.deliver(EventType.NODE_DELETED, path)
            elif node.mzxid > zxid:
                client.deliver(EventType.NODE_DATA_CHANGED, path)
            else:
                self._watches.add(WatchKind.DATA, path, client)
        for path in exist:
            if path in nodes:
                client.deliver(EventType.NODE_CREATED, path)
            else:
                self._watches.add(WatchKind.DATA, path, client)
        for path in children:
            node = nodes.get(path)
            if node is None:
                client.deliver(EventType.NODE_DELETED, path)
            elif node.pzxid > zxid:
                client.deliver(EventType.NODE_CHILDREN_CHANGED, path)
            else:
                self._watches.add(WatchKind.CHILDREN, path, client)
        return b""

    def _set_watches2(self, client: Client, reader: Reader) -> bytes:
        self._set_watches(client, reader)
        for kind in (WatchKind.PERSISTENT, WatchKind.RECURSIVE):
            for path in reader.strings():
                self._watches.add(kind, path, client)
        return b""

    def _add_watch(self, client: Client, reader: Reader) -> bytes:
        path, mode = reader.string(), reader.int32()
        check_path(path)
        if mode not in (0, 1):
            raise RequestError(Code.BAD_ARGUMENTS)
        kind = WatchKind.RECURSIVE if mode else WatchKind.PERSISTENT
        self._watches.add(kind, path, client)
        return jute.int32(Code.OK)

    @staticmethod
    def _watch_kinds(reader: Reader) -> tuple[str, tuple[WatchKind, ...]]:
        path, watcher_type = reader.string(), reader.int32()
        kinds = {
            1: (WatchKind.CHILDREN,),
            2: (WatchKind.DATA,),
            3: tuple(WatchKind),
        }.get(watcher_type)
        if kinds is None:
            raise RequestError(Code.BAD_ARGUMENTS)
        return path, kinds

    def _check_watches(self, client: Client, reader: Reader) -> bytes:
        path, kinds = self._watch_kinds(reader)
        if not self._watches.has(kinds, path, client):
            raise RequestError(Code.NO_WATCHER)
        return b""

    def _remove_watches(self, client: Client, reader: Reader) -> bytes:
        path, kinds = self._watch_kinds(reader)
        if not self._watches.remove(kinds, path, client):
            raise RequestError(Code.NO_WATCHER)
        return b""


def _failed_multi(failed: int, count: int, code: Code) -> bytes:
    """The results of a multi of which nothing was applied, as of ZooKeeper's DataTree: OK before
    the failed operation, its code, and RUNTIME_INCONSISTENCY after it."""
    parts: list[bytes] = []
    for index in range(count):
        result = Code.OK if index < failed else Code.RUNTIME_INCONSISTENCY
        if index == failed:
            result = code
        parts += (jute.multi_header(OpCode.ERROR, False, result), jute.int32(result))
    parts.append(jute.multi_header(-1, True, -1))
    return b"".join(parts)


# Control characters, and those that UTF-8 or the tools cannot show.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def check_path(path: str) -> None:
    """Raise BAD_ARGUMENTS if the path is not absolute, ends with a slash or has an empty,
    `.` or `..` part or a character that is not allowed."""
    if path == "/":
        return
    if not path.startswith("/") or _FORBIDDEN.search(path):
        raise RequestError(Code.BAD_ARGUMENTS)
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise RequestError(Code.BAD_ARGUMENTS)
