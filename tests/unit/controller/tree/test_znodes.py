"""Paths and payloads of brokers, topics, partitions and the controller."""

from __future__ import annotations

import json

import pytest

from ottla.controller.model import BrokerInfo, Endpoint, LeaderAndIsr, ReplicaAssignment, TopicState
from ottla.controller.tree import znodes
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import uuid_from_string

TOPIC_ID = uuid_from_string("_arGymxkTcmmNwZ9te3i-Q")
PARTITION = TopicPartition("t", 0)


def test_paths() -> None:
    assert znodes.broker_path(3) == "/brokers/ids/3"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.partitions_path("t") == "/brokers/topics/t/partitions"
    assert znodes.partition_path(PARTITION) == "/brokers/topics/t/partitions/0"
    assert znodes.state_path(PARTITION) == "/brokers/topics/t/partitions/0/state"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert znodes.config_path("users/u/clients/c") == "/config/users/u/clients/c"
    assert znodes.consumer_offset_path("g", "t", 1) == "/consumers/g/offsets/t/1"
    assert znodes.consumer_owner_path("g", "t", 1) == "/consumers/g/owners/t/1"
    assert znodes.consumer_id_path("g", "c") == "/consumers/g/ids/c"


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("plain-Name_1.x", "plain-Name_1.x"),
        ("a b*c~d", "a%20b%2Ac%7Ed"),
        ("CN=user,O=\u00fcber", "CN%3Duser%2CO%3D%C3%BCber"),
        ("/", "%2F"),
        ("", ""),
    ],
)
def test_names_are_encoded_as_kafka_does(name: str, encoded: str) -> None:
    assert znodes.sanitize(name) == encoded
    assert znodes.desanitize(encoded) == name


@pytest.mark.parametrize("name", ["100%zz", "%FF", "a%", "%C3"])
def test_name_that_is_not_encoded(name: str) -> None:
    with pytest.raises(MalformedZnode):
        znodes.desanitize(name)


def test_names_of_brokers() -> None:
    names = ["10", "2", "x", "-1", "", "2147483647", "2147483648", "9" * 5_000, "\u0663"]
    assert znodes.broker_ids(names) == [2, 10, 2**31 - 1]


def test_cluster_id() -> None:
    data = znodes.encode_cluster_id("WZ4VlMf0Rc63V2pDzi-LmA")
    assert json.loads(data) == {"version": "1", "id": "WZ4VlMf0Rc63V2pDzi-LmA"}
    assert znodes.decode_cluster_id(data) == "WZ4VlMf0Rc63V2pDzi-LmA"
    assert znodes.decode_cluster_id(b'{"id":"a cluster"}'.replace(b" ", b"-")) == "a-cluster"
    for wrong in (b"{}", b'{"id":7}', b'{"id":""}', b'{"id":"a\\nbroker.id=7"}', b'{"id":"a b"}'):
        with pytest.raises(MalformedZnode, match="/cluster/id"):
            znodes.decode_cluster_id(wrong)


def test_controller() -> None:
    data = znodes.encode_controller(1, 1795232146275)
    assert json.loads(data) == {
        "version": 2,
        "brokerid": 1,
        "timestamp": "1795232146275",
        "kraftControllerEpoch": -1,
    }
    assert znodes.decode_controller(data) == 1
    assert znodes.decode_controller(b'{"version":1,"brokerid":7,"timestamp":"1"}') == 7
    assert znodes.encode_controller_epoch(12) == b"12"
    assert znodes.decode_controller_epoch(b"12") == 12
    highest = b"%d" % znodes.MAX_EPOCH
    assert znodes.decode_controller_epoch(highest) == znodes.MAX_EPOCH
    for wrong in (b"x", b"", b"-1", b"1_0", b"2147483647", b"99999999999", b"9" * 5_000):
        with pytest.raises(MalformedZnode, match=r"/controller_epoch.*write one above"):
            znodes.decode_controller_epoch(wrong)


def test_broker_as_kafka_3_9_writes_it() -> None:
    broker = BrokerInfo(
        1, (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 29092),), features={"f": (1, 3)}
    )
    data = znodes.encode_broker(broker, 1795232146275)
    assert json.loads(data) == {
        "features": {"f": {"min_version": 1, "max_version": 3}},
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": ["PLAINTEXT://127.0.0.1:29092"],
        "jmx_port": -1,
        "port": 29092,
        "host": "127.0.0.1",
        "version": 5,
        "timestamp": "1795232146275",
    }
    assert znodes.decode_broker(1, data, 77) == broker._replace(epoch=77)


