"""The sending half of a connection: answers out, as fast as the client takes them.

A slow reader costs no memory but its one answer: its connection is not read until the answer is
out. File parts that are not in the page cache are read by a worker thread first.
"""

import logging
import socket
from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.broker.net.output import COLD, DONE, FileTruncated, Output, join_if_small, warm
from ottla.broker.runtime.tasks import spawn

if TYPE_CHECKING:
    from ottla.broker.net.services import NetworkServices
    from ottla.broker.requests.request_channel import RequestContext

logger = logging.getLogger("ottla.net")

# Responses held back for the rest of a turn, to leave in one packet; see `send_response`.
MAX_HELD_BYTES = 65536

_FETCH = 1


# The answer to a request of this length may wait for those that came in with it, even when nobody
# else waits: handling them all takes less time than one send. Bigger ones are answered at once, so
# that the client works on while we do.
SMALL_REQUEST_BYTES = 2048


class SendingSide(ABC):
    """Owns the socket and what is to be sent on it. Loop thread only."""

    __slots__ = (
        "_context",
        "_fd",
        "_held",
        "_held_bytes",
        "_output",
        "_sent_nothing",
        "_services",
        "_sock",
        "_warming",
        "_writing",
        "closed",
        "last_active",
    )

    def __init__(self, sock: socket.socket, services: "NetworkServices") -> None:
        self.closed = False
        self.last_active = monotonic()
        self._sock = sock
        self._fd = sock.fileno()
        self._services = services
        self._context: RequestContext | None = None  # the request in flight
        self._output: Output | None = None  # what the socket did not take yet
        self._held: list[bytes] | None = None  # answers that leave at the end of the turn
        self._held_bytes = 0
        self._sent_nothing = False  # the last request had no answer (acks=0)
        self._warming = False  # a worker thread reads what is to be sent next
        self._writing = False  # the loop watches for room in the socket

    @abstractmethod
    def close(self, reason: str) -> None:
        """Close the socket now."""

    @abstractmethod
    def _response_is_sent(self, context: "RequestContext") -> None:
        """The answer is sent (or held): the next request may come."""

    @abstractmethod
    def _can_hold(self) -> bool:
        """One more whole request of this client is here, so its answers will be looked after
        soon."""

    def _new_output(self) -> Output:
        return Output(self._sock, self._services.statistics)

    @property
    def in_flight(self) -> bool:
        """A request is being worked on, or an answer is not out yet."""
        return self._context is not None or self._held is not None

    @property
    def waits_for_records(self) -> bool:
        """All it has in flight is a fetch that waits until there is something to answer."""
        context = self._context
        return (
            context is not None
            and self._held is None
            and not context._responded
            and context.local_done_at > 0
            and context.route.entry.api_key == _FETCH
        )

    def send_response(self, context: "RequestContext", parts: list[Any]) -> None:
        """Send the answer to the request in flight; no parts: there is none (acks=0).

        While other clients' requests are waiting, or when it is small, the answer to one of several
        requests that came in together is held back until the turn ends, so that their answers leave
        in one packet: a send costs more than everything else on a tiny request's way. Alone, it is
        sent at once.
        """
        context.responded_at = context.send_started_at = monotonic()
        if self.closed:
            self._release(context)
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
        channel = self._services.channel
        if (
            channel.in_turn
            and (channel.queued or context.frame_bytes <= SMALL_REQUEST_BYTES)
            and self._held_bytes < MAX_HELD_BYTES
            and (self._held is not None or self._can_hold())
        ):
            self._hold(response)
            self._finished(context)
            return
        if self._held is not None:
            response = self._take_held() + response
        if self._send_at_once(response):
            self._finished(context)

    def _send_at_once(self, response: bytes) -> bool:
        """Send with nothing before it; False: the rest goes out later, or the connection broke."""
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
        self._send_parts([memoryview(response)[sent:]])
        return False

    def _send_parts(self, parts: list[Any]) -> None:
        output = self._output
        if output is None:
            output = self._output = self._new_output()
            if self._held is not None:
                output.add([self._take_held()])
        output.add(parts)
        if not self._writing and not self._warming:
            self._write()

    def _write(self) -> None:
        """Send what the socket takes; what is left goes out when the loop says it is writable."""
        output = self._output
        assert output is not None
        try:
            state = output.flush()
        except FileTruncated as error:
            logger.error("cannot finish the answer to %r: a log file is too short: %s", self, error)
            self.close("a log file was too short")
            return
        except OSError as error:
            self.close(f"the connection broke: {error}")
            return
        if state == DONE:
            self.last_active = monotonic()
            self._output = None
            self._stop_writing()
            context = self._context
            if context is not None and context.responded_at:
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
        """Have a thread read the file part that is next, then go on."""
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

    def _hold(self, response: bytes) -> None:
        if self._held is None:
            self._held = [response]
            self._services.channel.flush_at_turn_end.append(self._flush_held)
        else:
            self._held.append(response)
        self._held_bytes += len(response)

    def _take_held(self) -> bytes:
        held = self._held
        assert held is not None
        self._held = None
        self._held_bytes = 0
        return b"".join(held)

    def _flush_held(self) -> None:
        if self._held is not None:
            self._send_at_once(self._take_held())

    def _drop_output(self) -> None:
        """The connection closes: nothing more will be sent."""
        context = self._context
        if context is not None and context.responded_at:
            self._release(context)
        self._context = self._output = self._held = None

    def _finished(self, context: "RequestContext") -> None:
        """The answer is out (or held): count it, then let the next request in."""
        context.route.statistics.record(context, monotonic())
        self._release(context)
        self._context = None
        self._response_is_sent(context)

    def _release(self, context: "RequestContext") -> None:
        """Give back the memory of the request's frame, once."""
        size, context.frame_bytes = context.frame_bytes, 0
        if size:
            self._services.channel.release(size)
