"""Payloads of requests, notifications, configuration, producer ids and features."""

from __future__ import annotations

import json

import pytest

from ottla.controller.tree import znodes_admin
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import ReplicaEpoch
from ottla.protocol.topics import TopicPartition

PARTITIONS = [TopicPartition("t", 0), TopicPartition("u", 3)]


def test_partition_lists() -> None:
    wanted = {
        "version": 1,
        "partitions": [{"topic": "t", "partition": 0}, {"topic": "u", "partition": 3}],
    }
    election = znodes_admin.encode_preferred_election(PARTITIONS)
    assert json.loads(election) == wanted
    assert znodes_admin.decode_preferred_election(election) == PARTITIONS
    change = znodes_admin.encode_isr_change(PARTITIONS)
    assert json.loads(change) == wanted
    assert znodes_admin.decode_isr_change("/isr", change) == PARTITIONS
    with pytest.raises(MalformedZnode, match="/isr"):
        znodes_admin.decode_isr_change("/isr", b'{"version":1}')


def test_reassignment() -> None:
    targets = {PARTITIONS[0]: (1, 2), PARTITIONS[1]: (3,)}
    data = znodes_admin.encode_reassignment(targets)
    assert json.loads(data) == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [1, 2]},
            {"topic": "u", "partition": 3, "replicas": [3]},
        ],
    }
    assert znodes_admin.decode_reassignment(data) == targets
    for malformed in (b"", b"{}", b'{"partitions":[{"topic":"t","partition":0}]}'):
        with pytest.raises(MalformedZnode, match="/admin/reassign_partitions"):
            znodes_admin.decode_reassignment(malformed)


def test_log_dir_event() -> None:
    data = znodes_admin.encode_log_dir_event(4)
    assert json.loads(data) == {"version": 1, "broker": 4, "event": 1}
    assert znodes_admin.decode_log_dir_event("/l", data) == 4


def test_config() -> None:
    data = znodes_admin.encode_config({"retention.ms": "1000"})
    assert json.loads(data) == {"version": 1, "config": {"retention.ms": "1000"}}
    assert znodes_admin.decode_config("/c", data) == {"retention.ms": "1000"}
    assert znodes_admin.decode_config("/c", b"") == {}
    assert znodes_admin.decode_config("/c", b'{"version":1}') == {}
    numbers = znodes_admin.decode_config("/c", b'{"config":{"a":1,"b":true}}')
    assert numbers == {"a": "1", "b": "true"}


def test_config_change() -> None:
    data = znodes_admin.encode_config_change("topics/t")
    assert json.loads(data) == {"version": 2, "entity_path": "topics/t"}
    assert znodes_admin.decode_config_change("/c", data) == "topics/t"
    old = b'{"version":1,"entity_type":"clients","entity_name":"c"}'
    assert znodes_admin.decode_config_change("/c", old) == "clients/c"
    with pytest.raises(MalformedZnode):
        znodes_admin.decode_config_change("/c", b'{"version":3,"entity_path":"topics/t"}')


def test_producer_id_block() -> None:
    data = znodes_admin.encode_producer_id_block(1, 0, 999)
    assert json.loads(data) == {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}
    assert znodes_admin.decode_producer_id_block(data) == (1, 0, 999)
    for first, last in ((-2000, -1001), (0, 2**63), (5000, 999), (0, None)):
        wrong = json.dumps({"broker": 1, "block_start": first, "block_end": last}).encode()
        with pytest.raises(MalformedZnode, match=r"/latest_producer_id_block.*Write a block above"):
            znodes_admin.decode_producer_id_block(wrong)
    with pytest.raises(MalformedZnode, match="/latest_producer_id_block") as raised:
        znodes_admin.decode_producer_id_block(b"\xff")
    example = str(raised.value).partition("such as ")[2].encode()
    assert znodes_admin.decode_producer_id_block(example)[2] > 2**40