def test_broker_without_plaintext_listener_has_no_address_for_old_clients() -> None:
    broker = BrokerInfo(
        2,
        (
            Endpoint("CLIENT", "SASL_SSL", "::1", 9093),
            Endpoint("REPLICATION", "SSL", "host", 9094),
        ),
        "rack-a",
    )
    data = znodes.encode_broker(broker, 1)
    payload = json.loads(data)
    assert (payload["host"], payload["port"], payload["rack"]) == (None, -1, "rack-a")
    assert payload["endpoints"] == ["CLIENT://[::1]:9093", "REPLICATION://host:9094"]
    assert znodes.decode_broker(2, data, -1) == broker


def test_broker_versions_before_5() -> None:
    broker = BrokerInfo(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),), "r")
    assert "features" not in json.loads(znodes.encode_broker(broker, 1, version=4))
    assert "rack" in json.loads(znodes.encode_broker(broker, 1, version=4))
    two = znodes.encode_broker(broker, 1, version=2)
    assert "listener_security_protocol_map" not in json.loads(two)
    assert "rack" not in json.loads(two)
    assert znodes.decode_broker(1, two, -1).endpoints == broker.endpoints
    one = b'{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2"}'
    assert znodes.decode_broker(3, one, 5) == BrokerInfo(
        3, (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),), epoch=5
    )


@pytest.mark.parametrize(
    "payload",
    [
        {"version": 5, "endpoints": ["A:PLAINTEXT://h:1"]},
        {"version": 5, "endpoints": ["PLAINTEXT://h:99999999999"]},
        {"version": 5, "endpoints": [f"PLAINTEXT://{'h' * 40_000}:1"]},
        {"version": 5, "endpoints": ["PLAINTEXT://h:1"], "rack": "r" * 40_000},
        {"version": 1, "host": "h", "port": 2**40},
        {"version": 1, "host": "h", "port": -2},
    ],
)
def test_broker_that_no_client_can_be_told_of(payload: dict[str, object]) -> None:
    """Requests and responses with it could not be encoded."""
    with pytest.raises(MalformedZnode, match="/brokers/ids/1"):
        znodes.decode_broker(1, json.dumps(payload).encode(), 5)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *(("leader_epoch", each) for each in (-1, 2**31 - 1, 2**70)),
        *(("controller_epoch", each) for each in (-1, 2**31 - 1)),
        *(("leader_recovery_state", each) for each in (-1, 2, 1_000)),
    ],
)
def test_state_with_a_number_that_no_controller_writes(key: str, wrong: int) -> None:
    """The next one could not be sent."""
    state = LeaderAndIsr(1, 5, (1,), 1, controller_epoch=3)
    payload = json.loads(znodes.encode_state(state))
    assert znodes.decode_state(PARTITION, json.dumps(payload).encode(), 0) == state
    with pytest.raises(MalformedZnode, match=f"/brokers/topics/t/partitions/0/state.*{key}"):
        znodes.decode_state(PARTITION, json.dumps({**payload, key: wrong}).encode(), 0)


def test_unclean_shutdown_is_beside_what_kafka_reads() -> None:
    broker = BrokerInfo(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),), unclean_shutdown=True)
    data = znodes.encode_broker(broker, 1)
    assert json.loads(data)["ottla_unclean_shutdown"] is True
    assert znodes.decode_broker(1, data, -1) == broker
    clean = znodes.encode_broker(broker._replace(unclean_shutdown=False), 1)
    assert "ottla_unclean_shutdown" not in json.loads(clean)
    odd = data.replace(b'"ottla_unclean_shutdown":true', b'"ottla_unclean_shutdown":"yes"')
    assert odd != data
    assert not znodes.decode_broker(1, odd, -1).unclean_shutdown


