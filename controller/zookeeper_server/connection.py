"""One connection: frames, the first packet, four-letter words, and the requests of a session.

`Connection` is an asyncio protocol. Responses and watch events go through the server's outbox,
which keeps the order of all clients and sends nothing before what it shows is durable.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ottla.controller.tree.store import StoreError
from ottla.controller.tree.tree_file import TreeCommits
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server.codes import Code, OpCode, RequestError, Xid, code_of
from ottla.controller.zookeeper_server.jute import MarshallingError, Reader
from ottla.controller.zookeeper_server.requests import Client
from ottla.controller.zookeeper_server.sessions import PASSWORD_BYTES, Session, digest
from ottla.controller.zookeeper_server.watches import EventType

if TYPE_CHECKING:
    from ottla.controller.zookeeper_server.server import ZooKeeperServer

MAX_FRAME_BYTES = 0xFFFFF
"""ZooKeeper's jute.maxbuffer; a longer request ends the connection, as there."""
MAX_IDENTITIES = 100
"""Each access to a znode with an ACL compares all of them."""
PROTOCOL_VERSION = 0
SYNC_CONNECTED = 3

_LENGTH = struct.Struct(">i")
_LOGGER = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._received = bytearray()
        self.session: Session | None = None
        self.client: Client | None = None
        self.transport: asyncio.Transport | None = None
        self.address = "?"
        self.peer = "?"
        self.process = 0
        self.requests = 0
        self.is_closing = False

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._server.process_of is not None:
            self.process = self._server.process_of(self.transport)
            self.address, self.peer = "127.0.0.1", f"process {self.process}"
        else:
            peer = transport.get_extra_info("peername") or ("?", 0)
            self.address, self.peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self._server.connection_opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = True
        self._server.connection_closed(self)

    def pause_writing(self) -> None:
        """A client that does not read its responses is not read from."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.is_closing:
            return
        self._received += data
        try:
            self._read_frames()
        except MarshallingError as error:
            _LOGGER.warning("Closing connection of %s: invalid request: %s", self.peer, error)
            self.close()
        except Exception:
            # A defect: other clients get their responses all the same.
            _LOGGER.exception("Closing connection of %s: its request failed", self.peer)
            self.close()
        self._server.flush()

    def _read_frames(self) -> None:
        at = 0
        while not self.is_closing and len(self._received) - at >= 4:
            head = bytes(self._received[at : at + 4])
            if self.session is None and self._server.is_four_letter_word(head):
                self._server.four_letter_word(self, head)
                break
            (size,) = _LENGTH.unpack(head)
            if not 0 <= size <= MAX_FRAME_BYTES:
                raise MarshallingError(f"a frame of {size} bytes, the limit is {MAX_FRAME_BYTES}")
            if len(self._received) - at - 4 < size:
                break
            frame = bytes(self._received[at + 4 : at + 4 + size])
            at += 4 + size
            if self.session is None:
                self._connect(Reader(frame))
            else:
                self._request(self.session, Reader(frame))
        del self._received[:at]

    def send(self, data: bytes) -> None:
        self._server.send(self, data)

    def close(self) -> None:
        """Close the connection after what is in the outbox; the session stays."""
        self.is_closing = True
        self._server.close(self)

    # Session

    def _connect(self, reader: Reader) -> None:
        """ConnectRequest: a new session, or one of an earlier connection."""
        reader.int32()  # the protocol version; there is only one
        last_zxid = reader.int64()
        timeout_ms = reader.int32()
        session_id = reader.int64()
        password = reader.buffer()
        read_only_field = reader.remaining > 0
        if last_zxid > self._server.last_zxid:
            # Its session saw changes that this server does not have.
            _LOGGER.warning(
                "Closing connection of %s: it has seen zxid 0x%x, the last one here is 0x%x",
                self.peer,
                last_zxid,
                self._server.last_zxid,
            )
            self.close()
            return
        if session_id:
            session = self._server.resume_session(self, session_id, password)
        else:
            session = self._server.open_session(self, timeout_ms)
        tail = b"\0" if read_only_field else b""
        if session is None:
            body = jute.int32(0) + jute.int32(0) + jute.int64(0)
            self.send(jute.buffer(body + jute.buffer(bytes(PASSWORD_BYTES)) + tail))
            self.close()
            return
        self.session = session
        self.client = Client(session.session_id, self.address, session.identities, self._deliver)
        stored = session.stored
        body = jute.int32(PROTOCOL_VERSION) + jute.int32(stored.timeout_ms)
        body += jute.int64(stored.session_id) + jute.buffer(stored.password) + tail
        self.send(jute.buffer(body))

    def _deliver(self, event: EventType, path: str) -> None:
        body = jute.int32(event) + jute.int32(SYNC_CONNECTED) + jute.string(path)
        self.send(jute.reply(Xid.NOTIFICATION, self._server.last_zxid, 0, body))

    # Requests

    def _request(self, session: Session, reader: Reader) -> None:
        xid, op_code = reader.int32(), reader.int32()
        self.requests += 1
        self._server.touch(session)
        if op_code == OpCode.CLOSE_SESSION:
            self._server.end_session(session)
            self.send(jute.reply(xid, self._server.last_zxid))
            self.close()
            return
        if op_code == OpCode.AUTH:
            self._authenticate(session, reader)
            return
        assert self.client is not None
        error, body = Code.OK, b""
        try:
            body = self._server.process(self.client, op_code, reader)
        except RequestError as refused:
            error = refused.code
        except StoreError as failed:
            error = code_of(failed)
        if error is Code.UNIMPLEMENTED:
            _LOGGER.warning("Request type %d of %s is not supported", op_code, self.peer)
        self.send(jute.reply(xid, self._server.last_zxid, error, body))

    def _authenticate(self, session: Session, reader: Reader) -> None:
        """addAuth: the scheme digest adds an identity; any other ends the connection, as there."""
        reader.int32()
        scheme, proof = reader.string(), reader.buffer()
        error = Code.OK
        if scheme == "digest" and len(session.identities) < MAX_IDENTITIES:
            identity = (scheme, digest(proof))
            if identity not in session.identities:
                session.identities.append(identity)
        elif scheme not in ("ip", "world"):
            error = Code.AUTH_FAILED
        self.send(jute.reply(Xid.AUTH, self._server.last_zxid, error))
        if error:
            _LOGGER.warning(
                "Closing connection of %s: authentication by %r failed", self.peer, scheme
            )
            self.close()


Entry = tuple[Connection, bytes | None]
"""None stands for the end of the connection."""


class Outbox:
    """`commits` None: the tree is in memory only, and nothing has to wait."""

    def __init__(
        self, commits: TreeCommits | None, on_failure: Callable[[Exception], None]
    ) -> None:
        self._commits = commits
        self._on_failure = on_failure
        # Bounded by the requests in the connections' receive buffers: while a response waits,
        # at most one commit is running.
        self._entries: list[Entry] = []
        # By commit. The last group is also there between the end of its commit and its callback,
        # when a read already needs no commit but must not overtake it.
        self._waiting: deque[list[Entry]] = deque()

    def add(self, connection: Connection, data: bytes | None) -> None:
        self._entries.append((connection, data))

    def flush(self) -> None:
        """Send the entries, at once or after the commit that they wait for."""
        if not self._entries:
            return
        entries, self._entries = self._entries, []
        if self._commits is None:
            _send(entries)
            return
        try:
            barrier = self._commits.barrier()
        except Exception as error:
            self._on_failure(error)
            return
        if barrier is not None:
            self._waiting.append(entries)
            barrier.add_done_callback(self._committed)
        elif self._waiting:
            self._waiting[-1].extend(entries)
        else:
            _send(entries)

    def _committed(self, barrier: asyncio.Future[None]) -> None:
        entries = self._waiting.popleft()
        error = None if barrier.cancelled() else barrier.exception()
        if isinstance(error, Exception):
            self._on_failure(error)
        elif not barrier.cancelled():
            _send(entries)


def _send(entries: list[Entry]) -> None:
    """One write for the entries of a connection that follow each other."""
    parts: dict[Connection, list[bytes]] = {}
    for connection, data in entries:
        if data is not None:
            parts.setdefault(connection, []).append(data)
    for connection, texts in parts.items():
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            transport.write(b"".join(texts))
    for connection, data in entries:
        if data is None and connection.transport is not None:
            connection.transport.close()
