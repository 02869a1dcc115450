"""The state of one share partition in the share coordinator."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from ottla.broker.share.persister import (
    UNKNOWN_DELIVERY_COMPLETE_COUNT,
    StateBatch,
    StateUpdate,
    merged,
)

_first_offset, _last_offset = attrgetter("first_offset"), attrgetter("last_offset")


class ShareState(NamedTuple):
    """The state in a snapshot; mirrors Kafka's `ShareGroupOffset`."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp_ms: int
    write_timestamp_ms: int
    batches: tuple[StateBatch, ...]

    def updated(self, update: StateUpdate) -> ShareState:
        """With an update; the start offset never decreases.

        Updates of one leader can come in another order than it sent them, as it repeats those that
        had no response: an older start offset would take back what was delivered for good.
        """
        start_offset = max(self.start_offset, update.start_offset)
        return self._replace(
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=combined(self.batches, update.batches, start_offset),
        )


def first_state(
    state_epoch: int, start_offset: int, now_ms: int, snapshot_epoch: int
) -> ShareState:
    """Return the state of a share partition that is initialized."""
    return ShareState(
        snapshot_epoch,
        state_epoch,
        0,
        start_offset,
        UNKNOWN_DELIVERY_COMPLETE_COUNT,
        now_ms,
        now_ms,
        (),
    )


def joined(updates: Sequence[StateUpdate]) -> StateUpdate:
    """One update with the effect of all of them, in this order."""
    last = updates[-1]
    if len(updates) == 1:
        return last
    return last._replace(
        leader_epoch=max(each.leader_epoch for each in updates),
        start_offset=max(each.start_offset for each in updates),
        batches=tuple(batch for each in updates for batch in each.batches),
    )


def combined(
    stored: Iterable[StateBatch], changed: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the stored batches with those of an update, sorted, from the start offset on.

    Of two batches for an offset, the one with the higher delivery count holds, then the one with
    the higher state, as in Kafka's `PersisterStateBatchCombiner`: a late write of an older state
    does not bring records back. A changed batch and those beside it of equal state become one. The
    stored batches are sorted and do not overlap.
    """
    rows = list(stored)
    del rows[: bisect_left(rows, start_offset, key=_last_offset)]
    if rows:
        rows[0] = _from(rows[0], start_offset)
    for batch in changed:
        if batch.last_offset < start_offset:
            continue
        row = _from(batch, start_offset)
        # Only what overlaps or touches it is compared: thousands of batches can be stored.
        low = bisect_left(rows, row.first_offset - 1, key=_last_offset)
        high = bisect_right(rows, row.last_offset + 1, key=_first_offset)
        result: list[StateBatch] = []
        for each in sorted([*rows[low:high], row], key=_first_offset):
            _insert(result, each)
        rows[low:high] = merged(result)
    return tuple(rows)


def _from(batch: StateBatch, start_offset: int) -> StateBatch:
    if batch.first_offset >= start_offset:
        return batch
    return batch._replace(first_offset=start_offset)


def _insert(result: list[StateBatch], row: StateBatch) -> None:
    """Add a batch; `result` is sorted and does not overlap."""
    above: list[StateBatch] = []
    while result and result[-1].last_offset >= row.first_offset:
        above.append(result.pop())
    while above and above[-1].first_offset <= row.last_offset:
        old = above.pop()
        if old.first_offset < row.first_offset:
            result.append(old._replace(last_offset=row.first_offset - 1))
        elif row.first_offset < old.first_offset:
            result.append(row._replace(last_offset=old.first_offset - 1))
        first = max(old.first_offset, row.first_offset)
        last = min(old.last_offset, row.last_offset)
        winner = max(old, row, key=lambda batch: (batch.delivery_count, batch.state))
        result.append(winner._replace(first_offset=first, last_offset=last))
        if old.last_offset > last:
            result.append(old._replace(first_offset=last + 1))
        row = row._replace(first_offset=last + 1)
    if row.first_offset <= row.last_offset:
        result.append(row)
    result.extend(reversed(above))
