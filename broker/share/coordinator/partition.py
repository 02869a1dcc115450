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

    __slots__ = ("index", "leader_epoch", "records_skipped", "states", "updates")

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.records_skipped = 0
        self.states: dict[SharePartitionKey, ShareState] = {}
        #: How many updates follow the last snapshot.
        self.updates: dict[SharePartitionKey, int] = {}

    def replay(self, record: StateRecord) -> None:
        """Replays a record, after an append and while loading."""
        key = record.key
        if record.snapshot is not None:
            self.states[key] = record.snapshot
            self.updates[key] = 0
        elif record.update is not None:
            state = self.states.get(key)
            if state is not None:
                self.states[key] = state.updated(record.update)
                self.updates[key] += 1
        else:
            self.states.pop(key, None)
            self.updates.pop(key, None)

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        for chunk in chunks:
            data = bytes(chunk)
            try:
                for position, header in iterate_entries(data):
                    for record in read_entry(data, position, header, check_crc=False):
                        self._replay_stored(record.key, record.value)
            except RecordsError as problem:
                self._skip(f"a batch is corrupt: {problem}")
            yield

    def _replay_stored(self, key: bytes | None, value: bytes | None) -> None:
        try:
            record = None if key is None else read_record(key, value)
            if record is not None:
                self.replay(record)
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
