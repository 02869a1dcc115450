"""Topics: creating, describing, growing and deleting them, good requests and bad ones."""

import pytest

from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.differential.asking import Pair

pytestmark = pytest.mark.kafka

CREATE_VERSIONS = range(8)


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: list[list[int]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(assignments or [])
        ],
    )


def create(
    *topics: CreatableTopic, validate_only: bool = False, timeout_ms: int = 10_000
) -> CreateTopicsRequest:
    return CreateTopicsRequest(list(topics), timeout_ms, validate_only)


@pytest.mark.parametrize("version", CREATE_VERSIONS)
def test_create_describe_grow_delete(pair: Pair, version: int) -> None:
    name = f"whole-life-{version}"
    pair.compare(create(topic(name, 2, 1, {"retention.ms": "86400000"})), [version])
    pair.compare(create(topic(name)), [version])  # exists already
    pair.compare(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), range(13))
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=4, assignments=None)], timeout_ms=10_000
    )
    pair.compare(grow, [min(version, 3)])
    pair.compare(DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000), [min(version, 5)])


BAD_TOPICS = {
    "empty name": topic(""),
    "dot": topic("."),
    "dots": topic(".."),
    "metadata of a quorum": topic("__cluster_metadata"),
    "illegal": topic("no spaces"),
    "long": topic("x" * 250),
    "no partitions": topic("bad-partitions", 0),
    "negative partitions": topic("bad-partitions", -2),
    "zero replicas": topic("bad-replicas", 1, 0),
    "too many replicas": topic("bad-replicas", 1, 3),
    "unknown setting": topic("bad-config", 1, 1, {"no.such.setting": "1"}),
    "ill-typed setting": topic("bad-config", 1, 1, {"retention.ms": "soon"}),
    "setting out of range": topic("bad-config", 1, 1, {"segment.bytes": "1"}),
    "null setting": topic("bad-config", 1, 1, {"retention.ms": None}),
    "assignment and count": topic("bad-assignment", 2, 1, None, [[0]]),
    "assignment to no broker": topic("bad-assignment", -1, -1, None, [[7]]),
    "assignment twice": topic("bad-assignment", -1, -1, None, [[0, 0]]),
    "assignment uneven": topic("bad-assignment", -1, -1, None, [[0], []]),
}


@pytest.mark.parametrize("case", BAD_TOPICS)
def test_bad_topics(pair: Pair, case: str) -> None:
    # A topic without a living replica is made, and waited for until time is up.
    request = create(BAD_TOPICS[case], timeout_ms=1_000)
    pair.compare(request, CREATE_VERSIONS, ignore=["error_message"])


def test_same_topic_twice_in_one_request(pair: Pair) -> None:
    request = create(topic("twice"), topic("twice"))
    pair.compare(request, CREATE_VERSIONS, ignore=["error_message"])


def test_validate_only_makes_nothing(pair: Pair) -> None:
    pair.compare(create(topic("only-checked", 3), validate_only=True), range(1, 8))
    request = MetadataRequest(topics=[MetadataRequestTopic(name="only-checked")])
    pair.compare(request, range(1, 13))


def test_defaults(pair: Pair) -> None:
    pair.compare(create(topic("defaults", -1, -1)), [7])
    request = MetadataRequest(topics=[MetadataRequestTopic(name="defaults")])
    pair.compare(request, range(13))


def test_names_that_collide(pair: Pair) -> None:
    pair.compare(create(topic("a.b")), [7])
    pair.compare(create(topic("a_b")), CREATE_VERSIONS, ignore=["error_message"])


def test_metadata_of_what_is_not_there(pair: Pair) -> None:
    for name in ("not-there", "bad name", "x" * 250):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        pair.compare(request, range(13))


def test_metadata_by_unknown_id(pair: Pair) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"\x07" * 16, name=None)])
    pair.compare(request, range(10, 13))


def test_delete_what_is_not_there(pair: Pair) -> None:
    pair.compare(DeleteTopicsRequest(topic_names=["not-there"], timeout_ms=5000), range(6))
    by_id = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=None, topic_id=b"\x07" * 16)], timeout_ms=5000
    )
    pair.compare(by_id, [6], ignore=["error_message"])
    by_name = DeleteTopicsRequest(topics=[DeleteTopicState(name="not-there")], timeout_ms=5000)
    pair.compare(by_name, [6], ignore=["error_message"])


def test_bad_growth(pair: Pair) -> None:
    pair.compare(create(topic("grow", 3)), [7])
    cases = [
        CreatePartitionsTopic(name="grow", count=3, assignments=None),
        CreatePartitionsTopic(name="grow", count=2, assignments=None),
        CreatePartitionsTopic(name="grow", count=-1, assignments=None),
        CreatePartitionsTopic(name="not-there", count=5, assignments=None),
        CreatePartitionsTopic(
            name="grow", count=4, assignments=[CreatePartitionsAssignment(broker_ids=[9])]
        ),
        CreatePartitionsTopic(
            name="grow",
            count=4,
            assignments=[
                CreatePartitionsAssignment(broker_ids=[0]),
                CreatePartitionsAssignment(broker_ids=[0]),
            ],
        ),
    ]
    for case in cases:
        request = CreatePartitionsRequest(topics=[case], timeout_ms=5000)
        pair.compare(request, range(4), ignore=["error_message"])
