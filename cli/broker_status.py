"""The state that brokers report of themselves, from /statusz of their HTTP ports.

The address is --http, or it is read from the brokers' setting `ottla.metrics.address`.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.health import from_here

if TYPE_CHECKING:
    from ottla.cli.session import Session

# The document of a broker with thousands of listeners and directories is smaller.
MAX_RESPONSE_BYTES = 1 << 20

# Where the console is when no address is set (`ottla.console.enable`).
_CONSOLE_ADDRESS = "127.0.0.1:9404"
_ADDRESS, _CONSOLE = "ottla.metrics.address", "ottla.console.enable"
_BROKER_RESOURCE = 4


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The year 9999, the last one of a certificate and of Python.
_END_OF_TIME = 253_402_300_800


class StatusUnknown(Exception):
    """No document could be read; the message says from where and why."""


class WrongStatus(StatusUnknown):
    """Another broker responds at the HTTP address that is set for a broker."""

    fix = (
        "each broker needs an HTTP port of its own that leads to it: check ottla.metrics.address "
        "and mapped ports"
    )

    def __init__(self, address: str, asked: int, found: int) -> None:
        super().__init__(f"{address} is the HTTP port of broker {found}, not of broker {asked}")
        self.address = address
        self.asked = asked


class NoHttpPort(StatusUnknown):
    """The settings of a broker of Ottla name no HTTP port."""

    fix = "set ottla.metrics.address"

    def __init__(self, broker_ids: Sequence[int]) -> None:
        several = len(broker_ids) > 1
        super().__init__(
            f"broker{'s' * several} {', '.join(map(str, broker_ids))}: no HTTP port, "
            f"{'their' if several else 'its'} faults cannot be checked"
        )
        self.broker_ids = tuple(broker_ids)


class NoResponse(StatusUnknown):
    """A broker of the metadata cannot be reached at its advertised address."""

    def __init__(self, broker_id: int, reason: Exception) -> None:
        super().__init__(f"broker {broker_id} does not respond: {reason}")


class BrokerStatus(NamedTuple):
    """What the broker at an HTTP address reports; `document` as docs/operations.md describes it."""

    address: str
    document: dict[str, Any]

    @property
    def broker_id(self) -> int | None:
        """None while the broker does not know it yet."""
        found = self.document.get("broker_id")
        return found if isinstance(found, int) else None

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Each with name, subject, stops, problem and fix."""
        found = self.document.get("faults")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def certificates(self) -> list[dict[str, Any]]:
        """Each with listener, not_before and not_after in seconds since 1970."""
        found = self.document.get("certificates")
        rows = found if isinstance(found, list) else []
        return [each for each in rows if isinstance(each, dict) and _has_dates(each)]


def _has_dates(row: dict[str, Any]) -> bool:
    """A broker of an earlier version reports none."""
    dates = [row.get("not_before"), row.get("not_after")]
    return "listener" in row and all(
        isinstance(date, int | float) and abs(date) < _END_OF_TIME for date in dates
    )


def day(seconds: float) -> str:
    """The day of a time in seconds since 1970, in UTC."""
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d")


def fetch_states(address: str, timeout_seconds: float) -> list[BrokerStatus]:
    """The state of the broker whose HTTP port is at `host:port`, or of each worker of the machine
    whose port that is. Raises StatusUnknown."""
    status = fetch_status(address, timeout_seconds)
    workers = status.document.get("workers")
    if not isinstance(workers, list):
        return [status]
    machine = status.document.get("machine")
    return [_of_worker(address, machine, each) for each in workers if isinstance(each, dict)]


def _of_worker(address: str, machine: object, row: dict[str, Any]) -> BrokerStatus:
    """A worker that does not report, because it restarts or was given up, has its problem as the
    reason."""
    state = row.get("state")
    document = dict(state) if isinstance(state, dict) else {}
    document["worker"], document["machine"] = row.get("worker"), machine
    if row.get("problem") is not None:
        document["reason"] = f"worker {row.get('worker')}: {row['problem']}"
    if row.get("phase") != "running":
        document["phase"] = row.get("phase")
    return BrokerStatus(address, document)


