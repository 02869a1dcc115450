"""What a power failure took from a follower, and what a leader without it makes a follower drop."""

from __future__ import annotations

import asyncio

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.storage.log.log import Log
from tests.doubles.replicas import TOPIC
from tests.unit.broker.replication.test_fetcher import BOTH, FOLLOWER, LEADER, Pair, content, run


async def epoch_ends_at(pair: Pair, end_offset: int, epoch: int = 0) -> None:
    row = EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=end_offset)
    topics = [OffsetForLeaderTopicResult(TOPIC, [row])]
    await pair.leader.reply(OffsetForLeaderEpochResponse(topics=topics))


def aside(log: Log) -> list[str]:
    return [item.path.rpartition("/")[2] for item in log.log_directory.set_aside]


async def with_missing_records(pair: Pair) -> Log:
    """A follower that had all of the log, and has lost a part of it after offset 3."""
    followed = pair.begin()
    pair.leading.append(3)
    pair.leading.append(3)
    await pair.leader.response(2)
    log = pair.following.log()
    assert log.log_end_offset == 6
    log.update_high_watermark(6)
    log.offsets.missing_from = 3
    pair.fetcher.remove(followed.key)
    pair.fetcher.add(followed)
    await pair.leader.response()  # the fetch that was on its way
    return log


def test_records_that_a_power_failure_lost_are_fetched_again() -> None:
    """And those behind them, which the leader has as well. Its log may have a gap, too."""

    async def body(pair: Pair) -> None:
        log = await with_missing_records(pair)
        await pair.leader.response()  # ListOffsets: the start
        await epoch_ends_at(pair, 6)
        assert (log.log_end_offset, log.offsets.missing_from) == (3, None)
        await pair.leader.response()
        pair.assert_equal()
        assert aside(log) == [f"{0:020d}.log.truncated-committed.set-aside"]

    run(body)


@pytest.mark.parametrize(("epoch", "end_offset"), [(0, 5), (-1, -1)])
def test_they_stay_missing_if_the_leader_has_not_all(epoch: int, end_offset: int) -> None:
    async def body(pair: Pair) -> None:
        log = await with_missing_records(pair)
        await pair.leader.response()
        await epoch_ends_at(pair, end_offset, epoch)
        assert (log.log_end_offset, log.offsets.missing_from) == (6, None)
        pair.leading.append(1)
        await pair.leader.response()
        pair.assert_equal()

    run(body)


def test_a_leader_that_cannot_tell_is_asked_again() -> None:
    async def body(pair: Pair) -> None:
        pair.settings.backoff_ms = 1
        log = await with_missing_records(pair)
        await pair.leader.fail(ConnectionResetError())
        assert log.offsets.missing_from == 3
        await asyncio.sleep(0.02)
        await pair.leader.response()
        await epoch_ends_at(pair, 6)
        assert (log.log_end_offset, log.offsets.missing_from) == (3, None)

    run(body)


def test_committed_records_that_the_leader_never_had_are_set_aside() -> None:
    """It was elected out of the in-sync replicas."""

    async def body(pair: Pair) -> None:
        pair.leading.lead(epoch=5, replicas=BOTH, isr=[LEADER])
        pair.leading.append(2)
        pair.following.lead(epoch=5, replicas=BOTH, isr=[FOLLOWER])
        for _ in range(3):
            pair.following.append(2)
        log = pair.following.log()
        log.update_high_watermark(6)
        before = content(log)
        pair.leading.order(LEADER, epoch=6, replicas=BOTH, isr=[LEADER])
        pair.fetcher.add(pair.following.follow(LEADER, epoch=6, replicas=BOTH, isr=[LEADER]))
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        await pair.leader.response()
        assert log.log_end_offset == 2
        (name,) = aside(log)
        assert name == f"{0:020d}.log.truncated-committed.set-aside"
        assert before.endswith(log.log_directory.fs.content(f"{log.path}/{name}"))  # type: ignore[attr-defined]  # in memory

    run(body)


@pytest.mark.parametrize("retention_ms", [-1, 1])
def test_what_a_leader_does_not_have_any_more_goes_if_retention_says_so(retention_ms: int) -> None:
    async def body(pair: Pair) -> None:
        pair.begin()
        pair.leading.append(3)
        await pair.leader.response(2)
        log = pair.following.log()
        log.update_high_watermark(3)
        pair.leading.append(4)
        pair.leading.partition().followers[FOLLOWER].log_end_offset = 7
        pair.leading.log().update_high_watermark(7)
        pair.leading.log().truncator.delete_records_before(6)
        pair.following.clock.advance(1_000_000)
        log.update_config(log.config.replace(retention_ms=retention_ms))
        await pair.respond_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        await pair.leader.response(2)
        assert (log.log_start_offset, log.log_end_offset) == (6, 6)
        names = [f"{0:020d}.log.truncated-committed.set-aside"]
        assert aside(log) == ([] if retention_ms > 0 else names)

    run(body)
