"""Speaks SASL to a broker frame by frame, and notes what comes back; for comparing brokers."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from typing import Any

from ottla.protocol.client.sasl import ScramMechanism
from ottla.protocol.message import Message
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.doubles.apache_kafka import ApacheKafka
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.wire import ConnectionClosed, Wire

LOGIN = "org.apache.kafka.common.security."
PLAIN_LOGIN = f"{LOGIN}plain.PlainLoginModule required"
SCRAM_LOGIN = f"{LOGIN}scram.ScramLoginModule required"
BEARER_LOGIN = f"{LOGIN}oauthbearer.OAuthBearerLoginModule required"

CLOSED = "closed"


def sasl_listener(name: str = "clients") -> dict[str, str]:
    """Settings for a plain listener and, beside it, one for clients with every mechanism."""
    login = f"listener_name_{name}_"
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,{name.upper()}://127.0.0.1:0",
        "listener_security_protocol_map": (f"PLAINTEXT:PLAINTEXT,{name.upper()}:SASL_PLAINTEXT"),
        "inter_broker_listener_name": "PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{login}plain_sasl_jaas_config": f'{PLAIN_LOGIN} user_anna="s3cret" user_bob="pass";',
        f"{login}scram-sha-256_sasl_jaas_config": f"{SCRAM_LOGIN};",
        f"{login}scram-sha-512_sasl_jaas_config": f"{SCRAM_LOGIN};",
        f"{login}oauthbearer_sasl_jaas_config": (
            f'{BEARER_LOGIN} unsecuredLoginStringClaim_sub="broker" '
            'unsecuredValidatorRequiredScope="use";'
        ),
    }


def addresses(broker: ApacheKafka | BrokerProcess) -> list[str]:
    """The addresses of a broker's listeners, in the order of the setting."""
    if isinstance(broker, ApacheKafka):
        ports = re.findall(r"Awaiting socket connections on 127\.0\.0\.1:(\d+)", broker.output())
    else:
        ports = re.findall(r"^  \w+://127\.0\.0\.1:(\d+)", broker.log(), re.MULTILINE)
    return [f"127.0.0.1:{port}" for port in ports]


def bearer_token(claims: object, header: object = None, signature: str = "") -> str:
    """A token without a signature, unless one is given."""
    parts = [{"alg": "none"} if header is None else header, claims]
    # Kafka takes the common alphabet of base64 only, and we both.
    encoded = [base64.b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, signature])


class SaslTalk:
    """One connection; `notes` are the responses as (error code, error message, more)."""

    def __init__(self, bootstrap: str) -> None:
        self.wire = Wire(bootstrap)
        self.notes: list[object] = []

    def ask(self, request: Message, version: int) -> Any:
        """The response, None when the broker hangs up."""
        try:
            response = self.wire.ask(request, version)
        except (ConnectionClosed, ConnectionResetError, BrokenPipeError):
            self.notes.append(CLOSED)
            return None
        self.notes.append(
            (
                type(response).__name__,
                getattr(response, "error_code", None),
                getattr(response, "error_message", None),
                getattr(response, "mechanisms", None),
                getattr(response, "session_lifetime_ms", 0) > 0,
            )
        )
        return response

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def plain(self, token: bytes, version: int = 2) -> Any:
        """Handshake and token."""
        self.handshake("PLAIN")
        return self.authenticate(token, version)

    def scram(self, mechanism: str, user: str, password: str, extensions: str = "") -> Any:
        """A whole SCRAM exchange; the last response."""
        exchange = ScramMechanism(mechanism, user, password)
        exchange._first_bare += extensions
        self.handshake(mechanism)
        response = self.authenticate(exchange.first())
        while isinstance(response, SaslAuthenticateResponse) and not response.error_code:
            token = exchange.step(response.auth_bytes)
            if token is None:
                break
            response = self.authenticate(token)
        return response

    def bare(self, token: bytes) -> bytes | None:
        """A token without a header, and the response."""
        try:
            self.wire.send_bytes(struct.pack(">i", len(token)) + token)
            response = self.wire.receive_frame()
        except (ConnectionClosed, ConnectionResetError, BrokenPipeError):
            self.notes.append(CLOSED)
            return None
        self.notes.append("token")
        return response


Script = Callable[[SaslTalk], object]


def notes_of(bootstrap: str, script: Script) -> list[object]:
    """What a broker returns to a script."""
    talk = SaslTalk(bootstrap)
    with talk.wire:
        script(talk)
        return talk.notes
