"""TLS, users and access control of an embedded broker, each in one argument.

with Broker(tls=True, users={"alice": "secret"}, acls={"alice": ["WRITE topic:orders"]}) as b:
    producer = Producer(b.client_config("confluent", user="alice"))
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from ottla.broker.security.authorization.acl_types import (
    CLUSTER_NAME,
    OPERATION_NAMES,
    RESOURCE_NAMES,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
)
from ottla.broker.security.sasl.scram_admin import NewUser
from ottla.broker.testing.certificates import certificate_files
from ottla.broker.testing.faults import nearest
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource

Library = Literal["confluent", "confluent-kafka", "aiokafka", "kafka-python", "java"]
"""A client library whose settings `client_config` returns; "java" has Kafka's own names."""

# Other names of the libraries: that of a module, or of the library below.
_LIBRARIES = {
    "confluent_kafka": "confluent",
    "librdkafka": "confluent",
    "rdkafka": "confluent",
    "kafka": "kafka-python",
}

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

ADMIN = "admin"
"""The user of the brokers, who may do everything. It exists wherever there are users."""

_MECHANISMS: tuple[str, ...] = get_args(Mechanism)
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
}
_OPERATIONS = {each.name: each for each in Operation if each > Operation.ANY}
# The operations that Kafka asks for, by kind. Those of the configuration of groups are KIP-848's.
_WORKING = {
    "topic": (*SUPPORTED_OPERATIONS[ResourceType.TOPIC], Operation.ALL),
    "group": (
        *SUPPORTED_OPERATIONS[ResourceType.GROUP],
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.ALL,
    ),
    "transactional_id": (Operation.WRITE, Operation.DESCRIBE, Operation.ALL),
    "cluster": (*SUPPORTED_OPERATIONS[ResourceType.CLUSTER], Operation.ALL),
}
_TOPIC = re.compile(r"[A-Za-z0-9._-]*\*?")
_EXAMPLE = "such as users={'alice': 'secret'}"
# It is a part of an option's name in JAAS.
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]*")
_LOGIN_MODULES = "org.apache.kafka.common.security"


