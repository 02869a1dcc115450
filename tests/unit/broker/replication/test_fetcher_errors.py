"""An error of one partition, and one of the connection, while a response is processed."""

from __future__ import annotations

import asyncio

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import StorageError
from ottla.storage.log.log import Log
from ottla.storage.log.truncation import LogTruncator
from tests.doubles.replicas import TOPIC
from tests.unit.broker.replication.test_fetcher import BOTH, LEADER, Pair, content, run


def test_an_unforeseen_error_of_one_partition_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Log.append_as_follower

    def append_as_follower(log: Log, records: bytes, *, now_ms: int) -> object:
        assert log.partition != 0, "a defect"
        return real(log, records, now_ms=now_ms)

    monkeypatch.setattr(Log, "append_as_follower", append_as_follower)

    async def body(pair: Pair) -> None:
        pair.begin(index=0)
        pair.begin(index=1)
        pair.leading.append(1, index=0)
        pair.leading.append(1, index=1)
        await pair.leader.response()
        pair.assert_equal(1)
        assert pair.following.log(0).log_end_offset == 0
        assert len(pair.leader.connections) == 1

    run(body)


def test_records_of_the_deleted_topic_do_not_get_into_the_next_one_of_its_name() -> None:
    """The response was on its way when the topic was deleted and created again."""

    async def body(pair: Pair) -> None:
        pair.begin()
        pair.leading.append(3)
        await pair.next_fetch()
        key = TopicPartition(TOPIC, 0)
        pair.fetcher.remove(key)
        pair.following.leader_and_isr.stop_stray(key)
        pair.following.logs.delete_async(*key)
        pair.fetcher.add(pair.following.follow(LEADER, isr=[LEADER], topic_id=bytes(15) + b"2"))
        await pair.respond_with(records=memoryview(content(pair.leading.log())), high_watermark=3)
        assert pair.following.log().log_end_offset == 0

    run(body)


def test_an_offset_that_the_leader_refuses_to_tell_does_not_stop_the_others() -> None:
    async def body(pair: Pair) -> None:
        pair.begin(index=0)
        pair.begin(index=1)
        pair.leading.append(1, index=1)
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        row = ListOffsetsPartitionResponse(0, ErrorCode.LEADER_NOT_AVAILABLE)
        await pair.leader.reply(
            ListOffsetsResponse(topics=[ListOffsetsTopicResponse(TOPIC, [row])])
        )
        assert len(pair.leader.connections) == 1
        await pair.leader.response(2)
        pair.assert_equal(1)

    run(body)


@pytest.mark.parametrize("responses", [1, 2])
def test_a_replica_that_is_deleted_between_fetch_and_offsets(responses: int) -> None:
    """Its files are gone, which would look like a failed disk."""

    async def body(pair: Pair) -> None:
        pair.begin(index=0)
        pair.begin(index=1)
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        for number in range(1, 3):
            await pair.leader.next_request()
            if number == responses:
                key = TopicPartition(TOPIC, 0)
                pair.fetcher.remove(key)
                pair.following.leader_and_isr.stop_stray(key)
                pair.following.logs.delete_async(*key)
                pair.following.logs.purge(1 << 62)
            row = ListOffsetsPartitionResponse(0, offset=9)
            if pair.leader.waiting[0][0].API_KEY == ApiKey.LIST_OFFSETS:
                topics = [ListOffsetsTopicResponse(TOPIC, [row])]
                await pair.leader.reply(ListOffsetsResponse(topics=topics))
        assert not pair.following.logs.offline_directories
        pair.leading.append(1, index=1)
        await pair.leader.response(2)
        pair.assert_equal(1)

    run(body)


def test_a_connection_that_breaks_between_fetch_and_offsets_is_opened_again() -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        await pair.leader.fail(ConnectionResetError())
        await asyncio.sleep(0.02)
        pair.leading.append(1)
        await pair.leader.response()
        pair.assert_equal()
        assert len(pair.leader.connections) == 2

    run(body)


def test_a_failed_truncation_of_a_log_without_epochs_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = LogTruncator.truncate_to
    attempts = []

    def truncate_to(truncator: LogTruncator, offset: int, *, keep_committed: bool) -> bool:
        attempts.append(offset)
        if len(attempts) == 1:
            raise StorageError("it fails once")
        return real(truncator, offset, keep_committed=keep_committed)

    monkeypatch.setattr(LogTruncator, "truncate_to", truncate_to)

    async def body(pair: Pair) -> None:
        pair.settings.backoff_ms = 1
        followed = pair.following.follow(LEADER, replicas=BOTH)
        log = pair.following.log()
        pair.following.lead(epoch=1, replicas=BOTH, isr=[2])
        pair.following.append(2)
        log.leader_epochs.clear()
        followed = pair.following.follow(LEADER, epoch=2, replicas=BOTH)
        pair.leading.lead(epoch=2, replicas=BOTH)
        pair.fetcher.add(followed)
        pair.begin(index=1, epoch=2)  # is fetched all the same
        await pair.leader.response()
        while log.log_end_offset:
            await pair.leader.response()
        assert attempts == [0, 0]

    run(body)
