"""The simulated network: sockets as the broker uses them, transports as its clients use them.

A connection is two pipes of bytes. Bytes arrive in order after a delay; a socket takes as many as
the receiver's window has room for, sometimes fewer (short writes). Cut hosts hear nothing of each
other: what was sent arrives when the cut is healed, as with TCP; a connection attempt times out.
A killed process resets its connections; one whose machine lost power just falls silent.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.cluster.loop import Process, SimulatedLoop, current_process

DELAY_SECONDS = (0.0001, 0.004)
# Now and then a packet is lost and sent again.
RESENT_ONE_IN = 200
RESENT_SECONDS = 0.2
WINDOW_BYTES = (2_048, 262_144)
FIRST_FD = 1_000_000
CONNECT_TIMEOUT_SECONDS = 8.0
# At this share of the reads the page cache does not have the bytes.
COLD_SHARE = 1 / 20

_preadv = os.preadv


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Endpoint, target: Endpoint) -> None:
        self._network = network
        self.source = source
        self.target = target
        self.window = network.random.randint(*WINDOW_BYTES)
        self.under_way = 0
        self._last_arrival = 0.0
        self._queue: deque[bytes | None] = deque()
        self._moving = self.is_held = False

    def send(self, data: bytes | None) -> None:
        """None is the end of the stream."""
        if self._network.on_send is not None:
            self._network.on_send(self, data or b"")
        self._queue.append(data)
        self.under_way += len(data) if data else 0
        if not self._moving:
            self._moving = True
            self._schedule()

    def _schedule(self) -> None:
        network = self._network
        random = network.random.random
        delay = DELAY_SECONDS[0] + (DELAY_SECONDS[1] - DELAY_SECONDS[0]) * random()
        if random() * RESENT_ONE_IN < 1:
            delay += RESENT_SECONDS
        at = max(network.loop.now + delay, self._last_arrival)
        self._last_arrival = at
        network.loop.call_at(at, self._arrive, context=network.context)

    def _arrive(self) -> None:
        network = self._network
        if self.is_held or network.is_cut(self.source.host, self.target.host):
            network.loop.call_later(0.05, self._arrive, context=network.context)
            return
        data = self._queue.popleft()
        if not self.target.closed and not self.target.silent:
            if data is None:
                self.target.on_end()
            else:
                self.target.on_bytes(data)
        elif data is not None:
            self.under_way -= len(data)
            if self.target.closed and not self.target.silent:
                self.source.on_reset()
        if self._queue:
            self._schedule()
        else:
            self._moving = False


class Endpoint:
    """One end of a connection, of whichever kind."""

    def __init__(self, network: Network, host: str, process: Process | None) -> None:
        self.network = network
        self.host = host
        self.process = process
        self.closed = False
        self.silent = False  # its machine is without power
        self.out: Pipe | None = None
        self.peer: Endpoint | None = None

    def on_bytes(self, data: bytes) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        raise NotImplementedError

    def on_reset(self) -> None:
        raise NotImplementedError

    def waits_for_room(self) -> bool:
        """Whether it wants to know when the peer has read."""
        return False

    def room_in_peer(self) -> None:
        """The peer has read: there may be room for more."""


class SimulatedSocket(Endpoint):
    """A connected, non-blocking socket of a broker."""

    def __init__(
        self, network: Network, host: str, process: Process | None, names: tuple[Any, Any]
    ) -> None:
        super().__init__(network, host, process)
        self._fd = network.new_fd(self)
        self._names = names
        self._received = bytearray()
        self._ended = False
        self._reset = False
        self._readable_scheduled = False
        self._writable_scheduled = False

    def fileno(self) -> int:
        return -1 if self.closed else self._fd

    def getsockname(self) -> Any:
        return self._names[0]

    def getpeername(self) -> Any:
        return self._names[1]

    def setblocking(self, _: bool) -> None: ...

    def setsockopt(self, *_: Any) -> None: ...

    def getsockopt(self, *_: Any) -> int:
        return 104 if self._reset else 0

    def recv_into(self, buffer: Any, nbytes: int = 0) -> int:
        if self._reset:
            raise ConnectionResetError(104, "reset")
        if not self._received:
            if self._ended:
                return 0
            raise BlockingIOError
        size = min(len(self._received), nbytes or len(buffer))
        if self.network.random.random() < 1 / 20:
            size = self.network.random.randint(1, size)
        buffer[:size] = self._received[:size]
        del self._received[:size]
        self._took(size)
        return size

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags & socket.MSG_PEEK:
            if not self._received and not self._ended:
                raise BlockingIOError
            return bytes(self._received[:size])
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def _took(self, size: int) -> None:
        peer = self.peer
        if peer is not None and peer.out is not None:
            peer.out.under_way -= size
            self.network.room_in(peer)

    def send(self, data: Any, flags: int = 0) -> int:
        if self._reset or self.closed:
            raise ConnectionResetError(104, "reset")
        assert self.out is not None
        room = self.out.window - self.out.under_way
        if room <= 0:
            raise BlockingIOError
        size = min(room, len(data))
        if size > 1 and self.network.random.random() < 1 / 10:
            size = self.network.random.randint(1, size)
        self.out.send(bytes(data[:size]))
        return size

    def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0) -> int:
        return self.send(b"".join(bytes(each) for each in buffers))

    def shutdown(self, _: int) -> None:
        if self.out is not None:
            self.out.send(None)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.forget(self._fd)
            if self.out is not None and not self.silent:
                self.out.send(None)

    def on_bytes(self, data: bytes) -> None:
        self._received += data
        self.readable()

    def on_end(self) -> None:
        self._ended = True
        self.readable()

    def on_reset(self) -> None:
        if not self.closed:
            self._reset = True
            self.readable()
            self.writable()

    def waits_for_room(self) -> bool:
        return self.network.loop.writer(self._fd) is not None

    def room_in_peer(self) -> None:
        self.writable()

    def readable(self) -> None:
        """Level-triggered, as epoll: the callback runs again while there is something to read."""
        if (
            not self._readable_scheduled
            and not self.closed
            and (self._received or self._ended or self._reset)
            and self.network.loop.reader(self._fd) is not None
        ):
            self._readable_scheduled = True
            self.network.call(self.process, self._run_reader)

    def _run_reader(self) -> None:
        self._readable_scheduled = False
        reader = self.network.loop.reader(self._fd)
        if reader is not None and not self.closed:
            reader()
            self.readable()

    def writable(self) -> None:
        if (
            not self._writable_scheduled
            and not self.closed
            and self.network.loop.writer(self._fd) is not None
            and (self._reset or (self.out is not None and self.out.under_way < self.out.window))
        ):
            self._writable_scheduled = True
            self.network.call(self.process, self._run_writer)

    def _run_writer(self) -> None:
        self._writable_scheduled = False
        writer = self.network.loop.writer(self._fd)
        if writer is not None and not self.closed:
            writer()


class SimulatedTransport(Endpoint):
    """What `loop.create_connection` gives a client: enough of asyncio.Transport."""

    def __init__(self, network: Network, host: str, process: Process | None) -> None:
        super().__init__(network, host, process)
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        if not self.closed and self.out is not None and len(data):
            self.network.requests += 1
            self.out.send(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.drop(self)
            if self.out is not None and not self.silent:
                self.out.send(None)
            self.network.call(self.process, lambda: self.protocol.connection_lost(None))

    def on_bytes(self, data: bytes) -> None:
        peer = self.peer
        if peer is not None and peer.out is not None:
            peer.out.under_way -= len(data)
            self.network.room_in(peer)
        self.network.call(self.process, lambda: self._deliver(data))

    def _deliver(self, data: bytes) -> None:
        if not self.closed:
            self.protocol.data_received(data)

    def on_end(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.drop(self)
            self.network.call(self.process, lambda: self.protocol.connection_lost(None))

    def on_reset(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.drop(self)
            error = ConnectionResetError(104, "reset")
            self.network.call(self.process, lambda: self.protocol.connection_lost(error))


class ListeningSocket:
    """What `bind` gives a broker."""

    def __init__(self, network: Network, host: str, port: int, process: Process | None) -> None:
        self.network = network
        self.host, self.port, self.process = host, port, process
        self._fd = network.new_fd(self)
        self.backlog: deque[tuple[SimulatedSocket, Any]] = deque()
        self.closed = False

    def fileno(self) -> int:
        return -1 if self.closed else self._fd

    def getsockname(self) -> Any:
        return (self.host, self.port)

    def accept(self) -> tuple[SimulatedSocket, Any]:
        if not self.backlog:
            raise BlockingIOError
        self.network.check_descriptors(self.host)
        return self.backlog.popleft()

    def readable(self) -> None:
        if self.backlog and self.network.loop.reader(self._fd) is not None:
            self.network.call(self.process, self._run)

    def _run(self) -> None:
        reader = self.network.loop.reader(self._fd)
        if reader is not None and self.backlog:
            reader()
            self.readable()

    def writable(self) -> None: ...

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.forget(self._fd)
            self.network.unbind(self)


class Network:
    """All hosts of a simulation."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(f"network {seed}")
        self.context = contextvars.copy_context()
        self._cuts: set[frozenset[str]] = set()
        self._without_descriptors = ""
        self.on_send: Callable[[Pipe, bytes], None] | None = None  # before it is under way
        #: How many requests clients and brokers have sent; each is written as a whole.
        self.requests = 0
        self._listening: dict[tuple[str, int], ListeningSocket] = {}
        self._by_fd: dict[int, Any] = {}
        self._next_fd = FIRST_FD
        # In the order of their making: a set would make the order depend on addresses.
        self._endpoints: dict[Endpoint, None] = {}
        self._next_client_port = 20_000

    # Troubles

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self._cuts) and frozenset((one, other)) in self._cuts

    def cut(self, one: str, other: str) -> None:
        if one != other:
            self._cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cuts.clear()

    def lack_descriptors(self, host: str) -> None:
        """From now on this host makes half of its connections only; "" for none."""
        self._without_descriptors = host

    def check_descriptors(self, host: str) -> None:
        if host == self._without_descriptors and self.random.random() < 0.5:
            raise OSError(errno.EMFILE, "simulated: too many open files")

    def process_ended(self, process: Process, *, power: bool) -> None:
        """The kernel resets the connections of a process; without power it does not."""
        for listening in list(self._listening.values()):
            if listening.process is process:
                listening.close()
        for endpoint in list(self._endpoints):
            if endpoint.process is process:
                endpoint.closed = True
                endpoint.silent = power
                self._endpoints.pop(endpoint, None)
                peer = endpoint.peer
                if not power and peer is not None:
                    self.loop.call_later(
                        self.random.uniform(*DELAY_SECONDS), peer.on_reset, context=self.context
                    )

    # For brokers

    def bind(self, _name: str, host: str, port: int, _settings: Any) -> ListeningSocket:
        listening = ListeningSocket(self, host, port, current_process())
        assert (host, port) not in self._listening, f"{host}:{port} is in use"
        self._listening[host, port] = listening
        return listening

    def unbind(self, listening: ListeningSocket) -> None:
        self._listening.pop((listening.host, listening.port), None)
        for sock, _ in listening.backlog:
            sock.close()

    def new_fd(self, owner: Any) -> int:
        self._next_fd += 1
        self._by_fd[self._next_fd] = owner
        return self._next_fd

    def forget(self, fd: int) -> None:
        owner = self._by_fd.pop(fd, None)
        if isinstance(owner, Endpoint):
            self._endpoints.pop(owner, None)

    def drop(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(endpoint, None)

    def owner(self, fd: int) -> Any:
        return self._by_fd.get(fd)

    def readable(self, fd: int) -> None:
        if (owner := self._by_fd.get(fd)) is not None:
            owner.readable()

    def writable(self, fd: int) -> None:
        if (owner := self._by_fd.get(fd)) is not None:
            owner.writable()

    def room_in(self, endpoint: Endpoint) -> None:
        """Its peer has read."""
        if endpoint.waits_for_room():
            self.loop.call_soon(endpoint.room_in_peer, context=self.context)

    def call(self, process: Process | None, callback: Callable[[], None]) -> None:
        context = self.context if process is None else process.context
        self.loop.call_soon(callback, context=context)

    # For clients

    async def connect(
        self, protocol_factory: Callable[[], Any], host: str, port: int
    ) -> tuple[SimulatedTransport, Any]:
        process = current_process()
        own_host = "clients" if process is None else process.name
        started = self.loop.now
        self.check_descriptors(own_host)
        await asyncio.sleep(self.random.uniform(*DELAY_SECONDS) * 2)
        while self.is_cut(own_host, host):
            if self.loop.now - started > CONNECT_TIMEOUT_SECONDS:
                raise TimeoutError("connection timed out")
            await asyncio.sleep(0.1)
        listening = self._listening.get((host, port))
        if listening is None:
            raise ConnectionRefusedError(111, "connection refused")
        self._next_client_port += 1
        names = ((host, port), (own_host, self._next_client_port))
        server = SimulatedSocket(self, host, listening.process, names)
        client = SimulatedTransport(self, own_host, process)
        client.out, server.out = Pipe(self, client, server), Pipe(self, server, client)
        client.peer, server.peer = server, client
        self._endpoints[server] = self._endpoints[client] = None
        client.protocol = protocol_factory()
        listening.backlog.append((server, names[1]))
        listening.readable()
        client.protocol.connection_made(client)
        return client, client.protocol

    def preadv(self, source: int, buffers: Any, offset: int, flags: int = 0) -> int:
        """`os.preadv`. Files in memory have no RWF_NOWAIT; those of a disk have it."""
        if flags and self.random.random() < COLD_SHARE:
            raise BlockingIOError
        return _preadv(source, buffers, offset)

    def sendfile(self, target: int, source: int, offset: int, count: int) -> int:
        """`os.sendfile` to a simulated socket."""
        data = os.pread(source, min(count, 65_536), offset)
        if not data:
            return 0
        owner = self._by_fd[target]
        sent: int = owner.send(data)
        return sent
