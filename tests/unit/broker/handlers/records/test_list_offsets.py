from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC
from tests.doubles.request_context import Asked, FakeContext
from tests.doubles.storage_logs import NOW_MS
from tests.unit.broker.handlers.scene import DataPath

NEWEST = 9


def ask(
    path: DataPath,
    timestamp: int,
    version: int = NEWEST,
    *,
    replica: int = -1,
    committed: bool = False,
    epoch: int = -1,
) -> ListOffsetsPartitionResponse:
    row = ListOffsetsPartition(0, timestamp=timestamp, max_num_offsets=5 if version == 0 else 1)
    if version >= 4:
        row.current_leader_epoch = epoch
    request = ListOffsetsRequest(
        replica_id=replica,
        isolation_level=1 if committed else 0,
        topics=[ListOffsetsTopic(TOPIC, [row])],
    )
    asked = Asked(path.list_offsets.handle, request, version)
    return asked.response(ListOffsetsResponse).topics[0].partitions[0]


def found(row: ListOffsetsPartitionResponse) -> tuple[int, int, int]:
    assert row.error_code == 0
    return row.timestamp, row.offset, row.leader_epoch


@pytest.fixture
def path() -> DataPath:
    """Three records at NOW_MS and the two milliseconds after, then two of a later epoch."""
    path = DataPath()
    path.lead(epoch=0)
    path.append(3)
    path.order(1, epoch=4)
    path.append([(NOW_MS + 10, b"k", b"v", []), (NOW_MS + 5, b"k", b"v", [])])
    return path


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (-1, 5, 4)),
        (-2, (-1, 0, 0)),
        (-3, (NOW_MS + 10, 3, 4)),
        (-4, (-1, 0, 0)),
        (-5, (-1, -1, -1)),
        (0, (NOW_MS, 0, 0)),
        (NOW_MS + 1, (NOW_MS + 1, 1, 0)),
        (NOW_MS + 3, (NOW_MS + 10, 3, 4)),
        (NOW_MS + 11, (-1, -1, -1)),
    ],
)
def test_special_timestamps(path: DataPath, timestamp: int, expected: tuple[int, int, int]) -> None:
    assert found(ask(path, timestamp)) == expected


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 99)])
def test_special_timestamps_exist_from_a_version_on(
    path: DataPath, timestamp: int, since: int
) -> None:
    for version in range(1, NEWEST + 1):
        code = ask(path, timestamp, version).error_code
        assert code == (0 if version >= since else ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_the_leader_epoch_is_returned_from_version_4(path: DataPath, version: int) -> None:
    assert ask(path, -1, version).leader_epoch == (4 if version >= 4 else -1)


def test_version_0_lists_segments(path: DataPath) -> None:
    path.log().roll(NOW_MS)
    assert ask(path, -1, 0).old_style_offsets == [5, 0]
    assert ask(path, -2, 0).old_style_offsets == [0]


def test_version_0_lists_what_was_written_before_a_time(path: DataPath) -> None:
    """The time of a segment is that of its file, not that of its records; the end is of now."""
    path.log().roll(NOW_MS)
    path.append(1)
    first, last = path.log().segments
    file_system = cast("MemoryFileSystem", first._fs)
    file_system._get(first.log.path).modified_ms = 1000
    file_system._get(last.log.path).modified_ms = 2000
    now_ms = path.clock.now_ms()
    offsets = {
        time_ms: ask(path, time_ms, 0).old_style_offsets
        for time_ms in (999, 1000, 1999, 2000, now_ms - 1, now_ms, now_ms + 30_000)
    }
    assert offsets == {
        999: [],
        1000: [0],
        1999: [0],
        2000: [5, 0],
        now_ms - 1: [5, 0],
        now_ms: [6, 5, 0],
        now_ms + 30_000: [6, 5, 0],
    }


def test_the_end_offset_depends_on_the_replica_id() -> None:
    path = DataPath()
    path.lead(replicas=[1, 2])
    path.append(1)
    assert ask(path, -1).offset == 0, "nothing is committed"
    assert ask(path, -1, replica=2).offset == 1


def test_the_end_for_readers_of_committed_data() -> None:
    path = DataPath()
    path.lead()
    path.append(1)
    path.append(1, producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    assert ask(path, -1).offset == 2
    assert ask(path, -1, committed=True).offset == 1


def test_epochs_are_fenced(path: DataPath) -> None:
    assert ask(path, -1, epoch=4).error_code == 0
    assert ask(path, -1, epoch=3).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(path, -1, epoch=5).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_new_leader_does_not_let_offsets_go_back(version: int, code: int) -> None:
    path = DataPath()
    path.lead(epoch=0, replicas=[1, 2])
    path.append(2)
    path.order(1, epoch=1, replicas=[1, 2])
    assert ask(path, -1, version).error_code == code
    assert ask(path, -2, version).error_code == 0


def test_partitions_that_are_not_here() -> None:
    path = DataPath()
    assert ask(path, -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    path.publish(leader=2)
    assert ask(path, -1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_partition_named_twice_is_a_mistake(path: DataPath) -> None:
    row = ListOffsetsPartition(0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(TOPIC, [row, row])])
    response = Asked(path.list_offsets.handle, request, NEWEST).response(ListOffsetsResponse)
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(NOW_MS + 1, (NOW_MS + 1, 1, 0)), (-3, (NOW_MS + 9, 2, 0)), (NOW_MS + 10, (-1, -1, -1))],
)
@pytest.mark.parametrize("codec", [0, 1, 4])
async def test_a_batch_that_takes_long_to_read_is_read_by_a_worker(
    codec: int, timestamp: int, expected: tuple[int, int, int]
) -> None:
    """Two of them: many records, and few that unpack to much; one search reads both."""
    path = DataPath(max_message_bytes=10 << 20)
    path.lead(epoch=0)
    big = [(NOW_MS, b"k", None, []), (NOW_MS + 1, b"k", bytes(6 << 20), [])]
    path.append([*big, (NOW_MS + 9, b"k", None, [])], codec=codec)
    path.append([(NOW_MS + 2, b"k", b"v", [])] * 6_000, codec=codec)
    row = ListOffsetsPartition(0, timestamp=timestamp, max_num_offsets=1)
    small = ListOffsetsPartition(7, timestamp=timestamp, max_num_offsets=1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(TOPIC, [row, small])])
    context = cast(RequestContext, FakeContext(request.API_KEY, NEWEST))
    response = path.list_offsets.handle(context, request)
    if not isinstance(response, ListOffsetsResponse):
        response = await response
    rows = response.topics[0].partitions
    assert found(rows[0]) == expected
    assert rows[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await path.workers.close()


def test_local_and_tiered_offsets(path: DataPath) -> None:
    assert found(ask(path, -4)) == (-1, 0, 0)
    assert found(ask(path, -5)) == (-1, -1, -1)
    offsets = path.log().offsets
    offsets.advance_local_log_start(3)
    offsets.highest_remote_offset = 2
    assert found(ask(path, -2)) == (-1, 0, 0)
    assert found(ask(path, -4)) == (-1, 3, 4)
    assert found(ask(path, -5)) == (-1, 2, 0)
