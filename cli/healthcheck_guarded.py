"""`ottla healthcheck` where every listener requires TLS or SASL, without credentials.

The HTTP port knows more than a listener can tell without authentication, so it goes first.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from ottla.broker.config.image_variables import IMAGE_PREFIX, translate
from ottla.cli.health import (
    UNHEALTHY,
    UNREACHABLE,
    USAGE_ERROR,
    Unhealthy,
    from_here,
)
from ottla.protocol.client.connection import ClientConnection

MAX_RESPONSE_BYTES = 65536
"""/readyz has some lines."""


class Listener(NamedTuple):
    """A listener in the environment: its name, the address for this machine, its protocol."""

    name: str
    address: str
    protocol: str


def listeners_of(environment: Mapping[str, str]) -> list[Listener]:
    """The listeners in the environment of a container, in their order."""
    environment = translate(environment).environment
    names = ("OTTLA_LISTENERS", "KAFKA_LISTENERS", f"{IMAGE_PREFIX}LISTENERS")
    listeners = next((environment[name] for name in names if environment.get(name)), "")
    protocols = dict(
        entry.strip().upper().partition(":")[::2]
        for entry in (
            environment.get("OTTLA_LISTENER_SECURITY_PROTOCOL_MAP")
            or environment.get("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP")
            or ""
        ).split(",")
    )
    found: list[Listener] = []
    for listener in listeners.split(","):
        name, _, address = listener.strip().partition("://")
        host, _, port = address.rpartition(":")
        if port.isdigit():
            name = name.upper()
            found.append(Listener(name, from_here(host, port), protocols.get(name, name)))
    return found


def guarded_listener(environment: Mapping[str, str]) -> Listener | None:
    """The first listener in the environment of a container, None if one of them is plaintext."""
    found = listeners_of(environment)
    if not found or any(each.protocol == "PLAINTEXT" for each in found):
        return None
    guarded = [each for each in found if each.protocol.startswith(("SASL_", "SSL"))]
    return guarded[0] if guarded else None


def check_guarded(
    listener: Listener, environment: Mapping[str, str], timeout_seconds: float
) -> dict[str, object]:
    """The fields of a healthy broker; raises Unhealthy."""
    http = http_address(environment)
    if http:
        return check_readiness(http, timeout_seconds)
    with _reported(listener.address, timeout_seconds):
        return _request_versions(listener, timeout_seconds)


def http_address(environment: Mapping[str, str]) -> str:
    """The HTTP port of the broker in this environment, for this machine; "" without one."""
    http = environment.get("OTTLA_METRICS_ADDRESS") or environment.get(
        "KAFKA_OTTLA_METRICS_ADDRESS"
    )
    if not http:
        return ""
    host, _, port = http.rpartition(":")
    return from_here(host, port)


def check_readiness(address: str, timeout_seconds: float) -> dict[str, object]:
    """The fields of a broker whose HTTP port at host:port says it is ready; raises Unhealthy."""
    if not address.rpartition(":")[2].isdigit():
        raise Unhealthy(f"{address} is not host:port.", USAGE_ERROR)
    with _reported(address, timeout_seconds):
        return _request_readiness(address, timeout_seconds)


@contextmanager
def _reported(address: str, timeout_seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Unhealthy(
            f"no response from {address} in {timeout_seconds:g} s.", UNREACHABLE
        ) from None
    except UnicodeError:  # for what cannot be a name
        raise Unhealthy(f"{address} is not host:port.", USAGE_ERROR) from None
    except OSError as error:
        raise Unhealthy(
            f"cannot reach {address}: {error.strerror or error}; is the broker running?",
            UNREACHABLE,
        ) from None


def _connected(address: str, timeout_seconds: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_seconds)


def _request_readiness(address: str, timeout_seconds: float) -> dict[str, object]:
    with _connected(address, timeout_seconds) as opened:
        opened.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = b""
        while len(response) < MAX_RESPONSE_BYTES and (data := opened.recv(4096)):
            response += data
    head, _, body = response.decode(errors="replace").partition("\r\n\r\n")
    if " 200 " not in head.partition("\r\n")[0]:
        reason = body.strip() or "there is no response to /readyz"
        raise Unhealthy(f"{address}: {reason}.", UNHEALTHY)
    found: dict[str, object] = {"healthy": True, "address": address, "checked": "/readyz"}
    _, *warnings = body.strip().splitlines() or ("",)
    if warnings:
        found["warnings"] = warnings
    return found


def _request_versions(listener: Listener, timeout_seconds: float) -> dict[str, object]:
    from ottla.protocol.client.errors import ClientError
    from ottla.protocol.errors import ProtocolError

    deadline = time.monotonic() + timeout_seconds
    connection = ClientConnection(listener.address, client_id="ottla-healthcheck")
    try:
        with _encrypted(listener, _connected(listener.address, timeout_seconds)) as opened:
            connection.start(int(deadline * 1000))
            while not connection.is_ready:
                opened.settimeout(max(0.001, deadline - time.monotonic()))
                opened.sendall(connection.take_output())
                data = opened.recv(65536)
                if not data:
                    raise connection.end_of_stream()
                connection.feed(memoryview(data))
    except (ClientError, ProtocolError) as error:
        raise Unhealthy(str(error), UNREACHABLE) from None
    return {"healthy": True, "address": listener.address, "checked": "ApiVersions"}


def _encrypted(listener: Listener, opened: socket.socket) -> socket.socket:
    """Whether the broker serves is asked, not whom it is: it is on this machine."""
    if "SSL" not in listener.protocol.removeprefix("SASL_"):
        return opened
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(opened)
