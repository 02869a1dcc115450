from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from ottla.broker.cluster.metadata_cache import LEADER_DURING_DELETE
from ottla.broker.handlers.common.down_conversion import ConvertedRecords
from ottla.broker.requests.request_channel import DEFERRED, RequestContext
from ottla.broker.runtime.tasks import running_tasks
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.records.reader import read_records
from ottla.protocol.steps import run_at_once
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import BROKER, TOPIC, TOPIC_ID
from tests.doubles.request_context import FakeContext, finished
from tests.unit.broker.handlers.scene import DataPath

NEWEST = 17
WITH_IDS = 13
WITH_REPLICA_STATE = 15
OTHER = BROKER + 1


class Fetched:
    """A fetch handed to the handler; the response has slices of files, not bytes."""

    def __init__(
        self,
        path: DataPath,
        *offsets: int,
        version: int = NEWEST,
        replica: int = -1,
        topic: tuple[str, bytes] = (TOPIC, TOPIC_ID),
        request_throttle_ms: int = 0,
        **fields: int,
    ) -> None:
        name, topic_id = topic
        by_id = version >= WITH_IDS
        rows = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in enumerate(offsets)
        ]
        request = FetchRequest(
            topics=[FetchTopic("" if by_id else name, topic_id if by_id else bytes(16), rows)],
            **{"max_wait_ms": 100, "min_bytes": 1, "session_epoch": -1, **fields},
        )
        if replica >= 0:
            if version >= WITH_REPLICA_STATE:
                request.replica_state = ReplicaState(replica, 1)
            else:
                request.replica_id = replica
        self.context = FakeContext(1, version)
        self.context.request_throttle_ms = request_throttle_ms
        response = finished(path.fetch.handle(self.context, request))  # type: ignore[arg-type]  # a double
        if response is not DEFERRED:
            self.context.respond(response)

    @property
    def is_pending(self) -> bool:
        return not self.context.responses

    @property
    def response(self) -> FetchResponse:
        (response,) = self.context.responses
        assert isinstance(response, FetchResponse)
        return response

    @property
    def row(self) -> PartitionData:
        return self.response.responses[0].partitions[0]


def values(row: PartitionData) -> list[bytes | None]:
    records = row.records
    assert records is not None
    content = records if isinstance(records, bytes) else records.read()  # type: ignore[union-attr]  # a FileSlice
    return [record.value for record in read_records(content)]


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
def test_records_in_every_version(version: int) -> None:
    path = DataPath()
    path.lead()
    path.append(2)
    fetched = Fetched(path, 0, version=version)
    assert len(values(fetched.row)) == 2
    topic = fetched.response.responses[0]
    assert (topic.topic, topic.topic_id) in ((TOPIC, TOPIC_ID), (TOPIC, bytes(16)))


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", range(10, NEWEST + 1))
def test_one_partition_without_a_session_is_answered_as_in_steps(
    version: int, isolation_level: int
) -> None:
    """The second request differs only in that it opens a session, which takes steps."""
    path = DataPath()
    path.lead()
    path.append(3)
    at_once = Fetched(path, 1, version=version, isolation_level=isolation_level)
    sent_bytes = path.manager.context.topics.get(TOPIC).sent_bytes
    in_steps = Fetched(path, 1, version=version, isolation_level=isolation_level, session_epoch=0)
    assert (at_once.response.session_id, in_steps.response.session_id > 0) == (0, True)
    assert path.manager.context.topics.get(TOPIC).sent_bytes == 2 * sent_bytes > 0
    assert values(at_once.row) == values(in_steps.row) != []
    in_steps.response.session_id = 0
    in_steps.row.records = at_once.row.records  # another slice of the same file
    assert at_once.response == in_steps.response


