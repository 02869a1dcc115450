"""`ottla migrate --to kafka-4`: what stands in the way from this cluster to Kafka 4.

The road leads over Apache Kafka 3.9 on the same directories and znodes, and its migration to KRaft
(docs/leaving.md). A problem stops a broker or clients on it, a note is worth knowing; each names
the command or setting that mends it. The checks send requests and change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.cli.output import Cell
from ottla.cli.session import Session, check
from ottla.protocol.client.operations import Node, Versions
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

OK, NOTE, PROBLEM = "ok", "note", "PROBLEM"

#: Kafka 4.0 does not start with a smaller one (KIP-1030).
MIN_SEGMENT_BYTES = 1024 * 1024
SEGMENT_BYTES = "segment.bytes"
SHARE_STATE_TOPIC = "__share_group_state"
# The first version of ListGroups with the types of groups.
_WITH_TYPES = Versions(5, 5)
_TOPIC = 2
_FROM_TOPIC = 1
_TOPICS_AT_ONCE = 500
_SHOWN = 20
# The first inter-broker protocol whose brokers take part in the migration to KRaft.
_FIRST_TO_MIGRATE = (3, 4)

# Kafka 4 does not know them; its brokers do not start with some of them.
_REMOVED = (
    "control.plane.listener.name",
    "delegation.token.master.key",
    "inter.broker.protocol.version",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "password.encoder.secret",
)


class Finding(NamedTuple):
    """The result of one check."""

    result: str
    what: str
    finding: str

    def as_row(self) -> dict[str, Cell]:
        """For tables and JSON."""
        return {"result": self.result, "what": self.what, "finding": self.finding}


def find_obstacles(
    session: Session,
    topics: list[str],
    settings: Mapping[int, Mapping[str, str | None]],
    given: Mapping[int, Mapping[str, str]],
) -> list[Finding]:
    """Return the findings of all checks.

    `settings` has all settings of each broker, `given` those of its file.
    """
    found = check_files(settings, given)
    found += check_segments(_segment_bytes(session, topics))
    if SHARE_STATE_TOPIC in topics:
        text = (
            f"{SHARE_STATE_TOPIC} has the state of share groups: Kafka 3.9 keeps it as any topic, "
            "and Kafka 4 continues with it"
        )
        found.append(Finding(NOTE, "share groups", text))
    found += check_groups(_groups(session))
    found += _check_tokens(session)
    return found or [Finding(OK, "cluster", "nothing stands in the way to Kafka 4")]


def check_files(
    settings: Mapping[int, Mapping[str, str | None]], given: Mapping[int, Mapping[str, str]]
) -> list[Finding]:
    """Check the settings of brokers."""
    found = []
    for broker_id, values in settings.items():
        what, file = f"broker {broker_id}", given.get(broker_id, {})
        if not values.get("zookeeper.connect"):
            text = (
                "keeps its znode tree in its directory: stop it, run `ottla zookeeper DIRECTORY`, "
                "which serves that tree, and start it with zookeeper.connect"
            )
            found.append(Finding(PROBLEM, what, text))
        size = values.get("log.segment.bytes") or ""
        if size.isdigit() and int(size) < MIN_SEGMENT_BYTES:
            text = f"log.segment.bytes is {size}: set {MIN_SEGMENT_BYTES} or more in its file"
            found.append(Finding(PROBLEM, what, text))
        version = values.get("inter.broker.protocol.version") or ""
        if _numbers(version) and _numbers(version) < _FIRST_TO_MIGRATE:
            text = f"inter.broker.protocol.version is {version}: set 3.9 and restart all brokers"
            found.append(Finding(PROBLEM, what, text))
        ours = sorted(name for name in file if name.startswith("ottla."))
        if ours:
            text = f"has settings that Kafka ignores with a warning: {_listed(ours)}"
            found.append(Finding(NOTE, what, text))
        removed = [name for name in _REMOVED if name in file]
        if removed:
            text = f"remove from its file before Kafka 4: {_listed(removed)}"
            found.append(Finding(NOTE, what, text))
    return found


def check_segments(sizes: Mapping[str, int]) -> list[Finding]:
    """Check segment.bytes of topics that set it."""
    small = sorted(topic for topic, size in sizes.items() if size < MIN_SEGMENT_BYTES)
    return [
        Finding(
            PROBLEM,
            f"topic {topic}",
            f"segment.bytes is {sizes[topic]}, and Kafka 4 does not start with less than "
            f"{MIN_SEGMENT_BYTES}: `ottla configs set topic {topic} "
            f"segment.bytes={MIN_SEGMENT_BYTES}`",
        )
        for topic in small
    ]


def check_groups(groups: Mapping[str, tuple[str, str]]) -> list[Finding]:
    """Check for groups with members of kinds that Kafka 3.9 in ZooKeeper mode does not have.

    `groups` has the type and the state of each.
    """
    found = []
    active = {name: kind for name, (kind, state) in groups.items() if state != "Empty"}
    consumer = sorted(name for name, kind in active.items() if kind == "consumer")
    share = sorted(name for name, kind in active.items() if kind == "share")
    if consumer:
        text = (
            f"{_listed(consumer)}: use the consumer protocol, which Kafka 3.9 does not offer with "
            "ZooKeeper. Set group.protocol=classic in their consumers; committed offsets stay"
        )
        found.append(Finding(PROBLEM, "groups", text))
    if share:
        text = (
            f"{_listed(share)}: are share groups, which Kafka 3.9 does not have. Stop their "
            "consumers until the brokers are Kafka 4; what was acknowledged stays"
        )
        found.append(Finding(PROBLEM, "groups", text))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _listed(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - _SHOWN} more" if len(all_names) > _SHOWN else ""
    return ", ".join(all_names[:_SHOWN]) + more


def _segment_bytes(session: Session, topics: list[str]) -> dict[str, int]:
    """Return segment.bytes of the topics that set it."""
    found = {}
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        rows = [
            DescribeConfigsResource(_TOPIC, name, [SEGMENT_BYTES])
            for name in topics[start : start + _TOPICS_AT_ONCE]
        ]
        response = session.call(DescribeConfigsResponse, DescribeConfigsRequest(rows))
        for result in response.results:
            check(result.error_code, result.resource_name, result.error_message)
            for row in result.configs:
                if row.config_source == _FROM_TOPIC and row.value is not None:
                    found[result.resource_name] = int(row.value)
    return found


def _groups(session: Session) -> dict[str, tuple[str, str]]:
    """Return the type and the state of each group."""
    found: dict[str, tuple[str, str]] = {}
    for broker_id in session.broker_ids():
        response = session.call(
            ListGroupsResponse, ListGroupsRequest(), Node(broker_id), versions=_WITH_TYPES
        )
        check(response.error_code, f"broker {broker_id}")
        for row in response.groups:
            found[row.group_id] = row.group_type.lower(), row.group_state
    return found


def _check_tokens(session: Session) -> list[Finding]:
    response = session.call(DescribeDelegationTokenResponse, DescribeDelegationTokenRequest(None))
    if response.error_code or not response.tokens:
        return []  # no tokens here, or none for this user
    text = (
        f"{len(response.tokens)} delegation token(s): Kafka copies them to KRaft; keep "
        "delegation.token.secret.key in the files of controllers and brokers"
    )
    return [Finding(NOTE, "delegation tokens", text)]
