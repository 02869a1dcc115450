"""Whether brokers with two sets of keys and trust can connect: a TLS handshake in memory.

Mirrors Kafka's `SslFactory.SslEngineValidator`: without it, a new keystore would cut a broker off
from its cluster.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

from ottla.broker.config.errors import ConfigError

# TLS 1.2 with client authentication takes three turns; the rest is for a renewed session ticket.
_MAX_TURNS = 10


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """ConfigError when `client` and `server` do not trust each other. Names do not count."""
    checks_names = client.check_hostname
    client.check_hostname = False
    try:
        _shake_hands(server, client)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise ConfigError(
            "A client with the provided TLS settings cannot connect to a server with those "
            f"settings or the ones in use, so other brokers could not either: {reason}. The "
            "truststore of the listener of brokers has to trust the old and the new certificate: "
            "add the new authority to it first, and remove the old one last."
        ) from None
    finally:
        client.check_hostname = checks_names


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server)
    for _ in range(_MAX_TURNS):
        for side in (there, here):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    with suppress(ssl.SSLWantReadError):
        there.read(1)  # With TLS 1.3 the server rejects a certificate after the last word.
