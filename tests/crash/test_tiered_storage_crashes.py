"""A broker that ends at any step of copies and deletions loses no record and leaves no object.

Each seed plays appends, copies, local and remote retention with crashes in between. After each
step every offset from the log start on is on the disk or can be read from remote storage. In the
end, the store has the objects of the readable segments and no others.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ottla.broker.remote.segment_expiration import ABANDONED_COPY_MS, SegmentExpiration
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.tiered_partition import PARTITION, TieredPartition

SEEDS = 20
RETAINED_SEGMENTS = 6  # each has two records
ACTIONS = ("append", "copy", "copy", "expire locally", "expire locally", "expire")


class Crash(BaseException):
    """The broker ends here: nothing that follows in the code runs."""


class Steps:
    """Ends the broker at one of the next calls of the store or the metadata topic."""

    def __init__(self, scene: TieredPartition) -> None:
        self.left: int | None = None
        store, topic = scene.storage, scene.topic
        maybe_fail, append = store._maybe_fail, topic.append

        def step(name: str) -> None:
            self.count()
            maybe_fail(name)

        async def append_or_crash(partition: int, value: bytes) -> int:
            self.count()
            offset = await append(partition, value)
            self.count()
            return offset

        store._maybe_fail = step  # type: ignore[method-assign]
        topic.append = append_or_crash  # type: ignore[method-assign]

    def count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Crash


def check_nothing_is_lost(scene: TieredPartition) -> None:
    log, cache = scene.log, scene.metadata.cache(PARTITION)
    assert log.log_start_offset <= max(0, log.log_end_offset - 2 * RETAINED_SEGMENTS)
    for offset in range(log.log_start_offset, log.local_log_start_offset):
        found = cache.segment_at(log.leader_epochs.epoch_for_offset(offset), offset)
        assert found is not None, f"offset {offset} is lost"
        assert found.segment_id.id in scene.storage.objects


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_and_nothing_is_left(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    scene = TieredPartition(tmp_path)
    await scene.start()
    steps = Steps(scene)
    scene.append(1)
    size = scene.log.segments.first.size
    scene.log.update_config(scene.log.config.replace(retention_bytes=RETAINED_SEGMENTS * size))
    crashes = 0
    for _ in range(30):
        steps.left = random.randrange(12) if random.random() < 0.6 else None
        try:
            action = random.choice(ACTIONS)
            if action == "append":
                scene.append(random.randrange(6), epoch=crashes)
            elif action == "copy":
                await scene.copy()
            elif action == "expire locally":
                scene.expire_locally()
            else:
                await SegmentExpiration(scene.remote, PARTITION).run(scene.log, lambda: True)
        except Crash:
            crashes += 1
            await scene.restart()
        except RemoteStorageError:
            raise AssertionError("the store and the topic are available") from None
        steps.left = None
        check_nothing_is_lost(scene)

    scene.now_ms += ABANDONED_COPY_MS
    await scene.copy()
    await SegmentExpiration(scene.remote, PARTITION).run(scene.log, lambda: True)
    segments = scene.metadata.cache(PARTITION).segments()
    assert {each.state for each in segments} <= {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    assert scene.storage.objects.keys() == {each.segment_id.id for each in segments}
    check_nothing_is_lost(scene)
    await scene.stop()
