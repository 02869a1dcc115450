"""Sends the responses of a connection, as fast as the client takes them.

A slow client costs no memory but its one response: its connection is muted until the response is
sent. File parts that are not in the page cache are read by a worker thread first.
"""

import logging
import socket
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.net.output import COLD, DONE, FileTruncated, Output, join_if_small, warm
from ottla.broker.runtime.tasks import spawn

if TYPE_CHECKING:
    from ottla.broker.net.services import NetworkServices
    from ottla.broker.requests.request_channel import RequestContext

logger = logging.getLogger("ottla.net")

# Responses held back for the rest of a turn, to leave in one packet; see `send_response`.
MAX_HELD_BYTES = 65536

_FETCH = 1


# The response to a request of this length may wait for the requests that came in with it, even when
# no other client waits: handling them all takes less time than one send. Responses to bigger ones
# are sent at once, so that the client can go on meanwhile.
SMALL_REQUEST_BYTES = 2048


class WriterOwner(Protocol):
    """What the writer reports to the connection that owns it."""

    def close(self, reason: str) -> None:
        """The connection broke: close the socket now."""

    def response_is_sent(self, context: "RequestContext") -> None:
        """The response is sent (or held): the next request may be read."""

    def has_whole_request(self) -> bool:
        """One more whole request of this client is in memory, so that a response that is held back
        is soon followed by another one."""


class _Closed:
    """Stands for the owner after the end, so that a closed connection is in no reference cycle."""

    def close(self, reason: str) -> None:
        """Nothing to do."""

    def response_is_sent(self, context: "RequestContext") -> None:
        """Nothing to do."""

    def has_whole_request(self) -> bool:
        return False


_CLOSED = _Closed()


