"""The share partitions of one partition of `__share_group_state`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ottla.broker.share.coordinator.records import StateRecord, UnreadableRecord, read_record
from ottla.broker.share.coordinator.state import ShareState
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry

logger = logging.getLogger("ottla.share")

_MAX_SKIPPED_LOGGED = 10  # log lines about skipped records in one load


class ShareStatePartition:
    """The states of one partition while this broker leads it."""

    __slots__ = (
        "end_offset",
        "index",
        "leader_epoch",
        "pruned_offset",
        "records_skipped",
        "snapshot_offsets",
        "states",
        "updates",
    )

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.records_skipped = 0
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
        for chunk in chunks:
            data = bytes(chunk)
            try:
                for position, header in iterate_entries(data):
                    for record in read_entry(data, position, header, check_crc=False):
                        self._replay_stored(record.key, record.value, record.offset)
            except RecordsError as problem:
                self._skip(f"a batch is corrupt: {problem}")
            yield

    def _replay_stored(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            record = None if key is None else read_record(key, value)
            if record is not None:
                self.replay(record, offset)
        except UnreadableRecord as problem:
            self._skip(str(problem))

    def _skip(self, problem: str) -> None:
        self.records_skipped += 1
        if self.records_skipped <= _MAX_SKIPPED_LOGGED:
            logger.warning(
                "Loading the state of share groups from __share_group_state-%d: skipping a "
                "record: %s",
                self.index,
                problem,
                extra={"topic": "__share_group_state", "partition": self.index},
            )

    @property
    def is_empty(self) -> bool:
        return not self.states and not self.records_skipped

    def describe(self) -> str:
        skipped = f", {self.records_skipped} unreadable records" if self.records_skipped else ""
        return f"{len(self.states)} share partitions{skipped}"
