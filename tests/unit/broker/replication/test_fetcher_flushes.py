"""A follower whose log `flush.messages` requires to be flushed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from tests.doubles.memory_file_system import MemoryFileSystem
from tests.unit.broker.replication.test_fetcher import BOTH, LEADER, Pair, run


def hold_flushes(pair: Pair) -> asyncio.Event:
    """The follower waits for flushes of its logs, and they wait for the event."""
    pair.following.commit_in_groups()
    released = asyncio.Event()

    async def run_later(job: Callable[[], None]) -> None:
        await released.wait()
        job()

    pair.following.group_commit.run = run_later
    return released


def test_the_leader_learns_of_records_after_their_flush() -> None:
    async def body(pair: Pair) -> None:
        released = hold_flushes(pair)
        pair.begin()
        pair.leading.append(3)
        await pair.leader.response()
        log = pair.following.log()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (log.log_end_offset, log.recovery_point) == (3, 0)
        assert not pair.leader.waiting
        released.set()
        assert (await pair.position())[0] == 3
        assert log.recovery_point == 3

    run(body, flush_messages=1)


def test_records_whose_flush_failed_are_not_reported() -> None:
    async def body(pair: Pair) -> None:
        pair.following.commit_in_groups()
        pair.begin()
        pair.leading.lead(1, replicas=BOTH, isr=[LEADER])
        other = pair.following.follow(LEADER, 1, isr=[LEADER])
        fs = pair.following.logs.fs
        assert isinstance(fs, MemoryFileSystem)
        pair.leading.append(2)
        await pair.leader.response()
        fs.fail("pwrite", errno.ENOSPC, path_part=".index")
        pair.leading.append(1)
        await pair.leader.response()
        log = pair.following.log()
        assert (log.log_end_offset, log.recovery_point) == (3, 2)
        pair.fetcher.add(other)
        request, _ = await pair.next_fetch()
        assert [each.partition for each in request.topics[0].partitions] == [1]
        pair.following.logs.check_free_bytes()
        await pair.following.group_commit.flush([log.flusher])
        await pair.leader.response()
        assert (await pair.position())[0] == 3

    run(body, flush_messages=1, index_interval_bytes=0)
