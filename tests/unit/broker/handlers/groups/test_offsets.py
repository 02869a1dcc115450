"""Commits, fetches and deletes offsets, in every version."""

import pytest

from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.groups.offsets import (
    OffsetCommitHandler,
    OffsetDeleteHandler,
    OffsetFetchHandler,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.request_context import Asked
from tests.unit.broker.groups.helpers import T0, T1, Setup
from tests.unit.broker.handlers.fake_metadata import Metadata

Rows = dict[TopicPartition, tuple[int, int]]


class Znodes:
    """The znode tree, as far as offsets go."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, TopicPartition], int] = {}

    async def get(self, group_id: str, partition: TopicPartition) -> int | None:
        return self.offsets.get((group_id, partition))

    async def set(self, group_id: str, partition: TopicPartition, offset: int) -> None:
        self.offsets[group_id, partition] = offset


class Broker:
    def __init__(self) -> None:
        self.setup = Setup()
        self.znodes = Znodes()
        commits, now_ms = self.setup.coordinator.commits, self.setup.timer.clock.now_ms
        metadata = Metadata(t=2)
        self.offset_commit = OffsetCommitHandler(
            commits,
            metadata,
            self.znodes,
            now_ms,
            GroupRequestErrorLog(self.setup.coordinator.events, now_ms),
        )
        self.offset_fetch = OffsetFetchHandler(commits, metadata, self.znodes)

    def commit(
        self,
        version: int,
        *partitions: OffsetCommitRequestPartition,
        topic: str = "t",
        **fields: int,
    ) -> dict[TopicPartition, int]:
        asked = Asked(
            self.offset_commit.handle,
            OffsetCommitRequest(
                group_id="g",
                retention_time_ms=fields.get("retention_time_ms", -1),
                topics=[OffsetCommitRequestTopic(topic, list(partitions))],
            ),
            version,
        )
        self.setup.run_deferred()
        return {
            TopicPartition(row.name, found.partition_index): found.error_code
            for row in asked.response(OffsetCommitResponse).topics
            for found in row.partitions
        }

    def fetch(self, version: int, *indexes: int, group_id: str = "g") -> tuple[int, Rows]:
        """The group's error and the rows; all partitions when no index is given."""
        if version >= 8:
            asked = OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id,
                        topics=[OffsetFetchRequestTopics("t", list(indexes))] if indexes else None,
                    )
                ]
            )
        else:
            asked = OffsetFetchRequest(
                group_id, [OffsetFetchRequestTopic("t", list(indexes))] if indexes else None
            )
        response = Asked(self.offset_fetch.handle, asked, version).response(OffsetFetchResponse)
        found = response.groups[0] if version >= 8 else response
        return found.error_code, {
            TopicPartition(topic.name, row.partition_index): (row.error_code, row.committed_offset)
            for topic in found.topics
            for row in topic.partitions
        }


