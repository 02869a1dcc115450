"""`ottla doctor`: checks that clients on this machine reach the brokers, and explains failures.

A client requests the advertised listeners from a bootstrap address and then uses only those. Most
clients that connect and then time out cannot resolve or reach an advertised listener. What is wrong
inside a broker is read from its HTTP port (/statusz).
"""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ottla.broker.cluster.cluster_problems import FIXES, Problem
from ottla.cli.app import family
from ottla.cli.broker_status import (
    BrokerStatus,
    NoHttpPort,
    NoResponse,
    StatusUnknown,
    WrongStatus,
    day,
    read_all,
)
from ottla.cli.cluster_checks import (
    At,
    ClusterFinding,
    cluster_problems,
    internal_topic_problems,
    min_isr_problems,
    other_broker,
    partition_problems,
    reassignments,
    throttle_problems,
)
from ottla.cli.health import MAX_TIMEOUT_SECONDS
from ottla.cli.output import UNREACHABLE, Cell, Failure, print_json, print_rows, say, usage
from ottla.cli.session import HttpOption, Session, connected
from ottla.protocol.client.cluster import Address, parse_bootstrap
from ottla.protocol.client.errors import AuthenticationError, BadResponseError, ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

app = family("Check the state of the brokers, and that this machine reaches them.")


class Finding(NamedTuple):
    """The result for one address."""

    address: str
    what: str
    ok: bool
    finding: str
    advice: str = ""

    def as_row(self) -> dict[str, Cell]:
        """For tables and JSON."""
        return {
            "address": self.address,
            "what": self.what,
            "result": "ok" if self.ok else "PROBLEM",
            "finding": self.finding,
            "advice": self.advice,
        }


@app.command()
@connected
def doctor(
    session: Session,
    wait: Annotated[
        float, typer.Option("--wait", help="Timeout of each address in seconds.")
    ] = 5.0,
    http: HttpOption = None,
) -> None:
    """Request the advertised addresses as a client does, and connect to each; then read
    the state that the brokers report of themselves.

    \b
    Examples:
      ottla doctor
      ottla doctor -b broker-1:9092 --json
      ottla doctor --http broker-1:9404 --http broker-2:9404
    """
    # Not true for NaN either.
    if not 0 <= wait <= MAX_TIMEOUT_SECONDS:
        raise usage(f"--wait {wait:g} is not a number of seconds.")
    wait_ms = max(1, int(wait * 1000))
    findings: list[Finding] = []
    metadata: MetadataResponse | None = None
    reached = Address("", 0)
    try:
        addresses = parse_bootstrap(session.bootstrap)
    except ValueError as error:
        raise Failure(f"--bootstrap: {error}", 2) from None
    for address in addresses:
        finding, response = probe(session, address, "bootstrap", wait_ms)
        findings.append(finding)
        if metadata is None and response is not None:
            metadata, reached = response, address
    if metadata is not None:
        brokers: list[Finding] = []
        for row in sorted(metadata.brokers, key=lambda each: each.node_id):
            what = f"broker {row.node_id}"
            advertised = Address(row.host, row.port)
            finding, response = probe(session, advertised, what, wait_ms, row.node_id)
            if response is not None and response.cluster_id != metadata.cluster_id:
                finding = finding._replace(
                    ok=False,
                    finding=f"belongs to another cluster, {response.cluster_id}",
                    advice="two clusters advertise the same address; correct advertised.listeners",
                )
            brokers.append(finding)
        findings += _cluster_findings(session, metadata, reached, wait_ms, brokers) + brokers
    if metadata is not None or http:
        for status in read_all(session, http or (), wait):
            findings += status_findings(status)
    rows = [finding.as_row() for finding in findings]
    if session.json:
        print_json({"ok": all(f.ok for f in findings), "checks": rows})
    else:
        print_rows(rows, ["result", "what", "address", "finding"])
        for advice in dict.fromkeys(finding.advice for finding in findings if finding.advice):
            about = ", ".join(f"{f.what} {f.address}" for f in findings if f.advice == advice)
            say(f"\n{about}: {advice}")
    bad = sum(not finding.ok for finding in findings)
    if metadata is None:
        raise Failure("no broker responds at the bootstrap addresses.", UNREACHABLE)
    if bad:
        raise Failure(f"{bad} of {len(findings)} checks found a problem.")


def probe(
    session: Session, address: Address, what: str, wait_ms: int, broker_id: int | None = None
) -> tuple[Finding, MetadataResponse | None]:
    """Resolve, connect and send a request; each step has its own explanation for a failure.

    With `broker_id` it is a problem if another broker responds.
    """
    text = str(address)
    try:
        resolved = sorted(
            {
                str(row[4][0])
                for row in socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
            }
        )
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name
        reason = error.strerror if isinstance(error, OSError) else None
        finding = f"the name does not resolve here ({reason or error})"
        return Finding(text, what, False, finding, _name_advice(address.host, what)), None
    started = time.monotonic()
    try:
        client = session.connect_to(text)
        with client:
            response = client.metadata([], timeout_ms=wait_ms)
            took = (time.monotonic() - started) * 1000
            other = None
            if broker_id is not None:
                other = other_broker(
                    lambda request: client.call_once(request, At(address), timeout_ms=wait_ms),
                    broker_id,
                )
    except ClientError as error:
        return Finding(text, what, False, str(error), _advice(error, resolved, what)), None
    if other is not None:
        finding = f"broker {other} responds there"
        return Finding(text, what, False, finding, FIXES["wrong-broker"]), response
    finding = f"responds in {took:.0f} ms ({', '.join(resolved)})"
    caution = ""
    if what != "bootstrap" and all(ipaddress.ip_address(item).is_loopback for item in resolved):
        caution = (
            "this is a loopback address: clients on other machines and in containers connect to "
            "themselves. It works for one machine; otherwise set advertised.listeners to a name "
            "that they can resolve."
        )
    return Finding(text, what, True, finding, caution), response


