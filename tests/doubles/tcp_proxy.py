"""A TCP way to a server of this machine that can be cut, healed, or made to swallow responses."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._swallowing = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Closes what is open; new connections are closed at once."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        self._is_cut = False
        self._swallowing = False

    def swallow_responses(self) -> None:
        """Requests still arrive, responses do not."""
        self._swallowing = True

    async def stop(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, forth}
        try:
            await asyncio.gather(
                self._copy(reader, forth, is_response=False),
                self._copy(back, writer, is_response=True),
            )
        finally:
            for each in (writer, forth):
                self._writers.discard(each)
                each.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_response: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not (is_response and self._swallowing):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
