"""What must hold with tiered storage: nothing is lost on the way, nothing stays in the store."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import LeaderOf, Versions
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.producer_snapshot import decode_snapshot
from ottla.storage.remote.inventory import delete_orphans, take_inventory, verify_segment
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.object_store import NAME
from ottla.storage.remote.remote_storage import NoRemoteIndexError, RemoteIndexType
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.doubles.async_client import AsyncClient
from tests.simulation.cluster.consumers import batches_in
from tests.simulation.cluster.settled import assignments, decoded_topic, not_deleted

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.tiered import Tiered
    from tests.simulation.cluster.world import World

TOPIC = "t"
BRIEF_TOPIC = "brief"
CHECKED_TOPICS = (TOPIC, BRIEF_TOPIC)
# Of the log of which no record is lost by an unclean election.
CLEAN_TOPICS = frozenset((TOPIC, BRIEF_TOPIC, "fleeting"))
FETCH_BYTES = 20_000
REQUEST_MS = 4_000
READ_ATTEMPTS = 200
# Abandoned copies are deleted after two minutes, and deletions are retried within seconds.
SETTLED_SECONDS = 240
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class TieredChecks:
    """Checks all brokers many times a second, and the store at the end."""

    def __init__(self, world: World, tiered: Tiered) -> None:
        self.world = world
        self.tiered = tiered
        #: By topic id: how often brokers had started when its deletion was seen.
        self._deleted: dict[UUID, int] = {}
        self._known: dict[str, UUID] = {}
        # By topic id and partition: before which offset records were deleted. The log start offset
        # of a broker that was killed may be older, and what was deleted meanwhile is not copied.
        self._log_starts: dict[tuple[bytes, int], int] = {}

    # While the cluster runs

    def look(self) -> None:
        """Local segments are deleted after their copies are finished, and committed as that."""
        nodes = [each for each in self.world.nodes.values() if each.ready and each.is_readable]
        self.tiered.metadata.look(nodes)
        for node in nodes:
            for where, lost in self._never_copied(node):
                self.world.complain(
                    f"{node.host}: offset {lost} of {where} is not on its disk, and no copy of it "
                    f"was finished"
                )
        self.look_at_tree()

    def _never_copied(self, node: Node) -> Iterator[tuple[TopicPartition, int]]:
        server: Any = node.server
        for where, partition in server.parts.replica_manager.partitions.items():
            log = partition.log
            if where.topic not in CLEAN_TOPICS or log is None or partition.offline:
                continue
            if log.topic_id is None:
                continue
            key = (log.topic_id, where.partition)
            start = max(log.log_start_offset, self._log_starts.get(key, 0))
            self._log_starts[key] = start
            end = log.local_log_start_offset
            metadata = self.tiered.metadata
            if start < end and metadata.is_complete(log.topic_id, *where):
                lost = metadata.never_copied(log.topic_id, where.partition, start, end)
                if lost is not None:
                    yield where, lost

    def look_at_tree(self) -> None:
        """Which topics there are, and when they were deleted."""
        nodes = self.world.ensemble.tree.nodes
        found = {}
        for path, node in nodes.items():
            name = path.removeprefix("/brokers/topics/")
            if name != path and "/" not in name and f"/admin/delete_topics/{name}" not in nodes:
                topic_id = decoded_topic(name, node.data).topic_id
                if topic_id is not None:
                    found[name] = UUID(bytes=topic_id)
        for name, topic_id in self._known.items():
            if found.get(name) != topic_id:
                self._deleted.setdefault(topic_id, self._starts())
        self._known = found

    def _starts(self) -> int:
        return sum(each.starts for each in self.world.nodes.values())

    # At the end

    async def check(self) -> None:
        """When the cluster is well, and clients have stopped."""
        reason: str | None = "nothing was checked"
        for _ in range(SETTLED_SECONDS):
            reason = self._unsettled()
            if reason is None:
                break
            await asyncio.sleep(1)
        else:
            self.world.complain(f"remote storage does not settle: {reason}")
            return
        self.look()
        self._check_store()
        for topic in CHECKED_TOPICS:
            for where in [each for each in assignments(self.world) if each.topic == topic]:
                await self._read(where)

    def _unsettled(self) -> str | None:
        self.look_at_tree()
        for where, replicas in assignments(self.world).items():
            leader = self._leader(where)
            if leader is None:
                return f"{where} has no leader"
            kept = not_deleted(self.world, where, replicas)
            if where.topic in CHECKED_TOPICS and kept is not None:
                return kept
            if where.topic in CHECKED_TOPICS and leader.log_start_offset < (
                first := self._first_offset(leader)
            ):
                return f"{where} starts at {leader.log_start_offset}, without records to {first}"
        current = set(self._known.values())
        for each in self.tiered.metadata.segments():
            partition = each.segment_id.topic_id_partition
            if partition.topic_id in current:
                if each.state is not FINISHED:
                    return (
                        f"segment {each.start_offset} of {partition.topic} stays {each.state.name}"
                    )
            elif not self._may_stay(partition.topic_id):
                return f"a segment of the deleted {partition.topic} stays {each.state.name}"
        return None

    def _may_stay(self, topic_id: UUID) -> bool:
        """A broker that stops does not go on with the deletion of a topic, as in Kafka."""
        return self._deleted.get(topic_id) != self._starts()

    def _check_store(self) -> None:
        """After `ottla tiered gc` the store has the objects of the segments and no others."""
        storage, metadata = self.tiered.own_storage(), self.tiered.metadata
        current = set(self._known.values())
        segments = metadata.listed.segments_in_use()
        inventory = take_inventory(storage, segments, self.world.now_ms(), 0)
        delete_orphans(storage, inventory.orphans)
        live = {
            key
            for each in segments
            if each.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
            for key in storage.keys.of(each)
        }
        for each in storage.store.list(""):
            if each.key not in live and not each.key.startswith(f"{storage.keys.prefix}{NAME}"):
                self.world.complain(f"{each.key} stays in the store")
        self.world.note(
            f"{len(segments)} remote segments, {len(inventory.orphans)} orphans, "
            f"{inventory.live_bytes} bytes; {self.tiered.store.caught} steps with a trouble, "
            f"requests {self.tiered.store.requests}"
        )
        for segment in metadata.segments():
            partition = segment.segment_id.topic_id_partition
            if partition.topic_id in current and segment.state is FINISHED:
                where = TopicPartition(partition.topic, partition.partition)
                for problem in verify_segment(storage, segment, read_content=True):
                    self.world.complain(f"{where}: {problem}")
                self._check_producers(storage, where, segment)

    def _check_producers(
        self, storage: ObjectRemoteStorage, where: TopicPartition, segment: RemoteLogSegmentMetadata
    ) -> None:
        """A follower that begins behind the segment knows the producers of all that is before.

        But for what DeleteRecords deleted: a follower with an empty disk begins at the log start,
        and knows nothing of the producers before, as in Kafka.
        """
        start = self.world.deleted_before.get(where, 0)
        before = {
            struct.unpack_from(">q", data, 43)[0]
            for base, data in self.world.watch.batches(*where)
            if start <= base <= segment.end_offset
        } - {-1}
        if not before:
            return
        try:
            snapshot = storage.fetch_index(segment, RemoteIndexType.PRODUCER_SNAPSHOT)
        except NoRemoteIndexError:
            self.world.complain(
                f"{where}: the copy of {segment.start_offset} has no producers of {before}"
            )
            return
        missing = before - {each.producer_id for each in decode_snapshot("snapshot", snapshot)}
        if missing:
            self.world.complain(
                f"{where}: the copy of {segment.start_offset} lacks the producers {missing}"
            )

    async def _read(self, where: TopicPartition) -> None:
        """All records, as a consumer gets them from the log start on, across the boundary."""
        for _ in range(SETTLED_SECONDS):
            leader = self._leader(where)
            if leader is not None:
                break
            await asyncio.sleep(1)  # preferred leaders are elected
        else:
            self.world.complain(f"{where} has no leader")
            return
        start, end = leader.log_start_offset, leader.high_watermark
        requested = self.world.deleted_before.get(where, 0)
        if where.topic == TOPIC and start > requested:
            self.world.complain(
                f"{where} begins at {start}, and records were deleted up to {requested}"
            )
        client = self.world.clients.context.run(
            AsyncClient, self.world.bootstrap, request_timeout_ms=REQUEST_MS, client_id="check"
        )
        found: dict[int, bytes] = {}
        position, problem = start, "nothing"
        attempts = 0  # since the last record: what is read is bounded by `end`
        while position < end:
            if attempts == READ_ATTEMPTS:
                self.world.complain(f"{where} cannot be read at {position} of {end}: {problem}")
                break
            attempts += 1
            row = FetchPartition(
                where.partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES
            )
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=FETCH_BYTES,
                topics=[FetchTopic(where.topic, partitions=[row])],
            )
            try:
                task = self.world.loop.create_task(
                    client.call(request, LeaderOf(where), versions=Versions(4, 12), resend=False),
                    context=self.world.clients.context,
                )
                response: Any = await task
            except (ClientError, KafkaError) as error:
                problem = repr(error)
                await asyncio.sleep(0.2)
                continue
            if not response.responses:  # by a quota: the response has no topics
                problem = f"throttled for {response.throttle_time_ms} ms"
                await asyncio.sleep(response.throttle_time_ms / 1000)
                continue
            part = response.responses[0].partitions[0]
            problem = f"error {part.error_code}"
            if part.error_code:
                client.forget_leader(where)
                await asyncio.sleep(0.2)
            for data in batches_in(bytes(part.records or b"")):
                base, last = (
                    struct.unpack_from(">q", data)[0],
                    struct.unpack_from(">i", data, 23)[0],
                )
                if base > position:
                    self.world.complain(f"{where}: after {position} comes the batch of {base}")
                found[base] = data
                if base + last >= position:
                    position, attempts = base + last + 1, 0
        client.close()
        self._compare(where, start, found)

    def _leader(self, where: TopicPartition) -> Any:
        for node in self.world.nodes.values():
            server: Any = node.server
            found = server.parts.replica_manager.partitions.get(where)
            if found is not None and found.is_leader:
                return found.log
        return None

    def _first_offset(self, log: Any) -> int:
        """The first offset on the leader's local disk or in the store."""
        starts = [log.local_log_start_offset]
        for each in self.tiered.metadata.segments():
            partition = each.segment_id.topic_id_partition
            if (partition.topic_id.bytes, partition.partition) == (log.topic_id, log.partition):
                starts.append(each.start_offset)
        return min(starts)

    def _compare(self, where: TopicPartition, start: int, found: dict[int, bytes]) -> None:
        if where.topic == TOPIC:
            self.world.watch.compare(where, found)
            return
        values = {
            record.offset: bytes(record.value or b"")
            for data in found.values()
            for record in read_records(data)
        }
        for offset, value in self.world.history.acknowledged_in(*where).items():
            if offset >= start and values.get(offset) != value:
                self.world.complain(
                    f"{where}: {value!r} was acknowledged at offset {offset}, where there is "
                    f"{values.get(offset)!r}"
                )
                return