def test_broker_instance_is_beside_what_kafka_reads() -> None:
    broker = BrokerInfo(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),))
    data = znodes.encode_broker(broker, 1, instance="here")
    assert znodes.decode_broker_instance(1, data) == "here"
    assert znodes.decode_broker(1, data, -1) == broker
    assert znodes.decode_broker_instance(1, znodes.encode_broker(broker, 1)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"version":0}',
        b'{"version":5}',
        b'{"version":5,"endpoints":["noport"]}',
        b'{"version":5,"endpoints":["CLIENT://h:1"]}',  # a listener without a security protocol
        b'{"version":5,"endpoints":["PLAINTEXT://h:x"]}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:3000000000"]}',
        b'{"version":5,"endpoints":["C://h:1"],"listener_security_protocol_map":{"C":"TLS"}}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:1"],"features":{"f":3}}',
    ],
)
def test_malformed_broker_names_its_path(data: bytes) -> None:
    with pytest.raises(MalformedZnode, match="/brokers/ids/4"):
        znodes.decode_broker(4, data, -1)


def test_topic_whose_logs_no_file_system_can_have() -> None:
    """A broker would take its log directory offline."""
    state = TopicState(None, {99: ReplicaAssignment((1,))})
    for name in ("a" * 252, "\u00fc" * 126, "a" * 246 + "\u00fc\u00fc\u00fc"):
        assert znodes.decode_topic(name[:-1], znodes.encode_topic(state)) == state
        with pytest.raises(MalformedZnode, match=r"/brokers/topics/.* too long"):
            znodes.decode_topic(name + "a", znodes.encode_topic(state))


def test_topic_as_kafka_3_9_writes_it() -> None:
    state = TopicState(
        TOPIC_ID,
        {0: ReplicaAssignment((1,)), 1: ReplicaAssignment((3, 1, 2), adding=(3,), removing=(1,))},
    )
    data = znodes.encode_topic(state)
    assert json.loads(data) == {
        "partitions": {"0": [1], "1": [3, 1, 2]},
        "topic_id": "_arGymxkTcmmNwZ9te3i-Q",
        "adding_replicas": {"1": [3]},
        "removing_replicas": {"1": [1]},
        "version": 3,
    }
    assert znodes.decode_topic("t", data) == state


def test_topics_of_older_versions() -> None:
    assert znodes.decode_topic("t", b'{"version":1,"partitions":{"0":[1,2]}}') == TopicState(
        None, {0: ReplicaAssignment((1, 2))}
    )
    assert znodes.decode_topic("t", b'{"version":1,"partitions":{}}') == TopicState(None, {})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"partitions":{"x":[1]}}',
        b'{"partitions":{"0":["a"]}}',
        b'{"partitions":{"0":[3000000000]}}',
        b'{"partitions":{"3000000000":[1]}}',
        b'{"partitions":{"0":[1]},"topic_id":"xx"}',
        b'{"partitions":{"0":[]}}',
        b'{"partitions":{"0":[-1]}}',
        b'{"partitions":{"0":[1,1]}}',
        b'{"partitions":[]}',
        b'{"partitions":null}',
        b'{"version":1}',
    ],
)
def test_malformed_topic_names_its_path(data: bytes) -> None:
    with pytest.raises(MalformedZnode, match="/brokers/topics/t"):
        znodes.decode_topic("t", data)


def test_state_as_kafka_3_9_writes_it() -> None:
    state = LeaderAndIsr(leader=1, leader_epoch=3, isr=(1, 2), controller_epoch=7)
    data = znodes.encode_state(state)
    assert json.loads(data) == {
        "controller_epoch": 7,
        "leader": 1,
        "version": 1,
        "leader_epoch": 3,
        "isr": [1, 2],
    }
    assert znodes.decode_state(PARTITION, data, 9) == state._replace(partition_epoch=9)
    recovering = znodes.encode_state(state._replace(recovery_state=1))
    assert json.loads(recovering)["leader_recovery_state"] == 1
    assert znodes.decode_state(PARTITION, recovering, 0).recovery_state == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"leader":1}',
        b'{"leader":"x","leader_epoch":1,"isr":[],"controller_epoch":1}',
        b'{"leader":1,"leader_epoch":3000000000,"isr":[],"controller_epoch":1}',
    ],
)
def test_malformed_state_names_its_path(data: bytes) -> None:
    with pytest.raises(MalformedZnode, match="partitions/0/state"):
        znodes.decode_state(PARTITION, data, 0)
