"""Java classes of a test that a broker of Kafka loads: Ottla asks the JVM of the test instead."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakKeyDictionary

from ottla.broker.net.connection import Connection
from ottla.broker.net.tls import TlsConnection
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.authorization.authorizer import Authorizer
from ottla.broker.security.sasl import broker_login
from ottla.broker.security.sasl.exchanges import PlainExchange
from ottla.broker.security.sasl.session import SaslSession
from ottla.broker.security.tls.distinguished_names import distinguished_name, subject_of
from ottla.policies import PolicyViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.sasl import PeerLogin, SaslConfig
    from ottla.broker.requests.request_context import RequestContext
    from ottla.broker.security.authorization.acl_types import Operation, ResourceType
    from ottla.broker.security.kerberos.login import KerberosLogin
    from ottla.policies import ConfigAlteration, TopicCreation


class PluginsOfJvm:
    """The loopback port on which the JVM of the test calls its classes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: BinaryIO | None = None

    def ask(self, *question: object) -> Any:
        """The response. It blocks the event loop for the time that Kafka's own thread needs.
        RuntimeError when the class of the test failed."""
        if self._stream is None:
            self._stream = socket.create_connection(("127.0.0.1", self._port)).makefile("rwb")
        self._stream.write(json.dumps(question).encode() + b"\n")
        self._stream.flush()
        response = json.loads(self._stream.readline())
        if isinstance(response, dict) and "error" in response:
            raise RuntimeError(response["error"])
        return response


class PrincipalBuilders:
    """Asks the JVM of the test for the principals of clients: its principal builders."""

    def __init__(self, jvm: PluginsOfJvm, classes: dict[str, str]) -> None:
        self._jvm = jvm
        self._classes = classes
        self._slot: Any = Connection.__dict__["principal"]
        self._built: WeakKeyDictionary[Connection, Principal] = WeakKeyDictionary()
        self._shows_plain = False

    def install(self) -> None:
        """Every principal of a connection is the builder's from now on."""
        Connection.principal = property(self._get, self._set)  # type: ignore[assignment]
        check = SaslSession._check_principal

        def check_plain(session: SaslSession) -> None:
            # A client that authenticates again: names are compared as it gives them.
            self._shows_plain = True
            try:
                check(session)
            finally:
                self._shows_plain = False

        SaslSession._check_principal = check_plain  # type: ignore[method-assign]

    def _set(self, connection: Connection, principal: Principal) -> None:
        self._slot.__set__(connection, principal)
        self._built.pop(connection, None)

    def _get(self, connection: Connection) -> Principal:
        plain: Principal = self._slot.__get__(connection, Connection)
        name = connection.listener_name
        classes = self._classes
        builder = classes.get(f"listener.name.{name.lower()}.", classes.get(""))
        if builder is None or not connection.authenticated or self._shows_plain:
            return plain
        found = self._built.get(connection)
        if found is None:
            protocol = connection.listener.security_protocol
            certificate = ""
            if isinstance(connection, TlsConnection):
                received = connection._tls.peer_certificate()
                certificate = distinguished_name(subject_of(received)) if received else ""
            client = (connection.client_host, plain.name, certificate)
            found = self._built[connection] = Principal(
                *self._jvm.ask("principal", builder, name, protocol, *client)
            )
        return found


class KerberosFile:
    """Asks the JVM of the test for its krb5.conf, where a listener has Kerberos: a test may start
    its key distribution center after the broker."""

    def __init__(self, jvm: PluginsOfJvm) -> None:
        self._jvm = jvm

    def install(self) -> None:
        """Each login reads the file of that time."""
        login = broker_login.kerberos_login

        def login_with_file(config: BrokerConfig, listener_name: str) -> KerberosLogin:
            path = self._jvm.ask("krb5.conf")
            if path:
                os.environ["KRB5_CONFIG"] = path
            return login(config, listener_name)

        broker_login.kerberos_login = login_with_file


class SaslCallbacks:
    """Asks the JVM of the test about passwords of PLAIN: its SASL callback handlers."""

    def __init__(self, jvm: PluginsOfJvm, of_clients: str | None, of_broker: str | None) -> None:
        """The Java classes that know the passwords of clients, and that of this broker."""
        self._jvm = jvm
        self._of_clients = of_clients
        self._of_broker = of_broker

    def install(self) -> None:
        """They decide from now on."""
        step, peer_login = PlainExchange.step, broker_login.peer_login

        def step_with_handler(exchange: PlainExchange, token: bytes) -> bytes:
            _, user, password = token.decode().split("\0")
            is_right = self._jvm.ask("password", self._of_clients, user, password)
            exchange._passwords = lambda: {user: password} if is_right else {}
            return step(exchange, token)

        def login_with_handler(config: SaslConfig) -> PeerLogin | None:
            login = peer_login(config)
            if login is None:
                return None
            user = login.options["username"]
            password = self._jvm.ask("login", self._of_broker, user)
            return login._replace(options={**login.options, "password": password})

        if self._of_clients is not None:
            PlainExchange.step = step_with_handler  # type: ignore[method-assign]
        if self._of_broker is not None:
            broker_login.peer_login = login_with_handler


def request_of(context: RequestContext) -> list[object]:
    """What an authorizer of Kafka sees of a request."""
    connection, header, principal = context.connection, context.header, context.principal
    return [
        context.listener_name,
        connection.listener.security_protocol,
        context.client_host,
        principal.principal_type,
        principal.name,
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
    ]


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
        is_allowed: bool = self._jvm.ask(
            "authorize", self._class_name, request_of(context), operation, resource_type, name
        )
        return is_allowed


class OwnPolicy:
    """Asks the JVM of the test: its policy. Ottla loads it by the setting, as any policy."""

    setting: str
    jvm: PluginsOfJvm
    class_name: str

    def configure(self, settings: Mapping[str, str]) -> None:
        """The JVM makes the policy."""
        self.jvm.ask("policy", self.class_name, settings)

    def _ask(self, *question: object) -> None:
        rejection = self.jvm.ask(*question)
        if rejection is not None:
            raise PolicyViolation(rejection)


class OwnAlterConfigPolicy(OwnPolicy):
    """Whether settings may change."""

    setting = "alter.config.policy.class.name"

    def validate(self, change: ConfigAlteration) -> None:
        """Raises PolicyViolation."""
        self._ask("change", self.class_name, *change)


class OwnCreateTopicPolicy(OwnPolicy):
    """Whether a topic may be created."""

    setting = "create.topic.policy.class.name"

    def validate(self, topic: TopicCreation) -> None:
        """Raises PolicyViolation."""
        self._ask("creation", self.class_name, *topic)
