"""Java classes of a test that a broker of Kafka loads: Ottla asks the JVM of the test instead."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakKeyDictionary

from ottla.broker.net.connection import Connection
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.authorization.authorizer import Authorizer

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext
    from ottla.broker.security.authorization.acl_types import Operation, ResourceType


class PluginsOfJvm:
    """The loopback port on which the JVM of the test calls its classes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: BinaryIO | None = None

    def ask(self, *question: object) -> Any:
        """The response. It blocks the event loop for the time that Kafka's own thread needs."""
        if self._stream is None:
            self._stream = socket.create_connection(("127.0.0.1", self._port)).makefile("rwb")
        self._stream.write(json.dumps(question).encode() + b"\n")
        self._stream.flush()
        return json.loads(self._stream.readline())


class PrincipalBuilders:
    """Asks the JVM of the test for the principals of clients: its principal builders."""

    def __init__(self, jvm: PluginsOfJvm, classes: dict[str, str]) -> None:
        self._jvm = jvm
        self._classes = classes
        self._slot: Any = Connection.__dict__["principal"]
        self._built: WeakKeyDictionary[Connection, Principal] = WeakKeyDictionary()

    def install(self) -> None:
        """Every principal of a connection is the builder's from now on."""
        Connection.principal = property(self._get, self._set)  # type: ignore[assignment]

    def _set(self, connection: Connection, principal: Principal) -> None:
        self._slot.__set__(connection, principal)
        self._built.pop(connection, None)

    def _get(self, connection: Connection) -> Principal:
        plain: Principal = self._slot.__get__(connection, Connection)
        name = connection.listener_name
        classes = self._classes
        builder = classes.get(f"listener.name.{name.lower()}.", classes.get(""))
        if builder is None or not connection.authenticated:
            return plain
        found = self._built.get(connection)
        if found is None:
            protocol = connection.listener.security_protocol
            found = self._built[connection] = Principal(
                *self._jvm.ask(
                    "principal", builder, name, protocol, connection.client_host, plain.name
                )
            )
        return found


class OwnAuthorizer:
    """Asks the JVM of the test what a client may do: its authorizer."""

    def __init__(self, jvm: PluginsOfJvm, class_name: str) -> None:
        self._jvm = jvm
        self._class_name = class_name

    def install(self) -> None:
        """Every decision about a named resource is the authorizer's from now on."""
        own = self

        def allows(
            _authorizer: Authorizer,
            context: RequestContext,
            operation: Operation,
            resource_type: ResourceType,
            name: str,
            *,
            log_if_denied: bool = True,
        ) -> bool:
            return own._allows(context, int(operation), int(resource_type), name)

        Authorizer.allows = allows  # type: ignore[method-assign]
        Authorizer.may_send = lambda *_: True  # type: ignore[method-assign, assignment]

    def _allows(
        self, context: RequestContext, operation: int, resource_type: int, name: str
    ) -> bool:
        principal = context.principal
        is_allowed: bool = self._jvm.ask(
            "authorize",
            self._class_name,
            context.listener_name,
            context.connection.listener.security_protocol,
            context.client_host,
            principal.principal_type,
            principal.name,
            context.header.api_key,
            context.header.api_version,
            operation,
            resource_type,
            name,
        )
        return is_allowed
