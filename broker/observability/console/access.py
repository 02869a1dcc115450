"""Access to the console: who may use it, and which pages and changes.

A request must name this machine in its Host header, or a name in `ottla.console.hosts`: a page of
another site could have pointed its own name here (DNS rebinding), and would then be a page of this
port to a browser. Other machines are served if `ottla.console.allow.remote` is true, and need
the token. On a broker with an authorizer the console shows and changes what
`ottla.console.principal` is allowed to see and to change.

A change is a POST with JSON and a header that pages of other sites cannot send without asking first
(CORS); the name in `Origin` must be the one in `Host`.
"""

from __future__ import annotations

import hmac
import ipaddress
import shlex
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ottla.broker.net.services import ListenerFacts
from ottla.broker.observability.http_hosts import LOCAL_NAMES, host_name, is_address
from ottla.broker.requests.request_context import (
    ANONYMOUS,
    HandlerEntry,
    Principal,
    RequestContext,
    Route,
)
from ottla.broker.security.audit.security_log import Login
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.headers import RequestHeader
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.security.audit.security_log import SecurityLog
    from ottla.broker.security.authorization.access_control import Allows

_BEARER = "Bearer "

# Sent with each change by the console's own pages.
ACTION_HEADER = "X-Ottla-Console"
ACTION = "1"

# The client id of the console in quotas and logs.
CLIENT_ID = "ottla-console"


class ConsoleRequest(NamedTuple):
    """An HTTP request to the console."""

    path: str
    query: str
    host: str
    authorization: str
    peer: str
    method: str = "GET"
    origin: str = ""
    content_type: str = ""
    action: str = ""  # X-Ottla-Console
    body: Callable[[], Awaitable[bytes]] | None = None


