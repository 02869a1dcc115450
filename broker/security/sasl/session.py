"""Authentication of one connection by SASL: a state machine on the frames of a client.

Mirrors Kafka's `SaslServerAuthenticator`. ApiVersions may come first; SaslHandshake names the
mechanism; then tokens follow, bare after version 0 and in SaslAuthenticate requests after version 1
(KIP-43, KIP-152). A client that fails gets the error response, and its connection is closed, after
`connection.failed.authentication.delay.ms`. Sessions may end and be renewed (KIP-368): the
principal must then stay the same, and so must the mechanism.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from ottla.broker.requests.bulk_requests import Decoding
from ottla.broker.requests.error_responses import error_response
from ottla.broker.requests.request_context import (
    Principal,
    RequestConnection,
    RequestContext,
)
from ottla.broker.requests.request_parts import ORDINARY
from ottla.broker.security.audit.security_log import Login, SecurityLog
from ottla.broker.security.sasl.exchanges import (
    AuthenticationRefused,
    AuthenticationWaits,
    Exchange,
    shown,
)
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_request_in_steps,
    encode_response,
)
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.registry import API, ApiKey

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import NetworkStatistics
    from ottla.broker.requests.request_decoder import RequestDecoder
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask
    from ottla.protocol.message import Message

logger = logging.getLogger("ottla.security")

# How long a client gets to read why it was refused before the socket is closed.
LINGER_MS = 50

TOO_MANY = f"it has more than {ORDINARY.small} elements, and its sender is not authenticated"

# Kafka takes no second authentication again within this time.
LEAST_REAUTHENTICATION_INTERVAL_MS = 1000

_SUFFIX = {False: "authentication", True: "re-authentication"}


class _State(Enum):
    HANDSHAKE_OR_VERSIONS = 1
    HANDSHAKE = 2
    BARE_TOKENS = 3
    TOKENS = 4
    OTHER_MECHANISM = 5  # an authentication again that is going to fail
    DONE = 6
    EXPIRED = 7


class SaslConnection(RequestConnection, Protocol):
    """What a session needs from the connection that it authenticates."""

    #: A whole request came in: it is a Kafka client.
    identified: bool
    #: How long a frame may be; before `authenticate`, sasl.server.max.receive.size.
    max_frame_bytes: int
    #: Takes the frames that come in; None gives them to the request decoder.
    token_handler: Callable[[bytes], None] | None

    def authenticate(self, principal: Principal) -> None:
        """The client proved who it is."""

    def send_token(self, token: bytes) -> None:
        """Sends a response without a header to a frame that `token_handler` got."""

    def refuse_after(self, delay_ms: int, response: bytes, linger_ms: int, reason: str) -> None:
        """Sends `response` after the delay and closes the connection `linger_ms` later."""


class SaslListener(NamedTuple):
    """What all sessions of a listener share."""

    mechanisms: list[str]  # in the order in which Kafka names them
    new_exchange: Callable[[str], Exchange]  # by mechanism
    max_reauth_ms: Callable[[str], int]  # by mechanism; not positive for sessions without an end
    failure_delay_ms: int
    timer: DelayQueue
    now_ms: Callable[[], int]
    statistics: NetworkStatistics
    log: SecurityLog


class _Refused(Exception):
    """The end of the connection: `response` is sent first, `reason` is logged."""

    def __init__(self, reason: str, response: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.response = response


class SaslSession:
    """See the module. Loop thread only."""

    __slots__ = (
        "_connection",
        "_decoder",
        "_exchange",
        "_has_end",
        "_listener",
        "_max_token_frame_bytes",
        "_mechanism",
        "_renewal_began_ms",
        "_state",
        "_timer_task",
        "is_token",
    )

    def __init__(
        self, connection: SaslConnection, decoder: RequestDecoder, listener: SaslListener
    ) -> None:
        #: Whether the client logged in with a delegation token.
        self.is_token = False
        self._connection = connection
        self._decoder = decoder
        self._listener = listener
        self._max_token_frame_bytes = connection.max_frame_bytes
        self._state = _State.HANDSHAKE_OR_VERSIONS
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._has_end = False  # whether the session ends
        self._renewal_began_ms = -float(LEAST_REAUTHENTICATION_INTERVAL_MS)
        self._timer_task: TimerTask | None = None

    def close(self) -> None:
        """The connection is closed."""
        if self._timer_task is not None:
            self._timer_task.cancel()
        self._exchange = None

    def take_frame(self, frame: bytes) -> None:
        """Takes a frame instead of the request decoder; responds or closes the connection."""
        connection = self._connection
        try:
            response = self._step(frame)
        except AuthenticationWaits as waits:
            # No other frame is read meanwhile.
            waits.call_back(partial(self._take_again, frame))
            return
        except _Refused as refusal:
            self._refuse(refusal)
            return
        except ProtocolError as error:
            self._refuse(_Refused(f"sent what is no request of an authentication: {error}"))
            return
        except Exception:
            # A defect: no bytes from a client may lead here.
            logger.exception(
                "Unexpected error in the authentication of %s:%d on listener %s: closing the "
                "connection",
                connection.client_host,
                connection.client_port,
                connection.listener_name,
            )
            connection.close("its authentication failed here")
            return
        if response is not None:
            connection.send_token(response)

    def _take_again(self, frame: bytes) -> None:
        if self._exchange is not None:  # the connection is still open
            self.take_frame(frame)

    def renew(self, context: RequestContext, request: SaslHandshakeRequest) -> Message | None:
        """A SaslHandshake of an authenticated client: it starts a re-authentication.

        Raises KafkaError when it may not: its session has no end, or it came too soon.
        """
        if not self._begin_again():
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE)
        try:
            return self._handshake(context.header, request)
        except _Refused as refusal:
            self._refuse(refusal)
            return None

    # -- one frame ------------------------------------------------------------------------------

    def _step(self, frame: bytes) -> bytes | None:
        state = self._state
        if state is _State.EXPIRED:
            return self._after_the_end(frame)
        if state is _State.OTHER_MECHANISM:
            raise _Refused("may not change its mechanism when it authenticates again")
        if state is _State.BARE_TOKENS:
            return self._bare_token(frame)
        key = int.from_bytes(frame[:2], "big")
        if state is _State.TOKENS:
            return self._authenticate(frame)
        if key == ApiKey.API_VERSIONS:
            return self._api_versions(frame)
        if key != ApiKey.SASL_HANDSHAKE:
            raise _Refused(self._without_handshake(key))
        header, request = self._decode(frame)
        return _encode(header, self._handshake(header, cast("SaslHandshakeRequest", request)))

    def _without_handshake(self, key: int) -> str:
        what = f"a {API[key].name} request" if key in API else "what is no Kafka request"
        return (
            f"sent {what} instead of authenticating; set the client's security.protocol to "
            f"{self._connection.listener.security_protocol} and its sasl.mechanism to one of "
            f"{', '.join(self._listener.mechanisms)}"
        )

    def _decode(self, frame: bytes) -> tuple[RequestHeader, Message]:
        header, position = decode_request_header(frame)
        # In the middle of an authentication any request gets a response; but its sender is unknown.
        decoding = Decoding(header.api_key, decode_request_in_steps(header, frame, position))
        if not decoding.decode_small():
            raise ProtocolError(TOO_MANY, api=API[header.api_key].name)
        assert decoding.message is not None
        self._connection.identified = True
        return header, decoding.message

    def _api_versions(self, frame: bytes) -> bytes | None:
        """By the usual handler, but not through the queue: the state depends on the response."""
        if self._state is not _State.HANDSHAKE_OR_VERSIONS:
            raise _Refused("sent ApiVersions a second time before authentication")
        context = self._decoder.decode(bytearray(frame), self._connection)
        if context is None:
            return None  # It was no request: the connection is closed.
        if context.is_long:
            raise ProtocolError(TOO_MANY, api=context.route.entry.name)
        self._connection.identified = True
        response = cast("ApiVersionsResponse", context.route.handler(context, context.request))
        if not response.error_code:
            self._state = _State.HANDSHAKE
        return _encode(context.header, response)

    def _handshake(self, header: RequestHeader, request: SaslHandshakeRequest) -> Message:
        mechanisms = self._listener.mechanisms
        mechanism = request.mechanism
        if mechanism not in mechanisms:
            response = SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms)
            raise _Refused(
                f"requested the SASL mechanism {shown(mechanism)}; this listener has "
                f"{', '.join(mechanisms)} (sasl.enabled.mechanisms)",
                # In a re-authentication Kafka closes the connection without a response.
                b"" if self._is_renewal else _encode(header, response, with_size=True),
            )
        if self._is_renewal and mechanism != self._mechanism:
            self._state = _State.OTHER_MECHANISM
        else:
            self._mechanism = mechanism
            self._exchange = self._listener.new_exchange(mechanism)
            self._state = _State.TOKENS if header.api_version >= 1 else _State.BARE_TOKENS
        return SaslHandshakeResponse(ErrorCode.NONE, mechanisms)

    def _bare_token(self, token: bytes) -> bytes:
        assert self._exchange is not None
        try:
            response = self._exchange.step(token)
            self._check_principal()
        except AuthenticationRefused as refusal:
            raise _Refused(f"failed to authenticate: {refusal.reason}") from None
        if self._exchange.is_complete:
            self._complete()
        return response

    def _authenticate(self, frame: bytes) -> bytes:
        header, request = self._decode(frame)
        if not isinstance(request, SaslAuthenticateRequest):
            raise _Refused(
                f"sent a {API[header.api_key].name} request in the middle of its authentication",
                self._illegal_state(header, request),
            )
        assert self._exchange is not None
        try:
            token = self._exchange.step(request.auth_bytes)
            self._check_principal()
        except AuthenticationRefused as refusal:
            message = refusal.message or (
                f"Authentication failed during {_SUFFIX[self._is_renewal]} due to invalid "
                f"credentials with SASL mechanism {self._mechanism}"
            )
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
            )
            raise _Refused(
                f"failed to authenticate: {refusal.reason}",
                _encode(header, response, with_size=True),
            ) from None
        lifetime_ms = self._complete() if self._exchange.is_complete else 0
        return _encode(
            header, SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)
        )

    def _illegal_state(self, header: RequestHeader, request: Message) -> bytes:
        """The ILLEGAL_SASL_STATE response of another API; empty when it has none."""
        if isinstance(request, ProduceRequest) and request.acks == 0:
            return b""
        key = header.api_key
        route = self._decoder.route(key)
        if route is None:
            return b""
        context = RequestContext(header, request, self._connection, route)
        words = f"Unexpected Kafka request of type {_java_name(key)} during SASL authentication."
        if key == ApiKey.FIND_COORDINATOR:  # Its response has the general message of the code.
            words = "Request is not valid given the current SASL state."
        error = KafkaError(ErrorCode.ILLEGAL_SASL_STATE, words)
        response = error_response(context, error)
        return b"" if response is None else _encode(header, response, with_size=True)

    # -- the end of an authentication -----------------------------------------------------------

    @property
    def _is_renewal(self) -> bool:
        return self._connection.authenticated

    def _check_principal(self) -> None:
        exchange, before = self._exchange, self._connection.principal
        assert exchange is not None
        if not (self._is_renewal and exchange.is_complete) or exchange.name == before.name:
            return
        message = (
            f"Cannot change principals during re-authentication from {before.principal_type}."
            f"{before.name}: User.{exchange.name}"
        )
        raise AuthenticationRefused(message, message)

    def _complete(self) -> int:
        """The client is authenticated. Returns the session lifetime in milliseconds; 0: without
        an end, or already expired."""
        exchange, listener, connection = self._exchange, self._listener, self._connection
        assert exchange is not None
        self._exchange = None
        self.is_token = exchange.is_token
        login = self._login(exchange)
        connection.authenticate(Principal("User", exchange.name))
        connection.token_handler = None
        self._state = _State.DONE
        listener.statistics.authentications += 1
        listener.log.logged_in(connection, login)
        lifetime_ms = listener.max_reauth_ms(self._mechanism)
        if exchange.expires_at_ms is not None:
            left_ms = max(exchange.expires_at_ms - listener.now_ms(), 0)
            lifetime_ms = min(left_ms, lifetime_ms) if lifetime_ms > 0 else left_ms
        self._has_end = exchange.expires_at_ms is not None or lifetime_ms > 0
        if not self._has_end:
            return 0
        if lifetime_ms > 0:
            self._timer_task = listener.timer.schedule(lifetime_ms, self._expire)
        else:
            self._expire()
        return lifetime_ms

    def _login(self, exchange: Exchange | None) -> Login:
        """For the security log: the name is the one that the client claims, if it came so far."""
        claimed = "" if exchange is None else exchange.name or exchange.claimed_name
        if not claimed and self._is_renewal:
            claimed = self._connection.principal.name
        user = f"User:{claimed}" if claimed else ""
        return Login(user, self._mechanism, self._is_renewal)

    def _expire(self) -> None:
        """The next request ends the connection, unless it begins to authenticate again."""
        if self._state is _State.DONE:
            self._state = _State.EXPIRED
            self._connection.token_handler = self.take_frame

    def _begin_again(self) -> bool:
        """To a handshake; False when it may not come now."""
        now = monotonic() * 1000
        if not self._has_end or now - self._renewal_began_ms < LEAST_REAUTHENTICATION_INTERVAL_MS:
            return False
        self._renewal_began_ms = now
        if self._timer_task is not None:
            self._timer_task.cancel()
        self._state = _State.HANDSHAKE
        self._connection.token_handler = self.take_frame
        self._connection.max_frame_bytes = self._max_token_frame_bytes
        return True

    def _after_the_end(self, frame: bytes) -> bytes | None:
        key = int.from_bytes(frame[:2], "big")
        if key == ApiKey.SASL_HANDSHAKE and self._begin_again():
            return self._step(frame)
        self._listener.statistics.expired_sessions += 1
        self._connection.close("its session expired and it did not re-authenticate")
        return None

    def _refuse(self, refusal: _Refused) -> None:
        connection, listener = self._connection, self._listener
        listener.statistics.failed_authentications += 1
        login = self._login(self._exchange)
        self._exchange = None
        listener.log.login_failed(connection, login, refusal.reason)
        delay_ms = listener.failure_delay_ms
        connection.refuse_after(delay_ms, refusal.response, LINGER_MS, "authentication failed")


# Makes the session of a new connection.
NewSession = Callable[[SaslConnection, "RequestDecoder"], SaslSession]


def _java_name(key: int) -> str:
    """As the constants of Kafka's ApiKeys: "FindCoordinator" is FIND_COORDINATOR."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", API[key].name).upper()


def _encode(header: RequestHeader, message: Message, *, with_size: bool = False) -> bytes:
    parts = encode_response(header.api_key, header.api_version, header.correlation_id, message)
    whole = b"".join(cast("list[bytes]", parts))
    return whole if with_size else whole[4:]
