"""A blocking connection to one broker: a socket, perhaps TLS, around the sans-IO connection."""

import socket
import sys
import time
from typing import TYPE_CHECKING, cast

from ottla.protocol.client.cluster import Address
from ottla.protocol.client.connection import ClientConnection, ClientResponse
from ottla.protocol.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ClientError,
    RequestTimedOutError,
)
from ottla.protocol.client.operations import ANY_VERSION, Versions
from ottla.protocol.client.sasl import mechanism_factory
from ottla.protocol.client.security import Security
from ottla.protocol.message import Message

if TYPE_CHECKING:
    import ssl

_RECEIVE_BYTES = 256 * 1024


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def create_ssl_context(security: Security) -> "ssl.SSLContext":
    """The TLS context for `security`; raises AuthenticationError when a file cannot be used."""
    import ssl  # here: a tenth of a client's start that most clients do not need

    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.check_hostname
        if security.certificate_file is not None:
            context.load_cert_chain(
                security.certificate_file, security.key_file, security.key_password
            )
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(
            name
            for name in (security.ca_file, security.certificate_file, security.key_file)
            if name is not None
        )
        raise AuthenticationError(f"the TLS files ({files}) cannot be used: {error}") from error
    return context


def connect_failure(broker: str, error: Exception, *, uses_tls: bool = False) -> ClientError:
    """The error for what happened while connecting."""
    ssl = sys.modules.get("ssl")  # without it, no error is one of TLS
    if ssl is not None and isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(
            f"the certificate of broker {broker} is not trusted: {error.verify_message}; "
            "check ssl.ca.location",
            broker=broker,
        )
    hung_up = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    if (ssl is not None and isinstance(error, ssl.SSLError)) or (uses_tls and hung_up):
        reason = getattr(error, "reason", None) or str(error) or "it closed the connection"
        return BrokerConnectionError(
            f"no TLS with broker {broker} ({reason}); "
            "does this port expect security.protocol=PLAINTEXT, or a client certificate?",
            broker=broker,
        )
    if isinstance(error, TimeoutError):
        return RequestTimedOutError(
            f"no connection to broker {broker} in time; is the address right and the port open?",
            broker=broker,
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return BrokerConnectionError(
        f"cannot connect to broker {broker}: {reason}; is it running, and is that its "
        "advertised address?",
        broker=broker,
    )


class BlockingConnection:
    """A connection to one broker, for one thread: a request at a time, or several in flight."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str | None,
        security: Security | None = None,
        ssl_context: "ssl.SSLContext | None" = None,
    ) -> None:
        self.address = address
        self.broker = str(address)
        self._security = security
        self._ssl_context = ssl_context
        factory = mechanism_factory(security, address.host)
        self.protocol = ClientConnection(
            self.broker, client_id=client_id, mechanism=factory() if factory else None
        )
        self._socket: socket.socket | None = None
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._expires_at_ms: int | None = None
        # Responses that came while another one was waited for: as many as requests in flight.
        self._responses: dict[int, Message] = {}

    def connect(self, deadline_ms: int) -> None:
        """TCP, TLS, API versions and SASL; raises a ClientError, and is closed then."""
        try:
            self._socket = self._open_socket(deadline_ms)
        except (OSError, ValueError) as error:
            uses_tls = self._ssl_context is not None
            raise connect_failure(self.broker, error, uses_tls=uses_tls) from error
        self.protocol.start(deadline_ms)
        try:
            while not self.protocol.is_ready:
                self._flush(deadline_ms)
                self._receive(deadline_ms)
        except BaseException:
            self.close()
            raise
        if self.protocol.session_lifetime_ms > 0:
            # Kafka's clients authenticate again at 85 to 95 % of the lifetime; we reconnect.
            self._expires_at_ms = monotonic_ms() + self.protocol.session_lifetime_ms * 17 // 20

    def _open_socket(self, deadline_ms: int) -> socket.socket:
        opened = socket.create_connection(
            (self.address.host, self.address.port), timeout=_seconds_left(deadline_ms)
        )
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ssl_context is None:
                return opened
            opened.settimeout(_seconds_left(deadline_ms))
            return self._ssl_context.wrap_socket(opened, server_hostname=self.address.host)
        except BaseException:
            opened.close()
            raise

    def is_usable(self) -> bool:
        """Whether a request can be sent: connected, session not near its end, not closed by the
        broker while it was idle."""
        if self._socket is None or not self.protocol.is_ready:
            return False
        if self._expires_at_ms is not None and monotonic_ms() >= self._expires_at_ms:
            return False
        if self._ssl_context is not None or self.protocol.in_flight or self._responses:
            return True  # a TLS socket cannot be peeked at, and responses may be there to be read
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False  # end of stream, or bytes without a request

    def request(
        self,
        message: Message,
        deadline_ms: int,
        *,
        version: int | None = None,
        versions: Versions = ANY_VERSION,
    ) -> Message | None:
        """Send one request and wait for its response; None for Produce with acks=0.

        Raises a ClientError; the connection is closed then, unless the request could not be put
        into words in the first place (UnsupportedApiError, ProtocolError).
        """
        correlation_id = self.begin(message, deadline_ms, version=version, versions=versions)
        return None if correlation_id is None else self.complete(correlation_id, deadline_ms)

    def begin(
        self,
        message: Message,
        deadline_ms: int,
        *,
        version: int | None = None,
        versions: Versions = ANY_VERSION,
    ) -> int | None:
        """Send one request without waiting; what `complete` takes, None for Produce with acks=0.

        Raises as `request` does. The caller bounds how many requests are in flight.
        """
        correlation_id = self.protocol.send(
            message,
            deadline_ms=deadline_ms,
            version=version,
            min_version=versions.low,
            max_version=versions.high,
        )
        try:
            self._flush(deadline_ms)
        except BaseException:
            self.close()
            raise
        return correlation_id

    def complete(self, correlation_id: int, deadline_ms: int) -> Message:
        """The response of a request that was begun; those of others are kept for their turn.

        Raises a ClientError; the connection is closed then, with all requests in flight.
        """
        try:
            while correlation_id not in self._responses:
                if self._socket is None:
                    raise BrokerConnectionError(
                        f"the connection to broker {self.broker} was closed before its response",
                        broker=self.broker,
                        sent=True,
                    )
                for response in self._receive(deadline_ms):
                    # No request of this class has `in_steps`.
                    self._responses[response.correlation_id] = cast("Message", response.message)
        except BaseException:
            self.close()
            raise
        return self._responses.pop(correlation_id)

    def _flush(self, deadline_ms: int) -> None:
        output = self.protocol.take_output()
        if not output:
            return
        assert self._socket is not None
        try:
            self._socket.settimeout(_seconds_left(deadline_ms))
            self._socket.sendall(output)
        except TimeoutError:
            self.protocol.check_deadline(max(deadline_ms, monotonic_ms()))
            raise RequestTimedOutError(
                f"broker {self.broker} does not take any more data", broker=self.broker, sent=True
            ) from None
        except OSError as error:
            raise self.protocol.end_of_stream() from error

    def _receive(self, deadline_ms: int) -> list[ClientResponse]:
        assert self._socket is not None
        try:
            self._socket.settimeout(_seconds_left(deadline_ms))
            size = self._socket.recv_into(self._buffer)
        except TimeoutError:
            self.protocol.check_deadline(max(deadline_ms, monotonic_ms()))
            return []
        except OSError as error:
            raise self.protocol.end_of_stream() from error
        if size == 0:
            raise self.protocol.end_of_stream()
        return self.protocol.feed(memoryview(self._buffer)[:size])

    def close(self) -> None:
        self.protocol.close()
        self._responses.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _seconds_left(deadline_ms: int) -> float:
    # Never 0, which would mean "do not block" to a socket.
    return max(0.001, (deadline_ms - monotonic_ms()) / 1000)
