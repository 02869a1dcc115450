"""Who may use the console, and what of it.

A request must name this machine in its Host header, or a name in `ottla.console.hosts`: a page of
another site could have pointed its own name here (DNS rebinding), and would then be a page of this
port to a browser. Other machines are served if `ottla.console.allow.remote` is true, and need
the token. On a broker with an authorizer the console shows what `ottla.console.principal` is
allowed to see.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.broker.config.errors import ConfigError
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.audit.security_log import Login
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.requests.request_context import RequestConnection, RequestContext
    from ottla.broker.security.audit.security_log import SecurityLog
    from ottla.broker.security.authorization.access_control import Allows

# A token is not guessed: with letters and digits this is 95 bits.
MIN_TOKEN_CHARACTERS = 16

_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
_BEARER = "Bearer "


class ConsoleRequest(NamedTuple):
    """What the console needs to know of an HTTP request."""

    path: str
    query: str
    host: str
    authorization: str
    peer: str


class Refused(Exception):
    """The status line and the text for a request that is not served."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ConsoleDoor:
    """Decides whether a request is served at all."""

    def __init__(
        self, *, allow_remote: bool, token: str | None, hosts: Iterable[str], log: SecurityLog
    ) -> None:
        """Raises ConfigError for settings that would serve other machines without a token."""
        if allow_remote and not token:
            raise ConfigError(
                "ottla.console.allow.remote: other machines need a token; set "
                "ottla.console.token, or serve this machine only."
            )
        if token and len(token) < MIN_TOKEN_CHARACTERS:
            raise ConfigError(
                f"ottla.console.token: use {MIN_TOKEN_CHARACTERS} characters or more."
            )
        self._allow_remote = allow_remote
        self._token = token
        self._hosts = {each.strip().lower() for each in hosts if each.strip()}
        self._log = log

    @classmethod
    def of(cls, config: BrokerConfig, log: SecurityLog) -> ConsoleDoor:
        return cls(
            allow_remote=config.ottla_console_allow_remote,
            token=config.ottla_console_token,
            hosts=config.ottla_console_hosts,
            log=log,
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
            connection = cast("RequestConnection", _connection(request.peer, _ANONYMOUS))
            login = Login("", "console token", is_renewal=False)
            self._log.login_failed(connection, login, "sent a wrong ottla.console.token")
        raise Refused("401 Unauthorized", "the console needs the token (ottla.console.token)")

    def _names_us(self, host: str) -> bool:
        name = host_name(host)
        if name in _LOCAL_NAMES or name in self._hosts:
            return True
        # An address is no name that another site could point here.
        return self._allow_remote and _is_address(name)


class Viewer:
    """What the console may show for one request."""

    def __init__(self, allows: Allows, principal: Principal, peer: str) -> None:
        self._allows = allows
        self._context = cast("RequestContext", _connection(peer, principal))

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self._allows(self._context, operation, kind, name)

    def may_describe_topic(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def may_describe_group(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, ResourceType.GROUP, name)

    def require(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raises Refused unless this is allowed."""
        if not self.may(operation, kind, name):
            raise Refused(
                "403 Forbidden",
                f"{self._context.principal} (ottla.console.principal) has no ACL for "
                f"{operation.name} on {kind.name} {name[:249]}",
            )

    def require_on_cluster(self, operation: Operation) -> None:
        self.require(operation, ResourceType.CLUSTER, CLUSTER_NAME)


_ANONYMOUS = Principal("User", "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """ "User:alice" of a setting. Raises ConfigError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"ottla.console.principal: {text!r} is no principal, such as User:alice.")
    return Principal(kind, name)


def _connection(peer: str, principal: Principal) -> SimpleNamespace:
    """A request of the console as the authorizer and the security log see one."""
    made = SimpleNamespace(
        client_host=peer,
        client_port=0,
        listener_name="HTTP",
        principal=principal,
        route=SimpleNamespace(entry=SimpleNamespace(name="Console")),
    )
    made.connection = made
    return made


def is_local(peer: str) -> bool:
    """Whether an address is of this machine."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in small letters."""
    name, _, port = host.rpartition(":")
    if not port.isdecimal() or host.endswith("]"):
        name = host
    return name.removeprefix("[").removesuffix("]").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
