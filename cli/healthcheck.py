"""`ottla healthcheck`: one connection and two small requests, in less than 100 ms.

It does not import Typer, and TLS only if the settings need it, because containers run it every few
seconds. Exit codes: 0 the broker serves clients, 1 it does not, 3 it cannot be reached.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import cast

from ottla.cli.health import (
    HEALTHY,
    MAX_TIMEOUT_SECONDS,
    UNHEALTHY,
    UNREACHABLE,
    USAGE_ERROR,
    Unhealthy,
)
from ottla.protocol.client.connection import ClientConnection
from ottla.protocol.errors import error_name
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

USAGE = """\
Usage: ottla healthcheck [--bootstrap host:port] [--http host:port]
                         [--timeout seconds] [--json] [--command-config file]

Checks whether a broker serves clients: its API versions and its metadata, and
whether its HTTP port says that it is ready, which it is not if its log
directories are full. What does not work although the broker serves clients,
such as a cluster without a controller, is a warning, as in the response to
/readyz.

Examples:
  ottla healthcheck
  ottla healthcheck -b broker-1:9092 --timeout 2 && echo up

The address is --bootstrap, or OTTLA_BOOTSTRAP, or the first plaintext listener
of KAFKA_LISTENERS (in a container), or 127.0.0.1:9092. The HTTP port is
--http, or without --bootstrap OTTLA_METRICS_ADDRESS. If all listeners require
TLS or SASL, /readyz of the HTTP port is all that is requested; without that
port, ApiVersions is requested, which needs no credentials.

