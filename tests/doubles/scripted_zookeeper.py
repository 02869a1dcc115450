"""A ZooKeeper server that misbehaves in one way, for clients with several hosts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable

UNIMPLEMENTED = -6
AUTH_FAILED = -115
REQUIRES_SASL = -124

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ScriptedServer:
    """Serves each connection by `serve`; the address is `connect`."""

    def __init__(self, serve: Serve) -> None:
        self.connections = 0
        self._serve = serve

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.connect = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, EOFError):
            await self._serve(reader, writer)
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def _grant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """A session begins. Returns the first request."""
    timeout, session, length, password = struct.unpack_from(">iqi16s", await _frame(reader), 12)
    granted = struct.pack(">iiqi16s", 0, timeout, session or 7, length, password)
    writer.write(_framed(granted + b"\0"))
    return await _frame(reader)


async def closes_during_login(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A session begins, and the connection ends at the first request."""
    await _grant(reader, writer)


def refuses(error: int) -> Serve:
    """A session begins, and the first request of any kind fails."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _grant(reader, writer)
        (xid,) = struct.unpack_from(">i", request)
        writer.write(_framed(struct.pack(">iqi", xid, 0, error)))
        await writer.drain()

    return serve


def responds(data: bytes) -> Serve:
    """Some other program listens at that port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _frame(reader)
        writer.write(data)
        await writer.drain()

    return serve


async def never_responds(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Accepts and reads."""
    while await reader.read(65536):
        continue


class DroppedSyns:
    """A host that drops what asks for a connection: its queue of them is full."""

    def __enter__(self) -> str:
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=0)]
        address = self._sockets[0].getsockname()
        for _ in range(4):
            waiting = socket.socket()
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(address)
            self._sockets.append(waiting)
        return f"127.0.0.1:{address[1]}"

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()
