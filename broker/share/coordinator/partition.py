"""The share partitions of one partition of `__share_group_state`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ottla.broker.coordination.stored_records import StoredRecords
from ottla.broker.share.coordinator.records import StateRecord, read_record
from ottla.broker.share.coordinator.state import ShareState
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.records.record import Record
from ottla.protocol.topics import SHARE_STATE_TOPIC

logger = logging.getLogger("ottla.share")


class ShareStatePartition:
    """The states of one partition while this broker leads it."""

    __slots__ = (
        "end_offset",
        "index",
        "leader_epoch",
        "pruned_offset",
        "snapshot_offsets",
        "states",
        "stored",
        "updates",
    )

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.stored = StoredRecords(SHARE_STATE_TOPIC, index, "the state of share groups", logger)
        self.states: dict[SharePartitionKey, ShareState] = {}
        #: How many updates follow the last snapshot.
        self.updates: dict[SharePartitionKey, int] = {}
        #: The offset of the last snapshot: the records of the key before it are not needed.
        self.snapshot_offsets: dict[SharePartitionKey, int] = {}
        #: The offset after the last record that was replayed.
        self.end_offset = 0
        #: Up to where records were deleted by this leader.
        self.pruned_offset = 0

    @property
    def needed_offset(self) -> int:
        """The first record that a share partition needs; the end if there is none."""
        return min(self.snapshot_offsets.values(), default=self.end_offset)

    def cold_keys(self, before_ms: int) -> list[SharePartitionKey]:
        """Keys without a snapshot since `before_ms` that keep records which no key needs.

        Each key needs one record, so there is nothing to gain as long as the log has no more than
        twice as many records from the snapshot on.
        """
        room = 2 * len(self.states)
        return [
            key
            for key, offset in self.snapshot_offsets.items()
            if self.end_offset - offset > room and self.states[key].write_timestamp_ms < before_ms
        ]

    def replay(self, record: StateRecord, offset: int) -> None:
        """Replays a record, after an append and while loading."""
        key = record.key
        self.end_offset = max(self.end_offset, offset + 1)
        if record.snapshot is not None:
            self.states[key] = record.snapshot
            self.updates[key] = 0
            self.snapshot_offsets[key] = offset
        elif record.update is not None:
            state = self.states.get(key)
            if state is not None:
                self.states[key] = state.updated(record.update)
                self.updates[key] += 1
        else:
            self.states.pop(key, None)
            self.updates.pop(key, None)
            self.snapshot_offsets.pop(key, None)

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        return self.stored.replay(chunks, self._replay_stored)

    def _replay_stored(self, stored: Record) -> None:
        record = None if stored.key is None else read_record(stored.key, stored.value)
        if record is not None:
            self.replay(record, stored.offset)

    @property
    def is_empty(self) -> bool:
        return not self.states and not self.stored.skipped

    def describe(self) -> str:
        return f"{len(self.states)} share partitions{self.stored.describe()}"
