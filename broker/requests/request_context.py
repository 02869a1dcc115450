"""A request with its connection, its handler, the way to respond, and changes to the response.

`RequestContext` is what handlers get. It knows its connection only by a Protocol, so handlers and
tests need no network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ottla.broker.metrics.statistics import RequestStatistics
from ottla.broker.requests.request_parts import ORDINARY, Items, Limits
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import encode_response, encode_response_in_steps
from ottla.protocol.message import Message
from ottla.protocol.steps import Steps, run, run_at_once, run_in_turns

if TYPE_CHECKING:
    from ottla.broker.net.services import ListenerFacts
    from ottla.broker.requests.memory_pool import Lease
    from ottla.broker.security.sasl.session import SaslSession
    from ottla.protocol.headers import RequestHeader


logger = logging.getLogger("ottla.requests")


class Deferred:
    """The type of `DEFERRED`."""

    __slots__ = ()


# A handler returns this when it responds later through `context.respond`.
DEFERRED = Deferred()

# A coroutine runs as a task; of `Steps` the first turn runs at once and the rest as a task. The
# response of either may be long: a task encodes it in turns.
HandlerResult = (
    Message
    | None
    | Deferred
    | Coroutine[Any, Any, Message | Deferred | None]
    | Steps[Message | Deferred | None]
)
# The request's type is the one of the API; a table of all of them can only say Any.
Handler = Callable[["RequestContext", Any], HandlerResult]
# Adds the rows to the response to a request whose handler failed, one for each requested item: the
# request, the response, the error code and the message.
ErrorRows = Callable[[Any, Any, int, str | None], None]
# Changes a response; its type is the one of the API. `Steps` where there may be very many rows.
Amend = Callable[[Any], Steps[None] | object]
# Runs steps in turns; `run_in_turns`, or the turns of bulk requests.
RunSteps = Callable[[Steps[Any]], Coroutine[Any, Any, Any]]
# Builds the response to a request whose handler failed; None when the request has none.
ErrorResponse = Callable[["RequestContext", Exception], Message | None]


def started(result: HandlerResult) -> Message | Deferred | Coroutine[Any, Any, Any] | None:
    """Run the first turn of a result that is `Steps`; the rest of it is a coroutine."""
    if type(result) is GeneratorType:
        return run(result)
    return result  # type: ignore[return-value]  # no generator is left of the union


class Principal(NamedTuple):
    """The authenticated identity of a client, as Kafka writes it: "User:alice"."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


# Every client of a listener without authentication.
ANONYMOUS = Principal("User", "ANONYMOUS")


class OnCluster(NamedTuple):
    """A check that needs one operation on the cluster, such as "ALTER", for any request."""

    operation: str


# How a broker with an authorizer checks the requests of an API: a permission on the cluster, the
# name of a method of the guards in `ottla.broker.security.authorization`, or a function of a guard,
# the context and the request.
Check = OnCluster | str | Callable[[Any, "RequestContext", Any], Any]


class HandlerEntry(NamedTuple):
    """One line of the handler table: an API, its supported versions and its handler.

    The other fields are those of `ottla.broker.requests.api_routes.ApiRoute`.
    """

    api_key: int
    name: str  # Kafka's name of the API, such as "Produce"
    min_version: int
    max_version: int
    handler: Handler
    before_authentication: bool = False  # ApiVersions, SaslHandshake, SaslAuthenticate
    exempt_from_request_quota: bool = False  # requests of brokers among themselves
    check: Check | None = None
    errors: ErrorRows | None = None
    items: tuple[Items, ...] = ()
    limits: Limits = ORDINARY


