"""A slower way to a broker on this machine: `python -m benchmarks.delay_proxy PORT TARGET MS`.

Listens on PORT and connects to TARGET, both on 127.0.0.1. What either side sends arrives half of
MS later at the other, so that a request and its response take MS longer. Prints a line when it
listens.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

# Beyond that much on its way, the sender waits: what the network between two hosts holds, too.
BUFFERED_BYTES_MAX = 4 << 20


class Way(asyncio.Protocol):
    """One direction: what this side's transport receives goes to the peer's after a while."""

    def __init__(self, delay_seconds: float) -> None:
        self.peer: Way | None = None
        self.transport: asyncio.Transport | None = None
        self._delay_seconds = delay_seconds
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._waiting_bytes = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.peer is not None:
            self.schedule()

    def data_received(self, data: bytes) -> None:
        is_first = not self._waiting
        self._waiting.append((self._loop.time() + self._delay_seconds, data))
        self._waiting_bytes += len(data)
        assert self.transport is not None
        if self._waiting_bytes > BUFFERED_BYTES_MAX:
            self.transport.pause_reading()
        if is_first:
            self.schedule()

    def schedule(self) -> None:
        """Forwards what is due, and again when the next is."""
        peer = self.peer
        if peer is None or peer.transport is None:
            return
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            data = self._waiting.popleft()[1]
            self._waiting_bytes -= len(data)
            peer.transport.write(data)
        if self.transport is not None and self._waiting_bytes <= BUFFERED_BYTES_MAX // 2:
            self.transport.resume_reading()
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self.schedule)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()


class Accepted(Way):
    """The client's side, which opens the other one."""

    def __init__(self, delay_seconds: float, target_port: int) -> None:
        super().__init__(delay_seconds)
        self._target_port = target_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        other = Way(self._delay_seconds)
        other.peer = self
        try:
            await self._loop.create_connection(lambda: other, "127.0.0.1", self._target_port)
        except OSError:
            if self.transport is not None:
                self.transport.close()
            return
        self.peer = other
        self.schedule()


async def serve(port: int, target_port: int, delay_ms: float) -> None:
    """Runs until it is cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Accepted(delay_ms / 2000, target_port), "127.0.0.1", port
    )
    print(f"listening on {port}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
