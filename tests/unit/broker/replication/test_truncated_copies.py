"""The copy of a log for another log directory is truncated as the log is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.storage.log.log import Log
from ottla.storage.log.truncation import LogTruncator
from tests.doubles.storage_logs import NOW_MS, batch_of
from tests.unit.broker.replication.test_log_dir_mover import KEY, Scene, content


@pytest.fixture(name="scene")
def _scene() -> Scene:
    return Scene()


def copied(scene: Scene) -> Log:
    """The copy of a log with four batches of a producer, which has all. The mover is stopped."""
    for sequence in range(4):
        append(scene, sequence, leader_epoch=0)
    scene.mover.stop()
    scene.mover.move(KEY, "/b")
    future = scene.logs.get_future(*KEY)
    assert future is not None
    for batch in scene.log.batches(0):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    return future


def append(scene: Scene, sequence: int, leader_epoch: int) -> None:
    batch = batch_of(producer_id=7, producer_epoch=0, base_sequence=sequence)
    scene.log.append(batch, leader_epoch=leader_epoch, now_ms=NOW_MS)


def truncate(scene: Scene, offset: int) -> None:
    scene.log.truncator.truncate_to(offset)
    scene.mover.truncated(scene.log)


@pytest.mark.parametrize("again", [False, True])
async def test_a_copy_is_truncated_in_steps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Its producers are read from the records again, which takes seconds for a large segment; the
    log may be truncated again meanwhile."""
    future = copied(scene)
    real = LogTruncator.prepare
    prepared: list[int] = []

    def prepare(truncator: LogTruncator, offset: int) -> Iterator[object]:
        if truncator is future.truncator:
            prepared.append(offset)
            assert future.log_end_offset == 4
            if again and len(prepared) == 1:
                truncate(scene, 1)
                append(scene, 1, leader_epoch=2)
            yield None
        yield from real(truncator, offset)

    truncate(scene, 2)
    append(scene, 2, leader_epoch=1)
    assert future.log_end_offset == 4
    monkeypatch.setattr(LogTruncator, "prepare", prepare)
    scene.mover._stopped = False
    moved = await scene.move()
    assert moved is future
    assert content(moved) == content(scene.log)
    assert prepared[0] == 2
    assert moved.leader_epochs.entries == ([(0, 0), (2, 1)] if again else [(0, 0), (1, 2)])
    (entry,) = moved.producer_state.producers.values()
    assert entry.batches[-1][1] == (1 if again else 2)


async def test_a_move_that_is_given_up_while_its_copy_is_truncated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = copied(scene)
    truncate(scene, 2)

    def prepare(truncator: LogTruncator, offset: int) -> Iterator[object]:
        scene.mover.move(KEY, "/a")
        scene.logs.purge(1 << 60)
        yield None

    monkeypatch.setattr(LogTruncator, "prepare", prepare)
    scene.mover._stopped = False
    await scene.move()
    assert future.log_end_offset == 4
    assert not scene.logs.offline_directories
