"""What a move between log directories knows of producers and their transactions."""

from __future__ import annotations

import pytest

from ottla.storage.files.fs import replace_file
from tests.doubles.storage_logs import NOW_MS, append, batch_of, end_transaction
from tests.unit.broker.replication.test_log_dir_mover import KEY, Scene, delete_before, scene

__all__ = ["scene"]


async def test_producers_whose_records_are_deleted_are_known_after_the_move(scene: Scene) -> None:
    """Their last batches may also be in remote storage only: a retry must not be appended again."""
    append(scene.log, 5, producer_id=7, producer_epoch=0, base_sequence=0)
    append(scene.log, 5, producer_id=8, producer_epoch=0, base_sequence=0)
    scene.log.roll(NOW_MS)
    append(scene.log, 5, producer_id=8, producer_epoch=0, base_sequence=5)
    delete_before(scene.log, 10)
    moved = await scene.move()
    assert moved.local_log_start_offset == moved.log_start_offset == 10
    last = {
        each.producer_id: each.last_sequence for each in moved.producer_state.producers.values()
    }
    assert last == {7: 4, 8: 9}
    retried = batch_of(5, producer_id=7, producer_epoch=0, base_sequence=0)
    info = moved.append(retried, leader_epoch=0, now_ms=NOW_MS)
    assert (info.first_offset, moved.log_end_offset) == (0, 15)


async def test_transactions_that_are_copied_do_not_stay_in_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the high watermark of the copy stays, it keeps each ended transaction."""
    for number in range(20):
        append(scene.log, producer_id=1, producer_epoch=0, base_sequence=number, transactional=True)
        end_transaction(scene.log, 1, committed=True)
    unreplicated = []

    def watch() -> None:
        future = scene.logs.get_future(*KEY)
        assert future is not None
        unreplicated.append(len(future.producer_state._unreplicated))

    monkeypatch.setattr("ottla.broker.replication.log_dir_mover._CHUNK_BYTES", 1)
    scene.workers.before = watch
    await scene.move()
    assert unreplicated == [0] * 40


async def test_a_damaged_snapshot_of_producers_does_not_hold_a_move_up(scene: Scene) -> None:
    append(scene.log, 5, producer_id=7, producer_epoch=0, base_sequence=0)
    scene.log.roll(NOW_MS)
    append(scene.log, 5)
    delete_before(scene.log, 5)
    path = scene.log.producer_state.snapshot_path(5)
    replace_file(scene.logs.fs, path, b"damaged", sync=False)
    moved = await scene.move()
    assert (moved.log_start_offset, moved.log_end_offset) == (5, 10)