class Route:
    """A line of the handler table with its statistics."""

    __slots__ = (
        "entry",
        "handler",
        "max_version",
        "min_version",
        "response_bytes",
        "small_frame_bytes",
        "statistics",
        "task_name",
        "throttle",
        "throttle_if_refused",
    )

    def __init__(
        self, entry: HandlerEntry, throttle: Callable[[RequestContext], int] | None = None
    ) -> None:
        """`throttle` counts a response against the request quota, but for exempt APIs, and returns
        the throttle time of its client in ms."""
        self.entry = entry
        self.handler = entry.handler
        self.min_version = entry.min_version
        self.max_version = entry.max_version
        self.statistics = RequestStatistics(entry.name)
        self.task_name = f"request-{entry.name}"
        self.throttle = None if entry.exempt_from_request_quota else throttle
        #: Of exempt APIs: for a client that may not send them.
        self.throttle_if_refused = throttle if entry.exempt_from_request_quota else None
        #: Of the longest responses of late, where they are counted (see `memory_budget`).
        self.response_bytes = 0
        #: The elements of longer frames are counted; see `ottla.broker.requests.bulk_requests`.
        self.small_frame_bytes = entry.limits.small_frame_bytes

    def count_response(self, size: int) -> None:
        """A response had this length."""
        self.response_bytes = max(size, self.response_bytes * 63 // 64)


class RequestConnection(Protocol):
    """The connection of a request, as handlers and checks use it."""

    @property
    def listener(self) -> ListenerFacts: ...

    @property
    def sasl(self) -> SaslSession | None: ...

    listener_name: str
    principal: Principal
    authenticated: bool
    client_host: str
    client_port: int
    local_address: tuple[str, int]
    closed: bool
    client_software_name: str
    client_software_version: str
    raises_epochs: bool
    is_broker: bool
    writable_topics: dict[str, int] | None

    def send_response(self, context: RequestContext, parts: list[Any]) -> None: ...

    def close(self, reason: str) -> None: ...


def _where(error: Exception) -> str:
    """The function and the line that raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "unknown code"
    return f"{traceback.tb_frame.f_code.co_name}:{traceback.tb_lineno}"


class RequestContext:
    """One request: its header and message, its connection, and its times.

    A handler responds exactly once: by what it returns, or by `respond` or `close` if it returned
    DEFERRED. Loop thread only.
    """

    #: It has many elements: small requests are handled before it.
    is_long: ClassVar[bool] = False
    #: The response becomes bytes that are sent.
    is_encoded: ClassVar[bool] = True

    __slots__ = (
        "_is_counted",
        "_responded",
        "amend",
        "connection",
        "dequeued_at",
        "frame_bytes",
        "header",
        "local_done_at",
        "received_at",
        "request",
        "responded_at",
        "response_lease",
        "route",
        "send_started_at",
        "throttle_time_ms",
    )

    def __init__(
        self,
        header: RequestHeader,
        request: Message | None,
        connection: RequestConnection,
        route: Route,
        frame_bytes: int = 0,
        received_at: float = 0.0,
    ) -> None:
        self.header = header
        self.request = request
        self.connection = connection
        self.route = route
        self.frame_bytes = frame_bytes
        self.received_at = received_at  # monotonic seconds, as all the times here
        self.dequeued_at = received_at
        self.local_done_at = 0.0
        self.responded_at = 0.0
        self.send_started_at = 0.0
        # Set before the response: the connection is muted for so long after the response is sent.
        self.throttle_time_ms = 0
        # The memory for a response that may be long, until it is handed to the connection.
        self.response_lease: Lease | None = None
        # Changes the response before it is sent; set by access control.
        self.amend: Amend | None = None
        self._is_counted = False
        self._responded = False

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    @property
    def principal(self) -> Principal:
        """Set by authentication; ANONYMOUS on listeners without authentication."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The client's IP address."""
        return self.connection.client_host

    @property
    def client_port(self) -> int:
        return self.connection.client_port

    @property
    def local_address(self) -> tuple[str, int]:
        """The local address and port of the connection."""
        return self.connection.local_address

    @property
    def client_gone(self) -> bool:
        """The connection is closed; a response would be dropped."""
        return self.connection.closed

    def respond(self, response: Message | None, throttle_time_ms: int = 0) -> None:
        """Send the response; None sends nothing (acks=0) and lets the next request be read.

        The connection is muted for `throttle_time_ms` after the response, or for the throttle time
        of the request quota if that is more; the response's field of that name, if it has one,
        gets that time.
        """
        if not self.complete(response, throttle_time_ms):
            return
        parts: list[Any]
        if response is None:
            parts = []
        else:
            header = self.header
            try:
                parts = encode_response(
                    header.api_key, header.api_version, header.correlation_id, response
                )
            except Exception as error:
                self._not_encoded(error)
                return
        self.connection.send_response(self, parts)

    async def respond_in_turns(
        self, response: Message | None, run: RunSteps = run_in_turns
    ) -> None:
        """As `respond`, but a long response is amended and encoded in turns."""
        if response is not None and not self._responded:
            await self.amend_in_turns(response, run)
            if self._responded:
                return  # that closed the connection instead
        if response is None or not self.is_encoded:
            self.respond(response)
            return
        if not self.complete(response):
            return
        header = self.header
        steps = encode_response_in_steps(
            header.api_key, header.api_version, header.correlation_id, response
        )
        try:
            parts = await run(steps)
        except Exception as error:
            self._not_encoded(error)
            return
        self.connection.send_response(self, parts)

    async def amend_in_turns(self, response: Message, run: RunSteps = run_in_turns) -> None:
        """Amend a long response now, in turns, and not when it is sent."""
        if self.amend is not None:
            await run(amended(self, response))

    def _not_encoded(self, error: Exception) -> None:
        # Neither the response nor the text of the error, which quotes values of it, is logged:
        # there may be a secret among them, such as a token's HMAC.
        logger.error(
            "cannot encode the response to %s version %d from %s:%d: %s in %s",
            self.route.entry.name,
            self.header.api_version,
            self.client_host,
            self.client_port,
            type(error).__name__,
            _where(error),
        )
        self.connection.send_response(self, [])
        self.connection.close("the response could not be encoded")

    def complete(self, response: Message | None, throttle_time_ms: int = 0) -> bool:
        """Make the response what is sent, and count it against the quota: all of `respond` but the
        sending, for callers that encode it themselves. False: the connection was closed instead."""
        if self._responded:
            raise RuntimeError(f"{self.route.entry.name} request got two responses")
        if self.amend is not None:
            run_at_once(apply(self.amend, response))
            if self._responded:
                return False  # it closed the connection instead
        self._responded = True
        self.responded_at = now = monotonic()
        if not self.local_done_at:
            self.local_done_at = now
        throttle = self.route.throttle
        if throttle is not None and not self._is_counted:
            throttle_time_ms = max(throttle_time_ms, throttle(self))
        if throttle_time_ms or self.throttle_time_ms:
            self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)
            if hasattr(response, "throttle_time_ms"):
                # The union of all responses is Message, which has no such field.
                response.throttle_time_ms = self.throttle_time_ms  # type: ignore[union-attr]
        return True

    def count(self) -> int:
        """Count the request against the request quota before the response, which depends on it.
        Returns the throttle time in ms, for `respond`."""
        throttle = self.route.throttle
        if throttle is None:
            return 0
        self._is_counted = True
        self.local_done_at = self.local_done_at or monotonic()
        return throttle(self)

    def count_refusal(self, error: Exception) -> None:
        """Count the request of a client that may not send what brokers send to each other: it is
        not exempt from the request quota, as in Kafka's `RequestHandlerHelper.handleError`."""
        throttle = self.route.throttle_if_refused
        if (
            throttle is not None
            and isinstance(error, KafkaError)
            and error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ):
            self.local_done_at = self.local_done_at or monotonic()
            self.throttle_time_ms = max(self.throttle_time_ms, throttle(self))

    def close(self, reason: str) -> None:
        """Close the connection instead of a response, as Kafka does for acks=0 with an error."""
        self._responded = True
        self.connection.close(reason)
        self.connection.send_response(self, [])  # releases the request's memory


class LongRequestContext(RequestContext):
    """A request that waits behind the small ones: it has many elements."""

    __slots__ = ()
    is_long = True


def amend(context: RequestContext, change: Amend) -> None:
    """Have `change` change the response before it is sent; several are applied in order.

    An error response that is built because the handler failed goes through it, too.
    """
    before = context.amend
    context.amend = change if before is None else partial(_in_order, before, change)


def amended(context: RequestContext, response: Any) -> Steps[None]:
    """Amend a long response while it is built, and not when it is sent. May pause between rows."""
    change, context.amend = context.amend, None
    if change is not None:
        yield from apply(change, response)


def apply(change: Amend, response: Any) -> Steps[None]:
    """Change a response. May pause where `change` does."""
    steps = change(response)
    if type(steps) is GeneratorType:
        yield from steps


def _in_order(first: Amend, second: Amend, response: Any) -> Steps[None]:
    yield from apply(first, response)
    yield from apply(second, response)