def fetch_status(address: str, timeout_seconds: float) -> BrokerStatus:
    """The document at `host:port`. Raises StatusUnknown."""
    host, _, port = address.rpartition("//")[2].rstrip("/").rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise StatusUnknown(f"{address} is not host:port")
    deadline = time.monotonic() + timeout_seconds
    body = b""
    try:
        where = (host.strip("[]") or "127.0.0.1", int(port))
        with socket.create_connection(where, timeout_seconds) as opened:
            opened.sendall(b"GET /statusz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while len(body) < MAX_RESPONSE_BYTES:
                opened.settimeout(max(0.001, deadline - time.monotonic()))
                data = opened.recv(65536)
                if not data:
                    break
                body += data
    except TimeoutError:
        raise StatusUnknown(
            f"no response from {address} in {timeout_seconds:g} s: the event loop of the broker "
            "may be blocked"
        ) from None
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name
        reason = error.strerror if isinstance(error, OSError) else None
        raise StatusUnknown(f"cannot reach {address}: {reason or error}") from None
    head, _, text = body.partition(b"\r\n\r\n")
    try:
        document = json.loads(text) if b" 200 " in head.partition(b"\r\n")[0] else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise StatusUnknown(f"{address} serves no /statusz")
    return BrokerStatus(address, document)


def http_addresses(session: Session) -> tuple[dict[int, str], list[int], list[NoResponse]]:
    """Where this machine reaches the HTTP port of each broker, by broker id; the brokers of Ottla
    that have none; the brokers that do not respond.

    Left out of the first: brokers without the port, those of Kafka, a port that its own machine
    only reaches, and brokers that do not show their settings to this user.
    """
    from ottla.protocol.client.errors import ClientError, UnknownBrokerError, UnsupportedApiError
    from ottla.protocol.client.operations import Node
    from ottla.protocol.errors import KafkaError, ProtocolError
    from ottla.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    found: dict[int, str] = {}
    without: list[int] = []
    away: list[NoResponse] = []
    for row in session.client.metadata([]).brokers:
        resource = DescribeConfigsResource(_BROKER_RESOURCE, str(row.node_id), [_ADDRESS, _CONSOLE])
        try:
            response = session.call(
                DescribeConfigsResponse,
                DescribeConfigsRequest(resources=[resource]),
                Node(row.node_id),
            )
        except (UnknownBrokerError, UnsupportedApiError, KafkaError, ProtocolError):
            continue
        except ClientError as error:
            away.append(NoResponse(row.node_id, error))
            continue
        values = {each.name: each.value for result in response.results for each in result.configs}
        address = values.get(_ADDRESS) or (
            _CONSOLE_ADDRESS if values.get(_CONSOLE) == "true" else None
        )
        if address is None and _ADDRESS in values:  # brokers of Kafka do not have the setting
            without.append(row.node_id)
        reached = None if address is None else _as_reached(address, row.host)
        if reached is not None:
            found[row.node_id] = reached
    return found, without, away


def _as_reached(address: str, advertised_host: str) -> str | None:
    """The address of an HTTP port for this machine, given where clients reach its broker."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    if port in ("", "0"):
        return None  # any free port, which its settings do not tell
    if bare in ("", "0.0.0.0", "::"):
        return (
            f"[{advertised_host}]:{port}" if ":" in advertised_host else f"{advertised_host}:{port}"
        )
    if _is_loopback(bare) and not _is_loopback(advertised_host):
        return None
    return from_here(host, port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_all(
    session: Session, given: Sequence[str], timeout_seconds: float
) -> list[BrokerStatus | StatusUnknown]:
    """The state of the brokers at the addresses `given`, else of all that can be found.

    A broker that responds for another one is a `WrongStatus`; those without an HTTP port are one
    `NoHttpPort`; each that does not respond at all is a `NoResponse`.
    """
    found: list[BrokerStatus | StatusUnknown] = []
    asked: dict[str, list[int]] = {address: [] for address in given}
    if not given:
        addresses, without, away = http_addresses(session)
        found += away
        if without:
            found.append(NoHttpPort(sorted(without)))
        for broker_id, address in addresses.items():
            asked.setdefault(address, []).append(broker_id)
    for address, broker_ids in asked.items():
        try:
            states = fetch_states(address, timeout_seconds)
        except StatusUnknown as error:
            found.append(error)
            continue
        responding = [each.broker_id for each in states]
        for broker_id in broker_ids:
            if broker_id not in responding and None not in responding:
                other = next(each for each in responding if each is not None)
                found.append(WrongStatus(address, broker_id, other))
        if not broker_ids or set(broker_ids).intersection(responding) or None in responding:
            found += states
    return found
