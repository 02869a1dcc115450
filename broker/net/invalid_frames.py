"""Refuses frames of an invalid size, and clients that speak another protocol than Kafka's.

Read as a frame's length, "GET " is 1.2 billion and a TLS hello 370 million: Kafka logs an "invalid
receive" of that size, and operators search the web for it. This broker logs the protocol instead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.net.connection import Connection
    from ottla.broker.net.services import NetworkServices


logger = logging.getLogger("ottla.net")

# How long an HTTP client gets to read the response before the socket is closed.
LINGER_MS = 1000


def refuse_size(
    connection: Connection, size: int, first_bytes: bytes, services: NetworkServices
) -> bool:
    """Decide on a frame of an unusual size, of which nothing was allocated yet.

    Returns False when it is accepted after all: a huge request that the settings allow, from a
    client that is known to speak Kafka. Else the connection is closed, for HTTP after a response
    that explains it, with one line in the log for each address and minute.
    """
    protocol = None if connection.identified else recognise(first_bytes)
    if protocol is not None:
        report_protocol(
            connection, protocol, explanation(protocol, connection.listener_name), services
        )
        if protocol == "HTTP":
            response = http_response(connection.listener_name, *connection.local_address)
            connection.close_after_response(response, LINGER_MS)
        else:
            connection.close(f"the client speaks {protocol}")
        return True
    if 0 <= size <= connection.max_frame_bytes:
        return False
    services.statistics.protocol_errors += 1
    if services.log_limiter.allows(connection.client_host):
        logger.warning(
            "%s:%d on listener %s announced a request of %d bytes; allowed are 0 to %d%s: "
            "closing the connection",
            connection.client_host,
            connection.client_port,
            connection.listener_name,
            size,
            connection.max_frame_bytes,
            _setting(connection),
            extra={"peer": connection.client_host, "listener": connection.listener_name},
        )
    connection.close(f"a request of {size} bytes")
    return True


def report_protocol(
    connection: Connection, protocol: str, fix: str, services: NetworkServices
) -> None:
    """Count a client that speaks another protocol than its listener, and log it with the fix: one
    line a minute for each address, protocol and listener."""
    services.statistics.wrong_protocol += 1
    host, listener = connection.client_host, connection.listener_name
    if services.log_limiter.allows(f"{host} {protocol} {listener}"):
        logger.warning(
            "%s sent %s: %s", host, protocol, fix, extra={"peer": host, "listener": listener}
        )


def _setting(connection: Connection) -> str:
    if not connection.authenticated:
        return " before authentication"
    if connection.token_handler is not None:
        return " while it authenticates again"
    return " (socket.request.max.bytes)"


def refuse_large(connection: Connection, size: int, services: NetworkServices) -> None:
    """Close a connection whose request is longer than its API needs, before it is received."""
    services.statistics.protocol_errors += 1
    if services.log_limiter.allows(connection.client_host):
        logger.warning(
            "%s:%d on listener %s announced a request of %d bytes; without records, or without the "
            "right to write, %d are allowed (ottla.request.max.bytes): closing the connection",
            connection.client_host,
            connection.client_port,
            connection.listener_name,
            size,
            services.large_frames.max_request_bytes,
            extra={"peer": connection.client_host, "listener": connection.listener_name},
        )
    connection.close(f"a request of {size} bytes")


def refuse_for_memory(connection: Connection, size: int, services: NetworkServices) -> None:
    """Close a connection whose request is longer than the memory for requests allows, before it is
    received."""
    services.statistics.protocol_errors += 1
    if services.log_limiter.allows(connection.client_host):
        logger.warning(
            "%s:%d on listener %s announced a request of %d bytes; with the memory that the broker "
            "may use, %d are allowed (see docs/limits.md; more memory for the broker or a higher "
            "queued.max.request.bytes allows more): closing the connection",
            connection.client_host,
            connection.client_port,
            connection.listener_name,
            size,
            services.memory.max_frame_bytes,
            extra={"peer": connection.client_host, "listener": connection.listener_name},
        )
    connection.close(f"a request of {size} bytes")


HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")

# The smallest size that the first bytes of those protocols make when read as a frame's length (the
# PROXY protocol's, 218 million). Smaller ones need no closer look.
FOREIGN_SIZE = 0x0D0A0D0A

PROXY_PROTOCOL = "the PROXY protocol"
WITHOUT_TLS = "data without TLS"  #: to a listener with TLS


def recognise(first_bytes: bytes) -> str | None:
    """Name the protocol that the first four bytes of a connection belong to, or None.

    Returns "HTTP", "TLS", "a TLS alert", "SSH" or "the PROXY protocol" (version 1 or 2).
    """
    if first_bytes[:4] in HTTP_METHODS:
        return "HTTP"
    if first_bytes[:2] == b"\x16\x03":
        return "TLS"
    if first_bytes[:2] == b"\x15\x03":
        return "a TLS alert"
    if first_bytes[:4] == b"SSH-":
        return "SSH"
    if first_bytes[:4] in (b"PROX", b"\r\n\r\n"):
        return PROXY_PROTOCOL
    return None


def explanation(protocol: str, listener_name: str, *, encrypted: bool = False) -> str:
    """The probable cause and its remedy, for the log. `encrypted`: the listener speaks TLS."""
    if protocol == WITHOUT_TLS:
        return (
            f"listener {listener_name} speaks TLS; set the client's security.protocol to SSL or "
            "SASL_SSL, or connect to a listener without TLS"
        )
    if protocol == "HTTP" and encrypted:
        return f"listener {listener_name} speaks the Kafka protocol over TLS, not HTTP"
    if protocol == "HTTP":
        return f"listener {listener_name} speaks the Kafka protocol, not HTTP; responded 400"
    if protocol == "TLS":
        return (
            f"listener {listener_name} is not encrypted; set the client's security.protocol to "
            "PLAINTEXT or SASL_PLAINTEXT, or connect to a TLS listener"
        )
    if protocol == "a TLS alert":
        return "the client gave up a TLS handshake, perhaps because of this broker's certificate"
    if protocol == PROXY_PROTOCOL:
        return (
            f"listener {listener_name} does not read it; disable it in the load balancer (HAProxy: "
            "drop send-proxy from the server line; AWS: proxy_protocol_v2.enabled=false)"
        )
    return f"listener {listener_name} speaks the Kafka protocol"


def http_response(listener_name: str, host: str, port: int) -> bytes:
    """A complete HTTP/1.1 response that explains what this port is."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    body = (
        "This is a Kafka port: it speaks the Kafka protocol, not HTTP.\n"
        f"Point a Kafka client at it, with bootstrap.servers={where} "
        f"(listener {listener_name}).\n"
    ).encode()
    head = (
        "HTTP/1.1 400 Bad Request\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
