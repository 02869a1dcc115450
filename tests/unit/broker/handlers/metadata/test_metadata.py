from __future__ import annotations

import pytest

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.common.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.uuids import ZERO_UUID
from tests.doubles.published_metadata import publish
from tests.doubles.request_context import Asked

NEWEST = 12
TOPIC_ID, GROUPS_ID = b"t" * 16, b"g" * 16
VERSIONS = range(NEWEST + 1)


class Creator:
    """Notes what is to be created."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def create(self, names: list[str]) -> dict[str, int]:
        self.asked.extend(names)
        return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)


class Scene:
    """The metadata of broker 1 in a cluster of 1 and 2, of which only 1 has the listener SSL."""

    def __init__(self, *, auto_create: bool = True) -> None:
        self.cache = MetadataCache()
        plain = [UpdateMetadataEndpoint(9000 + n, f"host{n}", "PLAINTEXT", 0) for n in (1, 2)]
        secure = UpdateMetadataEndpoint(9443, "host1", "SSL", 1)
        publish(
            self.cache,
            UpdateMetadataRequest(
                controller_id=2,
                controller_epoch=1,
                live_brokers=[
                    UpdateMetadataBroker(id=1, endpoints=[plain[0], secure], rack="r1"),
                    UpdateMetadataBroker(id=2, endpoints=[plain[1]]),
                ],
                topic_states=[
                    UpdateMetadataTopicState("t", TOPIC_ID, [partition(1, 2), partition(0, 1)]),
                    UpdateMetadataTopicState("__consumer_offsets", GROUPS_ID, [partition(0, 2)]),
                ],
            ),
        )
        self.creator = Creator()
        self.handler = MetadataHandler(
            self.cache,
            Endpoints(1, self.cache, frozenset()),
            "cluster",
            self.creator,
            auto_create,
        )

    def ask(
        self, topics: list[MetadataRequestTopic] | None, version: int = NEWEST, **fields: bool
    ) -> MetadataResponse:
        request = MetadataRequest(topics, **fields)
        return Asked(self.handler.handle, request, version).response(MetadataResponse)

    def ask_for(self, *names: str, version: int = NEWEST, **fields: bool) -> MetadataResponse:
        return self.ask(
            [MetadataRequestTopic(ZERO_UUID, name) for name in names], version, **fields
        )


def partition(
    index: int, leader: int, replicas: tuple[int, ...] = (1, 2)
) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=index,
        leader=leader,
        leader_epoch=5,
        isr=list(replicas),
        replicas=list(replicas),
    )


def codes(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_version_returns(version: int) -> None:
    response = Scene().ask_for("t", version=version)
    rack = "r1" if version >= 1 else None
    assert [(b.node_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (1, "host1", 9001, rack),
        (2, "host2", 9002, None),
    ]
    assert response.cluster_id == ("cluster" if version >= 2 else None)
    assert response.controller_id == (2 if version >= 1 else -1)
    (topic,) = response.topics
    assert topic.topic_id == (TOPIC_ID if version >= 10 else ZERO_UUID)
    epoch = 5 if version >= 7 else -1
    assert topic.partitions == [
        MetadataResponsePartition(0, 0, 1, epoch, [1, 2], [1, 2], []),
        MetadataResponsePartition(0, 1, 2, epoch, [1, 2], [1, 2], []),
    ]


def test_all_topics() -> None:
    scene = Scene()
    names = {"t": 0, "__consumer_offsets": 0}
    assert codes(scene.ask([], 0)) == names
    for version in range(1, NEWEST + 1):
        assert codes(scene.ask(None, version)) == names
        assert scene.ask([], version).topics == []
    assert [topic.is_internal for topic in scene.ask(None, 1).topics] == [False, True]


def test_topics_by_id() -> None:
    scene = Scene()
    known, unknown = MetadataRequestTopic(TOPIC_ID, None), MetadataRequestTopic(b"x" * 16, None)
    response = scene.ask([known, unknown, known])
    assert [(t.name, t.topic_id, t.error_code) for t in response.topics] == [
        ("t", TOPIC_ID, 0),
        (None, b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_topic_ids_are_not_valid_in_requests_before_version_12(version: int) -> None:
    scene = Scene()
    with pytest.raises(KafkaError) as caught:
        scene.ask([MetadataRequestTopic(TOPIC_ID, "t")], version)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_topics_are_created(version: int) -> None:
    scene = Scene()
    response = scene.ask_for("new", "new", "t", version=version)
    assert codes(response) == {"t": 0, "new": ErrorCode.LEADER_NOT_AVAILABLE}
    assert scene.creator.asked == ["new"]


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_topics_are_not_created_where_that_is_forbidden(version: int) -> None:
    scene = Scene(auto_create=False)
    unknown = {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert codes(scene.ask_for("new", version=version)) == unknown
    assert scene.creator.asked == []
    if version >= 4:
        scene = Scene()
        response = scene.ask_for("new", version=version, allow_auto_topic_creation=False)
        assert codes(response) == unknown
        assert scene.creator.asked == []


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a" * 250, "ä"])
def test_names_that_cannot_be(name: str) -> None:
    scene = Scene()
    assert codes(scene.ask_for(name)) == {name: ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert scene.creator.asked == []


def test_authorized_operations_are_returned_on_request() -> None:
    scene = Scene()
    for version in VERSIONS:
        response = scene.ask_for("t", version=version)
        assert response.topics[0].topic_authorized_operations == NOT_REQUESTED
        assert response.cluster_authorized_operations == NOT_REQUESTED
    for version in (8, 9, 10):
        response = scene.ask_for(
            "t",
            version=version,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        assert response.topics[0].topic_authorized_operations == TOPIC_OPERATIONS == 3576
        assert response.cluster_authorized_operations == CLUSTER_OPERATIONS == 8096


def only(topic: MetadataResponseTopic, index: int) -> tuple[int, int]:
    row = topic.partitions[index]
    return row.error_code, row.leader_id


@pytest.mark.parametrize("version", VERSIONS)
def test_a_leader_without_the_listener(version: int) -> None:
    """The client came in on SSL, which broker 2 does not have."""
    scene = Scene()
    asked = Asked(_on_ssl(scene), MetadataRequest([MetadataRequestTopic(ZERO_UUID, "t")]), version)
    response = asked.response(MetadataResponse)
    assert [(node.node_id, node.port) for node in response.brokers] == [(1, 9443)]
    # The controller cannot be reached either.
    assert response.controller_id == -1
    missing = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    (topic,) = response.topics
    assert only(topic, 1) == (missing, -1)
    # Version 0 does not know replicas that are not among the brokers.
    own = (ErrorCode.REPLICA_NOT_AVAILABLE, 1) if version == 0 else (0, 1)
    assert only(topic, 0) == own
    assert topic.partitions[0].replica_nodes == ([1] if version == 0 else [1, 2])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_without_a_leader(version: int) -> None:
    scene = Scene()
    publish(
        scene.cache,
        UpdateMetadataRequest(
            controller_id=2,
            controller_epoch=1,
            live_brokers=[
                UpdateMetadataBroker(
                    id=1, endpoints=[UpdateMetadataEndpoint(9001, "host1", "PLAINTEXT", 0)]
                )
            ],
            topic_states=[UpdateMetadataTopicState("t", TOPIC_ID, [partition(0, -1)])],
        ),
    )
    (topic,) = scene.ask_for("t", version=version).topics
    assert only(topic, 0) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def _on_ssl(scene: Scene):  # type: ignore[no-untyped-def] # as Asked hands it over
    def handle(context, request):  # type: ignore[no-untyped-def]
        context.listener_name = "SSL"
        return scene.handler.handle(context, request)

    return handle
