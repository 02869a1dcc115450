"""An asyncio connection to one broker: a transport around the sans-IO connection.

It starts no tasks: what arrives is handled in the protocol's callbacks, callers wait for futures.
"""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from ottla.protocol.client.blocking_connection import (
    connect_failure,
    create_ssl_context,
    monotonic_ms,
)
from ottla.protocol.client.cluster import Address
from ottla.protocol.client.connection import ClientConnection
from ottla.protocol.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ClientError,
    RequestTimedOutError,
)
from ottla.protocol.client.operations import ANY_VERSION, Versions
from ottla.protocol.client.sasl import mechanism_factory
from ottla.protocol.client.security import Security
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.primitives import Buffer
from ottla.protocol.steps import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.client.connection import ClientResponse, Decoding

T = TypeVar("T")

DEFAULT_REQUEST_TIMEOUT_MS = 30_000  # as Kafka's request.timeout.ms

# As Kafka's max.in.flight.requests.per.connection; brokers handle one after the other anyway.
MAX_IN_FLIGHT = 5


# One read of short responses, and of the beginning of a long one.
RECEIVE_BYTES = 65536

# Enough to get a ticket while another KDC is slow; without a limit of its own, a KDC that does not
# respond would take the threads of the whole process.
PREPARING_THREADS = 2


@cache
def _preparing() -> ThreadPoolExecutor:
    """The threads in which SASL mechanisms are prepared."""
    return ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="sasl-prepare")


class _Wire(asyncio.BufferedProtocol):
    """The protocol that the loop calls; hands everything to its connection.

    The loop receives long responses where they stay; else it would copy them twice.
    """

    def __init__(self, owner: "AsyncConnection") -> None:
        self._owner = owner
        self._buffer = bytearray(RECEIVE_BYTES)  # its pages are no memory before they are used
        self._is_room = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but their class.
        self._owner.on_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        room = self._owner.room
        self._is_room = room is not None
        return self._buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_room:
            self._owner.on_received(nbytes)
        else:
            self._owner.on_data(memoryview(self._buffer)[:nbytes])

    def data_received(self, data: bytes) -> None:
        """For a transport that has the bytes already."""
        self._owner.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_lost(exc)

    def pause_writing(self) -> None:
        self._owner.writable.clear()

    def resume_writing(self) -> None:
        self._owner.writable.set()


