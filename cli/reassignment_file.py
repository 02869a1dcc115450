"""The JSON files of Kafka's reassignment tool, and its throttles."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ottla.cli.output import note, usage
from ottla.cli.session import Session, check
from ottla.cli.values import read_json_file
from ottla.protocol.client.operations import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.topics import TopicPartition

Plan = dict[TopicPartition, list[int]]


def read_plan(path: str) -> Plan:
    """Target replicas by partition: {"version": 1, "partitions": [...]}."""
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        plan: Plan = {}
        for row in document["partitions"]:
            replicas = [int(broker) for broker in row["replicas"]]
            item = TopicPartition(str(row["topic"]), int(row["partition"]))
            if any(directory != "any" for directory in row.get("log_dirs", ())):
                raise usage(
                    f"{path}: log_dirs of {item} names a directory; this tool moves replicas "
                    'between brokers only, omit it or write "any".'
                )
            if item in plan or not replicas or len(set(replicas)) < len(replicas):
                raise usage(f"{path}: {item} is duplicated, or has no replica or a duplicate one.")
            plan[item] = replicas
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
        raise usage(
            f'{path} needs {{"version": 1, "partitions": [{{"topic": "orders", '
            '"partition": 0, "replicas": [1, 2]}}]}.'
        ) from None
    if not plan:
        raise usage(f"{path} has no partitions.")
    return plan


def read_topics(path: str) -> list[str]:
    """The topics to move: {"version": 1, "topics": [{"topic": "orders"}]}."""
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        return [str(row["topic"]) for row in document["topics"]]
    except (AssertionError, KeyError, TypeError):
        raise usage(f'{path} needs {{"version": 1, "topics": [{{"topic": "t"}}]}}.') from None


def plan_document(plan: Mapping[TopicPartition, list[int]]) -> dict[str, object]:
    """The document that `read_plan` and Kafka's tool read."""
    rows = [
        {"topic": item.topic, "partition": item.partition, "replicas": replicas}
        for item, replicas in sorted(plan.items())
    ]
    return {"version": 1, "partitions": rows}


def plan_text(plan: Mapping[TopicPartition, list[int]]) -> str:
    """The document on one line, as Kafka's tool prints it."""
    return json.dumps(plan_document(plan), separators=(",", ":"))


RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
_SET, _DELETE = 0, 1


def throttle(
    session: Session,
    before: Mapping[TopicPartition, list[int]],
    plan: Plan,
    bytes_per_second: int,
) -> None:
    """Limits the rate at which current replicas send and new replicas fetch.

    A broker takes only its own settings, so one that is down gets none, and is named.
    """
    leaders: dict[str, list[str]] = defaultdict(list)
    followers: dict[str, list[str]] = defaultdict(list)
    brokers: set[int] = set()
    for item, target in plan.items():
        adding = [broker for broker in target if broker not in before[item]]
        if adding:
            leaders[item.topic] += [f"{item.partition}:{broker}" for broker in before[item]]
            followers[item.topic] += [f"{item.partition}:{broker}" for broker in adding]
            brokers.update(before[item], adding)
    for topic, senders in leaders.items():
        values = (",".join(senders), ",".join(followers[topic]))
        _alter(session, TOPIC_RESOURCE, topic, dict(zip(THROTTLED_REPLICAS, values, strict=True)))
    alive = session.broker_ids()
    for broker in sorted(brokers.difference(alive)):
        note(f"Broker {broker} is not alive, and gets no throttle.")
    for broker in sorted(brokers.intersection(alive)):
        _alter(session, BROKER_RESOURCE, str(broker), dict.fromkeys(RATES, str(bytes_per_second)))


def remove_throttle(session: Session, topics: Iterable[str], brokers: Iterable[int]) -> None:
    """Removes the throttles of these topics and brokers."""
    for topic in topics:
        _alter(session, TOPIC_RESOURCE, topic, dict.fromkeys(THROTTLED_REPLICAS))
    for broker in brokers:
        _alter(session, BROKER_RESOURCE, str(broker), dict.fromkeys(RATES))


def _alter(session: Session, kind: int, name: str, values: Mapping[str, str | None]) -> None:
    configs = [
        AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = session.call(
        IncrementalAlterConfigsResponse,
        IncrementalAlterConfigsRequest(resources=[resource]),
        Node(int(name)) if kind == BROKER_RESOURCE else None,
    )
    result = response.responses[0]
    if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        check(result.error_code, f"throttle of {name}", result.error_message)