def test_features() -> None:
    data = znodes_admin.encode_features({}, enabled=True)
    assert json.loads(data) == {"version": 2, "features": {}, "status": 1}
    two = znodes_admin.encode_features({"f": 3}, enabled=False)
    assert json.loads(two)["features"] == {"f": {"max_version_level": 3}}
    assert znodes_admin.decode_features(two) == (False, {"f": 3})
    one = znodes_admin.encode_features({"f": 3}, enabled=True, version=1)
    levels = {"f": {"min_version_level": 3, "max_version_level": 3}}
    assert json.loads(one)["features"] == levels
    assert znodes_admin.decode_features(one) == (True, {"f": 3})
    with pytest.raises(MalformedZnode):
        znodes_admin.decode_features(b'{"version":3,"features":{},"status":1}')
    for name, level in (("f", -1), ("f", 40_000), ("f" * 40_000, 1)):
        # ApiVersions could not be answered, and no client could log in.
        with pytest.raises(MalformedZnode, match="/feature"):
            znodes_admin.decode_features(znodes_admin.encode_features({name: level}, enabled=True))
    for level in (-1, 40_000):
        with pytest.raises(MalformedZnode, match="/ottla/features"):
            znodes_admin.decode_own_levels(znodes_admin.encode_own_levels({"f": level}))


def test_deleted_topics_keep_their_order() -> None:
    epochs = {"z": 4, "a": 9}
    data = znodes_admin.encode_deleted_topics(2, epochs)
    floor, decoded = znodes_admin.decode_deleted_topics(data)
    assert (floor, list(decoded.items())) == (2, [("z", 4), ("a", 9)])
    assert znodes_admin.decode_deleted_topics(b"") == (-1, {})
    for wrong in ((-2, {}), (2**31 - 1, {}), (0, {"a": -2}), (0, {"a": 2**31 - 1})):
        with pytest.raises(MalformedZnode, match="/ottla/deleted_topics"):
            znodes_admin.decode_deleted_topics(znodes_admin.encode_deleted_topics(*wrong))


def test_replica_epochs() -> None:
    """Offsets may have more than 32 bits."""
    rows = {
        PARTITIONS[0]: ReplicaEpoch(9, 8, 2**40, True),
        PARTITIONS[1]: ReplicaEpoch(1, 1, 0, False),
    }
    data = znodes_admin.encode_replica_epochs(5, rows, is_older=True)
    assert znodes_admin.decode_replica_epochs(1, data) == (5, True, rows)
    for row in ([], [1], [1, 2, 3, "x"], [1, 2, "x", 1], [2**40, 1, 1, 1], [[], 1, 1, 1], "1234"):
        wrong = json.dumps({"broker_epoch": 5, "topics": {"t": {"0": row}}}).encode()
        with pytest.raises(MalformedZnode, match="/ottla/replica_epochs/1"):
            znodes_admin.decode_replica_epochs(1, wrong)


def test_processed_brokers() -> None:
    data = znodes_admin.encode_processed_brokers({10: 7, 2: 9})
    assert json.loads(data) == {"version": 1, "broker_epochs": {"2": 9, "10": 7}}
    assert znodes_admin.decode_processed_brokers(data) == {2: 9, 10: 7}
    for wrong in (b"", b"{}", b'{"broker_epochs":{"1":"x"}}'):
        with pytest.raises(MalformedZnode, match="/ottla/processed_brokers"):
            znodes_admin.decode_processed_brokers(wrong)


def test_consumer_subscription() -> None:
    data = znodes_admin.encode_consumer_subscription({"t": 2}, "static", 5)
    assert json.loads(data) == {
        "version": 1,
        "subscription": {"t": 2},
        "pattern": "static",
        "timestamp": "5",
    }
    assert znodes_admin.decode_consumer_subscription("/c", data) == ({"t": 2}, "static")
    with pytest.raises(MalformedZnode, match="/c"):
        znodes_admin.decode_consumer_subscription("/c", b'{"subscription":{"t":"x"}}')


def test_consumer_offset() -> None:
    assert znodes_admin.encode_consumer_offset(12) == b"12"
    assert znodes_admin.decode_consumer_offset("/o", b"12") == 12
    with pytest.raises(MalformedZnode, match="/o"):
        znodes_admin.decode_consumer_offset("/o", b"many")