Exit codes: 0 healthy, 1 the broker does not serve clients, 2 wrong usage,
3 not reachable.
"""

_DEFAULT_TIMEOUT_SECONDS = 5.0
_OPTIONS = ("bootstrap", "http", "timeout", "command-config")


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs the check; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return HEALTHY
    try:
        options = parse(arguments)
    except ValueError as error:
        if "--json" in arguments:
            import json

            print(json.dumps({"healthy": False, "reason": str(error)}))
        else:
            print(f"ottla: {error}", file=sys.stderr)
        return USAGE_ERROR
    started = time.monotonic()
    try:
        found = check(options, environment)
    except Unhealthy as error:
        return _report(options, {"healthy": False, "reason": str(error)}, error.code)
    found["milliseconds"] = round((time.monotonic() - started) * 1000, 1)
    return _report(options, found, HEALTHY)


def check(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, object]:
    """The fields of a healthy broker, with `warnings` of its faults; raises Unhealthy."""
    timeout_seconds = float(options.get("timeout", _DEFAULT_TIMEOUT_SECONDS))
    config = options.get("command-config") or environment.get("OTTLA_COMMAND_CONFIG", "")
    address = options.get("bootstrap") or environment.get("OTTLA_BOOTSTRAP")
    if not address and not config:
        from ottla.cli.healthcheck_guarded import check_guarded, guarded_listener

        listener = guarded_listener(environment)
        if listener is not None:
            return check_guarded(listener, environment, timeout_seconds)
    http = options.get("http", "")
    if not http and "bootstrap" not in options:
        from ottla.cli.healthcheck_guarded import http_address

        http = http_address(environment)
    if http:
        from ottla.cli.healthcheck_guarded import check_readiness

        warnings = check_readiness(http, timeout_seconds).get("warnings")
    address = address or default_address(environment)
    found = check_metadata(address, request_metadata(address, timeout_seconds, config))
    if http and warnings:
        found["warnings"] = warnings  # those of the metadata are among them
    return found


def parse(arguments: Sequence[str]) -> dict[str, str]:
    """Options by name; raises ValueError for an unknown option."""
    names = {"-b": "bootstrap", "--bootstrap-server": "bootstrap"}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        key = names.get(name, name.removeprefix("--"))
        if key == "json" and not equals:
            found[key] = "yes"
            continue
        if key not in _OPTIONS or not name.startswith("-"):
            raise ValueError(f"healthcheck has no option {name}; see `ottla healthcheck --help`.")
        if not equals:
            if not rest:
                raise ValueError(f"{name} needs a value.")
            value = rest.pop(0)
        found[key] = value
    try:
        usable = 0 < float(found.get("timeout", "1")) <= MAX_TIMEOUT_SECONDS
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"--timeout {found['timeout']} is not a number of seconds above 0.")
    return found


def default_address(environment: Mapping[str, str]) -> str:
    """The address without --bootstrap; see USAGE."""
    given = environment.get("OTTLA_BOOTSTRAP")
    if given:
        return given
    from ottla.cli.healthcheck_guarded import listeners_of

    for name, address, protocol in listeners_of(environment):
        # A listener without an entry in the map has the protocol of its name, or is no broker's.
        if not protocol.startswith(("SASL_", "SSL")) and "CONTROLLER" not in name:
            return address
    return "127.0.0.1:9092"


def request_metadata(
    bootstrap: str, timeout_seconds: float, command_config: str = ""
) -> MetadataResponse:
    """The metadata of the first broker of `bootstrap`; raises Unhealthy."""
    if command_config:
        return _request_securely(bootstrap, timeout_seconds, command_config)
    host, _, port = bootstrap.partition(",")[0].strip().rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise Unhealthy(f"--bootstrap {bootstrap} is not host:port.", USAGE_ERROR)
    deadline = time.monotonic() + timeout_seconds
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_seconds) as opened:
            return _exchange(opened, f"{host}:{port}", deadline)
    except TimeoutError:
        raise Unhealthy(
            f"no response from {host}:{port} in {timeout_seconds:g} s.", UNREACHABLE
        ) from None
    except UnicodeError:  # for what cannot be a name
        raise Unhealthy(f"--bootstrap {bootstrap} is not host:port.", USAGE_ERROR) from None
    except OSError as error:
        raise Unhealthy(
            f"cannot reach {host}:{port}: {error.strerror or error}; is the broker running?",
            UNREACHABLE,
        ) from None


def _exchange(opened: socket.socket, broker: str, deadline: float) -> MetadataResponse:
    from ottla.protocol.client.errors import ClientError
    from ottla.protocol.errors import ProtocolError

    connection = ClientConnection(broker, client_id="ottla-healthcheck")
    deadline_ms = int(deadline * 1000)
    sent = False
    try:
        connection.start(deadline_ms)
        while True:
            if connection.is_ready and not sent:
                sent = True
                request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
                connection.send(request, deadline_ms=deadline_ms)
            opened.settimeout(max(0.001, deadline - time.monotonic()))
            opened.sendall(connection.take_output())
            data = opened.recv(65536)
            if not data:
                raise connection.end_of_stream()
            for response in connection.feed(memoryview(data)):
                assert isinstance(response.message, MetadataResponse)
                return response.message
    except (ClientError, ProtocolError) as error:
        raise Unhealthy(str(error), UNREACHABLE) from None


def _request_securely(bootstrap: str, timeout_seconds: float, path: str) -> MetadataResponse:
    """With TLS or SASL, by the blocking client, whose import is slower."""
    from contextlib import ExitStack

    from ottla.cli.client_properties import read_client_properties
    from ottla.cli.client_security import client_security
    from ottla.cli.output import Failure
    from ottla.protocol.client.blocking import BlockingClient
    from ottla.protocol.client.errors import AuthenticationError, ClientError

    timeout_ms = int(timeout_seconds * 1000)
    try:
        with ExitStack() as files:
            security = client_security(read_client_properties(path), files)
            try:
                client = BlockingClient(bootstrap, security=security, request_timeout_ms=timeout_ms)
            except AuthenticationError as error:  # nothing is connected yet: a file of TLS
                raise Unhealthy(f"--command-config: {error}", USAGE_ERROR) from None
            with client:
                return client.metadata([])
    except ClientError as error:
        raise Unhealthy(str(error), UNREACHABLE) from None
    except (Failure, ValueError) as error:
        raise Unhealthy(str(error), USAGE_ERROR) from None


def check_metadata(address: str, response: MetadataResponse) -> dict[str, object]:
    """The fields of a healthy broker; raises Unhealthy if it cannot serve clients."""
    for topic in response.topics:
        if topic.error_code:
            raise Unhealthy(f"{address}: {error_name(topic.error_code)}.", UNHEALTHY)
    if not response.brokers:
        raise Unhealthy(f"{address} responds, but has no metadata yet: it is starting.", UNHEALTHY)
    found: dict[str, object] = {
        "healthy": True,
        "address": address,
        "brokers": len(response.brokers),
        "controller": response.controller_id,
        "cluster_id": response.cluster_id,
    }
    if response.controller_id < 0:
        # As for /readyz: produce and fetch requests continue.
        from ottla.broker.observability.faults import controller_fault

        found["warnings"] = [controller_fault().problem]
    return found


def _report(options: Mapping[str, str], found: Mapping[str, object], code: int) -> int:
    if "json" in options:
        import json

        print(json.dumps(found))
    elif code == HEALTHY:
        if "checked" in found:
            details = f"{found['checked']}, "
        else:
            details = f"{found['brokers']} broker(s), controller {found['controller']}, "
        print(f"healthy: {found['address']}, {details}{found['milliseconds']} ms")
        for warning in cast("list[str]", found.get("warnings", ())):
            print(f"warning: {warning}")
    else:
        print(f"ottla: not healthy: {found['reason']}", file=sys.stderr)
    return code
