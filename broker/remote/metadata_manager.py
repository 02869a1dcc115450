"""The metadata of remote segments of the partitions that this broker hosts.

Mirrors Kafka's TopicBasedRemoteLogMetadataManager. A change is a record of `__remote_log_metadata`;
the caches follow by reading the topic, also what this broker wrote. One task reads the metadata
partitions that are needed, in rounds. A round leaves out leaders that have not responded yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache
from ottla.broker.runtime.tasks import spawn, stop
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.steps import Turn
from ottla.storage.remote.metadata_records import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    UnreadableMetadataRecord,
    decode_metadata,
    encode_metadata,
    metadata_partition,
    topic_id_partition_of,
)
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from ottla.broker.remote.metadata_topic import RemoteLogMetadataTopic
    from ottla.broker.remote.settings import RemoteLogMetadataSettings

logger = logging.getLogger("ottla.remote")

#: How long a round without records is followed by none. An append of this broker begins one at
#: once; records of other brokers may be that late, and only leaders write.
_IDLE_SECONDS = 1.0
#: A write is repeated for so long: an election takes less.
_APPEND_RETRY_SECONDS = 30.0
_FIRST_RETRY_SECONDS = 0.1
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class RemoteMetadataNotReadyError(RemoteStorageError):
    """The metadata of the partition is not replayed yet. Can be retried."""


class _UserPartition:
    """A partition whose metadata is kept."""

    __slots__ = ("cache", "deletion", "read_offset")

    def __init__(self) -> None:
        self.cache = RemoteLogMetadataCache()
        self.deletion: RemotePartitionDeleteState | None = None
        #: The offset of the last record that is in the cache: a new replay leaves out those.
        self.read_offset = -1


class _MetadataPartition:
    """What is read of one partition of the topic."""

    __slots__ = ("end_offset", "generation", "position", "waiting")

    def __init__(self) -> None:
        #: The next offset to read; None: replay from the beginning.
        self.position: int | None = None
        #: The caches of its partitions are initialized when the position reaches it.
        self.end_offset = 0
        #: Counts the replays, so that a fetch of before the last one is ignored.
        self.generation = 0
        #: Writers that wait until a record is read, with its offset. Each has a deadline.
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def restart(self) -> None:
        self.position = None
        self.generation += 1


class RemoteLogMetadataManager:
    """Loop only. Memory grows with the remote segments of the assigned partitions, as in Kafka."""

    def __init__(self, topic: RemoteLogMetadataTopic, settings: RemoteLogMetadataSettings) -> None:
        self._topic = topic
        self._settings = settings
        self._partitions: dict[TopicIdPartition, _UserPartition] = {}
        self._metadata_partitions: dict[int, _MetadataPartition] = {}
        #: Of what `cache` returns: as long as it is the same, so are the segments.
        self.changes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: By leader. Each request of it has a deadline.
        self._reads: dict[int, asyncio.Task[bool]] = {}
        #: Leaders that a round left out: there may be newer records than their response has.
        self._left_out: set[int] = set()
        self._problems: dict[int, str] = {}
        self.append_retry_seconds = _APPEND_RETRY_SECONDS
        self._is_in_use = False
        #: Why metadata cannot be used; None once the topic exists as it is configured.
        self.unavailable: str | None = f"{REMOTE_LOG_METADATA_TOPIC} is not known yet"

    def startup(self) -> None:
        """Creates the topic if necessary, and reads it, in the background."""
        self._task = spawn(self._run(), name="remote-log-metadata")

    async def shutdown(self) -> None:
        """Ends reading. Writers that wait get RemoteStorageError."""
        if self._task is not None:
            await stop(self._task, *self._reads.values())
        for state in self._metadata_partitions.values():
            _fail(state, "the broker stops")
        self._metadata_partitions.clear()

    # -- partitions of this broker ------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Keeps the metadata of these partitions, which this broker leads or follows."""
        for partition in partitions:
            if partition in self._partitions:
                continue
            self._partitions[partition] = _UserPartition()
            self.changes += 1
            index = self.metadata_partition(partition)
            self._metadata_partitions.setdefault(index, _MetadataPartition()).restart()
        self._wake.set()

    def unassign(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forgets the metadata of these partitions; what is in the topic stays."""
        for partition in partitions:
            self._partitions.pop(partition, None)
        self.changes += 1
        needed = {self.metadata_partition(each) for each in self._partitions}
        for index in self._metadata_partitions.keys() - needed:
            state = self._metadata_partitions.pop(index)
            state.restart()  # what is being read now is ignored
            _fail(state, "its partitions left this broker")
            self._problems.pop(index, None)

    def metadata_partition(self, partition: TopicIdPartition) -> int:
        """The partition of the topic with the records about `partition`."""
        return metadata_partition(partition, self._settings.topic_num_partitions)

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """What is known. Raises RemoteMetadataNotReadyError until everything is replayed."""
        if not self.is_initialized(partition):
            reason = self.unavailable or "its records are being read"
            raise RemoteMetadataNotReadyError(
                f"the remote log metadata of {partition.topic}-{partition.partition} is not"
                f" available: {reason}"
            )
        return self._partitions[partition].cache

    def is_initialized(self, partition: TopicIdPartition) -> bool:
        """Whether `cache` returns the metadata of the partition."""
        found = self._partitions.get(partition)
        return found is not None and found.cache.is_initialized

    def deletion(self, partition: TopicIdPartition) -> RemotePartitionDeleteState | None:
        """How far the deletion of the partition is; None when none began, or it has finished."""
        found = self._partitions.get(partition)
        return None if found is None else found.deletion

    def copied_segments(self, limit: int) -> list[RemoteLogSegmentMetadata]:
        """Segments that can be read, a late one of each partition, of at most `limit`."""
        found: list[RemoteLogSegmentMetadata] = []
        for user in self._partitions.values():
            if len(found) == limit:
                break
            latest_first = reversed(user.cache.snapshot())
            found += islice((each for each in latest_first if each.state is _FINISHED), 1)
        return found

    async def is_unused(self) -> bool:
        """Whether the cluster has no segment in remote storage, also none that is being deleted.
        A copy that was begun and not finished is none.

        Reads the topic from its beginning, unless it is empty or has been found in use since the
        start of the broker. Raises RemoteStorageError.
        """
        if self.unavailable is not None:
            raise RemoteMetadataNotReadyError(self.unavailable)
        for index in range(self._settings.topic_num_partitions):
            if self._is_in_use:
                return False
            self._is_in_use = bool(await self._segments_of(index))
        return not self._is_in_use

    async def _segments_of(self, index: int) -> set[RemoteLogSegmentId]:
        """The segments in one partition of the topic that were copied and are not deleted."""
        leader = self._topic.leader(index)
        if leader is None:
            raise RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{index} has no leader")
        position, end = await self._topic.offsets(leader, index)
        found: set[RemoteLogSegmentId] = set()
        while position < end:
            fetched = (await self._topic.fetch(leader, {index: position})).get(index)
            before = position
            if fetched is not None and fetched.error_code == ErrorCode.NONE:
                position = await _replay_segments(fetched.records, position, found)
            if position == before:
                raise RemoteStorageError(
                    f"{REMOTE_LOG_METADATA_TOPIC}-{index} cannot be read at offset {position}"
                )
        return found

    # -- writing ------------------------------------------------------------------------------

    async def store(self, metadata: RemoteLogMetadata) -> None:
        """Returns when the record is committed and in the cache of this broker.

        Repeats a write that failed, for 30 seconds. Raises RemoteStorageError, also if the record
        is not read within `remote.log.metadata.consume.wait.ms`. It may be committed nevertheless;
        to store it again is no error.
        """
        if self.unavailable is not None:
            raise RemoteMetadataNotReadyError(self.unavailable)
        index = self.metadata_partition(topic_id_partition_of(metadata))
        offset = await self._append(index, encode_metadata(metadata))
        await self._wait_until_read(index, offset)

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """Returns when the cache has all records that are committed now.

        A broker that becomes leader would copy again what the leader before it has copied in the
        last second. Raises RemoteStorageError.
        """
        index = self.metadata_partition(partition)
        leader = self._topic.leader(index)
        if leader is None:
            raise RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{index} has no leader")
        _, end_offset = await self._topic.offsets(leader, index)
        await self._wait_until_read(index, end_offset - 1)

    async def _wait_until_read(self, index: int, offset: int) -> None:
        state = self._metadata_partitions.get(index)
        if state is None:
            return  # not assigned here (any more): another broker has the cache
        if state.position is not None and state.position > offset:
            return
        read = asyncio.get_running_loop().create_future()
        entry = (offset, read)
        state.waiting.append(entry)
        self._wake.set()
        try:
            async with asyncio.timeout(self._settings.consume_wait_ms / 1000):
                await read
        except TimeoutError:
            raise RemoteStorageError(
                f"offset {offset} of {REMOTE_LOG_METADATA_TOPIC}-{index} was not read within"
                f" {self._settings.consume_wait_ms} ms"
            ) from None
        finally:
            if entry in state.waiting:
                state.waiting.remove(entry)

    async def _append(self, index: int, value: bytes) -> int:
        """Repeats a failed append, as Kafka's producer does. A record that is there twice has the
        effect of one; without it a leader change would end a copy whose objects are stored."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + self.append_retry_seconds, _FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._topic.append(index, value)
            except RemoteStorageError:
                if loop.time() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, _IDLE_SECONDS)

    # -- reading ------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._initialize()
        while True:
            self._wake.clear()
            self.start_reads()
            # Not wait_for: Python 3.11's loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._wake.wait()

    async def _initialize(self) -> None:
        """Until the topic exists with the configured number of partitions.

        Kafka ends the broker when `initialization.retry.max.timeout.ms` is over. This logs an error
        then and continues: the local log is available without the remote one.
        """
        loop = asyncio.get_running_loop()
        deadline: float | None = (
            loop.time() + self._settings.initialization_retry_max_timeout_ms / 1000
        )
        while True:
            self.unavailable = await self._topic_problem()
            if self.unavailable is None:
                logger.info("%s is available", REMOTE_LOG_METADATA_TOPIC)
                return
            if deadline is not None and loop.time() >= deadline:
                deadline = None
                logger.error(
                    "Timed out initializing the remote log metadata, retrying: %s",
                    self.unavailable,
                )
            # After the deadline once a second: no writer waits for it any more.
            interval_ms = max(self._settings.initialization_retry_interval_ms, 1)
            await asyncio.sleep(interval_ms / 1000 if deadline is not None else _IDLE_SECONDS)

    async def _topic_problem(self) -> str | None:
        try:
            await self._topic.create()
        except RemoteStorageError as error:
            return str(error)
        except Exception as error:  # the controller cannot be reached
            return f"{REMOTE_LOG_METADATA_TOPIC} cannot be created: {error}"
        count, expected = self._topic.partition_count(), self._settings.topic_num_partitions
        if count is None:
            return f"{REMOTE_LOG_METADATA_TOPIC} is not known yet"
        if count != expected:
            return (
                f"{REMOTE_LOG_METADATA_TOPIC} has {count} partitions, and"
                f" rlmm.config.remote.log.metadata.topic.num.partitions is {expected}: set it to"
                f" {count} on all brokers"
            )
        return None

    def start_reads(self) -> Iterable[asyncio.Task[bool]]:
        """One round over the metadata partitions, in tasks, which it returns. A leader that does
        not respond delays its own partitions only. A task returns whether there were records."""
        by_leader: dict[int, list[int]] = {}
        for index in self._metadata_partitions:
            leader = self._topic.leader(index)
            if leader is None:
                self._report(index, "no leader")
            else:
                by_leader.setdefault(leader, []).append(index)
        for leader, indexes in by_leader.items():
            if leader in self._reads:
                self._left_out.add(leader)
            else:
                read = spawn(self._read(leader, indexes), name="remote-log-metadata-read")
                read.add_done_callback(partial(self._read_ended, leader))
                self._reads[leader] = read
        return self._reads.values()

    def _read_ended(self, leader: int, read: asyncio.Task[bool]) -> None:
        """Begins the next round at once, unless there is nothing to expect of it."""
        del self._reads[leader]
        is_left_out = leader in self._left_out
        self._left_out.discard(leader)
        if not read.cancelled() and (is_left_out or read.result()):
            self._wake.set()

    async def _read(self, leader: int, indexes: list[int]) -> bool:
        try:
            return await self._read_from(leader, indexes)
        except Exception:  # a defect, or a response that is not what it should be
            logger.exception("Unexpected error reading %s, retrying", REMOTE_LOG_METADATA_TOPIC)
            return False

    async def _read_from(self, leader: int, indexes: list[int]) -> bool:
        states: dict[int, tuple[_MetadataPartition, int]] = {}
        positions: dict[int, int] = {}
        for index in indexes:
            state = self._metadata_partitions.get(index)
            if state is None:
                continue
            if state.position is None:
                await self._begin_replay(leader, index, state)
            if state.position is not None:
                positions[index] = state.position
                states[index] = (state, state.generation)
        if not positions:
            return False
        try:
            fetched = await self._topic.fetch(leader, positions)
        except RemoteStorageError as error:
            for index in positions:
                self._report(index, str(error))
            return False
        progress = False
        for index, data in fetched.items():
            if index not in states:
                continue
            state, generation = states[index]
            is_current = state is self._metadata_partitions.get(index)
            if (
                not is_current
                or state.generation != generation
                or self._topic.leader(index) != leader
            ):
                progress = True  # assigned again meanwhile, or another leader: begin at once
                continue
            if data.error_code != ErrorCode.NONE:
                self._report(index, error_name(data.error_code))
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._forget(index)
                    state.restart()
                continue
            self._problems.pop(index, None)
            before = state.position
            await self._apply(index, state, data.records)
            self._mark_initialized(index, state)
            progress = progress or state.position != before
        return progress

    async def _begin_replay(self, leader: int, index: int, state: _MetadataPartition) -> None:
        generation = state.generation
        try:
            start, end = await self._topic.offsets(leader, index)
        except RemoteStorageError as error:
            self._report(index, str(error))
            return
        if state.generation == generation and state.position is None:
            state.position, state.end_offset = start, end
            self._mark_initialized(index, state)

    async def _apply(
        self, index: int, state: _MetadataPartition, records: bytes | memoryview
    ) -> None:
        """Bring the records into the caches; ends if the log is read from its start meanwhile."""
        generation, turn = state.generation, Turn()
        try:
            for position, header in iterate_entries(records):
                found = () if header.is_control else read_entry(records, position, header)
                for record in found:
                    if state.position is None or record.offset < state.position:
                        continue
                    self._apply_record(index, record.offset, record.value)
                    state.position = record.offset + 1
                    if turn.is_over:
                        await turn.pause()
                        if state.generation != generation:
                            return
                # Also past control batches and offsets that are not used.
                state.position = max(state.position or 0, header.next_offset)
        except RecordsError as error:
            self._report(index, f"a batch after offset {state.position} cannot be read: {error}")
        _complete(state)

    def _apply_record(self, index: int, offset: int, value: bytes | None) -> None:
        try:
            metadata = decode_metadata(value or b"")
        except UnreadableMetadataRecord as error:
            logger.error(
                "Ignoring offset %d of %s-%d: %s", offset, REMOTE_LOG_METADATA_TOPIC, index, error
            )
            return
        partition = topic_id_partition_of(metadata)
        user = self._partitions.get(partition)
        if user is None or offset <= user.read_offset:
            return
        user.read_offset = offset
        self.changes += 1
        try:
            if isinstance(metadata, RemoteLogSegmentMetadata):
                user.cache.add(metadata)
            elif isinstance(metadata, RemoteLogSegmentMetadataUpdate):
                user.cache.update(metadata)
            else:
                self._apply_deletion(user, metadata)
        except (RemoteStorageError, ValueError) as error:
            logger.warning(
                "Ignoring offset %d of %s-%d: %s", offset, REMOTE_LOG_METADATA_TOPIC, index, error
            )

    def _apply_deletion(
        self, user: _UserPartition, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        if metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            is_initialized = user.cache.is_initialized
            user.cache, user.deletion = RemoteLogMetadataCache(), None
            user.cache.is_initialized = is_initialized
        else:
            user.deletion = metadata.state

    def _forget(self, index: int) -> None:
        """The log was truncated below what was read: offsets have other records now, and Kafka's
        consumer would leave them out."""
        self.changes += 1
        for partition in list(self._partitions):
            if self.metadata_partition(partition) == index:
                self._partitions[partition] = _UserPartition()

    def _mark_initialized(self, index: int, state: _MetadataPartition) -> None:
        if state.position is None or state.position < state.end_offset:
            return
        for partition, user in self._partitions.items():
            if not user.cache.is_initialized and self.metadata_partition(partition) == index:
                user.cache.is_initialized = True

    def _report(self, index: int, problem: str) -> None:
        """Logs a problem once, until it changes or ends."""
        if self._problems.get(index) != problem:
            self._problems[index] = problem
            logger.warning("Cannot read %s-%d: %s", REMOTE_LOG_METADATA_TOPIC, index, problem)


async def _replay_segments(
    records: bytes | memoryview, position: int, found: set[RemoteLogSegmentId]
) -> int:
    """Add the segments that were copied to `found`, remove those that are deleted.

    Returns the offset to continue at. Raises RemoteStorageError for a batch that is corrupt.
    """
    turn = Turn()
    try:
        for at, header in iterate_entries(records):
            for record in () if header.is_control else read_entry(records, at, header):
                await turn.share()
                if record.offset >= position:
                    _replay_segment(record.value, found)
            position = max(position, header.next_offset)
    except RecordsError as error:
        raise RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC} cannot be read: {error}") from None
    return position


def _replay_segment(value: bytes | None, found: set[RemoteLogSegmentId]) -> None:
    try:
        metadata = decode_metadata(value or b"")
    except UnreadableMetadataRecord:
        return  # the reader of the cache logs it
    if isinstance(metadata, RemoteLogSegmentMetadata):
        return
    if isinstance(metadata, RemoteLogSegmentMetadataUpdate):
        if metadata.state is _FINISHED:
            found.add(metadata.segment_id)
        elif metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            found.discard(metadata.segment_id)
    elif metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
        deleted = metadata.topic_id_partition
        for each in [each for each in found if each.topic_id_partition == deleted]:
            found.discard(each)


def _complete(state: _MetadataPartition) -> None:
    """Completes the writers whose record was read."""
    for offset, read in state.waiting:
        if state.position is not None and offset < state.position and not read.done():
            read.set_result(None)


def _fail(state: _MetadataPartition, reason: str) -> None:
    for _, read in state.waiting:
        if not read.done():
            read.set_exception(
                RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC} is not read any more: {reason}")
            )
