"""The data of administrative, notification and configuration znodes; paths are in znodes.py."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.controller.tree.znode_json import (
    MalformedZnode,
    decode_json,
    encode_json,
    integer,
    integers,
    json_object,
    whole_number,
)
from ottla.controller.tree.znodes import (
    DELETED_TOPICS,
    FEATURE,
    LOG_DIR_FAILURE,
    MAX_EPOCH,
    OWN_LEVELS,
    PREFERRED_REPLICA_ELECTION,
    PROCESSED_BROKERS,
    PRODUCER_ID_BLOCK,
    REASSIGN_PARTITIONS,
    replica_epochs_path,
)
from ottla.protocol.topics import TopicPartition

MAX_PRODUCER_ID = 2**63 - 1
_MAX_LEVEL = 2**15 - 1
"""Of a feature, as ApiVersions has it."""
_MAX_FEATURE_NAME = 255
NO_IDS: Mapping[str, Sequence[str]] = {}

# Administration and notifications


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    return encode_json(
        {
            "version": 1,
            "partitions": [{"topic": topic, "partition": index} for topic, index in partitions],
        }
    )


def _decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    listed = decode_json(path, data).get("partitions")
    if not isinstance(listed, list):
        raise MalformedZnode(f"{path} lists no partitions: {data[:200]!r}")
    found: list[TopicPartition] = []
    for item in listed:
        entry = json_object(path, item)
        found.append(TopicPartition(str(entry.get("topic")), integer(path, entry, "partition")))
    return found


def encode_preferred_election(partitions: Iterable[TopicPartition]) -> bytes:
    return _encode_partitions(partitions)


def decode_preferred_election(data: bytes) -> list[TopicPartition]:
    return _decode_partitions(PREFERRED_REPLICA_ELECTION, data)


def encode_isr_change(partitions: Iterable[TopicPartition]) -> bytes:
    return _encode_partitions(partitions)


def decode_isr_change(path: str, data: bytes) -> list[TopicPartition]:
    return _decode_partitions(path, data)


def encode_reassignment(targets: Mapping[TopicPartition, tuple[int, ...]]) -> bytes:
    return encode_json(
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": index, "replicas": list(replicas)}
                for (topic, index), replicas in targets.items()
            ],
        }
    )


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    path = REASSIGN_PARTITIONS
    listed = decode_json(path, data).get("partitions")
    if not isinstance(listed, list):
        raise MalformedZnode(f"{path} lists no partitions: {data[:200]!r}")
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for item in listed:
        entry = json_object(path, item)
        partition = TopicPartition(str(entry.get("topic")), integer(path, entry, "partition"))
        targets[partition] = integers(path, entry.get("replicas"))
    return targets


def encode_log_dir_event(broker_id: int) -> bytes:
    return encode_json({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE})


def decode_log_dir_event(path: str, data: bytes) -> int:
    """The broker whose log directory failed."""
    return integer(path, decode_json(path, data), "broker")


# Configuration


def encode_config(properties: Mapping[str, str]) -> bytes:
    return encode_json({"version": 1, "config": dict(properties)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """The properties; empty for an empty znode, as in Kafka."""
    if not data:
        return {}
    config = decode_json(path, data, is_secret=True).get("config")
    if not isinstance(config, dict):
        return {}
    return {str(name): _property_text(value) for name, value in config.items()}


def decode_config_to_change(path: str, data: bytes) -> dict[str, str]:
    """The properties, which are written again with some of them changed.

    A znode without a version, as other tools write it, has version 1, as in Kafka. Raises
    MalformedZnode for another version, which Kafka would replace, and where properties would be
    lost.
    """
    if not data:
        return {}
    payload = decode_json(path, data, is_secret=True)
    version = integer(path, payload, "version") if "version" in payload else 1
    if version != 1:
        raise MalformedZnode(f"{path} holds a configuration of version {version}; 1 is known")
    if not isinstance(payload.get("config", {}), dict):
        raise MalformedZnode(f'{path} holds no object under "config"')
    return decode_config(path, data)


def decode_protecting_config(path: str, data: bytes) -> dict[str, str]:
    """The properties of an entity with quotas, credentials or settings of a broker.

    Raises MalformedZnode where `decode_config` would return none, or those of another version.
    """
    payload = decode_json(path, data, is_secret=True)
    if isinstance(payload.get("config"), dict) and "version" not in payload:
        raise MalformedZnode(f'{path} holds a configuration without "version":1, which it needs')
    if integer(path, payload, "version") != 1 or not isinstance(payload.get("config"), dict):
        raise MalformedZnode(f"{path} holds no configuration of version 1")
    return decode_config(path, data)


def _property_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def encode_config_change(entity_path: str) -> bytes:
    return encode_json({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    """The entity path that changed; version 1 has type and name in two keys."""
    payload = decode_json(path, data)
    version = integer(path, payload, "version")
    if version == 1:
        return f"{payload.get('entity_type')}/{payload.get('entity_name')}"
    entity_path = payload.get("entity_path")
    if version != 2 or not isinstance(entity_path, str):
        raise MalformedZnode(f"{path} is not a configuration change: {data[:200]!r}")
    return entity_path


# Producer ids, features, deleted topics, the 0.8 consumer


def encode_producer_id_block(broker_id: int, first: int, last: int) -> bytes:
    return encode_json(
        {
            "version": 1,
            "broker": broker_id,
            "block_start": str(first),
            "block_end": str(last),
        }
    )


def decode_producer_id_block(data: bytes) -> tuple[int, int, int]:
    """(broker id, first producer id, last producer id) of the newest block."""
    path = PRODUCER_ID_BLOCK
    try:
        payload = decode_json(path, data)
        found = (
            integer(path, payload, "broker"),
            whole_number(path, payload, "block_start", 0, MAX_PRODUCER_ID),
            whole_number(path, payload, "block_end", 0, MAX_PRODUCER_ID),
        )
        if found[1] <= found[2]:
            return found
        raise MalformedZnode(f"{path} holds a block that ends before it begins: {data[:200]!r}")
    except MalformedZnode as error:
        # A number that was allocated before would give two producers the same id.
        example = encode_producer_id_block(0, 2**40, 2**40 + 999).decode()
        raise MalformedZnode(
            f"{error}. Write a block above all producer ids that were ever allocated (brokers log "
            f"them as `Allocated producer ids`), such as {example}"
        ) from None


def encode_features(features: Mapping[str, int], *, enabled: bool, version: int = 2) -> bytes:
    """Version 1 (before 3.3) also writes a minimum level, equal to the maximum."""
    levels = {
        name: (
            {"max_version_level": level}
            if version >= 2
            else {"max_version_level": level, "min_version_level": level}
        )
        for name, level in features.items()
    }
    return encode_json({"version": version, "features": levels, "status": int(enabled)})


def decode_features(data: bytes) -> tuple[bool, dict[str, int]]:
    """(feature versioning enabled, finalized level by name)."""
    payload = decode_json(FEATURE, data)
    version = integer(FEATURE, payload, "version")
    if not 1 <= version <= 2:
        raise MalformedZnode(f"{FEATURE} has version {version}; 1 and 2 are known")
    features = json_object(FEATURE, payload.get("features"))
    if any(len(name) > _MAX_FEATURE_NAME for name in features):
        raise MalformedZnode(f"{FEATURE} holds a name that is too long: {data[:200]!r}")
    levels = {
        name: whole_number(FEATURE, json_object(FEATURE, value), "max_version_level", 0, _MAX_LEVEL)
        for name, value in features.items()
    }
    return integer(FEATURE, payload, "status") == 1, levels


def encode_own_levels(levels: Mapping[str, int]) -> bytes:
    return encode_json({"version": 1, "levels": dict(levels)})


def decode_own_levels(data: bytes) -> dict[str, int]:
    """The level of each feature that is set; 0 is off."""
    payload = decode_json(OWN_LEVELS, data)
    version = integer(OWN_LEVELS, payload, "version")
    if version != 1:
        raise MalformedZnode(f"{OWN_LEVELS} has version {version}; 1 is known")
    levels = json_object(OWN_LEVELS, payload.get("levels"))
    return {name: whole_number(OWN_LEVELS, levels, name, 0, _MAX_LEVEL) for name in levels}


def encode_deleted_topics(
    floor: int,
    epochs: Mapping[str, int],
    deleted: Mapping[str, Sequence[str]] = NO_IDS,
    removed: Mapping[str, Sequence[str]] = NO_IDS,
) -> bytes:
    """`deleted` are the ids of topics that controllers have deleted; `removed` are those of
    topics whose znode was removed by something else."""
    payload: dict[str, object] = {"version": 1, "floor": floor, "leader_epochs": dict(epochs)}
    if deleted:
        payload["topic_ids"] = {name: list(ids) for name, ids in deleted.items()}
    if removed:
        payload["removed_topic_ids"] = {name: list(ids) for name, ids in removed.items()}
    return encode_json(payload)


def decode_deleted_topic_ids(
    data: bytes,
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """(ids of topics that controllers have deleted, ids of those that were removed), by topic."""
    if not data:
        return {}, {}
    payload = decode_json(DELETED_TOPICS, data)
    return _ids_by_topic(payload, "topic_ids"), _ids_by_topic(payload, "removed_topic_ids")


def _ids_by_topic(payload: Mapping[str, object], field: str) -> dict[str, tuple[str, ...]]:
    listed = json_object(DELETED_TOPICS, payload.get(field) or {})
    return {
        name: tuple(each for each in ids if isinstance(each, str))
        for name, ids in listed.items()
        if isinstance(ids, list)
    }


def decode_deleted_topics(data: bytes) -> tuple[int, dict[str, int]]:
    """(floor of all older topics, highest leader epoch by topic, oldest first)."""
    if not data:
        return -1, {}
    payload = decode_json(DELETED_TOPICS, data)
    epochs = json_object(DELETED_TOPICS, payload.get("leader_epochs") or {})
    return (
        whole_number(DELETED_TOPICS, payload, "floor", -1, MAX_EPOCH),
        {name: whole_number(DELETED_TOPICS, epochs, name, -1, MAX_EPOCH) for name in epochs},
    )


class ReplicaEpoch(NamedTuple):
    """Of a replica that is ahead of the tree."""

    #: Its leader epoch, which may have no records yet.
    highest: int
    #: That of its last records.
    log_epoch: int
    log_end_offset: int
    is_leader: bool


def encode_replica_epochs(
    broker_epoch: int, rows: Mapping[TopicPartition, ReplicaEpoch], *, is_older: bool = False
) -> bytes:
    """`is_older`: the broker was registered in a newer state of the tree before."""
    topics: dict[str, dict[str, list[int]]] = {}
    for (topic, index), row in rows.items():
        topics.setdefault(topic, {})[str(index)] = [int(each) for each in row]
    return encode_json(
        {"version": 1, "broker_epoch": broker_epoch, "older_tree": is_older, "topics": topics}
    )


def decode_replica_epochs(
    broker_id: int, data: bytes
) -> tuple[int, bool, dict[TopicPartition, ReplicaEpoch]]:
    """(broker epoch at which they were written, whether the tree is older than the broker, by
    partition)"""
    path = replica_epochs_path(broker_id)
    payload = decode_json(path, data)
    rows: dict[TopicPartition, ReplicaEpoch] = {}
    for topic, listed in json_object(path, payload.get("topics") or {}).items():
        for index, numbers in json_object(path, listed).items():
            if not index.isdecimal() or not isinstance(numbers, list) or len(numbers) != 4:
                raise MalformedZnode(f"{path} holds a row that cannot be read: {numbers!r}")
            # An offset has more bits than what `integers` is for.
            highest, log_epoch, is_leader = integers(path, [*numbers[:2], numbers[3]])
            log_end_offset = integer(path, {"log end offset": numbers[2]}, "log end offset")
            row = ReplicaEpoch(highest, log_epoch, log_end_offset, bool(is_leader))
            rows[TopicPartition(topic, int(index))] = row
    is_older = payload.get("older_tree") is True
    return integer(path, payload, "broker_epoch"), is_older, rows


def encode_consumer_subscription(
    subscription: Mapping[str, int], pattern: str, now_ms: int
) -> bytes:
    """The threads by topic of an old consumer; pattern: static, white_list or black_list."""
    return encode_json(
        {
            "version": 1,
            "subscription": dict(subscription),
            "pattern": pattern,
            "timestamp": str(now_ms),
        }
    )


def decode_consumer_subscription(path: str, data: bytes) -> tuple[dict[str, int], str]:
    """(threads by topic, pattern)"""
    payload = decode_json(path, data)
    listed = json_object(path, payload.get("subscription"))
    return {topic: integer(path, listed, topic) for topic in listed}, str(payload.get("pattern"))


def encode_consumer_offset(offset: int) -> bytes:
    return b"%d" % offset


def decode_consumer_offset(path: str, data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise MalformedZnode(f"{path} holds {data!r}, not an offset") from None


def encode_processed_brokers(epochs: Mapping[int, int]) -> bytes:
    return encode_json(
        {"version": 1, "broker_epochs": {str(each): epochs[each] for each in sorted(epochs)}}
    )


def decode_processed_brokers(data: bytes) -> dict[int, int]:
    """Broker epochs by broker id. Raises MalformedZnode."""
    payload = decode_json(PROCESSED_BROKERS, data)
    epochs = json_object(PROCESSED_BROKERS, payload.get("broker_epochs"))
    return {
        int(name): integer(PROCESSED_BROKERS, epochs, name) for name in epochs if name.isdecimal()
    }
