"""What is committed in `__remote_log_metadata`, read from its leaders' logs while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache
from ottla.cli.remote_segments import RemoteSegments
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from ottla.storage.remote.metadata_records import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    decode_metadata,
    metadata_partition,
    topic_id_partition_of,
)
from ottla.storage.remote.remote_storage import RemoteResourceNotFoundError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from tests.simulation.cluster.settled import state_of

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World


class CommittedMetadata:
    """Replays each metadata partition once. Its committed records never change."""

    def __init__(self, world: World, partition_count: int) -> None:
        self.world = world
        self._partition_count = partition_count
        self._complete: set[int] = set()
        #: As `ottla tiered gc` has them.
        self.listed = RemoteSegments()
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._positions: dict[int, int] = {}
        #: By topic id and partition: all segments that were COPY_SEGMENT_FINISHED at any time.
        self.copied: dict[tuple[UUID, int], dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]] = {}

    def look(self, nodes: list[Node]) -> None:
        """Replays what has been committed since the last look."""
        self._complete = set()
        for node in nodes:
            self._look_at(node)

    def is_complete(self, topic_id: bytes, topic: str, partition: int) -> bool:
        """Whether the last look has seen all that is committed about a partition: a new leader
        does not know at first that it is."""
        where = TopicIdPartition(UUID(bytes=topic_id), topic, partition)
        return metadata_partition(where, self._partition_count) in self._complete

    def _look_at(self, node: Node) -> None:
        server: Any = node.server
        partitions = server.parts.replica_manager.partitions
        for key in [each for each in partitions if each.topic == REMOTE_LOG_METADATA_TOPIC]:
            partition = partitions[key]
            if partition.is_leader and partition.log is not None and not partition.offline:
                self._replay(key, partition.log)
                state = state_of(self.world, key)
                own = node.broker_id, partition.leader_epoch
                is_leader = state is not None and (state.leader, state.leader_epoch) == own
                if is_leader and partition.log.high_watermark == partition.log.log_end_offset:
                    self._complete.add(key.partition)

    def _replay(self, key: TopicPartition, log: Any) -> None:
        start, end = self._positions.get(key.partition, 0), log.high_watermark
        if end <= start:
            return
        self._positions[key.partition] = end
        for batch in log.batches(start, end):
            for record in read_records(bytes(batch)):
                if start <= record.offset < end:
                    self._apply(decode_metadata(bytes(record.value or b"")))

    def _apply(self, record: Any) -> None:
        self.listed.apply(record)
        partition = topic_id_partition_of(record)
        cache = self._caches.setdefault(partition, RemoteLogMetadataCache())
        if isinstance(record, RemoteLogSegmentMetadata):
            cache.add(record)
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            try:
                cache.update(record)
            except RemoteResourceNotFoundError:
                return
            if record.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                found = {each.segment_id: each for each in cache.snapshot()}.get(record.segment_id)
                if found is not None and found.state is record.state:
                    key = partition.topic_id, partition.partition
                    self.copied.setdefault(key, {})[record.segment_id] = found
        else:
            assert isinstance(record, RemotePartitionDeleteMetadata)

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """All that are not deleted, of all topics, also of those that are not there any more."""
        return [each for cache in self._caches.values() for each in cache.segments()]

    def never_copied(self, topic_id: bytes, index: int, start: int, end: int) -> int | None:
        """The first offset in [start, end) that was never in a copied segment."""
        found = self.copied.get((UUID(bytes=topic_id), index), {}).values()
        for each in sorted(found, key=lambda each: each.start_offset):
            if each.start_offset <= start <= each.end_offset:
                start = each.end_offset + 1
        return start if start < end else None
