"""A follower and its leader, each on logs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.replication.fetcher import Fetcher, FollowerLags
from ottla.broker.replication.partition import Partition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.topics import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from tests.doubles.leader_connection import Leader, LeaderSettings
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas
from tests.unit.broker.handlers.scene import DataPath

LEADER, FOLLOWER = 1, 2
BOTH = (LEADER, FOLLOWER)


class Pair:
    """Partition 0 of a topic: broker 1 leads it, broker 2 copies it."""

    def __init__(self, **settings: object) -> None:
        self.leading = DataPath(**settings)
        self.following = Replicas(broker_id=FOLLOWER, **settings)
        self.truncated: list[Log] = []
        self.following.manager.on_truncated = self.truncated.append
        self.leader = Leader(self.leading)
        self.settings = LeaderSettings(self.leader, FOLLOWER)
        self.fetcher = Fetcher(
            ("host", 9091),
            self.settings,
            self.following.manager,
            self.following.group_commit,
            self.following.clock.now_ms,
        )

    def begin(self, epoch: int = 0, index: int = 0) -> Partition:
        """Both get the order; copying begins."""
        self.leading.lead(index, epoch=epoch, replicas=BOTH, isr=[LEADER])
        followed = self.following.follow(LEADER, index, epoch=epoch, isr=[LEADER])
        self.fetcher.add(followed)
        return followed

    async def next_fetch(self) -> tuple[FetchRequest, int]:
        request, version = await self.leader.next_request()
        return cast(FetchRequest, request), version

    async def position(self, index: int = 0) -> tuple[int, int, int]:
        """(offset, epoch of the last record, log start) of the next request."""
        request, _ = await self.next_fetch()
        (found,) = [
            each for topic in request.topics for each in topic.partitions if each.partition == index
        ]
        return found.fetch_offset, found.last_fetched_epoch, found.log_start_offset

    async def respond_with(self, **fields: object) -> None:
        """The leader sends a response for partition 0."""
        data = PartitionData(0, records=b"")
        for name, value in fields.items():
            setattr(data, name, value)
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        await self.leader.reply(FetchResponse(session_id=1, responses=[topic]))

    def assert_equal(self, index: int = 0) -> None:
        assert content(self.following.log(index)) == content(self.leading.log(index))


def content(log: Log) -> bytes:
    if log.log_end_offset == log.log_start_offset:
        return b""
    read = log.read(log.log_start_offset, 1 << 20, up_to=log.log_end_offset)
    assert read.slice is not None
    return bytes(read.slice.read())


def run(body: Callable[[Pair], Awaitable[None]], **settings: object) -> None:
    async def whole() -> None:
        pair = Pair(**settings)
        try:
            await body(pair)
        finally:
            pair.fetcher.stop()

    asyncio.run(whole())


def test_records_and_the_high_watermark_are_copied() -> None:
    async def body(pair: Pair) -> None:
        followed = pair.begin()
        pair.leading.append(3)
        pair.leading.append(2)
        await pair.leader.response()
        log = pair.following.log()
        assert (log.log_end_offset, log.high_watermark) == (5, 5)
        pair.assert_equal()
        statistics = pair.following.manager.context.topics
        assert statistics.replicated_in_bytes == len(content(log))
        assert not dict(statistics.rows("received_bytes"))[(TOPIC,)]
        # The second fetch has our log end offset, and its response the high watermark.
        await pair.leader.response()
        assert pair.leading.partition().followers[FOLLOWER].log_end_offset == 5
        assert followed.log is log

    run(body)


def test_the_largest_lag_is_the_one_at_the_last_fetch() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        assert pair.fetcher.max_lag == 0
        await pair.next_fetch()
        await pair.respond_with(high_watermark=7)
        await pair.next_fetch()
        assert pair.fetcher.max_lag == 7
        pair.fetcher.remove(pair.following.partition().key)
        assert pair.fetcher.max_lag == 0

    run(body)


def test_what_a_request_says() -> None:
    async def body(pair: Pair) -> None:
        pair.settings.broker_epoch.value = 77
        pair.begin(epoch=3)
        pair.leading.append(2)
        request, version = await pair.next_fetch()
        assert version == 17
        assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 77)
        (topic,) = request.topics
        assert topic.topic_id == TOPIC_ID
        (row,) = topic.partitions
        assert (row.fetch_offset, row.current_leader_epoch, row.last_fetched_epoch) == (0, 3, -1)
        await pair.leader.response()
        assert await pair.position() == (2, 3, 0)

    run(body)


def test_an_old_leader_is_asked_by_name() -> None:
    async def body(pair: Pair) -> None:
        pair.leader.versions = {1: 11, 2: 5}
        pair.begin()
        pair.leading.append(2)
        request, version = await pair.next_fetch()
        assert (version, request.replica_id, request.topics[0].topic) == (11, FOLLOWER, TOPIC)
        await pair.leader.response()
        pair.assert_equal()

    run(body)


def test_only_changes_are_said_in_a_session() -> None:
    async def body(pair: Pair) -> None:
        pair.begin(index=0)
        pair.begin(index=1)
        pair.leading.append(1, index=0)
        await pair.leader.response()
        request, _ = await pair.next_fetch()
        # The first request took both; only the one that moved is named again.
        assert request.session_epoch == 1
        assert [row.partition for topic in request.topics for row in topic.partitions] == [0]
        pair.fetcher.remove(pair.following.partition(1).key)
        await pair.leader.response()
        request, _ = await pair.next_fetch()
        assert [topic.partitions for topic in request.forgotten_topics_data] == [[1]]

    run(body)


def test_a_forgotten_session_is_opened_again() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        await pair.leader.response()
        lost = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        await pair.leader.reply(lost)
        request, _ = await pair.next_fetch()
        assert (request.session_id, request.session_epoch, len(request.topics)) == (0, 0, 1)
        assert len(pair.leader.connections) == 1

    run(body)


def test_other_refusals_of_a_whole_request_are_waited_out() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        await pair.leader.reply(FetchResponse(error_code=ErrorCode.INCONSISTENT_TOPIC_ID))
        await asyncio.sleep(0.02)
        pair.leading.append(1)
        await pair.leader.response()
        pair.assert_equal()
        assert len(pair.leader.connections) == 2

    run(body)


def test_a_broken_connection_is_opened_again() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        await pair.leader.fail(ConnectionResetError())
        pair.leader.refuses = ConnectionRefusedError()
        await asyncio.sleep(0.02)
        pair.leader.refuses = None
        await asyncio.sleep(0.02)
        pair.leading.append(1)
        await pair.leader.response()
        pair.assert_equal()

    run(body)


def test_the_leaders_log_start_is_followed() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        pair.leading.append(5)
        await pair.leader.response(2)
        pair.leading.log().truncator.delete_records_before(3)
        await pair.leader.response()
        assert pair.following.log().log_start_offset == 3
        assert await pair.position() == (5, 0, 3)

    run(body)


def diverged(pair: Pair) -> None:
    """Only the follower has the records of leader epoch 1; broker 1 leads since epoch 2."""
    pair.leading.lead(epoch=0, replicas=BOTH, isr=[LEADER])
    pair.leading.append(3)
    pair.leading.order(LEADER, epoch=2, replicas=BOTH, isr=[LEADER])
    pair.leading.append(1)
    following = pair.following
    following.lead(epoch=0, replicas=BOTH, isr=[FOLLOWER])
    following.append(3)
    following.order(FOLLOWER, epoch=1, replicas=BOTH, isr=BOTH)
    following.append(4)
    followed = following.follow(LEADER, epoch=2, replicas=BOTH, isr=[LEADER])
    pair.fetcher.add(followed)


def test_what_the_leader_does_not_have_is_cut_off() -> None:
    async def body(pair: Pair) -> None:
        diverged(pair)
        assert await pair.position() == (7, 1, 0)
        await pair.leader.response()
        log = pair.following.log()
        assert log.log_end_offset == 3
        assert pair.truncated == [log]
        assert await pair.position() == (3, 0, 0)
        await pair.leader.response()
        pair.assert_equal()
        assert log.leader_epochs.latest_epoch == 2

    run(body)


def test_an_epoch_in_which_nothing_was_written_is_forgotten() -> None:
    """Otherwise the leader would return an unknown epoch for ever."""

    async def body(pair: Pair) -> None:
        pair.leading.lead(epoch=0, replicas=BOTH, isr=[LEADER])
        pair.leading.append(3)
        pair.leading.order(LEADER, epoch=2, replicas=BOTH, isr=[LEADER])
        following = pair.following
        following.lead(epoch=0, replicas=BOTH, isr=[FOLLOWER])
        following.append(3)
        following.order(FOLLOWER, epoch=1, replicas=BOTH, isr=BOTH)
        followed = following.follow(LEADER, epoch=2, replicas=BOTH, isr=[LEADER])
        pair.fetcher.add(followed)
        assert await pair.position() == (3, 1, 0)
        await pair.leader.response()
        assert pair.truncated == []
        assert await pair.position() == (3, 0, 0)
        pair.leading.append(1)
        await pair.leader.response()
        pair.assert_equal()

    run(body)


def test_a_log_from_before_epochs_is_cut_to_its_high_watermark() -> None:
    async def body(pair: Pair) -> None:
        pair.leading.lead(replicas=BOTH)
        followed = pair.following.follow(LEADER, replicas=BOTH)
        pair.fetcher.add(followed)
        pair.leading.append(1)
        await pair.leader.response(2)
        pair.leading.append(1)
        await pair.leader.response()
        log = pair.following.log()
        assert (log.log_end_offset, log.high_watermark) == (2, 1)
        pair.fetcher.remove(followed.key)
        log.leader_epochs.clear()
        pair.fetcher.add(followed)
        assert log.log_end_offset == 2  # not in the turn that handles the LeaderAndIsr
        await pair.respond_with(high_watermark=1)  # to the request that was on its way
        assert await pair.position() == (1, -1, 0)
        assert log.log_end_offset == 1
        assert pair.truncated == [log]

    run(body)


def test_an_end_beyond_the_leaders_is_truncated() -> None:
    """An unclean election: the leader never had our last records."""

    async def body(pair: Pair) -> None:
        pair.leading.lead(epoch=5, replicas=BOTH, isr=[LEADER])
        pair.leading.append(2)
        pair.following.lead(epoch=5, replicas=BOTH, isr=[FOLLOWER])
        pair.following.append(2)
        pair.following.append(2)
        pair.leading.order(LEADER, epoch=6, replicas=BOTH, isr=[LEADER])
        followed = pair.following.follow(LEADER, epoch=6, replicas=BOTH, isr=[LEADER])
        pair.fetcher.add(followed)
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        await pair.leader.response()  # ListOffsets: where it ends
        assert pair.following.log().log_end_offset == 2

    run(body)


def test_a_follower_that_was_away_too_long_restarts() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        pair.leading.append(3)
        await pair.leader.response(2)
        pair.leading.append(4)
        pair.leading.partition().followers[FOLLOWER].log_end_offset = 7
        pair.leading.log().update_high_watermark(7)
        pair.leading.log().truncator.delete_records_before(6)
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        await pair.leader.response(2)  # ListOffsets: the end, the start
        log = pair.following.log()
        assert (log.log_start_offset, log.log_end_offset) == (6, 6)
        assert pair.truncated == [log]

    run(body)


def test_a_fenced_follower_waits_for_its_next_order() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        await pair.respond_with(error_code=ErrorCode.FENCED_LEADER_EPOCH)
        assert pair.fetcher.is_idle
        assert pair.leader.waiting == []

    run(body)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_partition_with_an_error_is_delayed_and_the_others_are_fetched(code: int) -> None:
    async def body(pair: Pair) -> None:
        pair.begin(index=0)
        pair.begin(index=1)
        pair.leading.append(1, index=1)
        pair.settings.backoff_ms = 60_000  # it rests until we say so
        await pair.respond_with(error_code=code)
        request, _ = await pair.next_fetch()
        assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]
        pair.settings.backoff_ms = 10
        pair.fetcher._delayed_until.clear()
        await pair.leader.response(2)
        pair.assert_equal(1)
        pair.leading.append(1, index=0)
        await pair.leader.response(2)
        pair.assert_equal(0)

    run(body)


def test_a_corrupt_batch_does_not_stop_the_others() -> None:
    async def body(pair: Pair) -> None:
        pair.begin(index=0)
        pair.begin(index=1)
        pair.leading.append(1, index=0)
        pair.leading.append(1, index=1)
        records = bytearray(content(pair.leading.log()))
        records[-1] ^= 1
        await pair.respond_with(records=bytes(records), high_watermark=1)
        assert pair.following.log(0).log_end_offset == 0
        await asyncio.sleep(0.02)
        await pair.leader.response(2)
        pair.assert_equal(0)
        pair.assert_equal(1)

    run(body)


def test_a_response_to_an_old_order_is_thrown_away() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        pair.leading.append(2)
        await pair.next_fetch()
        pair.following.order(LEADER, epoch=1, replicas=BOTH)
        await pair.leader.response()
        assert pair.following.log().log_end_offset == 0
        request, _ = await pair.next_fetch()
        assert request.session_id != 0, "the leader closes that session"
        assert request.session_epoch == 0, "it has noted the high watermark as known"

    run(body)


def test_nothing_is_requested_when_there_is_nothing_to_copy() -> None:
    async def body(pair: Pair) -> None:
        await asyncio.sleep(0.02)
        assert pair.leader.connections == []
        pair.begin()
        pair.fetcher.remove(pair.following.partition().key)
        assert pair.fetcher.is_idle

    run(body)


def test_a_log_start_inside_a_batch_is_replicated() -> None:
    """DeleteRecords may end anywhere in a batch; a new replica gets the whole batch."""

    async def body(pair: Pair) -> None:
        pair.leading.lead(replicas=BOTH, isr=[LEADER])
        pair.leading.append(10)
        pair.leading.log().update_high_watermark(10)
        pair.leading.log().truncator.delete_records_before(5)
        followed = pair.following.follow(LEADER, isr=[LEADER], replicas=BOTH)
        pair.fetcher.add(followed)
        assert await pair.position() == (0, -1, 0)
        await pair.leader.response(3)  # out of range; ListOffsets: the end, the start
        assert await pair.position() == (5, -1, 5)
        await pair.leader.response()
        log = pair.following.log()
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5, 10, 10)
        assert pair.truncated == [log, log]
        pair.assert_equal()
        pair.leading.append(2)
        await pair.leader.response(2)
        pair.assert_equal()

    run(body)


def test_a_batch_that_overlaps_records_is_refused() -> None:
    """Only an empty log starts again at the first offset of a batch."""

    async def body(pair: Pair) -> None:
        pair.begin()
        pair.leading.append(3)
        await pair.leader.response()
        pair.leading.append(3)
        whole = content(pair.leading.log())
        await pair.respond_with(records=whole, high_watermark=6)
        assert pair.following.log().log_end_offset == 3
        assert pair.truncated == []
        await asyncio.sleep(0.02)
        await pair.leader.response(2)
        pair.assert_equal()

    run(body)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_change_to_an_older_format_does_not_end_copying(is_new: bool) -> None:
    """The leader knows no epochs any more; the follower must not ask with one that it knows."""

    async def body(pair: Pair) -> None:
        if is_new:
            pair.leading.lead(0, epoch=0, replicas=BOTH, isr=[LEADER])
            pair.leading.append(3)
        else:
            pair.begin()
            pair.leading.append(3)
            await pair.leader.response()
        pair.begin(epoch=1)
        for log in (pair.leading.log(), pair.following.log()):
            log.update_config(LogConfig(message_format_version="0.10.2"))
        pair.leading.append(2)
        await pair.leader.response(3)
        assert pair.following.log().log_end_offset == 5
        assert pair.following.log().leader_epochs.entries == []
        pair.assert_equal()

    run(body)


KEY, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)


def test_a_partition_lags_until_a_response_says_more() -> None:
    lags = FollowerLags(None)
    lags.add(KEY)
    lags.add(OTHER)
    assert (set(lags.lagging), lags.largest) == ({KEY, OTHER}, 0)
    lags.record(KEY, 0, 7)
    lags.record(OTHER, 0, 0)
    assert (set(lags.lagging), lags.largest) == ({KEY}, 7)
    lags.remove(KEY)
    assert (lags.lagging, lags.largest) == ({}, 0)
    assert not lags.is_held_back(KEY)


async def test_records_of_throttled_partitions_count() -> None:
    quota = ReplicationQuota()
    quota.throttle(KEY.topic, None)
    quota.limit = 1_000
    lags = FollowerLags(quota)
    lags.record(OTHER, 1 << 20, 1)
    assert not lags.is_held_back(KEY)
    lags.record(KEY, 1 << 20, 1)
    assert lags.is_held_back(KEY)
    assert not lags.is_held_back(OTHER)
