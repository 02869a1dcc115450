"""Readers that continue in a segment: what their last read found out is not looked up again.

Between two fetches of a scan its records go through the processor's caches, so that each function
that is called costs far more than in a loop: a fetch that finds segment, keys, manifest and chunk
by the usual way takes several times as long as one here. Loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.remote.memory_reads import MemoryReads
    from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
    from ottla.broker.remote.segment_reader import RemoteRead
    from ottla.broker.remote.statistics import TopicRemoteStatistics
    from ottla.storage.config import LogConfig
    from ottla.storage.log.log import Log
    from ottla.storage.remote.remote_storage import SegmentFile
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

#: At 300 bytes each: those of more readers than read history at the same time.
_MAX_SCANS = 1024


class Scan:
    """A reader of one segment, all of whose records from the next offset on are of its log."""

    __slots__ = (
        *("_changes", "_config", "_epoch_changes", "_log", "_truncations"),
        *("file", "position", "segment", "statistics"),
    )

    def __init__(
        self,
        log: Log,
        changes: int,
        segment: RemoteLogSegmentMetadata,
        file: SegmentFile,
        statistics: TopicRemoteStatistics,
    ) -> None:
        self._log = log
        self._config: LogConfig = log.config
        self._truncations = log.truncations
        self._epoch_changes = log.leader_epochs.changes
        self._changes = changes
        self.segment = segment
        self.file = file
        self.statistics = statistics
        #: Where the next read begins.
        self.position = 0

    def is_valid(self, log: Log, changes: int) -> bool:
        """Whether nothing has changed since of which the choice of the segment depends."""
        return (
            self._log is log
            and self._changes == changes
            and self._config is log.config
            and self._truncations == log.truncations
            and self._epoch_changes == log.leader_epochs.changes
        )


class RemoteScans:
    """The scans of all readers, each by its log, its next offset and its isolation level."""

    def __init__(self, metadata: RemoteLogMetadataManager, memory: MemoryReads) -> None:
        self._metadata = metadata
        self._memory = memory
        self._scans: OrderedDict[tuple[int, int, bool], Scan] = OrderedDict()

    def read_on(
        self, log: Log, offset: int, max_bytes: int, up_to: int, *, read_committed: bool
    ) -> tuple[Scan, RemoteRead] | None:
        """What follows the last read of a scan. None if no read ended at `offset`, or if more than
        that has to be read. No transaction was aborted in the segment if `read_committed`."""
        scan = self._scans.pop((id(log), offset, read_committed), None)
        if scan is None or not scan.is_valid(log, self._metadata.changes):
            return None
        segment = scan.segment
        if up_to <= segment.end_offset:
            return None
        limit = min(scan.position + max_bytes, segment.size_bytes)
        part = scan.file.part_if_valid(scan.position, limit)
        found = None if part is None else self._memory.continued(segment, part, limit)
        if found is None:
            return None
        self._remember(log, scan, found, read_committed=read_committed)
        return scan, found

    def begin(
        self,
        log: Log,
        segment: RemoteLogSegmentMetadata,
        read: RemoteRead,
        statistics: TopicRemoteStatistics,
        *,
        read_committed: bool,
    ) -> None:
        """A reader has read this of a segment whose records are of the log up to the segment's end,
        and may continue."""
        file = self._memory.segment_file(segment)
        if file is None:
            return
        if read_committed:
            aborted = self._memory.aborted(segment, segment.start_offset, segment.end_offset + 1)
            if aborted != []:  # None if it is not known
                return
        scan = Scan(log, self._metadata.changes, segment, file, statistics)
        self._remember(log, scan, read, read_committed=read_committed)

    def _remember(self, log: Log, scan: Scan, read: RemoteRead, *, read_committed: bool) -> None:
        if read.next_offset > scan.segment.end_offset:
            return
        scan.position = read.end_position
        self._scans[id(log), read.next_offset, read_committed] = scan
        if len(self._scans) > _MAX_SCANS:
            self._scans.popitem(last=False)