class Security:
    """How clients reach a broker and what they may do. Raises ValueError for wrong arguments."""

    def __init__(
        self,
        tls: bool,
        users: Mapping[str, str] | None,
        acls: Mapping[str, Iterable[str]] | None,
        *,
        client_certificate: bool = False,
    ) -> None:
        """`client_certificate`: clients get one, for a broker that asks for it."""
        if type(tls) is not bool:
            raise TypeError(f"tls={tls!r}: expected True or False; the certificate is made for you")
        self.tls = tls
        self.client_certificate = client_certificate
        self.users = {} if users is None else _checked_users(users)
        if acls is not None and not self.users:
            raise ValueError("acls need users: Broker(users={'alice': 'secret'}, acls={...})")
        if self.users:
            # A password of its own for each process; nobody needs to know it.
            self.users.setdefault(ADMIN, secrets.token_hex(16))
        self.has_acls = acls is not None
        self.acls = [
            _acl(user, text, self.users)
            for user, texts in _checked_rules(acls or {}).items()
            for text in texts
        ]
        self.protocol = f"{'SASL_' if self.users else ''}{'SSL' if tls else 'PLAINTEXT'}"

    @property
    def is_default(self) -> bool:
        """Whether clients connect without TLS and without a user."""
        return self.protocol == "PLAINTEXT"

    def settings(self) -> dict[str, str]:
        """Settings of the broker, by Kafka's names."""
        if self.is_default:
            return {}
        found = {"security.inter.broker.protocol": self.protocol}
        if self.tls:
            files = certificate_files()
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(files.server),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(files.authority),
            }
        if self.users:
            prefix = f"listener.name.{self.protocol.lower()}"
            known = "".join(f" user_{name}={_quoted(text)}" for name, text in self.users.items())
            login = f"username={_quoted(ADMIN)} password={_quoted(self.users[ADMIN])}"
            found |= {
                "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                f"{prefix}.plain.sasl.jaas.config": f"{_module('PLAIN')} required {login}{known};",
            }
            for mechanism in _MECHANISMS[1:]:
                name = f"{prefix}.{mechanism.lower()}.sasl.jaas.config"
                found[name] = f"{_module(mechanism)} required;"
        if self.has_acls:
            found["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
            found["super.users"] = f"User:{ADMIN}"
        return found

    def new_users(self) -> list[NewUser]:
        """The SCRAM credentials of the users; PLAIN has them in its settings."""
        return [
            NewUser(mechanism, name, password)
            for name, password in self.users.items()
            for mechanism in _MECHANISMS[1:]
        ]

    def client_config(
        self, library: Library, bootstrap: str, user: str | None, mechanism: Mechanism
    ) -> dict[str, Any]:
        """The settings of a client; `user` is by default the first one."""
        if library not in get_args(Library):
            other = _LIBRARIES.get(str(library).lower())
            hint = f"did you mean {other}?" if other else _one_of(library, get_args(Library))
            raise ValueError(f"{library!r} is not a library: {hint}")
        if user is not None and user not in self.users:
            raise ValueError(f"{user!r} is not a user of this broker: {_one_of(user, self.users)}")
        if mechanism not in _MECHANISMS:
            raise ValueError(f"{mechanism!r} is not a mechanism: {_one_of(mechanism, _MECHANISMS)}")
        login = None
        if self.users:
            name = user or next(iter(self.users))
            login = (mechanism, name, self.users[name])
        if library in ("aiokafka", "kafka-python"):
            return self._python_config(library, bootstrap, login)
        return self._kafka_config(library, bootstrap, login)

    def _kafka_config(
        self, library: str, bootstrap: str, login: tuple[str, str, str] | None
    ) -> dict[str, Any]:
        """Kafka's names, and librdkafka's."""
        found: dict[str, Any] = {"bootstrap.servers": bootstrap}
        if self.is_default:
            return found
        found["security.protocol"] = self.protocol
        librdkafka = library in ("confluent", "confluent-kafka")
        if self.tls and librdkafka:
            found["ssl.ca.location"] = str(certificate_files().authority)
            if self.client_certificate:
                own = str(certificate_files().client)
                found |= {"ssl.certificate.location": own, "ssl.key.location": own}
        elif self.tls:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.location"] = str(certificate_files().authority)
            if self.client_certificate:
                own = str(certificate_files().client)
                found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": own}
        if login is not None:
            mechanism, name, password = login
            found["sasl.mechanism"] = mechanism
            if librdkafka:
                found |= {"sasl.username": name, "sasl.password": password}
            else:
                found["sasl.jaas.config"] = (
                    f"{_module(mechanism)} required username={_quoted(name)} "
                    f"password={_quoted(password)};"
                )
        return found

    def _python_config(
        self, library: str, bootstrap: str, login: tuple[str, str, str] | None
    ) -> dict[str, Any]:
        """Arguments of the classes of aiokafka and kafka-python."""
        found: dict[str, Any] = {"bootstrap_servers": bootstrap}
        if self.is_default:
            return found
        found["security_protocol"] = self.protocol
        if self.tls and library == "aiokafka":
            import ssl

            authority = str(certificate_files().authority)
            context = found["ssl_context"] = ssl.create_default_context(cafile=authority)
            if self.client_certificate:
                context.load_cert_chain(certificate_files().client)
        elif self.tls:
            found["ssl_cafile"] = str(certificate_files().authority)
            if self.client_certificate:
                found["ssl_certfile"] = str(certificate_files().client)  # with the key
        if login is not None:
            mechanism, name, password = login
            found["sasl_mechanism"] = mechanism
            found |= {"sasl_plain_username": name, "sasl_plain_password": password}
        return found


def _checked_users(users: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(users, Mapping):
        raise ValueError(f"users: expected a dictionary, {_EXAMPLE}, and not {users!r}")
    if not users:
        raise ValueError(f"users: without a user nobody can log in: name one, {_EXAMPLE}, or None")
    for name, password in users.items():
        if not isinstance(name, str) or not _USER.fullmatch(name):
            raise ValueError(
                f"users: {name!r} has other characters than letters, digits, '.', '_', '-' and '@'"
            )
        if not isinstance(password, str):
            raise ValueError(f"users: the password of {name} is not text: expected {_EXAMPLE}")
    return dict(users)


def _checked_rules(acls: Mapping[str, Iterable[str]]) -> Mapping[str, Iterable[str]]:
    if not isinstance(acls, Mapping):
        raise ValueError(f"acls: expected {{name: [rule, ...]}}, and not {acls!r}")
    for name, rules in acls.items():
        # A rule alone would be taken for a list of letters.
        if isinstance(rules, str) or not isinstance(rules, Iterable):
            raise ValueError(f"acls: expected a list of rules for {name}, and not {rules!r}")
    return acls


def _module(mechanism: str) -> str:
    if mechanism == "PLAIN":
        return f"{_LOGIN_MODULES}.plain.PlainLoginModule"
    return f"{_LOGIN_MODULES}.scram.ScramLoginModule"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _acl(user: str, text: str, users: Mapping[str, str]) -> tuple[AclResource, Acl]:
    """`[DENY] OPERATION kind:name`; a name that ends with * is a prefix."""
    if user != "*" and user not in users:
        raise ValueError(f"acls: {user!r} is not a user of this broker: {_one_of(user, users)}")
    words = text.split()
    permission = "Deny" if words[:1] == ["DENY"] else "Allow"
    if permission == "Deny":
        del words[0]
    _check_words(text, words, "DENY " if permission == "Deny" else "")
    kind, colon, name = words[1].partition(":") if len(words) == 2 else ("", "", "")
    if len(words) == 2 and kind == "cluster" and not colon:
        name = CLUSTER_NAME
    if not name:
        raise ValueError(
            f"acls: {text!r} is not a rule: write it as 'READ topic:orders', 'WRITE topic:out-*', "
            "'READ group:billing', 'IDEMPOTENT_WRITE cluster' or 'DENY READ topic:secret'"
        )
    operation = _OPERATIONS.get(words[0])
    if operation is None:
        raise ValueError(
            f"acls: {words[0]!r} is not an operation: {_one_of(words[0], _OPERATIONS)}"
        )
    if kind not in _KINDS:
        raise ValueError(f"acls: {kind!r} is not a kind of resource: {_one_of(kind, _KINDS)}")
    if operation not in _WORKING[kind]:
        working = ", ".join(each.name for each in _WORKING[kind])
        raise ValueError(
            f"acls: {text!r} has no effect: the operations of the kind {kind} are {working}"
        )
    if "*" in name[:-1]:
        raise ValueError(
            f"acls: {text!r} has no effect: a * is the whole name or its end, as in {kind}:out-*"
        )
    if kind == "topic" and not _TOPIC.fullmatch(name):
        raise ValueError(
            f"acls: {text!r} has no effect: topics have letters, digits, '.', '_' and '-' in their "
            "names; write one rule for each topic"
        )
    if kind == "cluster" and name not in ("*", CLUSTER_NAME):
        raise ValueError(f"acls: {text!r} has no effect: write '{words[0]} cluster'")
    pattern = PREFIXED if name.endswith("*") and name != "*" else LITERAL
    resource = AclResource(
        pattern, RESOURCE_NAMES[_KINDS[kind]], name.removesuffix("*") if name != "*" else name
    )
    return resource, Acl(f"User:{user}", permission, OPERATION_NAMES[operation], "*")


def _check_words(text: str, words: list[str], deny: str) -> None:
    """Raise ValueError for what is near to a rule, with the rule to write, which begins with
    `deny`."""
    if words[:1] == ["ALLOW"]:
        raise ValueError(f"acls: {text!r}: leave ALLOW out, {' '.join(words[1:])!r} allows it")
    if words[2:] and words[1].endswith(":"):
        meant = f"{deny}{words[0]} {''.join(words[1:])}"
        raise ValueError(f"acls: {text!r}: without the space after the colon it is {meant!r}")
    if words and "," in words[0]:
        rest = " ".join(words[1:])
        rules = [f"{deny}{each} {rest}" for each in words[0].split(",") if each]
        raise ValueError(f"acls: {text!r}: a rule has one operation: write {rules}")


def _one_of(given: object, known: Iterable[str]) -> str:
    names = list(known)
    return nearest(str(given), names) if names else "it has no users (users={...})"