def status_findings(status: BrokerStatus | StatusUnknown) -> list[Finding]:
    """The faults that a broker reports of itself; one finding that is ok if it has none."""
    if isinstance(status, WrongStatus):
        return [Finding(status.address, f"state {status.asked}", False, str(status), status.fix)]
    if isinstance(status, NoResponse):
        return []  # the check of its advertised address has found it
    if isinstance(status, NoHttpPort):
        return [Finding("-", "state", True, str(status), f"{status.fix}.")]
    if isinstance(status, StatusUnknown):
        advice = "check ottla.metrics.address of the broker, and whether it runs"
        return [Finding("-", "state", False, str(status), advice)]
    what = "state" if status.broker_id is None else f"state {status.broker_id}"
    if "worker" in status.document:
        what += f" (worker {status.document['worker']} of {status.document.get('machine')})"
    found = [
        Finding(status.address, what, False, str(each.get("problem")), str(each.get("fix")))
        for each in status.faults
    ]
    phase = status.document.get("phase")
    if phase != "running":
        fix = (
            "start ZooKeeper, or correct zookeeper.connect"
            if phase == "connecting"
            else "wait until it is over; the log of the broker has the progress"
        )
        reason = str(status.document.get("reason"))
        found.insert(0, Finding(status.address, what, False, reason, fix))
    if not found:
        found = [Finding(status.address, what, True, "ready, without a fault")]
    return found + _certificate_findings(status)


def _certificate_findings(status: BrokerStatus) -> list[Finding]:
    """When the certificates of a broker are valid; what is wrong with them is a fault."""
    return [
        Finding(
            status.address,
            f"certificate {each['listener']}",
            True,
            f"valid from {day(each['not_before'])} to {day(each['not_after'])}",
        )
        for each in status.certificates
    ]


def _cluster_findings(
    session: Session,
    metadata: MetadataResponse,
    reached: Address,
    wait_ms: int,
    brokers: Sequence[Finding],
) -> list[Finding]:
    """Problems of the cluster, its partitions and its throttles; one finding that is ok if none.

    All is asked of the one broker at `reached`, but for reassignments, which the controller has to
    tell, and throttles, which each broker has to: they are left out unless those were reached.
    """
    cluster = metadata.cluster_id or "-"
    problems: list[Problem | ClusterFinding] = [*cluster_problems(metadata)]
    try:
        with session.connect_to(str(reached)) as client:
            request = MetadataRequest(topics=None)
            topics = client.call_once(request, At(reached), timeout_ms=wait_ms)
            assert isinstance(topics, MetadataResponse)
            below = min_isr_problems(
                lambda each: client.call_once(each, At(reached), timeout_ms=wait_ms), topics
            )
    except (ClientError, KafkaError) as error:
        finding = f"its topics cannot be listed: {error}"
        return [Finding(cluster, "cluster", False, finding, "run the command again")]
    controller = f"broker {metadata.controller_id}"
    is_led = any(each.ok and each.what == controller for each in brokers)
    adding = reassignments(session, metadata) if is_led else None
    problems += partition_problems(topics, adding) + below
    if all(each.ok for each in brokers):
        problems += throttle_problems(session, topics, adding)
        problems += internal_topic_problems(session, topics)
    found = [Finding(cluster, "cluster", each.is_note, each.finding, each.fix) for each in problems]
    if all(each.ok for each in found):
        count = sum(len(topic.partitions) for topic in topics.topics)
        are = "have a leader" if found else "have a leader and are in sync"
        found.insert(0, Finding(cluster, "cluster", True, f"all {count} partitions {are}"))
    return found


def _name_advice(host: str, what: str) -> str:
    if what == "bootstrap":
        return f"{host!r} does not resolve on this machine: check the spelling and DNS."
    return (
        f"the broker advertises {host!r}, which does not resolve on this machine. "
        "Set advertised.listeners of the broker to a name or address that works from here, add a "
        "second listener for clients outside (its own port, its own advertised name), or make "
        "the name resolvable here (DNS, /etc/hosts)."
    )


def _advice(error: ClientError, resolved: list[str], what: str) -> str:
    where = ", ".join(resolved)
    if isinstance(error, AuthenticationError):
        return "the address is right, the security settings are not: see --command-config."
    if isinstance(error, BadResponseError):
        return "another server than a broker listens there, or the security.protocol is wrong."
    if "refused" in str(error):
        if what == "bootstrap":
            return f"nothing listens there ({where}): check that the broker runs, and the port."
        return (
            f"the name resolves to {where}, where nothing listens on this port. In a container "
            "advertise the mapped port; behind a proxy, advertise the proxy."
        )
    if "no TLS" in str(error):
        return "this listener can be PLAINTEXT: remove security.protocol=SSL for it."
    return (
        f"{where} does not respond: a firewall, a wrong network, or an address that only the "
        "broker's own network can route. Advertise an address that is routed from here."
    )