def at(index: int, offset: int, metadata: str | None = "") -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_metadata=metadata
    )


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_commits_and_fetches(version: int) -> None:
    broker = Broker()
    assert broker.commit(version, at(0, 5), at(1, 6), at(9, 7)) == {
        T0: 0,
        T1: 0,
        TopicPartition("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert broker.fetch(version, 0, 1, 5) == (
        0,
        {T0: (0, 5), T1: (0, 6), TopicPartition("t", 5): (0, -1)},
    )
    if version >= 2:
        assert broker.fetch(version) == (0, {T0: (0, 5), T1: (0, 6)})
    assert not broker.znodes.offsets


@pytest.mark.parametrize("version", range(10))
def test_an_unknown_topic_is_not_committed(version: int) -> None:
    broker = Broker()
    response = broker.commit(version, at(0, 5), topic="nowhere")
    assert response == {TopicPartition("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert broker.setup.log.appends == 0
    assert not broker.znodes.offsets


def test_nothing_to_commit() -> None:
    assert Broker().commit(8) == {}


@pytest.mark.parametrize("version", range(1, 10))
def test_the_groups_error_has_its_place(version: int) -> None:
    broker = Broker()
    broker.setup.coordinator.on_resigned(0, 1)
    error, rows = broker.fetch(version, 0)
    if version == 1:
        assert (error, rows) == (0, {T0: (ErrorCode.NOT_COORDINATOR, -1)})
    else:
        assert (error, rows) == (ErrorCode.NOT_COORDINATOR, {})
    assert broker.commit(version, at(0, 5)) == {T0: ErrorCode.NOT_COORDINATOR}


def test_a_request_for_several_groups() -> None:
    broker = Broker()
    broker.commit(8, at(0, 5))
    asked = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup("g", topics=None),
            OffsetFetchRequestGroup("x", topics=[OffsetFetchRequestTopics("t", [0])]),
        ]
    )
    response = Asked(broker.offset_fetch.handle, asked, 9).response(OffsetFetchResponse)
    assert [(group.group_id, len(group.topics)) for group in response.groups] == [
        ("g", 1),
        ("x", 1),
    ]


@pytest.mark.parametrize(
    ("retention_ms", "expire_after_ms"), [(-1, None), (0, None), (5_000, 5_000)]
)
def test_a_client_may_bring_a_retention(retention_ms: int, expire_after_ms: int | None) -> None:
    broker = Broker()
    broker.commit(2, at(0, 5), retention_time_ms=retention_ms)
    value = broker.setup.group().offsets.committed[T0]
    now_ms = broker.setup.timer.clock.now_ms()
    assert value.commit_timestamp_ms == now_ms
    assert value.expire_timestamp_ms == (
        -1 if expire_after_ms is None else now_ms + expire_after_ms
    )


def test_the_longest_retention_is_for_ever() -> None:
    broker = Broker()
    assert broker.commit(2, at(0, 5), retention_time_ms=2**63 - 1) == {T0: ErrorCode.NONE}
    offsets = broker.setup.group().offsets
    assert offsets.committed[T0].expire_timestamp_ms == 2**63 - 1
    assert not offsets.pending


def test_version_1_may_bring_a_timestamp() -> None:
    broker = Broker()
    partition = at(0, 5)
    partition.commit_timestamp = 123
    broker.commit(1, partition)
    assert broker.setup.group().offsets.committed[T0].commit_timestamp_ms == 123


def test_null_metadata_is_empty_metadata() -> None:
    broker = Broker()
    broker.commit(8, at(0, 5, None))
    assert broker.setup.fetch(T0)[T0].value.metadata == ""


# Version 0.


def test_version_0_is_about_the_znode_tree() -> None:
    broker = Broker()
    assert broker.commit(0, at(0, 5, "lost"), at(1, 6, "m" * 4_097)) == {
        T0: 0,
        T1: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
    assert broker.znodes.offsets == {("g", T0): 5}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.fetch(0, 0, 1, 9) == (
        0,
        {T0: (0, 5), T1: (unknown, -1), TopicPartition("t", 9): (unknown, -1)},
    )
    assert broker.fetch(1, 0) == (0, {T0: (0, -1)})


@pytest.fixture
def setup() -> Setup:
    made = Setup()
    made.stable_group()
    made.commit({T0: 1}, group_id="simple")
    return made


@pytest.fixture
def handler(setup: Setup) -> OffsetDeleteHandler:
    return OffsetDeleteHandler(setup.coordinator.admin, Metadata(t=2))


def offset_delete(group_id: str, **topics: list[int]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id,
        [
            OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(n) for n in indexes])
            for name, indexes in topics.items()
        ],
    )


def test_offsets_are_deleted(setup: Setup, handler: OffsetDeleteHandler) -> None:
    request = offset_delete("simple", t=[0, 7], nowhere=[0])
    response = Asked(handler.handle, request, 0).response(OffsetDeleteResponse)
    assert response.error_code == ErrorCode.NONE
    assert {
        (topic.name, row.partition_index): row.error_code
        for topic in response.topics
        for row in topic.partitions
    } == {("t", 0): 0, ("t", 7): 3, ("nowhere", 0): 3}
    assert setup.coordinator.partitions.find("simple") is None


def test_the_groups_error_stands_alone(handler: OffsetDeleteHandler) -> None:
    request = offset_delete("unknown", t=[0], nowhere=[0])
    response = Asked(handler.handle, request, 0).response(OffsetDeleteResponse)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
