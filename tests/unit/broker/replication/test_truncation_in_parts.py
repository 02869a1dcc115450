"""A follower removes hundreds of segments in several turns of the event loop, from the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from ottla.broker.replication.follower_truncation import FollowerTruncation
from ottla.broker.replication.partition import Partition
from ottla.storage.files.fs import read_file
from ottla.storage.log import truncation
from ottla.storage.log.log import Log
from ottla.storage.log.truncation import LogTruncator
from tests.doubles.replicas import Replicas
from tests.doubles.storage_logs import NOW_MS
from tests.unit.broker.replication.test_follower_truncation import BOTH, FOLLOWER, LEADER, at_once

SEGMENTS = 10


@pytest.fixture(autouse=True)
def _few_segments_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "SEGMENTS_PER_TURN", 3)


class Scene:
    """A follower with a record in each segment, and one in the empty active segment's place."""

    def __init__(self) -> None:
        self.replicas = Replicas(broker_id=FOLLOWER)
        self.replicas.lead(epoch=1, replicas=BOTH, isr=BOTH)
        self.log = self.replicas.log()
        for _ in range(SEGMENTS):
            self.replicas.append(1)
            self.log.roll(NOW_MS)
        self.partition = self.replicas.follow(LEADER, epoch=2, replicas=BOTH, isr=[LEADER])
        self.ends: list[int] = []
        self.truncation = FollowerTruncation(self._truncated, at_once)

    def _truncated(self, log: Log) -> None:
        assert log is self.log
        self.ends.append(log.log_end_offset)


@pytest.mark.parametrize(
    ("offset", "parts"),
    [
        (10, [10]),
        (8, [8]),  # the segments of 9 and 10 are removed
        (7, [7]),
        (6, [7, 6]),
        (5, [7, 5]),
        (0, [7, 4, 1, 0]),
    ],
)
def test_parts(offset: int, parts: list[int]) -> None:
    log = Scene().log
    assert log.truncator.parts(offset) == parts
    before = len(log.local.segments)
    for part in parts:
        log.truncator.truncate_to(part)
        assert before - len(log.local.segments) <= 3
        before = len(log.local.segments)
    assert log.log_end_offset == offset


def test_all_parts_are_truncated() -> None:
    scene = Scene()
    assert asyncio.run(scene.truncation.truncate_to(scene.partition, scene.log, 2))
    assert scene.ends == [7, 4, 2]


def removed(_: Replicas, partition: Partition) -> None:
    partition.log = None


def elected(replicas: Replicas, _: Partition) -> None:
    replicas.lead(epoch=3, replicas=BOTH, isr=[FOLLOWER])
    replicas.append(1)


@pytest.mark.parametrize("change", [removed, elected])
def test_nothing_more_is_removed_after_a_change(
    change: Callable[[Replicas, Partition], None],
) -> None:
    """The records that stay are a log as well: they end where the next leader compares them."""
    scene = Scene()

    async def body() -> bool:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(change, scene.replicas, scene.partition))
        return await scene.truncation.truncate_to(scene.partition, scene.log, 2)

    assert not asyncio.run(body())
    assert scene.ends
    assert scene.ends == [7, 4][: len(scene.ends)]
    assert scene.log.log_end_offset == scene.ends[-1] + (change is elected)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("log_start", [0, 4, 9])
def test_a_full_truncation_is_prepared(log_start: int, keep: bool) -> None:
    """The segments below the log start are still there before retention runs."""
    scene = Scene()
    scene.log.update_high_watermark(9)
    scene.log.truncator.delete_records_before(log_start)
    prepared = scene.truncation.prepare_full_truncation(
        scene.partition, scene.log, keep_committed=keep
    )
    assert asyncio.run(prepared)
    assert scene.ends == [7, 4, 1]
    scene.truncation.truncate_fully_and_start_at(scene.log, 40, keep_committed=keep)
    assert (scene.log.log_start_offset, scene.log.log_end_offset) == (40, 40)
    # One record each, from the log start to the high watermark.
    kept = sorted(item.base_offset or 0 for item in scene.log.log_directory.set_aside)
    assert kept == (list(range(log_start, 9)) if keep else [])


@pytest.mark.parametrize("high_watermark", [0, 1, 2, 6, 10])
def test_what_is_truncated_below_the_high_watermark_is_set_aside(high_watermark: int) -> None:
    scene = Scene()
    log, fs = scene.log, scene.log.log_directory.fs
    log.update_high_watermark(high_watermark)
    contents = {s.base_offset: s.log.read(0, 1000) for s in log.segments if s.size}
    assert asyncio.run(scene.truncation.truncate_to(scene.partition, log, 2))
    assert log.log_end_offset == 2
    kept = {item.base_offset: item.path for item in log.log_directory.set_aside}
    assert sorted(kept) == list(range(2, high_watermark))
    for base_offset, path in kept.items():
        assert path.endswith(".log.truncated-committed.set-aside")
        assert read_file(fs, path, 1000) == contents[base_offset]
    names = fs.list_files(log.path)
    assert not [name for name in names if name.endswith(".tmp")]
    assert len(log.log_directory.set_aside) == sum("set-aside" in name for name in names)


def test_the_producers_of_each_part_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or they would be replayed in one turn."""
    scene = Scene()
    real, prepared = LogTruncator.prepare, []

    def prepare(
        truncator: LogTruncator, offset: int, *, keep_committed: bool
    ) -> Iterator[Callable[[], None] | None]:
        prepared.append(offset)
        return real(truncator, offset, keep_committed=keep_committed)

    monkeypatch.setattr(LogTruncator, "prepare", prepare)
    assert asyncio.run(scene.truncation.truncate_to(scene.partition, scene.log, 2))
    assert prepared == [7, 4, 2]