class ResponseWriter:
    """Sends the responses of one connection, in order. Loop thread only.

    `close` it before the socket; after that it sends nothing and only releases memory.
    """

    __slots__ = (
        "_closed",
        "_fd",
        "_held",
        "_held_bytes",
        "_output",
        "_output_class",
        "_owner",
        "_services",
        "_sock",
        "_warming",
        "_writing",
        "context",
        "last_active",
        "sent_nothing",
    )

    def __init__(
        self,
        sock: socket.socket,
        services: "NetworkServices",
        owner: WriterOwner,
        output_class: type[Output],
    ) -> None:
        #: The request in flight: the connection sets it before the request is handled.
        self.context: RequestContext | None = None
        #: The last request had no response (acks=0).
        self.sent_nothing = False
        #: When the client last took something, in monotonic seconds.
        self.last_active = monotonic()
        self._closed = False
        self._sock = sock
        self._fd = sock.fileno()
        self._services = services
        self._owner = owner
        self._output_class = output_class
        self._output: Output | None = None  # what the socket has not taken yet
        self._held: list[bytes] | None = None  # responses that are sent at the end of the turn
        self._held_bytes = 0
        self._warming = False  # a worker thread reads what is to be sent next
        self._writing = False  # the loop watches for room in the socket

    @property
    def has_unsent_bytes(self) -> bool:
        """The client does not take a response as fast as it is sent."""
        return self._output is not None

    def close(self) -> None:
        """The connection closes: send what is held, and nothing more.

        Those requests were handled before the one that closes the connection: without a response,
        their client would send them again. What the socket does not take now is dropped.
        """
        self._closed = True
        if self._held is not None:
            with suppress(OSError):
                self._services.statistics.bytes_out += self._sock.send(self._take_held())
        self._stop_writing()
        context = self.context
        if context is not None and context.send_started_at:
            self._release(context)
        self.context = self._output = self._held = None
        self._owner = _CLOSED

    @property
    def in_flight(self) -> bool:
        """A request is being handled, or a response is not sent yet."""
        return self.context is not None or self._held is not None

    @property
    def waits_for_records(self) -> bool:
        """All it has in flight is a fetch that waits until there are records to return."""
        context = self.context
        return (
            context is not None
            and self._held is None
            and not context._responded
            and context.local_done_at > 0
            and context.route.entry.api_key == _FETCH
        )

    def send_response(self, context: "RequestContext", parts: list[Any]) -> None:
        """Send the response to the request in flight; no parts: there is none (acks=0).

        While other requests are queued, and when it is one of several small requests that came in
        together, the response is held back for a moment: those of one connection are sent in one
        packet, those of several one right after the other. A send costs more than all else that a
        tiny request takes. Alone, it is sent at once.
        """
        context.send_started_at = monotonic()
        if self._closed:
            self._release(context)
            return
        response: bytes | None = None
        if self._output is None:
            if not parts:
                self.sent_nothing = True
                self._finished(context)
                return
            response = parts[0] if len(parts) == 1 and type(parts[0]) is bytes else None
            if response is None:
                response = join_if_small(parts)
        if response is None:
            self.send_parts(parts)
            return
        held = self._services.channel.held
        if held.is_open and self._held_bytes < MAX_HELD_BYTES:
            if held.expects_more or (
                context.frame_bytes <= SMALL_REQUEST_BYTES and self._owner.has_whole_request()
            ):
                now = context.send_started_at
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

    def _send_at_once(self, response: bytes) -> bool:
        """Send with nothing before it; False: the rest is sent later, or the connection broke."""
        try:
            sent = self._sock.send(response)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._owner.close(f"the connection broke: {error}")
            return False
        self._services.statistics.bytes_out += sent
        if sent == len(response):
            return True
        self.send_parts([memoryview(response)[sent:]])
        return False

    def send_parts(self, parts: list[Any]) -> None:
        """Send bytes and parts of files after what is not sent yet."""
        output = self._output
        if output is None:
            services = self._services
            output = self._output = self._output_class(
                self._sock, services.statistics, services.turn_limit
            )
            if self._held is not None:
                output.add([self._take_held()])
        output.add(parts)
        if not self._writing and not self._warming:
            self._write()

    def _write(self) -> None:
        """Send what the socket takes; the rest is sent when it is writable again."""
        output = self._output
        assert output is not None
        try:
            state = output.flush()
        except FileTruncated as error:
            logger.error(
                "cannot finish the response to %r: a log file is too short: %s", self._owner, error
            )
            self._owner.close("a log file was too short")
            return
        except OSError as error:
            self._owner.close(f"the connection broke: {error}")
            return
        if state == DONE:
            self.last_active = monotonic()
            self._output = None
            self._stop_writing()
            context = self.context
            if context is not None and context.send_started_at:
                self._finished(context)
        elif state == COLD:
            self._stop_writing()
            self._warming = True
            spawn(self._warm(output), name="cold-read")
        elif not self._writing:
            self._writing = True
            self._services.loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        self.last_active = monotonic()
        self._write()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._services.loop.remove_writer(self._fd)

    async def _warm(self, output: Output) -> None:
        """Read the next file part into the page cache in a worker thread, then go on."""
        owner = self._owner
        part, position, length = output.cold_part()
        try:
            # `part` keeps the file open, whatever becomes of the connection meanwhile.
            await self._services.worker_pool.run(warm, part.fd, position, length)
        except OSError as error:
            logger.error("cannot read a log file for %r: %s", owner, error)
            owner.close("a log file could not be read")
            return
        finally:
            self._warming = False
        if not self._closed:
            output.warmed()
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
        """The response is sent (or held): count it, then let the next request be read."""
        context.route.statistics.record(context.header.api_version, context, monotonic())
        self._release(context)
        self.context = None
        self._owner.response_is_sent(context)

    def _release(self, context: "RequestContext") -> None:
        """Give back the memory of the request's frame, once."""
        size, context.frame_bytes = context.frame_bytes, 0
        if size:
            self._services.release(size, context.client_host)
