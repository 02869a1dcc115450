"""What the console shows of the cluster, its topics and this broker's settings.

Sizes and offsets are of the replicas on this broker: the others have consoles of their own.
"""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.admin.describe_configs import BROKER, TOPIC
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import DescribeConfigsResourceResult
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import (
        MetadataSnapshot,
        PartitionMetadata,
        TopicMetadata,
    )
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.console_parts import ConsoleParts
    from ottla.broker.observability.console.history import History

MAX_BROKERS = 500
TOPICS_ON_A_PAGE = 100
MAX_PARTITIONS = 1000
MASK = "(hidden)"

_SOURCES = {
    1: "topic",
    2: "broker, at run time",
    3: "cluster, at run time",
    4: "file",
    5: "default",
}


def overview(parts: ConsoleParts, history: History, viewer: Viewer) -> dict[str, Any]:
    """The cluster in numbers, the brokers, and this broker's rates over the last hour."""
    viewer.require_on_cluster(Operation.DESCRIBE)
    snapshot = parts.metadata.snapshot
    partitions = [each for topic in snapshot.topics.values() for each in topic.partitions.values()]
    # On Linux in KiB, on macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cluster_id": parts.cluster_id,
        "broker_id": parts.broker_id,
        "controller_id": snapshot.controller_id,
        "is_controller": parts.controller.is_active,
        "started_ms": history.started_ms,
        "now_ms": parts.now_ms(),
        "topics": len(snapshot.topics),
        "partitions": len(partitions),
        "offline": sum(each.leader < 0 for each in partitions),
        "under_replicated": sum(len(each.isr) < len(each.replicas) for each in partitions),
        "groups": sum(1 for _ in parts.groups.admin.all_groups()),
        "connections": len(parts.network.connections),
        "peak_memory_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "log_bytes": sum(
            each.log.size_in_bytes
            for each in parts.replica_manager.partitions.values()
            if each.log is not None
        ),
        "brokers": _brokers(snapshot, partitions),
        "rates": history.rates(),
        "state": parts.state(),
    }


def _brokers(
    snapshot: MetadataSnapshot, partitions: list[PartitionMetadata]
) -> list[dict[str, Any]]:
    led: dict[int, int] = {}
    held: dict[int, int] = {}
    for each in partitions:
        led[each.leader] = led.get(each.leader, 0) + 1
        for replica in each.replicas:
            held[replica] = held.get(replica, 0) + 1
    rows = []
    for broker_id in sorted({*snapshot.brokers, *held})[:MAX_BROKERS]:
        broker = snapshot.brokers.get(broker_id)
        endpoints = {} if broker is None else broker.endpoints
        rows.append(
            {
                "id": broker_id,
                "alive": broker is not None,
                "rack": None if broker is None else broker.rack,
                "listeners": [
                    f"{name}://{each.host}:{each.port}" for name, each in endpoints.items()
                ],
                "leaders": led.get(broker_id, 0),
                "replicas": held.get(broker_id, 0),
            }
        )
    return rows


def topics(parts: ConsoleParts, search: str, first: int, viewer: Viewer) -> dict[str, Any]:
    """A page of the topics whose names hold `search` and that may be described."""
    found = parts.metadata.snapshot.topics
    names = sorted(
        name for name in found if search.lower() in name.lower() and viewer.may_describe_topic(name)
    )
    shown = names[first : first + TOPICS_ON_A_PAGE]
    return {
        "total": len(names),
        "first": first,
        "page": TOPICS_ON_A_PAGE,
        "topics": [_topic_row(parts, found[name]) for name in shown],
    }


def _topic_row(parts: ConsoleParts, topic: TopicMetadata) -> dict[str, Any]:
    states = topic.partitions.values()
    size = records = 0
    for state in states:
        hosted = parts.replica_manager.partitions.get(TopicPartition(topic.name, state.partition))
        if hosted is not None and hosted.log is not None:
            size += hosted.log.size_in_bytes
            records += hosted.log.log_end_offset - hosted.log.log_start_offset
    return {
        "name": topic.name,
        "internal": topic.name.startswith("__"),
        "partitions": len(topic.partitions),
        "replicas": max((len(state.replicas) for state in states), default=0),
        "size_bytes": size,
        "records": records,
        "offline": sum(state.leader < 0 for state in states),
        "under_replicated": sum(len(state.isr) < len(state.replicas) for state in states),
    }


def topic(parts: ConsoleParts, name: str, viewer: Viewer) -> dict[str, Any]:
    """One topic: its partitions and the settings that it has of its own."""
    viewer.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
    found = parts.metadata.snapshot.topics.get(name)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name[:249]}.")
    rows = []
    for index in sorted(found.partitions)[:MAX_PARTITIONS]:
        state = found.partitions[index]
        row: dict[str, Any] = {
            "partition": index,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "replicas": state.replicas,
            "isr": state.isr,
            "here": False,
        }
        hosted = parts.replica_manager.partitions.get(TopicPartition(name, index))
        if hosted is not None and hosted.log is not None:
            log = hosted.log
            row |= {
                "here": True,
                "size_bytes": log.size_in_bytes,
                "start_offset": log.log_start_offset,
                "end_offset": log.log_end_offset,
                "high_watermark": log.high_watermark,
            }
        rows.append(row)
    may_describe = viewer.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)
    described = _describe(parts, TOPIC, name) if may_describe else []
    return {
        **_topic_row(parts, found),
        "rows": rows,
        "settings": [_setting(row) for row in described if row.config_source == 1],
    }


def settings(parts: ConsoleParts, viewer: Viewer) -> dict[str, Any]:
    """This broker's settings with where they come from; secrets have no value."""
    viewer.require_on_cluster(Operation.DESCRIBE_CONFIGS)
    return {"settings": [_setting(row) for row in _describe(parts, BROKER, str(parts.broker_id))]}


def _describe(parts: ConsoleParts, kind: int, name: str) -> list[DescribeConfigsResourceResult]:
    return parts.config_describer.rows(kind, name)


def _setting(row: DescribeConfigsResourceResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": MASK if row.is_sensitive else row.value,
        "source": _SOURCES.get(row.config_source, "default"),
        "read_only": row.read_only,
    }
