"""Replication throttles of a reassignment, set and removed as by Kafka's tool (KIP-73)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ottla.cli.output import note
from ottla.cli.reassignment_file import Plan
from ottla.cli.session import Session, check
from ottla.protocol.client.operations import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.topics import TopicPartition

_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_TOPIC, _BROKER = 2, 4
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
        _alter(session, _TOPIC, topic, dict(zip(_REPLICAS, values, strict=True)))
    alive = session.broker_ids()
    for broker in sorted(brokers.difference(alive)):
        note(f"Broker {broker} is not alive, and gets no throttle.")
    for broker in sorted(brokers.intersection(alive)):
        _alter(session, _BROKER, str(broker), dict.fromkeys(_RATES, str(bytes_per_second)))


def remove_throttle(session: Session, topics: Iterable[str], brokers: Iterable[int]) -> None:
    """Removes the throttles of these topics and brokers."""
    for topic in topics:
        _alter(session, _TOPIC, topic, dict.fromkeys(_REPLICAS))
    for broker in brokers:
        _alter(session, _BROKER, str(broker), dict.fromkeys(_RATES))


def _alter(session: Session, kind: int, name: str, values: Mapping[str, str | None]) -> None:
    configs = [
        AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = session.call(
        IncrementalAlterConfigsResponse,
        IncrementalAlterConfigsRequest(resources=[resource]),
        Node(int(name)) if kind == _BROKER else None,
    )
    result = response.responses[0]
    if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        check(result.error_code, f"throttle of {name}", result.error_message)
