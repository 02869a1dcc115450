"""Records of a leader, or of a log that moves, are appended a few batches at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from ottla.broker.replication import fetcher
from ottla.broker.replication.fetcher import in_pieces
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.storage.errors import DiskFull
from ottla.storage.log.log import Log
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC_ID
from tests.doubles.storage_logs import append, batch_of, records_in
from tests.unit.broker.replication.test_fetcher import BOTH, FOLLOWER, LEADER, Pair, run
from tests.unit.broker.replication.test_fetcher_flushes import hold_flushes
from tests.unit.broker.replication.test_log_dir_mover import KEY, Scene

BATCHES = [bytes(batch_of(base_offset=offset, leader_epoch=0)) for offset in range(7)]


@pytest.fixture
def pieces_of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each is a turn."""
    monkeypatch.setattr(fetcher, "_BATCHES_PER_STEP", 2)
    with steps_per_turn(1):
        yield


@pytest.mark.usefixtures("pieces_of_two")
@pytest.mark.parametrize(
    "tail",
    [b"", BATCHES[0][:5], BATCHES[0][:-1], bytes(20), b"\xff" * 20, b"\x7f" * 20],
    ids=["whole", "part of a header", "part of a batch", "zeros", "negative", "beyond the end"],
)
@pytest.mark.parametrize("count", range(7))
def test_pieces_are_whole_batches_in_order(count: int, tail: bytes) -> None:
    records = b"".join(BATCHES[:count]) + tail
    pieces = [bytes(piece) for piece in in_pieces(records)]
    assert b"".join(pieces) == records
    assert all(pieces)
    for number, piece in enumerate(pieces[:-1]):
        assert piece == b"".join(BATCHES[2 * number : 2 * number + 2])
    assert len(pieces) <= count // 2 + 1


def test_usual_records_are_one_piece() -> None:
    records = bytes(batch_of(100))
    (piece,) = in_pieces(records)
    assert piece == records


async def in_the_middle(pair: Pair, change: Callable[[], object]) -> Log:
    """A response with seven batches is appended; `change` happens after the second one."""
    pair.begin()
    await pair.next_fetch()
    row = PartitionData(0, high_watermark=7, records=memoryview(b"".join(BATCHES)))
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])
    pair.leader.waiting.pop(0)[2].set_result(FetchResponse(session_id=1, responses=[topic]))
    log = pair.following.log()
    for _ in range(20):
        if log.log_end_offset:
            break
        await asyncio.sleep(0)
    assert log.log_end_offset == 2
    change()
    for _ in range(20):
        await asyncio.sleep(0)
    return log


@pytest.mark.usefixtures("pieces_of_two")
def test_a_response_is_appended_in_several_turns() -> None:
    async def body(pair: Pair) -> None:
        log = await in_the_middle(pair, lambda: None)
        assert (log.log_end_offset, log.high_watermark) == (7, 7)
        assert pair.following.manager.context.topics.replicated_in_bytes == 7 * len(BATCHES[0])
        assert (await pair.position())[0] == 7

    run(body)


@pytest.mark.usefixtures("pieces_of_two")
@pytest.mark.parametrize("change", ["removed", "new leader epoch", "truncated"])
def test_the_rest_of_a_response_is_dropped_after_a_change(change: str) -> None:
    async def body(pair: Pair) -> None:
        def apply() -> None:
            partition = pair.following.partition()
            if change == "removed":
                pair.fetcher.remove(partition.key)
            elif change == "truncated":
                pair.following.log().truncator.truncate_to(1)
            else:
                pair.following.order(FOLLOWER, epoch=1, replicas=[LEADER, FOLLOWER])

        log = await in_the_middle(pair, apply)
        assert log.log_end_offset == (1 if change == "truncated" else 2)
        assert log.high_watermark == 0

    run(body)


@pytest.mark.usefixtures("pieces_of_two")
def test_what_was_appended_before_an_error_is_flushed_before_it_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Log.append_as_follower

    def full(log: Log, records: memoryview, *, now_ms: int) -> object:
        if log.log_end_offset == 4:
            raise DiskFull("/d", "No space left on device")
        return real(log, records, now_ms=now_ms)

    monkeypatch.setattr(Log, "append_as_follower", full)

    async def body(pair: Pair) -> None:
        released = hold_flushes(pair)
        pair.leading.lead(1, replicas=BOTH, isr=[LEADER])
        other = pair.following.follow(LEADER, 1, isr=[LEADER])
        log = await in_the_middle(pair, lambda: pair.fetcher.add(other))
        assert (log.log_end_offset, log.recovery_point) == (4, 0)
        assert not pair.leader.waiting
        released.set()
        await pair.next_fetch()
        assert log.recovery_point == 4

    run(body, flush_messages=1)


@pytest.mark.usefixtures("pieces_of_two")
@pytest.mark.parametrize("offset", [3, 5])  # what is copied, or is to be
async def test_a_move_drops_the_rest_of_a_chunk_after_a_truncation(offset: int) -> None:
    scene = Scene()
    for _ in range(6):
        append(scene.log)
    truncated = []

    async def meanwhile() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            future = scene.logs.get_future(*KEY)
            if future is not None and future.log_end_offset == 4:
                break
        assert future is not None
        truncated.append(future.log_end_offset)
        scene.log.truncator.truncate_to(offset)
        scene.mover.truncated(scene.log)
        for _ in range(6):
            append(scene.log, [(1, b"new", b"", [])])

    async with asyncio.TaskGroup() as group:
        group.create_task(meanwhile())
        moved = await scene.move()
    assert truncated == [4]
    assert moved.log_end_offset == offset + 6
    assert [record.key for record in records_in(moved)][offset:] == [b"new"] * 6
