"""The znode tree in a ZooKeeper ensemble; the session is in zookeeper_session.py.

With `set_acl` (zookeeper.set.acl) znodes get the ACLs of Kafka: all rights for the authenticated
creator, and read for all, except for secrets (creator only) and the znode of old consumers (open to
all).
"""

import logging
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ottla.controller.tree.store import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    ConnectionLost,
    CreateOp,
    DeleteOp,
    InvalidPath,
    NodeExists,
    NoNode,
    NotPermitted,
    Op,
    OpResult,
    SessionCallback,
    SessionExpired,
    SetOp,
    Stat,
    StoreError,
    TooLarge,
    WatchCallback,
    WatchHandle,
    ancestors_of,
)
from ottla.controller.tree.zookeeper_errors import error_from, exception_of
from ottla.controller.tree.zookeeper_session import AsyncResult, ZooKeeperSession
from ottla.protocol.steps import over

logger = logging.getLogger("ottla.zookeeper")

PATHS_PER_READ = 100
"""The znodes in one multiRead; few enough for a short response time."""
SECRET_PATHS = ("/config/users", "/config/brokers", "/delegation_token/tokens")
PUBLIC_PATH = "/consumers"


class ZooKeeperStore:
    """Implements `ZnodeStore`. `connect` is zookeeper.connect: hosts and an optional chroot.

    `credentials` are (scheme, text) pairs such as ("digest", "user:password"); `sasl` are
    kazoo's SASL options (mechanism, username, password, ...).
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = None,
        call_timeout_ms: int | None = None,
        credentials: Sequence[tuple[str, str]] = (),
        sasl: Mapping[str, Any] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        unix_path: str = "",
        set_acl: bool = False,
    ) -> None:
        self.session = ZooKeeperSession(
            connect,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
            call_timeout_ms=call_timeout_ms,
            credentials=credentials,
            sasl=sasl,
            tls=tls,
            unix_path=unix_path,
        )
        self._set_acl = set_acl
        self._multi_read: bool | None = None  # unknown before the first response

    # Session

    @property
    def session_id(self) -> int:
        return self.session.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self.session.agreed_timeout_ms

    async def connect(self, *, make_root: bool = True) -> None:
        """`make_root`: whether the chroot is created; else `make_root` does it later."""
        await self.session.connect()
        if make_root:
            await self.make_root()

    async def make_root(self) -> None:
        """Create the chroot if it does not exist, as Kafka does; before any other call."""
        if self.session.chroot:
            await self._make_chroot()

    async def close(self) -> None:
        await self.session.close()

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        return self.session.on_session(callback)

    async def _make_chroot(self) -> None:
        client = self.session.kazoo()
        chroot = client.chroot
        client.chroot = ""  # kazoo prefixes all paths with it; there is no other call yet
        try:
            for path in (*ancestors_of(chroot), chroot):
                if await self.exists(path) is None:
                    await self._create_unless_there(path)
        finally:
            client.chroot = chroot

    async def _create_unless_there(self, path: str) -> None:
        with suppress(NodeExists):  # another broker creates it too
            await self.create(path)

    # Reads

    async def get(self, path: str) -> tuple[bytes, Stat]:
        kazoo = self.session.kazoo
        data, stat = await self.session.request(path, lambda: kazoo().get_async(path), repeat=True)
        return data or b"", _stat(stat)

    async def exists(self, path: str) -> Stat | None:
        kazoo = self.session.kazoo
        stat = await self.session.request(path, lambda: kazoo().exists_async(path), repeat=True)
        return None if stat is None else _stat(stat)

    async def children(self, path: str) -> list[str]:
        kazoo = self.session.kazoo
        return sorted(
            await self.session.request(path, lambda: kazoo().get_children_async(path), repeat=True)
        )

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        if len(paths) > 1 and self._multi_read is not False:
            try:
                return await self._get_by_multi_read(paths)
            except (NotPermitted, SessionExpired):
                raise
            except StoreError:
                # A server before 3.6 refuses the request or closes the connection over it.
                if self._multi_read:
                    raise
                self._multi_read = False
                logger.warning(
                    "Reading znodes one by one: the server did not take multiRead, as before "
                    "ZooKeeper 3.6"
                )
        return await self._get_one_by_one(paths)

    async def _get_by_multi_read(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        def start(part: Sequence[str]) -> Callable[[], AsyncResult]:
            def call() -> AsyncResult:
                client = self.session.kazoo()
                result = client.handler.async_result()
                client._call(MultiRead([client.chroot + path for path in part]), result)
                return result

            return call

        parts = [paths[at : at + PATHS_PER_READ] for at in range(0, len(paths), PATHS_PER_READ)]
        known = self._multi_read is True
        results = await self.session.pipeline([start(part) for part in parts], repeat=known)
        found: list[tuple[bytes, Stat] | None] = []
        async for part, result in over(zip(parts, results, strict=True)):
            if result.exception is not None:
                raise error_from(result.exception, part[0])
            self._multi_read = True
            for path, node in zip(part, result.value, strict=True):
                if isinstance(node, int):
                    if node not in (NO_NODE, BAD_ARGUMENTS):
                        raise error_from(exception_of(node), path)
                    found.append(None)
                else:
                    found.append(node)
        return found

    async def _get_one_by_one(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        kazoo = self.session.kazoo
        starts = [(lambda path=path: kazoo().get_async(path)) for path in paths]
        found: list[tuple[bytes, Stat] | None] = []
        for path, result in zip(
            paths, await self.session.pipeline(starts, repeat=True), strict=True
        ):
            if result.exception is None:
                data, stat = result.value
                found.append((data or b"", _stat(stat)))
                continue
            error = error_from(result.exception, path)
            if not isinstance(error, (NoNode, InvalidPath)):
                raise error
            found.append(None)
        return found

    # Writes

    async def _write(self, path: str, size: int, start: Callable[[], AsyncResult]) -> Any:
        """`size` is that of the data. A server closes the connection over a request that is too
        long: the caller would send it again and again."""
        try:
            return await self.session.request(path, start)
        except ConnectionLost:
            if size < MAX_DATA_BYTES:
                raise
            raise TooLarge(
                path,
                f"ZooKeeper did not take {size} bytes for {path}: its servers accept about 1 MB "
                f"in a request, unless their jute.maxbuffer is higher",
            ) from None

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        kazoo = self.session.kazoo
        return _stat(
            await self._write(path, len(data), lambda: kazoo().set_async(path, data, version))
        )

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        def start() -> AsyncResult:
            # Without the Stat, which a server before 3.5 does not return.
            return self.session.kazoo().create_async(
                path, data, acl=self._acl(path), ephemeral=ephemeral, sequence=sequential
            )

        try:
            return str(await self.session.request(path, start))
        except NoNode:
            if not make_parents:
                raise
        for ancestor in ancestors_of(path):
            if await self.exists(ancestor) is None:
                await self._create_unless_there(ancestor)
        return str(await self.session.request(path, start))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        kazoo = self.session.kazoo
        await self.session.request(path, lambda: kazoo().delete_async(path, version))

    def _commit(self, ops: Sequence[Op]) -> AsyncResult:
        transaction = self.session.kazoo().transaction()
        for op in ops:
            if isinstance(op, CreateOp):
                transaction.create(
                    op.path, op.data, self._acl(op.path), op.ephemeral, op.sequential
                )
            elif isinstance(op, SetOp):
                transaction.set_data(op.path, op.data, op.version)
            elif isinstance(op, DeleteOp):
                transaction.delete(op.path, op.version)
            else:
                transaction.check(op.path, op.version)
        return transaction.commit_async()

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if not ops:
            return []
        size = sum(len(op.data) for op in ops if isinstance(op, (CreateOp, SetOp)))
        response = _multi_response(
            ops, await self._write(ops[0].path, size, lambda: self._commit(ops))
        )
        if isinstance(response, StoreError):
            raise response
        return response

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        starts = [(lambda ops=ops: self._commit(ops)) for ops in batches]
        responses: list[list[OpResult] | StoreError] = []
        for ops, result in zip(
            batches, await self.session.pipeline(starts, repeat=False), strict=True
        ):
            if result.exception is not None:
                responses.append(error_from(result.exception, ops[0].path))
            else:
                responses.append(_multi_response(ops, result.value))
        return responses

    def _acl(self, path: str) -> list[Any] | None:
        """The ACL of a znode; None leaves it open to all."""
        if not self._set_acl or path == PUBLIC_PATH:
            return None
        from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

        if path.startswith(SECRET_PATHS):
            return list(CREATOR_ALL_ACL)
        return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]

    # Watches

    async def watch_data(self, path: str, callback: WatchCallback) -> WatchHandle:
        return (await self.session.watch([(path, callback)], on_children=False))[0]

    async def watch_children(self, path: str, callback: WatchCallback) -> WatchHandle:
        return (await self.session.watch([(path, callback)], on_children=True))[0]

    async def watch_data_many(
        self, watches: Sequence[tuple[str, WatchCallback]]
    ) -> list[WatchHandle]:
        return await self.session.watch(watches, on_children=False)


def _stat(stat: Any) -> Stat:
    return Stat(
        version=stat.version,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ephemeral_owner=stat.ephemeralOwner,
        children_count=stat.numChildren,
        cversion=stat.cversion,
        pzxid=stat.pzxid,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        data_length=stat.dataLength,
    )


def _multi_response(ops: Sequence[Op], results: list[Any]) -> list[OpResult] | StoreError:
    """kazoo returns exceptions as results: that of the failed one, RolledBackError for others."""
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    failed = [index for index, result in enumerate(results) if isinstance(result, Exception)]
    if failed:
        cause = next(
            (
                index
                for index in failed
                if not isinstance(results[index], (RolledBackError, RuntimeInconsistency))
            ),
            failed[0],
        )
        error = error_from(results[cause], ops[cause].path)
        error.index = cause
        return error
    responses: list[OpResult] = []
    for op, result in zip(ops, results, strict=True):
        if isinstance(op, CreateOp):
            responses.append(str(result))
        elif isinstance(op, SetOp):
            responses.append(_stat(result))
        else:
            responses.append(None)
    return responses


MULTI_READ = 22
GET_DATA = 4
NO_NODE = -101
BAD_ARGUMENTS = -8
OK = 0

_HEADER = struct.Struct(">iBi")  # type of the operation, last one, error
_INT = struct.Struct(">i")
_STAT = struct.Struct(">qqqqiiiqiiq")

Node = tuple[bytes, Stat] | int
"""Data and Stat, or the error code of that znode."""


def read_stat(buffer: bytes, offset: int) -> Stat:
    """Decode the 68 bytes of a Stat."""
    (
        czxid,
        mzxid,
        ctime_ms,
        mtime_ms,
        version,
        cversion,
        _aversion,
        ephemeral_owner,
        data_length,
        children_count,
        pzxid,
    ) = _STAT.unpack_from(buffer, offset)
    return Stat(
        version=version,
        czxid=czxid,
        mzxid=mzxid,
        ephemeral_owner=ephemeral_owner,
        children_count=children_count,
        cversion=cversion,
        pzxid=pzxid,
        ctime_ms=ctime_ms,
        mtime_ms=mtime_ms,
        data_length=data_length,
    )


class MultiRead:
    """Reads the data of full paths (with the chroot)."""

    type = MULTI_READ

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytearray:
        out = bytearray()
        for path in self.paths:
            encoded = path.encode()
            out += _HEADER.pack(GET_DATA, 0, -1)
            out += _INT.pack(len(encoded))
            out += encoded
            out.append(0)  # no watch
        out += _HEADER.pack(-1, 1, -1)
        return out

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[Node]:
        nodes: list[Node] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return nodes
            (number,) = _INT.unpack_from(buffer, offset)  # an error code, or the data's length
            offset += _INT.size
            if kind == -1:
                nodes.append(number)
                continue
            data = bytes(buffer[offset : offset + max(number, 0)])
            offset += max(number, 0)
            nodes.append((data, read_stat(buffer, offset)))
            offset += _STAT.size

    def __repr__(self) -> str:
        return f"MultiRead({len(self.paths)} paths)"
