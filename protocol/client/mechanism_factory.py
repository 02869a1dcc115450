"""Which SASL mechanism a connection uses."""

from collections.abc import Callable

from ottla.protocol.client.gssapi import GssapiMechanism
from ottla.protocol.client.sasl import (
    BearerMechanism,
    PlainMechanism,
    SaslMechanism,
    ScramMechanism,
)
from ottla.protocol.client.security import Security


def mechanism_factory(
    security: Security | None, host: str = ""
) -> Callable[[], SaslMechanism] | None:
    """What makes a fresh exchange for each connection to ``host``, or None without SASL."""
    if security is None or not security.uses_sasl:
        return None
    name, username, password = security.mechanism, security.username, security.password
    assert name is not None
    if name == BearerMechanism.name:
        token, extensions = security.token, security.extensions
        assert token is not None
        return lambda: BearerMechanism(token(), extensions)
    if security.new_context is not None:
        new_context = security.new_context
        return lambda: GssapiMechanism(new_context, host)
    assert username is not None
    assert password is not None
    if name == "PLAIN":
        return lambda: PlainMechanism(username, password)
    return lambda: ScramMechanism(name, username, password)