class Refused(Exception):
    """The status line and the text for a request that is not served."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ConsoleDoor:
    """Decides whether a request is served at all."""

    def __init__(
        self,
        *,
        allow_remote: bool,
        token: str | None,
        hosts: Iterable[str],
        log: SecurityLog,
        read_only: str = "",
    ) -> None:
        """`read_only`: why nothing can be changed, empty if it can."""
        self._allow_remote = allow_remote
        self._token = token
        self._hosts = {each.strip().lower() for each in hosts if each.strip()}
        self._log = log
        self.read_only = read_only

    @classmethod
    def of(cls, config: BrokerConfig, log: SecurityLog) -> ConsoleDoor:
        return cls(
            allow_remote=config.ottla_console_allow_remote,
            token=config.ottla_console_token,
            hosts=config.ottla_console_hosts,
            log=log,
            read_only=_why_read_only(config),
        )

    def check_address(self, request: ConsoleRequest) -> None:
        """Raises Refused unless the request comes from where it may and names this machine."""
        if not self._names_us(request.host):
            raise Refused(
                "403 Forbidden",
                "the console is not served under this name; "
                "ottla.console.hosts has the names beside localhost",
            )
        if not self._allow_remote and not is_local(request.peer):
            raise Refused(
                "403 Forbidden",
                "the console serves this machine only; ottla.console.allow.remote=true, with "
                "ottla.console.token, opens it",
            )

    def check_token(self, request: ConsoleRequest) -> None:
        """Raises Refused unless the request has the token, if there is one."""
        if not self._token:
            return
        given = request.authorization
        given = given[len(_BEARER) :] if given.startswith(_BEARER) else ""
        if hmac.compare_digest(given.encode("latin-1"), self._token.encode()):
            return
        if given:
            login = Login("", "console token", is_renewal=False)
            connection = ConsoleConnection(request.peer, ANONYMOUS)
            self._log.login_failed(connection, login, "sent a wrong ottla.console.token")
        raise Refused("401 Unauthorized", "the console needs the token (ottla.console.token)")

    def check_action(self, request: ConsoleRequest) -> None:
        """Raises Refused for a change that no page of the console sent, or when there may be none.

        A browser sends this type and this header to another site only if that site permits it in a
        response to OPTIONS, which the console does not serve."""
        if self.read_only:
            raise Refused("403 Forbidden", self.read_only)
        kind = request.content_type.partition(";")[0].strip().lower()
        if kind != "application/json" or request.action != ACTION:
            raise Refused(
                "403 Forbidden",
                "a change is a POST with Content-Type: application/json and "
                f"{ACTION_HEADER}: {ACTION}",
            )
        if request.origin and host_of_origin(request.origin) != host_name(request.host):
            raise Refused("403 Forbidden", "the request comes from a page of another site")

    def _names_us(self, host: str) -> bool:
        name = host_name(host)
        if name in LOCAL_NAMES or name in self._hosts:
            return True
        # Another site could point a name here, but not an address.
        return self._allow_remote and is_address(name)


class ConsoleConnection:
    """The connection of a viewer, for handlers, the authorizer and the security log."""

    listener_name = "HTTP"
    authenticated = True
    client_port = 0
    local_address = ("", 0)
    closed = False
    client_software_name = "ottla-console"
    raises_epochs = False
    is_broker = False
    client_software_version = ""
    listener = ListenerFacts("HTTP")
    sasl = None

    def __init__(self, peer: str, principal: Principal) -> None:
        self.client_host = peer
        self.principal = principal
        self.writable_topics: dict[str, int] | None = None

    def send_response(self, context: RequestContext, parts: list[Any]) -> None:
        """Responses go to the page, see `ClusterClient`."""

    def close(self, reason: str) -> None:
        """There is nothing to close."""


def _no_handler(context: RequestContext, request: Any) -> None:
    """Checks of the console itself have no handler."""


# Of checks that belong to no request: the first page, for example.
_CHECKED = Route(HandlerEntry(ApiKey.DESCRIBE_CLUSTER, "Console", 0, 0, _no_handler))


class Viewer:
    """In whose name one HTTP request is served, and what that principal may see."""

    def __init__(self, allows: Allows, principal: Principal, peer: str) -> None:
        self._allows = allows
        self.connection = ConsoleConnection(peer, principal)
        header = RequestHeader(ApiKey.DESCRIBE_CLUSTER, 0, 0, CLIENT_ID)
        self._context = RequestContext(header, None, self.connection, _CHECKED)

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Without a line in the security log."""
        return self._allows(self._context, operation, kind, name)

    def may_on_cluster(self, operation: Operation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_describe_topic(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def lacks(self, kind: ResourceType, names: str) -> str:
        """A sentence about what is left out of a list for want of rights."""
        return (
            f"Only {names} are shown that {self.connection.principal} (ottla.console.principal) "
            f"may describe: it needs an ACL for DESCRIBE on {kind.name} resources."
        )

    def require(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raises Refused unless this is allowed."""
        missing = self.missing(operation, kind, name)
        if missing:
            raise Refused("403 Forbidden", missing)

    def missing(self, operation: Operation, kind: ResourceType, name: str) -> str:
        """The right that the principal lacks, and the command that gives it; empty if it has it."""
        if self.may(operation, kind, name):
            return ""
        principal = self.connection.principal
        resource = f"{kind.name} {name[:249]}"
        option = kind.name.lower().replace("_", "-")
        named = "" if kind == ResourceType.CLUSTER else f" {shlex.quote(name[:249])}"
        return (
            f"{principal} (ottla.console.principal) has no ACL for {operation.name} on {resource}; "
            f"`ottla acls add --allow {shlex.quote(str(principal))} "
            f"--operation {operation.name.lower().replace('_', '-')} --{option}{named}` adds it"
        )

    def require_on_cluster(self, operation: Operation) -> None:
        self.require(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _why_read_only(config: BrokerConfig) -> str:
    """A console without a token serves every user of this machine."""
    if config.ottla_console_read_only:
        return "the console is read-only (ottla.console.read.only)"
    is_guarded = any(each.uses_sasl or each.uses_tls for each in config.listener_endpoints())
    if is_guarded and not config.ottla_console_token:
        return (
            "this broker has a listener with TLS or SASL: the console then changes something only "
            "with a token (ottla.console.token)"
        )
    return ""


def host_of_origin(origin: str) -> str:
    """The host of an Origin header, in small letters; empty for `null` and an invalid origin."""
    try:
        return (urlsplit(origin).hostname or "").lower()
    except ValueError:
        return ""


def is_local(peer: str) -> bool:
    """Whether an address is of this machine."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