class AsyncConnection:
    """A connection to one broker. Requests may overlap: at most `max_in_flight` of them, sent and
    get their responses in the order of the calls."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "ottla",
        security: Security | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self.broker = str(Address(host, port))
        self.writable = asyncio.Event()
        self.writable.set()
        self._host = host
        self._port = port
        if ssl_context is None and security is not None and security.uses_tls:
            ssl_context = create_ssl_context(security)
        self._ssl_context = ssl_context
        factory = mechanism_factory(security, host)
        self._mechanism = factory() if factory else None
        self._protocol = ClientConnection(
            self.broker, client_id=client_id, mechanism=self._mechanism
        )
        self._transport: asyncio.Transport | None = None
        self._setup: asyncio.Future[None] | None = None
        self._responses: dict[int, asyncio.Future[Message | Decoding]] = {}
        self._slots = asyncio.Semaphore(max_in_flight)
        self._expires_at_ms: int | None = None
        self._setup_deadline_ms = 0

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version by API key that the broker offers, once connected."""
        return self._protocol.versions

    @property
    def in_flight(self) -> int:
        """Requests without a response yet, and those that set the connection up."""
        return self._protocol.in_flight

    @property
    def is_usable(self) -> bool:
        """Connected, and the session not near the end that the broker has set."""
        if not self._protocol.is_ready or self._transport is None or self._transport.is_closing():
            return False
        return self._expires_at_ms is None or monotonic_ms() < self._expires_at_ms

    async def connect(self, timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS) -> None:
        """TCP, TLS, API versions and SASL; raises a ClientError, and is closed then. Once only."""
        loop = asyncio.get_running_loop()
        self._setup_deadline_ms = monotonic_ms() + timeout_ms
        self._setup = loop.create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._mechanism is not None and self._mechanism.blocks:
                    await loop.run_in_executor(_preparing(), self._mechanism.prepare)
                await loop.create_connection(
                    lambda: _Wire(self), self._host, self._port, ssl=self._ssl_context
                )
                await self._setup
        except AuthenticationError:
            self.close()
            raise
        except TimeoutError as error:
            connected = self._protocol.in_flight > 0  # but no word since
            failure = self._overdue() if connected else connect_failure(self.broker, error)
            self.close()
            raise failure from None
        except (OSError, ValueError) as error:
            self.close()
            uses_tls = self._ssl_context is not None
            raise connect_failure(self.broker, error, uses_tls=uses_tls) from error
        except BaseException:
            self.close()
            raise
        if self._protocol.session_lifetime_ms > 0:
            # Kafka's clients authenticate again at 85 to 95 % of the lifetime; we reconnect.
            self._expires_at_ms = monotonic_ms() + self._protocol.session_lifetime_ms * 17 // 20

    async def request(
        self,
        message: Message,
        timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        *,
        version: int | None = None,
        versions: Versions = ANY_VERSION,
        in_turns: bool = False,
    ) -> Message:
        """Send one request and wait for its response; a Produce with acks=0 gets an empty one at
        once. With `in_turns` other tasks run while a long response is decoded.

        `version` is used as it is, otherwise the best within `versions`. Raises a ClientError;
        the connection is closed when no response came in time, and other requests on it fail as
        well. Waiting for a slot, for the socket and for the response all count. A cancelled request
        closes the connection too if it was sent already: its response would be taken for another's.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        if self.writable.is_set() and not self._slots.locked():
            await self._slots.acquire()  # at once
        else:
            await self._wait_for_slot(message, timeout_ms)
            timeout_ms = deadline_ms - monotonic_ms()
        try:
            response = self._send(message, deadline_ms, version, versions, in_turns)
            if response is None:
                return ProduceResponse()
            # One timer, and no asyncio.timeout: brokers send thousands of requests a second.
            timer = response.get_loop().call_later(timeout_ms / 1000, self._expire, response)
            try:
                decoded = await response
            except asyncio.CancelledError:
                self._abandon(
                    BrokerConnectionError(
                        f"the connection to broker {self.broker} was given up: a request on it "
                        "was cancelled",
                        broker=self.broker,
                        sent=True,
                    )
                )
                raise
            finally:
                timer.cancel()
        finally:
            self._slots.release()
        return decoded if isinstance(decoded, Message) else await self._decode(decoded)

    async def _decode(self, steps: "Decoding") -> Message:
        turn = Turn()
        try:
            while True:
                next(steps)
                await turn.share()
        except StopIteration as end:
            return cast("Message", end.value)
        except ProtocolError as error:
            failure = self._protocol.unreadable(error)
            self._abandon(failure)
            raise failure from error

    async def _wait_for_slot(self, message: Message, timeout_ms: int) -> None:
        """Take a slot when there is one and the socket takes more bytes; first come, first
        served."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._slots.acquire()
                try:
                    await self.writable.wait()
                except asyncio.CancelledError:
                    self._slots.release()
                    raise
        except TimeoutError:
            raise RequestTimedOutError(
                f"{message.NAME} could not be sent to broker {self.broker} in time: "
                "earlier requests are still waiting for their responses",
                broker=self.broker,
            ) from None

    def _expire(self, response: "asyncio.Future[Message | Decoding]") -> None:
        """No response came in time: it and all others on this connection fail."""
        if not response.done():
            self._abandon(self._overdue())

    def _send(
        self,
        message: Message,
        deadline_ms: int,
        version: int | None,
        versions: Versions,
        in_steps: bool,
    ) -> "asyncio.Future[Message | Decoding] | None":
        if self._transport is None or self._transport.is_closing():
            raise BrokerConnectionError(
                f"the connection to broker {self.broker} is closed, {message.NAME} was not sent",
                broker=self.broker,
            )
        correlation_id = self._protocol.send(
            message,
            deadline_ms=deadline_ms,
            version=version,
            min_version=versions.low,
            max_version=versions.high,
            in_steps=in_steps,
        )
        self._transport.write(self._protocol.take_output())
        if correlation_id is None:
            return None
        response: asyncio.Future[Message | Decoding] = asyncio.get_running_loop().create_future()
        self._responses[correlation_id] = response
        return response

    def _overdue(self) -> ClientError:
        try:
            self._protocol.check_deadline(1 << 62)
        except ClientError as error:
            return error
        return RequestTimedOutError(
            f"broker {self.broker} did not respond in time", broker=self.broker, sent=True
        )

    def close(self) -> None:
        """Close now; requests that wait for responses fail."""
        self._abandon(
            BrokerConnectionError(
                f"the connection to broker {self.broker} was closed on our side",
                broker=self.broker,
                sent=True,
            )
        )

    def _abandon(self, error: ClientError) -> None:
        self._protocol.close()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self.writable.set()
        if self._setup is not None and not self._setup.done():
            self._setup.set_exception(error)
            self._setup.exception()  # retrieved: no caller may be waiting any more
        responses, self._responses = self._responses, {}
        for response in responses.values():
            if not response.done():
                response.set_exception(error)
                response.exception()

    # called by the loop --------------------------------------------------------------------

    def on_connected(self, transport: asyncio.Transport) -> None:
        if self._protocol.is_closed:  # given up while connecting
            transport.abort()
            return
        self._transport = transport
        self._protocol.start(self._setup_deadline_ms)
        transport.write(self._protocol.take_output())

    @property
    def room(self) -> memoryview | None:
        """Where to receive the next bytes, if a long response has begun."""
        return self._protocol.room

    def on_data(self, data: Buffer) -> None:
        self._take(self._protocol.feed, data)

    def on_received(self, count: int) -> None:
        self._take(self._protocol.received, count)

    def _take(self, take: "Callable[[T], list[ClientResponse]]", received: T) -> None:
        try:
            responses = take(received)
        except ClientError as error:
            self._abandon(error)
            return
        for correlation_id, message in responses:
            response = self._responses.pop(correlation_id, None)
            if response is not None and not response.done():
                response.set_result(message)
        output = self._protocol.take_output()
        if output and self._transport is not None:
            self._transport.write(output)
        if self._protocol.is_ready and self._setup is not None and not self._setup.done():
            self._setup.set_result(None)

    def on_lost(self, error: Exception | None) -> None:
        if self._protocol.is_closed:
            return
        failure = self._protocol.end_of_stream()
        failure.__cause__ = error
        self._abandon(failure)
