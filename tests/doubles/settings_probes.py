"""What each security setting does on the wire: rows for tests/integration/test_settings_probe.py.

A row has a setting, another value for it, and what a client sees before and after. The listeners
are PLAINTEXT, A and B; a value for A alone must leave B as it was.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from ottla.broker.testing.embedded import Broker
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.doubles.certificates import Certificates
from tests.doubles.sasl_talk import BEARER_LOGIN, PLAIN_LOGIN, SaslTalk
from tests.doubles.wire import ConnectionClosed, Wire

SECONDS = 20.0
STORES = Path(__file__).resolve().parents[1] / "unit" / "broker" / "config" / "stores"

#: The broker does not start with the value; at run time it is rejected.
NO_START = "no start"
REFUSED = "refused"

LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,A://127.0.0.1:0,B://127.0.0.1:0",
    "inter.broker.listener.name": "PLAINTEXT",
}


class World:
    """Certificates and tokens for all probes."""

    def __init__(self, folder: Path) -> None:
        (folder / "other").mkdir()
        self.certificates = Certificates(folder)
        self.others = Certificates(folder / "other", "another authority")
        made = self.certificates
        self.renewed = made.issue("server", "renewed")
        self.encrypted = folder / "encrypted.pem"
        text = made.server_path.read_bytes()
        key = serialization.load_pem_private_key(text, None)
        self.encrypted.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
            + text[text.index(b"-----BEGIN CERTIFICATE") :]
        )
        self.revoked = folder / "revoked.pem"
        self.revoked.write_bytes(made.revocation_list(made.client_path))
        self._token_key = rsa.generate_private_key(65537, 2048)
        self._other_key = rsa.generate_private_key(65537, 2048)
        self.keys = self._write_keys(folder / "keys.json", self._token_key)
        self.other_keys = self._write_keys(folder / "other-keys.json", self._other_key)

    def _write_keys(self, path: Path, key: rsa.RSAPrivateKey) -> str:
        found = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "a"}
        path.write_text(json.dumps({"keys": [found]}))
        return path.as_uri()

    def token(self) -> str:
        """Expired for ten seconds, which the default clock skew allows."""
        now = int(time.time())
        claims = {"sub": "anna", "app": "shop", "iss": "us", "aud": "kafka", "iat": now - 3600}
        claims["exp"] = now - 10
        return jwt.encode(claims, self._token_key, "RS256", headers={"kid": "a"})


Observe = Callable[[World, Broker, str], object]
"""What a client of a listener sees."""


class Probe(NamedTuple):
    """`value` and `more` are texts or functions of the world; `more` is set before and after."""

    setting: str
    value: Any
    before: object
    after: object
    observe: Observe
    more: Mapping[str, Any]
    #: Whether one listener may have another value; a mechanism's settings are for one only.
    of_listener: bool = True
    mechanism: str = ""
    #: Whether an open listener takes the value at run time.
    renewable: bool = False
    #: Of a start with the value, if that is another thing than `after`.
    after_start: object = None

    @property
    def at_start(self) -> object:
        return self.after if self.after_start is None else self.after_start


def address(broker: Broker, listener: str) -> tuple[str, int]:
    return "127.0.0.1", broker.server.ports[listener]


# -- TLS --------------------------------------------------------------------------------------


def over_tls(
    broker: Broker,
    listener: str,
    context: ssl.SSLContext,
    look: Callable[[ssl.SSLSocket], object] = lambda sock: "in",
) -> object:
    """What `look` sees after a request got its response; REFUSED when none came."""
    with (
        socket.create_connection(address(broker, listener), SECONDS) as plain,
        context.wrap_socket(
            plain, server_hostname="127.0.0.1", do_handshake_on_connect=False
        ) as sock,
    ):
        try:
            sock.do_handshake()
            sock.sendall(encode_request(1, "probe", ApiVersionsRequest(), 0))
            return look(sock) if sock.recv(4) else REFUSED
        except (ssl.SSLError, ConnectionError):
            return REFUSED


def any_client(world: World) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def with_certificate(world: World) -> ssl.SSLContext:
    context = any_client(world)
    context.load_cert_chain(world.certificates.client_path)
    return context


def version(world: World, broker: Broker, listener: str) -> object:
    return over_tls(broker, listener, any_client(world), lambda sock: sock.version())


def unverified(world: World, broker: Broker, listener: str) -> object:
    return over_tls(broker, listener, any_client(world))


def known(world: World, broker: Broker, listener: str) -> object:
    return over_tls(broker, listener, with_certificate(world))


def certificate(world: World, broker: Broker, listener: str) -> object:
    context = world.certificates.client_context()
    context.check_hostname = False
    pem = {ssl.PEM_cert_to_DER_cert(_chain(path)): name for path, name in _named(world).items()}
    return over_tls(broker, listener, context, lambda sock: pem.get(sock.getpeercert(True) or b""))


def _named(world: World) -> dict[Path, str]:
    return {world.certificates.server_path: "first", world.renewed: "renewed"}


def _chain(path: Path) -> str:
    text = path.read_text()
    return text[text.index("-----BEGIN CERTIFICATE") :]


def _key(path: Path) -> str:
    text = path.read_text()
    return text[: text.index("-----BEGIN CERTIFICATE")]


def weak_cipher(world: World, broker: Broker, listener: str) -> object:
    context = any_client(world)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    return over_tls(broker, listener, context)


def principal(world: World, broker: Broker, listener: str) -> object:
    def look(sock: ssl.SSLSocket) -> object:
        port = sock.getsockname()[1]
        network = broker.server.parts.network_server
        return [str(each.principal) for each in network.connections if each.client_port == port]

    return over_tls(broker, listener, with_certificate(world), look)


TLS: dict[str, Any] = {
    **LISTENERS,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:SSL,B:SSL",
    "ssl.keystore.location": lambda world: world.certificates.server_path,
    "ssl.truststore.location": lambda world: world.certificates.authority_path,
}
MUTUAL = {**TLS, "ssl.client.auth": "required"}
OF_JAVA = {
    **TLS,
    "ssl.keystore.location": STORES / "keys.jks",
    "ssl.keystore.password": "storepass",
    "ssl.key.password": "keypassw",
    "ssl.truststore.location": STORES / "trust.jks",
    "ssl.truststore.password": "storepass",
    "ssl.client.auth": "requested",
}
AS_TEXT: dict[str, Any] = {
    **{name: text for name, text in TLS.items() if name != "ssl.keystore.location"},
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": lambda world: _key(world.certificates.server_path),
    "ssl.keystore.certificate.chain": lambda world: _chain(world.certificates.server_path),
}
TRUST_AS_TEXT: dict[str, Any] = {
    **{name: text for name, text in MUTUAL.items() if name != "ssl.truststore.location"},
    "ssl.truststore.type": "PEM",
    "ssl.truststore.certificates": lambda world: world.certificates.authority_path.read_text(),
}
OF_TLS = [
    Probe(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,A:SSL,B:SSL",
        REFUSED,
        "in",
        unverified,
        {**TLS, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT"},
        of_listener=False,
    ),
    Probe(
        "ssl.keystore.location",
        lambda world: world.renewed,
        "first",
        "renewed",
        certificate,
        TLS,
        renewable=True,
    ),
    Probe("ssl.keystore.type", "BCFKS", "in", NO_START, unverified, TLS),
    Probe("ssl.keystore.password", "wrong", "in", NO_START, unverified, OF_JAVA),
    Probe(
        "ssl.key.password",
        "wrong",
        "in",
        NO_START,
        unverified,
        {
            **TLS,
            "ssl.keystore.location": lambda world: world.encrypted,
            "ssl.key.password": "secret",
        },
    ),
    Probe(
        "ssl.keystore.key",
        lambda world: _key(world.renewed),
        "in",
        NO_START,
        unverified,
        AS_TEXT,
        after_start=REFUSED,  # a fault, as of every key that is not the certificate's
    ),
    Probe(
        "ssl.keystore.certificate.chain",
        lambda world: _chain(world.renewed),
        "in",
        NO_START,
        unverified,
        AS_TEXT,
        after_start=REFUSED,  # a fault, as of every key that is not the certificate's
    ),
    Probe(
        "ssl.truststore.location",
        lambda world: world.others.authority_path,
        "in",
        REFUSED,
        known,
        MUTUAL,
        renewable=True,
    ),
    Probe("ssl.truststore.type", "BCFKS", "in", NO_START, known, MUTUAL),
    Probe("ssl.truststore.password", "wrong", "in", NO_START, unverified, OF_JAVA),
    Probe(
        "ssl.truststore.certificates",
        lambda world: world.others.authority_path.read_text(),
        "in",
        REFUSED,
        known,
        TRUST_AS_TEXT,
    ),
    Probe("ssl.client.auth", "required", "in", REFUSED, unverified, TLS),
    Probe("ssl.enabled.protocols", "TLSv1.2", "TLSv1.3", "TLSv1.2", version, TLS),
    Probe(
        "ssl.cipher.suites",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "in",
        REFUSED,
        weak_cipher,
        TLS,
    ),
    Probe(
        "ssl.principal.mapping.rules",
        "RULE:^CN=(.*)$/$1/U",
        ["User:CN=client"],
        ["User:CLIENT"],
        principal,
        MUTUAL,
    ),
    Probe("ottla.ssl.crl.location", lambda world: world.revoked, "in", REFUSED, known, MUTUAL),
]

# -- SASL -------------------------------------------------------------------------------------


def _talk(broker: Broker, listener: str) -> SaslTalk:
    host, port = address(broker, listener)
    return SaslTalk(f"{host}:{port}")


def mechanisms(world: World, broker: Broker, listener: str) -> object:
    talk = _talk(broker, listener)
    with talk.wire:
        return sorted(talk.handshake("NONE").mechanisms)


def users(world: World, broker: Broker, listener: str) -> object:
    """Which of two users get in."""
    found = []
    for user in ("anna", "bob"):
        talk = _talk(broker, listener)
        with talk.wire:
            response = talk.plain(f"\0{user}\0secret".encode())
            found += [] if response.error_code else [user]
    return found


def lifetime_ms(world: World, broker: Broker, listener: str) -> object:
    talk = _talk(broker, listener)
    with talk.wire:
        return talk.plain(b"\0anna\0secret").session_lifetime_ms


def big_frame(world: World, broker: Broker, listener: str) -> object:
    """A client that is not authenticated yet sends a request of 300 bytes."""
    talk = _talk(broker, listener)
    with talk.wire:
        return REFUSED if talk.handshake("x" * 300) is None else "in"


def bearer(world: World, broker: Broker, listener: str) -> object:
    talk = _talk(broker, listener)
    with talk.wire:
        talk.handshake("OAUTHBEARER")
        talk.authenticate(f"n,,\x01auth=Bearer {world.token()}\x01\x01".encode())
        port = talk.wire.local_port
        network = broker.server.parts.network_server
        return [
            str(each.principal)
            for each in network.connections
            if each.client_port == port and each.authenticated
        ]


_LOGIN_OF_ANNA = f'{PLAIN_LOGIN} user_anna="secret";'
SASL: dict[str, Any] = {
    **LISTENERS,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:SASL_PLAINTEXT,B:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.a.plain.sasl.jaas.config": _LOGIN_OF_ANNA,
    "listener.name.b.plain.sasl.jaas.config": _LOGIN_OF_ANNA,
    "connection.failed.authentication.delay.ms": "0",
}
BEARER = {
    **SASL,
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.a.oauthbearer.sasl.jaas.config": f"{BEARER_LOGIN};",
    "listener.name.b.oauthbearer.sasl.jaas.config": f"{BEARER_LOGIN};",
    "sasl.oauthbearer.jwks.endpoint.url": lambda world: world.keys,
    "sasl.oauthbearer.expected.audience": "kafka",
    "sasl.oauthbearer.expected.issuer": "us",
}
ANNA = ["User:anna"]
OF_SASL = [
    Probe(
        "sasl.enabled.mechanisms",
        "SCRAM-SHA-256",
        ["PLAIN", "SCRAM-SHA-256"],
        ["SCRAM-SHA-256"],
        mechanisms,
        SASL,
    ),
    Probe(
        "sasl.jaas.config",
        f'{PLAIN_LOGIN} user_bob="secret";',
        ["anna"],
        ["bob"],
        users,
        SASL,
        mechanism="plain",
    ),
    Probe("connections.max.reauth.ms", "60000", 0, 60000, lifetime_ms, SASL),
    Probe("connections.max.reauth.ms", "60000", 0, 60000, lifetime_ms, SASL, mechanism="plain"),
    Probe("sasl.server.max.receive.size", "100", "in", REFUSED, big_frame, SASL),
    Probe(
        "sasl.oauthbearer.jwks.endpoint.url",
        lambda world: world.other_keys,
        ANNA,
        [],
        bearer,
        BEARER,
    ),
    Probe("sasl.oauthbearer.expected.audience", "other", ANNA, [], bearer, BEARER),
    Probe("sasl.oauthbearer.expected.issuer", "them", ANNA, [], bearer, BEARER),
    Probe(
        "sasl.oauthbearer.expected.issuer",
        "them",
        ANNA,
        [],
        bearer,
        BEARER,
        mechanism="oauthbearer",
    ),
    Probe("sasl.oauthbearer.clock.skew.seconds", "1", ANNA, [], bearer, BEARER),
    Probe("sasl.oauthbearer.sub.claim.name", "app", ANNA, ["User:shop"], bearer, BEARER),
]

# -- what clients may do ----------------------------------------------------------------------


def creation(world: World, broker: Broker, listener: str) -> object:
    """The error code of a topic that an anonymous client would create."""
    with Wire(f"127.0.0.1:{broker.server.ports['PLAINTEXT']}") as wire:
        topic = CreatableTopic("t", 1, 1, [], [])
        response = wire.ask(CreateTopicsRequest([topic], 1000, True), 5)
    assert isinstance(response, CreateTopicsResponse)
    return response.topics[0].error_code


def token_code(world: World, broker: Broker, listener: str) -> object:
    """The error code of a delegation token that an authenticated client wants."""
    talk = _talk(broker, "A")
    with talk.wire:
        talk.plain(b"\0anna\0secret")
        return talk.ask(CreateDelegationTokenRequest(), 1).error_code


def large_request(world: World, broker: Broker, listener: str) -> object:
    with Wire(f"127.0.0.1:{broker.server.ports['PLAINTEXT']}", "x" * 2000) as wire:
        try:
            wire.ask(ApiVersionsRequest(), 0)
        except (ConnectionClosed, ConnectionError):
            return REFUSED
        return "in"


_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
GUARDED = {"authorizer.class.name": _AUTHORIZER}
DENIED, DISABLED = 29, 61
OF_THE_BROKER = [
    Probe("authorizer.class.name", _AUTHORIZER, 0, DENIED, creation, {}, of_listener=False),
    Probe("super.users", "User:ANONYMOUS", DENIED, 0, creation, GUARDED, of_listener=False),
    Probe("allow.everyone.if.no.acl.found", "true", DENIED, 0, creation, GUARDED,
          of_listener=False),
    Probe("delegation.token.secret.key", "key", DISABLED, 0, token_code, SASL,
          of_listener=False),
    Probe("delegation.token.master.key", "key", DISABLED, 0, token_code, SASL,
          of_listener=False),
    Probe("socket.request.max.bytes", "1000", "in", REFUSED, large_request, {}, of_listener=False),
]  # fmt: skip

PROBES = [*OF_TLS, *OF_SASL, *OF_THE_BROKER]
