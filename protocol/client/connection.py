"""A client's connection to one broker, without a socket: bytes in, responses and bytes out.

`start` requests the broker's API versions, then comes SASL if it is configured. `is_ready`
turns true when requests may be sent. A shell connects, sends what `take_output` returns, feeds
what it receives, and closes when a method raises: the connection is of no more use after that.

Times are milliseconds of any clock that only goes forward; nothing here reads one.
"""

from collections import deque
from collections.abc import Generator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla import __version__
from ottla.protocol.client.errors import (
    AuthenticationError,
    BadResponseError,
    BrokerConnectionError,
    ClientError,
    RequestTimedOutError,
    UnsupportedApiError,
)
from ottla.protocol.client.sasl import SaslMechanism
from ottla.protocol.errors import ErrorCode, ProtocolError, error_name
from ottla.protocol.framing import FrameSplitter
from ottla.protocol.headers import decode_response, decode_response_in_steps, encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.primitives import Buffer
from ottla.protocol.registry import API, ApiKey, api_name

if TYPE_CHECKING:
    from ottla.protocol.client.sasl import Authentication

SOFTWARE_NAME = "ottla"
SOFTWARE_VERSION = __version__

# Versions from 4 on tell nothing more that we need, and some hosted brokers drop them.
_API_VERSIONS_VERSION = 3

# Fetch responses are as large as the client allows (fetch.max.bytes is 50 MiB by default), other
# responses far smaller. Memory is taken as bytes arrive, not when a size is announced.
DEFAULT_MAX_RESPONSE_BYTES = 128 * 1024 * 1024

# A shorter one has some hundreds of elements at most, which are decoded in half a millisecond.
_LONG_RESPONSE_BYTES = 16384


class State(Enum):
    NEW = "new"
    API_VERSIONS = "requesting API versions"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


class Pending(NamedTuple):
    """A request that waits for its response."""

    correlation_id: int
    api_key: int
    version: int
    deadline_ms: int
    in_steps: bool


class ClientResponse(NamedTuple):
    correlation_id: int
    message: "Message | Decoding"


# A response that the caller decodes: see `ottla.protocol.codec.sliced_decoder`.
Decoding = Generator[int, None, Message]


