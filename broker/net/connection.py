"""One client connection: frames in, one request in flight, responses out in order.

The connection owns its non-blocking socket and asks the loop only when it is readable or writable;
there is no asyncio transport in between (uvloop's has no sendfile, and reading straight into the
request's own buffer saves a copy). It is muted while a request is in flight: the socket is not
read, so the kernel's buffer and then the client fill up. At most one read (`READ_BYTES`) beyond
the current request is in our memory.

Memory: an idle connection holds no buffer. All connections of a loop read into one shared buffer
first; a frame is copied out of it into a `bytearray` of its own, and the rest of a frame that did
not fit is received straight into that, which grows as bytes arrive. Frames of up to 1 MiB that did
not fit share a few buffers of full size (`FrameBuffers`). A slow client costs the memory of one
response: the next request is read when that is sent. What is held is counted in the
`MemoryBudget`: a frame that is received in part needs a lease of it, and its connection is not read
until it has one.

File parts that are not in the page cache are read by a worker thread before they are sent.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from struct import Struct
from termios import FIONREAD, TIOCOUTQ
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from ottla.broker.net.invalid_frames import (
    FOREIGN_SIZE,
    refuse_for_memory,
    refuse_large,
    refuse_size,
)
from ottla.broker.net.large_frames import Frame
from ottla.broker.net.output import (
    BLOCKED,
    DONE,
    FileTruncated,
    LazyPart,
    Output,
    join_if_small,
    warm,
)
from ottla.broker.requests.memory_budget import (
    HASTEN_MS,
    LARGE_BYTES,
    LEAST_PROGRESS_BYTES,
    QUICK_BYTES,
    SHORT_BYTES,
    client_of,
)
from ottla.broker.requests.memory_pool import Lease
from ottla.broker.requests.request_channel import ANONYMOUS, MAX_IN_A_ROW, Principal
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.net.services import ListenerFacts, NetworkServices
    from ottla.broker.requests.request_channel import RequestContext
    from ottla.broker.runtime.wheel import TimerTask
    from ottla.broker.security.sasl.session import SaslSession


logger = logging.getLogger("ottla.net")

# Big enough for a usual produce request (16 KiB batches) with others behind it, small enough that
# thousands of muted clients with something read ahead do not matter.
READ_BYTES = 65536

# The buffer of a frame longer than one read grows fourfold each time it is full, but not by more
# than this. While few bytes of requests are in progress, as is usual, it grows by that at once: it
# saves copying, and a thousand clients that announce much and send little cannot abuse it.
MAX_GROWTH_BYTES = 1 << 20
FEW_BYTES = 64 << 20

# The piece in which a frame is received whose connection has waited unread.
WINDOW_BYTES = 32768

# Responses held back for the rest of a turn, to leave in one packet; see `send_response`.
MAX_HELD_BYTES = 65536


# The response to a request of this length may wait for the requests that came in with it, even when
# no other client waits: handling them all takes less time than one send. Responses to bigger ones
# are sent at once, so that the client can go on meanwhile.
SMALL_REQUEST_BYTES = 2048

_SIZE = Struct(">i")
_API_KEY = Struct(">h")
_INT = Struct("i")
_ZEROS = memoryview(bytes(MAX_GROWTH_BYTES))  # never written, so the system keeps no memory for it


def plain_ip(host: str) -> str:
    """The IPv4 address of a connection over IPv4 to an IPv6 socket."""
    return host[7:] if host.startswith("::ffff:") else host


class Connection:
    """See the module. Loop thread only; `closed` connections ignore everything."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_ending",
        "_fd",
        "_filled",
        "_frame",
        "_frame_size",
        "_granted",
        "_held",
        "_held_bytes",
        "_in_a_row",
        "_is_resumed",
        "_muted",
        "_on_closed",
        "_output",
        "_pending",
        "_position",
        "_read_ahead",
        "_read_at",
        "_reading",
        "_sent_nothing",
        "_services",
        "_sock",
        "_timer_task",
        "_unread",
        "_waits_for_memory",
        "_warming",
        "_writing",
        "_written_at",
        "authenticated",
        "client_host",
        "client_port",
        "client_software_name",
        "client_software_version",
        "closed",
        "identified",
        "is_broker",
        "lease",
        "listener",
        "listener_name",
        "local_address",
        "max_frame_bytes",
        "opened_at",
        "principal",
        "raises_epochs",
        "sasl",
        "token_handler",
        "writable_topics",
    )

    #: Sends what the socket does not take at once.
    output_class: ClassVar[type[Output]] = Output
    #: The socket may have received bytes that the loop cannot see.
    reads_ahead: ClassVar[bool] = False

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        listener: "ListenerFacts",
        services: "NetworkServices",
        on_closed: "Callable[[Connection], None]",
    ) -> None:
        self.closed = False
        self._sock = sock
        self._fd = sock.fileno()
        self._services = services
        self._on_closed = on_closed
        self.opened_at = self._read_at = self._written_at = monotonic()
        self.listener = listener
        self.listener_name = listener.name
        self.client_host, self.client_port = client
        local = sock.getsockname()
        self.local_address: tuple[str, int] = (plain_ip(local[0]), local[1])
        self.principal: Principal = ANONYMOUS  # set by `authenticate`
        # Kept by the check of Produce: topic, and the version of the ACLs that allowed to write.
        self.writable_topics: dict[str, int] | None = None
        self.authenticated = not listener.requires_authentication
        self.client_software_name = ""  # set by the ApiVersions handler (KIP-511)
        self.client_software_version = ""
        self.raises_epochs = False  # set by requests of transaction version 2
        self.is_broker = False  # set when it fetches as a follower
        self.identified = False  # a whole request came in: it is a Kafka client
        self.max_frame_bytes = (
            listener.request_max_bytes if self.authenticated else listener.first_frame_max_bytes
        )
        # Gets the frames instead of the request decoder, and responds to each with `send_token` or
        # `close`: SASL tokens after SaslHandshake version 0 have no header.
        self.token_handler: Callable[[bytes], None] | None = None
        self.sasl: SaslSession | None = None
        if listener.new_session is not None:
            self.sasl = listener.new_session(self, services.decoder)
            self.token_handler = self.sasl.take_frame
        self._muted = False  # muted: a request is in flight, or the client is throttled
        self._ending = False  # a timer closes it; no more requests are read
        self._pending: bytearray | None = None  # read, but not decoded yet
        self._position = 0  # in `_pending`
        self._in_a_row = 0  # requests handled before those of other clients
        self._frame: Frame | None = None  # a frame that is received in part
        self._frame_size = 0
        self._filled = 0
        #: The memory of the frame that is received, or of the request in flight; None for one that
        #: was read at once.
        self.lease: Lease | None = None
        self._granted: Lease | None = None  # of a frame that begins when the channel has a place
        self._waits_for_memory = False
        self._is_resumed = False  # it waited for the memory of the frame that is received
        self._read_ahead = 0  # bytes of `_pending` that are counted
        self._unread = -1  # bytes of responses that are counted; below 0 while none are
        self._timer_task: TimerTask | None = None  # the end of a throttle or of the connection
        self._reading = False
        self._context: RequestContext | None = None  # the request in flight
        self._sent_nothing = False  # the last request had no response (acks=0)
        self._output: Output | None = None  # bytes that the socket has not taken yet
        self._held: list[bytes] | None = None  # responses that are sent at the end of the turn
        self._held_bytes = 0
        self._warming = False  # a worker thread reads what is to be sent next
        self._writing = False  # the loop watches for room in the socket

    def __repr__(self) -> str:
        return f"<{self.listener_name} connection from {self.client_host}:{self.client_port}>"

    def start(self) -> None:
        """Begin to read."""
        self._resume_reading()

    def authenticate(self, principal: Principal) -> None:
        """The client is authenticated: frames of full size are accepted from now on."""
        self.principal = principal
        self.writable_topics = None
        self.authenticated = True
        self.max_frame_bytes = self.listener.request_max_bytes

    @property
    def last_active(self) -> float:
        """When the client last sent or took something, in monotonic seconds."""
        return max(self._read_at, self._written_at)

    @property
    def in_flight(self) -> bool:
        """Whether a request is being handled, or a response is not sent yet."""
        return self._context is not None or self._held is not None

    @property
    def waits_for_records(self) -> bool:
        """Whether all it has in flight is a fetch that waits until there are records to return."""
        context = self._context
        return (
            context is not None
            and self._held is None
            and not context._responded
            and context.local_done_at > 0
            and context.route.entry.api_key == ApiKey.FETCH
        )

    def is_idle_since(self, moment: float) -> bool:
        """Whether nothing was sent or received since `moment` (monotonic), and no request is in
        flight. A client that does not read its response is idle; one that waits for it is not.
        """
        if self.last_active > moment:
            return False
        is_aside = self._frame is not None and not self._waits_for_memory
        return not self._muted or self._output is not None or is_aside

    @property
    def is_known(self) -> bool:
        """The client is authenticated, and has sent a request."""
        return self.authenticated and self.identified

    @property
    def filled_bytes(self) -> int:
        """Bytes of the frame that is received in part."""
        return self._filled

    @property
    def received_bytes(self) -> int:
        """Grows with all that comes of the frame that is received in part."""
        return self._filled

    @property
    def unacknowledged_bytes(self) -> int:
        """What the client has not received, as far as the system has it. Where that is not known,
        a number that changes when the socket takes more."""
        try:
            return int(_INT.unpack(ioctl(self._fd, TIOCOUTQ, bytes(_INT.size)))[0])
        except OSError:
            return int(self._written_at * 1_000_000)

    def arrives_fast(self, size: int) -> bool:
        """Whether so much of a frame of `size` bytes, of which the beginning is read, waits in the
        socket that its client sends fast; False where the system does not say."""
        arrived = len(self._pending) - self._position if self._pending is not None else 0
        try:
            arrived += _INT.unpack(ioctl(self._fd, FIONREAD, bytes(_INT.size)))[0]
            room = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4
        except OSError:
            return False
        return bool(arrived >= min(size, QUICK_BYTES, room))

    def set_aside(self) -> None:
        """Give back the memory for what has not come of the frame that is received. It is read
        again when more has come and there is memory for it; see `MemoryBudget.relieve`."""
        assert self._frame is not None
        with memoryview(self._frame) as frame:
            self._frame = bytearray(frame[: self._filled])
        self._muted = True
        left = self._frame_size - self._filled
        # A TLS record of which most has come may lack less than that.
        least = 1 if self.reads_ahead else min(LEAST_PROGRESS_BYTES, left)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
        self._services.memory.set_aside(self, self._filled)

    def _take_up(self) -> None:
        """More has come of a frame that was set aside, or the connection broke."""
        self._pause_reading()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close("the connection broke")
            return
        self._waits_for_memory = True
        self._services.memory.take_up(self, self._frame_size - self._filled, self._memory_available)

    def close(self, reason: str) -> None:
        """Close the socket now. A request in flight continues; its response is dropped.

        Responses that are held are sent: those requests were handled before the one that closes the
        connection, and without a response their client would send them again. What the socket does
        not take now is dropped.
        """
        if self.closed:
            return
        self.closed = True
        logger.debug("closing %r: %s", self, reason)
        self._pause_reading()
        if self._held is not None:
            with suppress(OSError):
                self._services.statistics.bytes_out += self._sock.send(self._take_held())
        self._stop_writing()
        self._sock.close()
        self._release_on_close()
        self._context = self._output = self._held = None
        if self._timer_task is not None:
            self._timer_task.cancel()
            self._timer_task = None
        self._frame = self._pending = None
        self._on_closed(self)

    def leave_to_parent(self) -> None:
        """See `NetworkServer.leave_to_parent`."""
        if not self.closed:
            os.close(self._sock.detach())

    def _release_on_close(self) -> None:
        """Give back the memory that is counted, but that of a request which is being handled."""
        services = self._services
        context = self._context
        if self._waits_for_memory:
            services.memory.forget(self)
        if self._read_ahead:
            self._count_read_ahead(0)
        if self._unread >= 0:
            self._count_unread(-1)
        if self._output is not None and self._output.lazy_parts:
            self._output.release()
        if self._granted is not None:
            self._granted.release()
            self._granted = None
        if self._frame is not None:
            self._release(self._frame_size)
        elif context is None:
            pass  # what was being decoded is released by who decodes it
        elif context.send_started_at or services.channel.forget(context):
            self._release_request(context)

    def close_after_response(self, response: bytes, linger_ms: int) -> None:
        """Send a response to a client that does not speak Kafka, then close the connection.

        The socket stays open, unread, for `linger_ms`: closed at once, it could be reset before the
        client has read the response.
        """
        self._muted = self._ending = True
        self._pending = None
        try:
            self._sock.send(response)
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.close(f"the connection broke: {error}")
            return
        self._timer_task = self._services.timer.schedule(
            linger_ms, lambda: self.close("the client does not speak Kafka")
        )

    def refuse_after(self, delay_ms: int, response: bytes, linger_ms: int, reason: str) -> None:
        """Send an error response later, read nothing meanwhile, and close: this delays clients that
        guess passwords (connection.failed.authentication.delay.ms)."""
        if not self.closed:
            self._muted = self._ending = True
            if self._timer_task is not None:
                self._timer_task.cancel()
            self._timer_task = self._services.timer.schedule(
                delay_ms, lambda: self._send_refusal(response, linger_ms, reason)
            )

    def _send_refusal(self, response: bytes, linger_ms: int, reason: str) -> None:
        """Close `linger_ms` after the response: some clients that find both at once ignore the
        response."""
        try:
            sent = self._sock.send(response) if response else 0
        except OSError as error:
            self.close(f"the connection broke: {error}")
            return
        if not sent:
            self.close(reason)
            return
        self._timer_task = self._services.timer.schedule(linger_ms, lambda: self.close(reason))

    def send_token(self, token: bytes) -> None:
        """Respond to a frame that `token_handler` got, with a size and no header."""
        if not self.closed:
            self._send_parts([_SIZE.pack(len(token)) + token])
        if not self.closed:
            self._next_request()

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._services.loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._services.loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        if self._muted:
            if self._frame is not None:
                self._take_up()
                return
            # Only now: usually the response is sent before more comes, which saves two calls.
            self._pause_reading()
            return
        channel = self._services.channel
        if self._frame is None and channel.free_places <= 0:
            self._wait()
            channel.wait_for_place(self)
            return
        self._receive(channel.serve)

    def _receive(self, queue: Callable[["RequestContext"], None]) -> None:
        """Read once. `queue` gets the request, if it is complete."""
        frame = self._frame
        services = self._services
        memory = services.memory
        small = memory.small
        buffer = services.receive_buffer
        if small.used >= small.limit or memory.large.waiting or memory.quick.waiting:
            buffer = services.short_buffer
        try:
            if frame is not None:
                if not self._receive_frame(frame):
                    self._check_for_reset()
                return
            received = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error}")
            return
        if received == 0:
            self.close("the client closed it")
            return
        self._in_a_row = 0
        self._read_at = monotonic()
        services.statistics.bytes_in += received
        if self._pending is None:
            size = received - 4
            if 0 < size <= self.max_frame_bytes and _SIZE.unpack_from(buffer)[0] == size:
                # Exactly one frame: the usual case.
                small.used += size
                self._accept(buffer[4:received], queue)
                return
            self._pending = buffer[:received]
        else:
            self._pending += memoryview(buffer)[:received]
        is_whole = self._take_pending(queue)
        if self._pending is not None and len(self._pending) > SHORT_BYTES:
            self._count_read_ahead(len(self._pending))
        if not is_whole:
            self._check_for_reset()

    def _count_read_ahead(self, size: int) -> None:
        small = self._services.memory.small
        small.used += size - self._read_ahead
        self._read_ahead = size

    def _check_for_reset(self) -> None:
        """Notice a reset behind the bytes that were just read.

        The loop reports a reset once, by one call of `_on_readable`, and uvloop then watches the
        socket no more. When that call found bytes to read, the reset shows only in the socket's
        error; without this check the connection would stay open for ever. A request in flight needs
        no check: sending its response fails, if it has one.
        """
        if self._muted or self.closed:
            return
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            # Not now: uvloop is still removing this descriptor.
            self._services.loop.call_soon(self._watch_again)

    def _watch_again(self) -> None:
        if self._reading:
            self._pause_reading()
            self._resume_reading()

    def _wait(self) -> None:
        """Stop reading until the channel calls `room_available`."""
        self._muted = True
        self._in_a_row = -1
        self._pause_reading()

    def room_available(self) -> None:
        """The channel has room for one more request, which is read at once: in the next iteration
        of the loop connections that have not waited may be read before."""
        if self._pending is not None:
            self._next_request()
            if self._pending is not None and not (self._muted or self.closed or self._ending):
                # It has the first bytes of a request, of which more may have come meanwhile.
                self._receive(self._services.channel.put)
        elif not (self.closed or self._ending):
            self._muted = False
            self._receive(self._services.channel.put)
            if not (self._muted or self.closed):
                self._resume_reading()

    def _next_request(self) -> None:
        """Nothing is in flight: take the next frame read ahead, or read the socket."""
        if self._ending:
            return
        self._muted = False
        if self._pending is not None:
            row = self._in_a_row = self._in_a_row + 1
            channel = self._services.channel
            if not 0 < row < MAX_IN_A_ROW:
                self._in_a_row = 0
            self._take_pending(channel.put_first if self._in_a_row else channel.put)
            if self._muted or self.closed:
                return
        if self.reads_ahead or not self._reading:
            self._resume_reading()
        if self._sent_nothing:
            self._sent_nothing = False
            self._check_for_reset()

    def _take_pending(self, queue: Callable[["RequestContext"], None]) -> bool:
        """Take the next frame, or the beginning of it, out of what was read ahead. Returns whether
        it was complete; then `queue` has got the request."""
        pending = self._pending
        assert pending is not None
        position = self._position
        available = len(pending) - position
        if available < 4:
            del pending[:position]
            self._position = 0
            return False
        size = _SIZE.unpack_from(pending, position)[0]
        if not 0 <= size <= self.max_frame_bytes or (size >= FOREIGN_SIZE and not self.identified):
            first_bytes = bytes(pending[position : position + 4])
            if refuse_size(self, size, first_bytes, self._services):
                return False
        channel = self._services.channel
        start = position + 4
        end = start + size
        if channel.free_places <= 0:
            self._wait()
            channel.wait_for_place(self)
            return False
        services = self._services
        if end <= len(pending):
            services.memory.small.used += size
        elif self._granted is not None:
            self.lease, self._granted = self._granted, None
        elif not self._admit(pending, start, size):
            return False
        frame = services.frame_buffers.begin(pending, start, size)
        if end < len(pending):
            self._position = end
        else:
            self._pending = None
            self._position = 0
            if self._read_ahead:
                self._count_read_ahead(0)
        if available >= 4 + size:
            self._accept(frame, queue)
            return True
        self._frame = frame
        self._filled = available - 4
        self._is_resumed = False
        self._frame_size = size
        assert self.lease is not None
        services.memory.received[self] = self.lease
        return False

    def _admit(self, pending: bytearray, start: int, size: int) -> bool:
        """Decide on a frame of which more is to come. False: the rest of this call is void."""
        if len(pending) < start + 2:
            return False  # called again when its API key has come
        services = self._services
        memory = services.memory
        api_key = _API_KEY.unpack_from(pending, start)[0]
        of_broker = services.large_frames.is_of_broker(self, api_key)
        if size > LARGE_BYTES:
            if self.token_handler is None and not services.large_frames.may_receive(
                self, api_key, size
            ):
                refuse_large(self, size, services)
                return False
            if size > memory.max_frame_bytes and not self.listener.of_brokers:
                refuse_for_memory(self, size, services)
                return False
        self.lease = memory.admit(self, size, of_broker=of_broker, resume=self._memory_available)
        if self.lease is None:
            self._waits_for_memory = True
            self._wait()
            if size > LARGE_BYTES and not of_broker:
                services.timer.schedule(HASTEN_MS, self._hasten)
            return False
        return True

    def _hasten(self) -> None:
        """A frame has waited for a moment, perhaps the one before: more may have come meanwhile."""
        pending = self._pending
        if self._waits_for_memory and self._frame is None and pending is not None:
            size = _SIZE.unpack_from(pending, self._position)[0]
            self._services.memory.hasten(self, size, self._memory_available)

    def _memory_available(self, lease: Lease) -> None:
        """The frame for which this connection waits may be received, or the rest of it."""
        self._waits_for_memory = False
        if self._frame is None:
            self._granted = lease
            self.room_available()
        else:
            self._services.memory.go_on(self, lease)
            self._muted = False
            self._resume_reading()
        self._is_resumed = self._frame is not None

    def _release(self, size: int) -> None:
        """A frame is gone."""
        memory = self._services.memory
        lease = self.lease
        if lease is not None:
            self.lease = None
            memory.received.pop(self, None)
            memory.aside.pop(self, None)
            lease.release()
            return
        small = memory.small
        small.used -= size
        if small.waiting:
            small.offer()

    def _receive_frame(self, frame: Frame) -> bool:
        """Receive more of a frame that is longer than one read, straight into its buffer. Returns
        whether it is complete."""
        filled = self._filled
        size = self._frame_size
        if filled == len(frame) and isinstance(frame, bytearray):
            is_quiet = self._services.memory.large.used < FEW_BYTES
            growth = MAX_GROWTH_BYTES if is_quiet else max(3 * filled, READ_BYTES)
            frame += _ZEROS[: min(growth, size - filled, MAX_GROWTH_BYTES)]
        # In pieces: each announces a wider window to a client whose connection was not read. If
        # only one packet said so, and was lost, the client would be silent until its next probe.
        end = filled + WINDOW_BYTES if self._is_resumed else size
        with memoryview(frame) as whole, whole[filled:end] as rest:
            received = self._sock.recv_into(rest)
        if received == 0:
            self.close("the client closed it in the middle of a request")
            return False
        self._read_at = monotonic()
        self._services.statistics.bytes_in += received
        filled += received
        self._filled = filled
        if filled < size:
            return False
        self._frame = None
        self._services.memory.received.pop(self, None)
        self._accept(frame, self._services.channel.serve)
        return True

    def _accept(self, frame: Frame, queue: Callable[["RequestContext"], None]) -> None:
        """A frame is complete, and its bytes are reserved: decode it and `queue` the request."""
        if self.token_handler is not None:
            self._release(len(frame))
            self._muted = True
            self.token_handler(bytes(frame))
            return
        context = self._services.decoder.decode(frame, self)
        if context is None:
            self._release(len(frame))
            return
        self.identified = True
        self._muted = True
        self._context = context
        queue(context)

    def _throttle_over(self) -> None:
        self._timer_task = None
        self._next_request()

    def _has_whole_request(self) -> bool:
        """Whether one more whole request was read ahead."""
        pending = self._pending
        if pending is None:
            return False
        left = len(pending) - self._position - 4
        return left >= 0 and _SIZE.unpack_from(pending, self._position)[0] <= left

    def send_response(self, context: "RequestContext", parts: list[Any]) -> None:
        """Send the response to the request in flight; no parts: there is none (acks=0).

        While other requests are queued, and when it is one of several small requests that came in
        together, the response is held back for a moment: those of one connection are sent in one
        packet, those of several one right after the other. A send costs more than all else that a
        tiny request takes. Alone, it is sent at once.
        """
        if context.response_lease is not None:
            self._send_long_response(context, parts)
            return
        now = context.send_started_at = monotonic()
        if self.closed:
            self._release_request(context)
            return
        response: bytes | None = None
        if self._output is None:
            if not parts:
                self._sent_nothing = True
                self._finished(context)
                return
            response = parts[0] if len(parts) == 1 and type(parts[0]) is bytes else None
            if response is None:
                response = join_if_small(parts)
        if response is None:
            self._send_parts(parts)
            return
        held = self._services.channel.held
        if held.is_open and self._held_bytes < MAX_HELD_BYTES:
            if held.expects_more or (
                self._pending is not None
                and context.frame_bytes <= SMALL_REQUEST_BYTES
                and self._has_whole_request()
            ):
                self._hold(response, now)
                self._finished(context)
                if held.is_due(now):  # only now: a send may find that a response is finished
                    held.flush()
                return
            # If this request completes others, their responses are sent together.
            held.expects_more = True
        if self._held is not None:
            response = self._take_held() + response
        if self._send_at_once(response):
            self._finished(context)

    def _send_long_response(self, context: "RequestContext", parts: list[Any]) -> None:
        """`send_response`, and count what the client does not take instead of what the response was
        taken to need."""
        lease, context.response_lease = context.response_lease, None
        assert lease is not None
        context.route.count_response(sum(map(len, parts)))
        try:
            self.send_response(context, parts)
        finally:
            lease.release()

    def _count_unread(self, size: int) -> None:
        self._unread = size
        self._services.memory.set_unread(self, size, self._context)

    def held_leases(self) -> list[Lease]:
        """Memory that is not free until the client reads its response."""
        leases = [self._services.memory.unread_lease(self), self.lease]
        if self._output is not None:
            leases += [part.lease for part in self._output.lazy_parts]
        return [lease for lease in leases if lease is not None and lease.size]

    def _send_at_once(self, response: bytes) -> bool:
        """Send with nothing before it; False: the rest is sent later, or the connection broke."""
        try:
            sent = self._sock.send(response)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close(f"the connection broke: {error}")
            return False
        self._services.statistics.bytes_out += sent
        if sent == len(response):
            return True
        # A copy: a view would keep all of it.
        self._send_parts([response[sent:]])
        return False

    def _send_parts(self, parts: list[Any]) -> None:
        """Send bytes and parts of files after those that are not sent yet."""
        output = self._output
        if output is not None:
            output.add(parts)
            if self._writing:
                self._count_unread(output.memory_bytes)
            elif not self._warming:
                self._write()
            return
        services = self._services
        output = self._output = self.output_class(
            self._sock, services.statistics, services.turn_limit
        )
        if self._held is not None:
            output.add([self._take_held()])
        output.add(parts)
        self._write()

    def _write(self) -> None:
        """Send what the socket takes; the rest is sent when it is writable again."""
        output = self._output
        assert output is not None
        try:
            state = output.flush()
        except FileTruncated as error:
            logger.error(
                "cannot finish the response to %r: a log file is too short: %s", self, error
            )
            self.close("a log file was too short")
            return
        except OSError as error:
            self.close(f"the connection broke: {error}")
            return
        if state == BLOCKED:
            if not self._writing:
                self._writing = True
                self._services.loop.add_writer(self._fd, self._on_writable)
            size = output.memory_bytes
            if size > SHORT_BYTES or self._unread >= 0 or output.lazy_parts:
                self._count_unread(size)
        elif state == DONE:
            self._written_at = monotonic()
            self._output = None
            if self._unread >= 0:
                self._count_unread(-1)
            if output.lazy_parts:
                output.release()
            context = self._context
            if context is not None and context.send_started_at:
                self._finished(context)
            # After it, as the loop takes fewer system calls to add a reader to a descriptor that it
            # still watches. The response to a request that was read ahead is written soon.
            if self._writing and self._output is None and self._context is None:
                self._stop_writing()
        else:  # it is cold
            self._stop_writing()
            self._warming = True
            if self._unread >= 0:
                self._count_unread(-1)  # it does not wait for its client
            spawn(self._warm(output), name="cold-read")

    def _on_writable(self) -> None:
        if self._output is None:  # the next response is not there yet
            self._stop_writing()
            return
        self._written_at = monotonic()
        self._write()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._services.loop.remove_writer(self._fd)

    async def _warm(self, output: Output) -> None:
        """Read the next file part into the page cache in a worker thread, or make the next bytes of
        a lazy part, then go on."""
        lazy = output.lazy_part
        if lazy is not None:
            await self._make(output, lazy)
            return
        part, position, length = output.cold_part()
        try:
            # `part` keeps the file open, whatever becomes of the connection meanwhile.
            await self._services.worker_pool.run(warm, part.fd, position, length)
        except OSError as error:
            logger.error("cannot read a log file for %r: %s", self, error)
            self.close("a log file could not be read")
            return
        finally:
            self._warming = False
        if not self.closed:
            output.warmed()
            self._write()

    async def _make(self, output: Output, part: LazyPart) -> None:
        try:
            content = await part.next_bytes(client_of(self))
        except BaseException:
            self.close("a part of a response could not be made")
            raise
        finally:
            self._warming = False
        if self.closed:
            part.release()
        else:
            output.insert(content)
            self._write()

    def _hold(self, response: bytes, now: float) -> None:
        self._held_bytes += len(response)
        if self._held is None:
            self._held = [response]
            self._services.channel.held.add(self._flush_held, now)
        else:
            self._held.append(response)

    def _take_held(self) -> bytes:
        held = self._held
        assert held is not None
        self._held = None
        self._held_bytes = 0
        return b"".join(held)

    def _flush_held(self) -> None:
        if self._held is not None:
            self._send_at_once(self._take_held())

    def _finished(self, context: "RequestContext") -> None:
        """The response is sent (or held): count it. The next request is read when the client's
        throttle time is over."""
        context.route.statistics.record(context.header.api_version, context, monotonic())
        size, context.frame_bytes = context.frame_bytes, 0
        if size:
            self._release(size)
        self._context = None
        if self.closed or self._ending:
            return
        if context.throttle_time_ms > 0:
            self._timer_task = self._services.timer.schedule(
                context.throttle_time_ms, self._throttle_over
            )
        else:
            self._next_request()

    def _release_request(self, context: "RequestContext") -> None:
        """Give back the memory of the request's frame, once."""
        size, context.frame_bytes = context.frame_bytes, 0
        if size:
            self._release(size)
