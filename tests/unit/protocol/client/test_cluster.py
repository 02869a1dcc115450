"""The picture of the cluster."""

import pytest

from ottla.protocol.client import cluster
from ottla.protocol.client.cluster import Address, ClusterState, Leader, parse_bootstrap
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.topics import TopicPartition
from tests.doubles.scripted_broker import metadata_response

A, B = ("a", 1), ("b", 2)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        (" a:1 ,b:2,, ", [("a", 1), ("b", 2)]),
        ("host", [("host", 9092)]),
        ("PLAINTEXT://a:1,SSL://[::1]:2", [("a", 1), ("::1", 2)]),
        ("[fe80::1]", [("fe80::1", 9092)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_bootstrap_addresses(text: str, wanted: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == wanted


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:65536", ":9092", "a:-1", "a:\u0661"])
def test_bootstrap_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.servers"):
        parse_bootstrap(text)


def test_addresses_as_text() -> None:
    assert str(Address("a", 1)) == "a:1"
    assert str(Address("::1", 1)) == "[::1]:1"


def filled() -> ClusterState:
    state = ClusterState([Address("boot", 9)])
    state.update(metadata_response({1: A, 2: B}, {"t": {0: 1, 1: 2, 2: -1}}, controller_id=2))
    return state


def test_update_takes_everything_over() -> None:
    state = filled()
    assert state.brokers == {1: A, 2: B}
    assert state.controller_id == 2
    assert state.cluster_id == "scripted"
    assert state.leader(TopicPartition("t", 0)) == Leader(1, 4)
    assert state.leader(TopicPartition("t", 1)) == Leader(2, 4)
    assert state.leader(TopicPartition("t", 2)) is None
    assert state.leader(TopicPartition("other", 0)) is None
    assert state.candidates() == [A, B, Address("boot", 9)]


def test_update_without_topics_leaves_the_leaders() -> None:
    state = filled()
    state.update(metadata_response({3: ("c", 3)}))
    assert state.brokers == {3: ("c", 3)}
    assert state.leader(TopicPartition("t", 0)) == Leader(1, 4)


def test_update_without_brokers_keeps_those_we_have() -> None:
    state = filled()
    state.update(MetadataResponse())
    assert state.brokers == {1: A, 2: B}


def test_topics_with_errors_are_forgotten() -> None:
    state = filled()
    row = MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    state.update(MetadataResponse(topics=[row]))
    assert state.leader(TopicPartition("t", 0)) is None


def test_topic_ids_are_kept_where_there_are_any() -> None:
    state = filled()
    assert state.topic_ids == {}
    row = MetadataResponseTopic(name="t", topic_id=bytes(range(16)))
    state.update(MetadataResponse(topics=[row]))
    assert state.topic_ids == {"t": bytes(range(16))}
    state.forget_topic("t")
    assert state.topic_ids == {}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MAX_CACHED_TOPICS", 3)
    monkeypatch.setattr(cluster, "MAX_CACHED_COORDINATORS", 3)
    state = ClusterState([])
    for index in range(10):
        state.update(metadata_response({1: A}, {f"t{index}": {0: 1}}))
        state.set_coordinator(f"g{index}", 0, 1, Address(*A))
    known = [index for index in range(10) if state.leader(TopicPartition(f"t{index}", 0))]
    assert known == [7, 8, 9]
    known = [index for index in range(10) if state.coordinator(f"g{index}", 0) is not None]
    assert known == [7, 8, 9]


def test_coordinators() -> None:
    state = ClusterState([])
    state.set_coordinator("g", 0, 5, Address(*B))
    assert state.coordinator("g", 0) == 5
    assert state.coordinator("g", 1) is None
    assert state.brokers[5] == B
    state.forget_coordinator("g", 0)
    assert state.coordinator("g", 0) is None
