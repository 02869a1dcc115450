"""Cables between the processes of a test that can be cut, or made to swallow everything.

Each process reaches another through a port of its own here. A port that several share (the
inter-broker listener of a broker) distinguishes callers by the client id in their first request,
so that a single pair of brokers can be parted. Everything runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable
from typing import Any

_CALL_SECONDS = 30.0
_CHUNK_BYTES = 65_536
# size, api key, api version, correlation id, length of the client id
_HEAD = 4 + 2 + 2 + 4 + 2


class Cable:
    """The way from one process to another; loop of the network only."""

    def __init__(self) -> None:
        self.is_cut = False
        self.passable = asyncio.Event()
        self.passable.set()
        self.writers: set[asyncio.StreamWriter] = set()


class ChaosNetwork:
    """Proxies and the state of every cable, by (from, to)."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network")
        self._cables: dict[tuple[str, str], Cable] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.start()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    def listen(self, port: int, to: str, to_port: int, caller: str | None = None) -> None:
        """Passes what comes to `port` on; without `caller` the first request names it."""
        self._call(self._listen(port, to, to_port, caller))

    async def _listen(self, port: int, to: str, to_port: int, caller: str | None) -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await self._serve(reader, writer, to, to_port, caller)
            except asyncio.CancelledError:
                pass  # the test is over
            finally:
                writer.transport.abort()
                self._tasks.discard(task)

        self._servers.append(await asyncio.start_server(accepted, "127.0.0.1", port))

    def cut(self, ways: Iterable[tuple[str, str]], silently: bool) -> None:
        """Both ends see their connections end, or, `silently`, nothing at all any more."""
        self._call(self._cut(ways, silently))

    async def _cut(self, ways: Iterable[tuple[str, str]], silently: bool) -> None:
        for way in ways:
            cable = self._cable(way)
            if silently:
                cable.passable.clear()
                continue
            cable.is_cut = True
            for writer in cable.writers:
                writer.transport.abort()

    def heal(self) -> None:
        """Every cable is whole again; what was swallowed arrives."""
        self._call(self._heal())

    async def _heal(self) -> None:
        for cable in self._cables.values():
            cable.is_cut = False
            cable.passable.set()

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cable(self, way: tuple[str, str]) -> Cable:
        return self._cables.setdefault(way, Cable())

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to: str,
        to_port: int,
        caller: str | None,
    ) -> None:
        first = b""
        if caller is None:
            first = await reader.readexactly(_HEAD)
            client_id = await reader.readexactly(int.from_bytes(first[-2:], "big"))
            first += client_id
            # "broker-2" and "broker-2-fetcher" are broker 2.
            caller = "-".join(client_id.decode().split("-")[:2])
            if caller.isdecimal():  # a controller of Apache Kafka
                caller = f"broker-{caller}"
        cable = self._cable((caller, to))
        await cable.passable.wait()
        if cable.is_cut:
            return
        back, forth = await asyncio.open_connection("127.0.0.1", to_port)
        both = {writer, forth}
        cable.writers |= both
        try:
            forth.write(first)
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, forth, cable))
                group.create_task(_copy(back, writer, cable))
        finally:
            cable.writers -= both
            forth.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cable: Cable) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            await cable.passable.wait()
            writer.write(data)
            await writer.drain()
    writer.transport.abort()  # ends the other direction as well
