"""Where a follower truncates its log, and the truncation itself.

The follower truncates on fetch (KIP-595): each Fetch request has the epoch of the last record in
the log; if the response has a diverging epoch, the log is truncated to the end of that epoch.

Committed records may go because a leader was elected out of the in-sync replicas, or because the
leader's disk was lost. What a follower truncates below its own high watermark is set aside: this
may be the only copy (`ottla log set-aside`). Nothing is truncated while there is no space for that.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPoolClosed
from ottla.protocol.steps import Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ottla.broker.replication.partition import Partition
    from ottla.storage.log.log import Log
    from ottla.storage.log.log_info import RemoteLogState

logger = logging.getLogger("ottla.replication")


def truncation_offset(log: Log, leader_epoch: int, leader_end: int) -> int:
    """The last offset at which `log` matches that of a leader whose `leader_epoch` ends there.

    Mirrors `getOffsetTruncationState` of Kafka's `AbstractFetcherThread`.
    """
    own_epoch, own_end = log.end_offset_for_epoch(leader_epoch)
    # If the leader's epoch is not in this log, the epoch before it ends at `own_end`. No epoch is
    # found if it is higher than all in this log.
    target = leader_end if own_epoch < 0 else min(own_end, leader_end)
    return min(target, log.log_end_offset)


def has_uncommitted_records_without_epoch(log: Log) -> bool:
    """Whether the log has records above its high watermark that no leader epoch distinguishes.

    They cannot be compared with those of the leader, so a new follower truncates them.
    """
    return log.leader_epochs.latest_epoch < 0 and log.high_watermark < log.log_end_offset


class FollowerTruncation:
    """Truncates logs of followers; calls `on_truncated` when it removed records. Loop only."""

    def __init__(
        self,
        on_truncated: Callable[[Log], None],
        run: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """`run` runs a function in a worker thread."""
        self._on_truncated = on_truncated
        self._run = run

    async def truncate_to(self, partition: Partition, log: Log, offset: int) -> bool:
        """Remove the records from `offset` on; in turns, as it takes seconds for a large segment,
        and from the end, if there are hundreds of segments.

        Removes nothing more and returns False if the leader epoch or the log of `partition` changes
        meanwhile, or the log is deleted: another leader says where to truncate, or there is nothing
        to truncate. The same if the broker stops.
        """
        offsets = log.truncator.parts(offset)
        return await self._truncate_to_each(partition, log, offsets, keep_committed=True)

    async def _truncate_to_each(
        self, partition: Partition, log: Log, offsets: Iterable[int], *, keep_committed: bool
    ) -> bool:
        leader_epoch, turn = partition.leader_epoch, Turn()

        def is_same() -> bool:
            # The files of a deleted log may be gone, which would look like a failed disk.
            return (
                partition.leader_epoch == leader_epoch
                and partition.log is log
                and not log.local.closed
            )

        for number, offset in enumerate(offsets):
            if number:
                await turn.pause()  # the removal of segments takes milliseconds
                if not is_same():
                    return False
            with closing(log.truncator.prepare(offset, keep_committed=keep_committed)) as steps:
                for work in steps:
                    if work is None:
                        await turn.share()
                    elif not await self._worked(work):
                        return False
                    if not is_same():
                        return False
            # Without a record to truncate there may still be an epoch to remove: that of a former
            # leader that never appended anything in it.
            if log.truncator.truncate_to(offset, keep_committed=keep_committed):
                self._on_truncated(log)
        return True

    async def _worked(self, work: Callable[[], None]) -> bool:
        try:
            await self._run(work)
        except WorkerPoolClosed:
            return False
        return True

    async def truncate_on_diverging_epoch(
        self, partition: Partition, leader_epoch: int, leader_end: int
    ) -> None:
        """The leader's log has another end for the epoch of our last record."""
        log = partition.log
        assert log is not None, "a follower has a log"
        target = truncation_offset(log, leader_epoch, leader_end)
        if target < log.high_watermark:
            logger.warning(
                "Truncating %s to offset %d below high watermark %d",
                partition.key,
                target,
                log.high_watermark,
                extra=partition.key._asdict(),
            )
        logger.info(
            "[Partition %s] Truncating to %d: the log diverges from that of the leader",
            partition.key,
            target,
            extra=partition.key._asdict(),
        )
        await self.truncate_to(partition, log, target)

    async def prepare_full_truncation(
        self, partition: Partition, log: Log, *, keep_committed: bool
    ) -> bool:
        """Leaves so few segments that a turn can remove them all. False as for `truncate_to`."""
        # Segments below the log start stay until retention runs.
        *parts, _ = log.truncator.parts(log.segments.first.base_offset)
        return await self._truncate_to_each(partition, log, parts, keep_committed=keep_committed)

    def truncate_fully_and_start_at(
        self,
        log: Log,
        offset: int,
        log_start_offset: int | None = None,
        state: RemoteLogState | None = None,
        *,
        keep_committed: bool = True,
    ) -> None:
        """`LogTruncator.truncate_fully_and_start_at`."""
        log.truncator.truncate_fully_and_start_at(
            offset, log_start_offset, state, keep_committed=keep_committed
        )
        self._on_truncated(log)