class ClientConnection:
    """The state machine. `broker` is how errors call the other side, "host:port"."""

    def __init__(
        self,
        broker: str,
        *,
        client_id: str | None,
        mechanism: SaslMechanism | None = None,
        max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES,
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.state = State.NEW
        self.versions: dict[int, tuple[int, int]] = {}
        """The broker's lowest and highest version by API key."""
        self.session_lifetime_ms = 0
        """After how long the broker wants us to authenticate again (KIP-368), 0 for never."""
        self._mechanism = mechanism
        self._authentication: Authentication | None = None
        self._splitter = FrameSplitter(max_response_bytes)
        self._output: list[bytes] = []
        self._pending: deque[Pending] = deque()
        self._correlation_id = 0
        self._setup_deadline_ms = 0
        self._nothing_received = True

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    @property
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def in_flight(self) -> int:
        """Requests without a response yet."""
        return len(self._pending)

    def start(self, deadline_ms: int) -> None:
        """Begin; call once, when the bytes can flow (after the TLS handshake, if any)."""
        assert self.state is State.NEW
        self._setup_deadline_ms = deadline_ms
        self.state = State.API_VERSIONS
        self._request_api_versions(_API_VERSIONS_VERSION)

    def take_output(self) -> bytes:
        """Everything that is to be sent now; empty when there is nothing."""
        output = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        return output

    # requests ------------------------------------------------------------------------------

    def choose_version(
        self, api_key: int, min_version: int | None = None, max_version: int | None = None
    ) -> int:
        """The highest version that both sides have, within the given limits.

        Raises UnsupportedApiError when there is none.
        """
        api = API[api_key]
        offered = self.versions.get(api_key)
        if offered is None:
            raise UnsupportedApiError(
                f"broker {self.broker} does not offer {api.name}: it may be older than the API, or "
                "have it on another listener only",
                broker=self.broker,
            )
        low = max(offered[0], api.min_version, -1 if min_version is None else min_version)
        high = min(offered[1], api.max_version)
        if max_version is not None:
            high = min(high, max_version)
        if low > high:
            raise UnsupportedApiError(
                f"broker {self.broker} offers {api.name} versions {offered[0]} to {offered[1]}, "
                f"none of which can be used here (we have {api.min_version} to {api.max_version}"
                f"{_limits_as_text(min_version, max_version)})",
                broker=self.broker,
            )
        return high

    def send(
        self,
        message: Message,
        *,
        deadline_ms: int,
        version: int | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
        in_steps: bool = False,
    ) -> int | None:
        """Queue a request; its correlation id, or None if there will be no response (acks=0).

        `version` is used as it is; otherwise the best one is chosen. With `in_steps` a long
        response is a `Decoding`, which may raise ProtocolError. Raises UnsupportedApiError,
        and ProtocolError when the message cannot be put into that version; both leave the
        connection as it was.
        """
        if self.state is not State.READY:
            raise BrokerConnectionError(
                f"the connection to broker {self.broker} is {self.state.value}, "
                f"{message.NAME} was not sent",
                broker=self.broker,
            )
        if version is None:
            version = self.choose_version(message.API_KEY, min_version, max_version)
        return self._send(message, version, deadline_ms, in_steps)

    def _send(
        self, message: Message, version: int, deadline_ms: int, in_steps: bool = False
    ) -> int | None:
        correlation_id = self._correlation_id
        self._output.append(encode_request(correlation_id, self.client_id, message, version))
        self._correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if message.API_KEY == ApiKey.PRODUCE and getattr(message, "acks", None) == 0:
            return None
        pending = Pending(correlation_id, message.API_KEY, version, deadline_ms, in_steps)
        self._pending.append(pending)
        return correlation_id

    # what comes in -------------------------------------------------------------------------

    def feed(self, data: Buffer) -> list[ClientResponse]:
        """Take received bytes; the responses that they complete, in order.

        Raises a ClientError when the other side is no Kafka broker we can talk to, or does not let
        us in.
        """
        if self.state is State.CLOSED:
            return []
        if self._nothing_received and len(data):
            self._nothing_received = False
            self._check_first_bytes(bytes(data[:5]))
        self._splitter.feed(data)
        return self._take_responses()

    @property
    def room(self) -> memoryview | None:
        """Where bytes may be received instead of feeding them; see `FrameSplitter.room`."""
        return self._splitter.room

    def received(self, count: int) -> list[ClientResponse]:
        """As `feed`, for `count` bytes that were written to `room`."""
        if self.state is State.CLOSED:
            return []
        self._splitter.received(count)
        return self._take_responses()

    def _take_responses(self) -> list[ClientResponse]:
        responses: list[ClientResponse] = []
        try:
            while (frame := self._splitter.next_frame()) is not None:
                response = self._take_frame(frame)
                if response is not None:
                    responses.append(response)
        except ProtocolError as error:
            raise self.unreadable(error) from error
        return responses

    def unreadable(self, error: ProtocolError) -> ClientError:
        """The failure that a response with this error is, also if that is found in its steps."""
        return self._fail(
            BadResponseError(
                f"broker {self.broker} sent something that cannot be read: {error}",
                broker=self.broker,
                sent=True,
            )
        )

    def end_of_stream(self) -> ClientError:
        """The broker has closed the connection: the error that requests in flight end with."""
        doing = self.state
        waiting = ", ".join(sorted({api_name(pending.api_key) for pending in self._pending}))
        if doing is State.API_VERSIONS:
            reason = (
                "after the ApiVersions request: it may be no Kafka broker, be older than "
                "0.10, or expect TLS or SASL on this port (security.protocol)"
            )
        elif doing is State.AUTHENTICATING:
            reason = "during SASL authentication: user name and password may be wrong, see its log"
        elif waiting:
            reason = f"before it responded to {waiting}; it may be restarting, see its log"
        else:
            reason = "while it was idle"
        return self._fail(
            BrokerConnectionError(
                f"broker {self.broker} closed the connection {reason}",
                broker=self.broker,
                sent=bool(self._pending) and doing is State.READY,
            )
        )

    def next_deadline_ms(self) -> int | None:
        """When `check_deadline` should be called at the latest; None if nothing is awaited."""
        if self.state is State.READY:
            return min((pending.deadline_ms for pending in self._pending), default=None)
        return None if self.state in (State.NEW, State.CLOSED) else self._setup_deadline_ms

    def check_deadline(self, now_ms: int) -> None:
        """Raise RequestTimedOutError when a response is overdue; the connection is closed then, as
        responses come in order and later ones would wait as well."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return
        if self.state is State.READY:
            late = next(pending for pending in self._pending if pending.deadline_ms <= now_ms)
            what = f"did not respond to {api_name(late.api_key)} in time"
            advice = "it may be overloaded or stuck; raise the timeout or look at its log"
        else:
            what = f"did not get through with {self.state.value} in time"
            advice = "is it a Kafka listener, and does security.protocol fit it?"
        sent = self.state is State.READY
        raise self._fail(
            RequestTimedOutError(
                f"broker {self.broker} {what}: {advice}", broker=self.broker, sent=sent
            )
        )

    def close(self) -> None:
        """Forget everything; safe to call at any time."""
        self.state = State.CLOSED
        self._pending.clear()
        self._output.clear()

    def _fail(self, error: ClientError) -> ClientError:
        self.close()
        return error

    def _check_first_bytes(self, first: bytes) -> None:
        if first.startswith(b"HTTP"):
            what = "responds with HTTP: it is a web server, not a Kafka broker"
        elif first[:2] == b"\x15\x03":
            what = "responds with TLS: set security.protocol to SSL or SASL_SSL"
        elif first.startswith(b"SSH-"):
            what = "is an SSH server, not a Kafka broker"
        else:
            return
        raise self._fail(BadResponseError(f"{self.broker} {what}", broker=self.broker))

    def _take_frame(self, frame: Buffer) -> ClientResponse | None:
        if not self._pending:
            raise ProtocolError("a response came without a request")
        pending = self._pending[0]
        in_steps = pending.in_steps and len(frame) > _LONG_RESPONSE_BYTES
        decode = decode_response_in_steps if in_steps else decode_response
        correlation_id, message = decode(frame, pending.api_key, pending.version)
        if correlation_id != pending.correlation_id:
            raise ProtocolError(
                f"a response has the correlation id {correlation_id}, that of "
                f"{api_name(pending.api_key)} is {pending.correlation_id}"
            )
        self._pending.popleft()
        if self.state is State.READY:
            return ClientResponse(correlation_id, message)
        self._continue_setup(pending, cast("Message", message))
        return None

    # setup ---------------------------------------------------------------------------------

    def _request_api_versions(self, version: int) -> None:
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        self._send(request, version, self._setup_deadline_ms)

    def _continue_setup(self, pending: Pending, message: Message) -> None:
        if isinstance(message, ApiVersionsResponse):
            self._on_versions(pending, message)
            return
        assert self._authentication is not None
        try:
            request = self._authentication.on_response(message)
        except AuthenticationError as error:
            raise self._fail(error) from None
        if request is not None:
            self._send_for_authentication(request, None)
            return
        self.session_lifetime_ms = self._authentication.session_lifetime_ms
        self.state = State.READY

    def _on_versions(self, pending: Pending, message: ApiVersionsResponse) -> None:
        offered = {row.api_key: (row.min_version, row.max_version) for row in message.api_keys}
        if message.error_code == ErrorCode.UNSUPPORTED_VERSION and pending.version > 0:
            highest = offered.get(ApiKey.API_VERSIONS, (0, 0))[1]
            self._request_api_versions(max(0, min(highest, pending.version - 1)))
            return
        if message.error_code != ErrorCode.NONE:
            raise self._fail(
                BadResponseError(
                    f"broker {self.broker} does not tell its API versions: "
                    f"{error_name(message.error_code)}",
                    broker=self.broker,
                )
            )
        self.versions = offered
        if self._mechanism is None:
            self.state = State.READY
            return
        from ottla.protocol.client.sasl import Authentication

        self._authentication = Authentication(self.broker, self._mechanism)
        self.state = State.AUTHENTICATING
        self._send_for_authentication(self._authentication.first(), 1)

    def _send_for_authentication(self, request: Message, min_version: int | None) -> None:
        try:
            version = self.choose_version(request.API_KEY, min_version)
        except UnsupportedApiError as error:
            words = f"broker {self.broker} has no SASL on this port: {error}"
            raise self._fail(AuthenticationError(words, broker=self.broker)) from None
        self._send(request, version, self._setup_deadline_ms)


def _limits_as_text(min_version: int | None, max_version: int | None) -> str:
    if min_version is None and max_version is None:
        return ""
    low = "any" if min_version is None else min_version
    high = "any" if max_version is None else max_version
    return f"; requested: {low} to {high}"