@pytest.mark.parametrize(
    ("offset", "code"), [(4, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
def test_an_offset_without_records_of_one_partition(offset: int, code: int) -> None:
    path = DataPath()
    path.lead()
    path.append(3)
    fetched = Fetched(path, offset)
    assert (fetched.row.error_code, fetched.row.records) == (code, b"")


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_an_error_of_the_disk_is_that_of_the_partition_even_if_it_comes_once(
    session_epoch: int,
) -> None:
    """The directory is offline by then, so its replicas have to stop. A second read would succeed
    and tell nobody."""
    disk = MemoryFileSystem()
    path = DataPath(file_system=disk, index_interval_bytes=1)
    path.lead()
    for _ in range(3):
        path.append(3)
    disk.fail("pread")
    fetched = Fetched(path, 1, session_epoch=session_epoch)
    assert fetched.row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert path.failed_directories == ["/disk"]
    assert path.manager.context.topics.get(TOPIC).failed_fetches == 1


def test_an_empty_partition_has_records_of_length_zero() -> None:
    path = DataPath()
    path.lead()
    assert Fetched(path, 0, max_wait_ms=0).row.records == b""


def test_a_delayed_fetch_is_completed_by_an_append() -> None:
    path = DataPath()
    path.lead()
    fetched = Fetched(path, 0)
    assert fetched.is_pending
    path.append(1)
    assert len(values(fetched.row)) == 1


@pytest.mark.parametrize(
    ("version", "topic", "code"),
    [
        (12, ("other", bytes(16)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, ("", b"?" * 16), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_unknown_topics_fail_at_once(version: int, topic: tuple[str, bytes], code: int) -> None:
    fetched = Fetched(DataPath(), 0, version=version, topic=topic)
    assert fetched.row.error_code == code
    assert fetched.row.records == b""
    assert fetched.response.responses[0].topic_id == topic[1]


def test_a_partition_that_does_not_exist() -> None:
    path = DataPath()
    path.lead()
    path.append(1)
    fetched = Fetched(path, 0, 0)
    codes = [row.error_code for topic in fetched.response.responses for row in topic.partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_topics_that_may_not_be_read_are_refused() -> None:
    asked: list[bool] = []

    def may_read(context: RequestContext, is_follower: bool) -> Callable[[str], bool]:
        asked.append(is_follower)
        return lambda topic: topic != TOPIC

    path = DataPath(may_read=may_read)
    path.lead()
    path.append(1)
    fetched = Fetched(path, 0)
    assert fetched.row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert fetched.row.records == b""
    assert asked == [False]


@pytest.mark.parametrize("count", [1, 2])
def test_a_right_that_is_revoked_while_a_fetch_waits(count: int) -> None:
    allowed = True

    def may_read(context: RequestContext, is_follower: bool) -> Callable[[str], bool]:
        return lambda topic: allowed

    path = DataPath(may_read=may_read)
    path.lead()
    waiting = [Fetched(path, 0, session_epoch=epoch) for epoch in (-1, 0)[:count]]
    assert all(each.is_pending for each in waiting)
    allowed = False
    path.append(1)
    for each in waiting:
        assert each.row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert each.row.records == b""


def test_the_new_leader_is_named() -> None:
    path = DataPath()
    path.publish(leader=2, epoch=3)
    fetched = Fetched(path, 0)
    assert fetched.row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched.row.current_leader is not None
    assert fetched.row.current_leader.leader_id == 2
    assert [node.node_id for node in fetched.response.node_endpoints] == [2]


def test_consumers_may_read_a_follower_from_version_11() -> None:
    path = DataPath()
    path.follow(2)
    old = Fetched(path, 0, version=10, max_wait_ms=0)
    assert old.row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert Fetched(path, 0, version=11, max_wait_ms=0).row.error_code == 0


@pytest.mark.parametrize("version", [14, NEWEST])
def test_followers_send_their_replica_id_and_read_to_the_end(version: int) -> None:
    path = DataPath()
    path.lead(replicas=[1, 2])
    path.append(2)
    assert Fetched(path, 0, version=version, max_wait_ms=0).row.records == b""
    assert len(values(Fetched(path, 0, version=version, replica=2).row)) == 2
    Fetched(path, 2, version=version, replica=2, max_wait_ms=0)
    assert path.log().high_watermark == 2


def test_only_a_broker_of_the_cluster_is_known_as_one_by_its_fetch() -> None:
    path = DataPath()
    path.lead(replicas=[1, 2])
    assert not Fetched(path, 0, max_wait_ms=0).context.connection.is_broker
    assert not Fetched(path, 0, replica=7, max_wait_ms=0).context.connection.is_broker
    assert Fetched(path, 0, replica=2, max_wait_ms=0).context.connection.is_broker


def test_a_storage_error_has_another_code_for_old_clients() -> None:
    path = DataPath()
    path.lead().offline = True
    new, old = Fetched(path, 0, version=6), Fetched(path, 0, version=5)
    assert new.row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert old.row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_session_is_opened_and_used() -> None:
    path = DataPath()
    path.lead()
    path.append(1)
    first = Fetched(path, 0, session_epoch=0)
    session_id = first.response.session_id
    assert session_id > 0
    quiet = Fetched(path, session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert quiet.response.session_id == session_id
    assert len(values(quiet.row)) == 1, "the position is still that of the first request"


def test_each_request_of_a_session_is_checked() -> None:
    """Whose session it is does not count, nor what its first request was allowed."""
    allowed = True

    def may_read(context: RequestContext, is_follower: bool) -> Callable[[str], bool]:
        is_allowed = allowed
        return lambda topic: is_allowed

    path = DataPath(may_read=may_read)
    path.lead()
    path.append(1)
    first = Fetched(path, 0, session_epoch=0)
    assert len(values(first.row)) == 1
    allowed = False
    session_id = first.response.session_id
    second = Fetched(path, session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert second.row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert second.row.records == b""


def test_a_partition_that_is_deleted_fails_in_a_followers_session_too() -> None:
    """Its partitions are looked for in the metadata cache again when that has changed."""
    path = DataPath()
    path.lead(replicas=[1, 2])
    fields = {"replica": 2, "max_wait_ms": 0}
    session_id = Fetched(path, 0, session_epoch=0, **fields).response.session_id
    for epoch in (1, 2):
        quiet = Fetched(path, session_id=session_id, session_epoch=epoch, **fields)
        assert quiet.response.responses == []
    path.publish(leader=LEADER_DURING_DELETE)
    deleted = Fetched(path, session_id=session_id, session_epoch=3, **fields)
    assert deleted.row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_a_followers_session_gets_later_is_looked_for() -> None:
    path = DataPath()
    for index in range(2):
        path.lead(index, replicas=[1, 2])
    path.publish(1, leader=LEADER_DURING_DELETE)
    fields = {"replica": 2, "max_wait_ms": 0}
    session_id = Fetched(path, 0, session_epoch=0, **fields).response.session_id
    Fetched(path, session_id=session_id, session_epoch=1, **fields)
    more = Fetched(path, 0, 0, session_id=session_id, session_epoch=2, **fields)
    found = [row for topic in more.response.responses for row in topic.partitions]
    assert [(row.partition_index, row.error_code) for row in found if row.error_code] == [
        (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]


def test_a_followers_session_that_ends_while_its_request_pauses_is_not_watched() -> None:
    """The follower has connected again; nothing would end the watch of the old session."""
    path = DataPath()
    for index in range(2):
        path.lead(index, replicas=[BROKER, OTHER])
    fields: dict[str, int] = {"replica": OTHER, "max_wait_ms": 0}
    session_id = Fetched(path, 0, 0, session_epoch=0, **fields).response.session_id
    request = FetchRequest(
        session_id=session_id, session_epoch=1, replica_state=ReplicaState(OTHER, 1)
    )
    steps = path.fetch.handle(FakeContext(1, NEWEST), request)  # type: ignore[arg-type]  # a double
    next(steps)
    assert path.sessions.cache.get(session_id) is not None
    path.sessions.cache.remove(session_id)
    assert run_at_once(steps) is not DEFERRED
    assert not path.manager.session_watches.by_key


@pytest.mark.parametrize("replica", [-1, 2])
def test_a_session_does_not_read_the_next_topic_of_its_name(replica: int) -> None:
    """A follower that did not hear of the deletion would count as one that has its records."""
    path = DataPath()
    path.lead(replicas=[1, 2])
    path.append(3)
    fields = {"replica": replica, "max_wait_ms": 0}
    session_id = Fetched(path, 2, session_epoch=0, **fields).response.session_id
    key = path.partition().key
    path.leader_and_isr.stop_stray(key)
    path.logs.delete_async(*key)
    partition = path.lead(replicas=[1, 2], topic_id=b"2" * 16)
    path.append(3)
    fetched = Fetched(path, session_id=session_id, session_epoch=1, **fields)
    assert fetched.row.error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert not fetched.row.records
    assert partition.followers[2].log_end_offset == -1


def test_an_unknown_session() -> None:
    fetched = Fetched(DataPath(), 0, session_id=5, session_epoch=1)
    assert fetched.response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetched.response.responses == []


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
async def test_old_consumers_get_old_messages(version: int, magic: int) -> None:
    path = DataPath()
    path.lead()
    path.append([(1_000, b"k", b"v", [("header", b"goes")])])
    fetched = Fetched(path, 0, version=version)
    assert fetched.is_pending, "a worker converts"
    await asyncio.gather(*running_tasks())
    converted = fetched.row.records
    assert isinstance(converted, ConvertedRecords)
    records = await converted.next_bytes("client")
    converted.release()
    assert records[16] == magic
    assert [record.value for record in read_records(records)] == [b"v"]
    topics = path.manager.context.topics
    assert topics.get(TOPIC).fetch_conversions == 1
    assert topics.fetch_conversion_bytes == len(records)
    assert topics.fetch_conversion_seconds > 0
    Fetched(path, 0, version=4)
    assert topics.get(TOPIC).fetch_conversions == 1
    await path.workers.close()


def test_conversion_can_be_forbidden() -> None:
    path = DataPath(message_downconversion_enable=False)
    path.lead()
    path.append(1)
    assert Fetched(path, 0, version=3).row.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_forbidden_conversion_is_reported_by_each_replica_and_without_records() -> None:
    path = DataPath(message_downconversion_enable=False)
    path.lead()
    assert (
        Fetched(path, 0, version=3, max_wait_ms=0).row.error_code == ErrorCode.UNSUPPORTED_VERSION
    )
    path.follow(OTHER, epoch=1)
    assert (
        Fetched(path, 0, version=4, max_wait_ms=0).row.error_code
        == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    assert (
        Fetched(path, 0, version=3, max_wait_ms=0).row.error_code == ErrorCode.UNSUPPORTED_VERSION
    )


async def test_conversion_cannot_be_forbidden_to_followers() -> None:
    path = DataPath(message_downconversion_enable=False)
    path.lead(replicas=[BROKER, OTHER])
    path.append(1)
    fetched = Fetched(path, 0, version=3, replica=OTHER)
    await asyncio.gather(*running_tasks())
    assert fetched.row.error_code == 0
    converted = fetched.row.records
    assert isinstance(converted, ConvertedRecords)
    assert len(list(read_records(await converted.next_bytes("client")))) == 1
    converted.release()
    await path.workers.close()


def test_zstd_topics_are_not_for_clients_that_cannot_read_it() -> None:
    path = DataPath(compression_type="zstd")
    path.lead()
    path.append(1)
    assert Fetched(path, 0, version=9).row.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert Fetched(path, 0, version=10).row.error_code == 0


def test_the_whole_response_counts_against_the_quota() -> None:
    path = DataPath()
    path.lead()
    path.quotas.apply("clients/client", {"consumer_byte_rate": "1"})
    throttled = Fetched(path, 0, max_wait_ms=0)
    assert throttled.context.throttle_time_ms > 0, "there are no records"


def test_partitions_without_news_do_not_count_against_the_quota() -> None:
    path = DataPath()
    path.lead()
    session_id = Fetched(path, 0, session_epoch=0, max_wait_ms=0).response.session_id
    path.quotas.apply("clients/client", {"consumer_byte_rate": "3"})  # 30 bytes at once
    fetched = Fetched(path, session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert fetched.response.responses == []
    assert fetched.context.throttle_time_ms == 0


def test_over_its_quota_a_client_gets_nothing_and_keeps_its_session() -> None:
    path = DataPath()
    path.lead()
    path.append(1)
    session_id = Fetched(path, 0, session_epoch=0).response.session_id
    path.quotas.apply("clients/client", {"consumer_byte_rate": "1"})
    throttled = Fetched(path, session_id=session_id, session_epoch=1)
    assert throttled.context.throttle_time_ms > 0
    assert throttled.response.session_id == session_id
    assert throttled.response.responses == []


def test_over_its_request_quota_a_client_gets_nothing_and_no_bytes_are_counted() -> None:
    path = DataPath()
    path.lead()
    path.append(1)
    path.quotas.apply("clients/client", {"consumer_byte_rate": "1e6", "request_percentage": "1"})
    throttled = Fetched(path, 0, request_throttle_ms=70)
    assert throttled.context.throttle_time_ms == 70
    assert throttled.response.responses == []
    assert not any(path.quotas.fetch.rates(int(time.monotonic() * 1000)).values())


def test_bytes_are_counted_when_they_are_sent() -> None:
    """A fetch that waits reads twice and sends once."""
    path = DataPath()
    path.lead(replicas=[1, 2], isr=[1])
    statistics = path.manager.context.topics
    waiting = Fetched(path, 0)
    assert waiting.is_pending
    path.append(2)
    size = len(waiting.row.records or b"")
    assert size > 0
    assert statistics.get(TOPIC).sent_bytes == size
    Fetched(path, 0, version=12)
    assert statistics.get(TOPIC).sent_bytes == 2 * size
    assert statistics.replicated_out_bytes == 0
    Fetched(path, 0, replica=2)
    assert statistics.get(TOPIC).sent_bytes == 2 * size
    assert statistics.replicated_out_bytes == size


def test_only_failures_of_the_broker_are_counted() -> None:
    path = DataPath()
    led = path.lead()
    statistics = path.manager.context.topics.get(TOPIC)
    Fetched(path, 99)  # out of range
    assert statistics.failed_fetches == 0
    led.offline = True
    Fetched(path, 0, version=6)
    assert statistics.failed_fetches == 1
