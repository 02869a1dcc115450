"""Stray logs: logs on the disks that are not replicas of this broker any more.

While a broker is down, or without a session, its partitions may be reassigned, and a topic may be
deleted and created again with the same name. The controller sends no StopReplica for those when the
broker is back, so the broker looks for them after each registration, before it handles LeaderAndIsr
requests for it. A
stray log is renamed with the suffix `-stray` and kept, as it may be the only copy of its records.
(Kafka does this in KRaft mode; in ZooKeeper mode it leaves such a log where it is, and refuses the
new topic of that name.)

A broker may also miss a StopReplica while it is registered: the controller that had it in its queue
died. So it looks now and then for replicas that the metadata give to other brokers, and a
LeaderAndIsr of a new topic makes it look for logs of earlier topics of that name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.broker.replication.leader_and_isr import EPOCH_DURING_DELETE
from ottla.broker.runtime.slices import run_in_slices
from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.errors import StorageError
from ottla.storage.files.layout import STRAY_DIRECTORY_SUFFIX
from ottla.storage.files.set_aside import Note, Reason

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.controller.model import TopicState
    from ottla.controller.tree.store import Stat, ZnodeStore
    from ottla.protocol.messages.leader_and_isr import (
        LeaderAndIsrPartitionState,
        LeaderAndIsrRequest,
        LeaderAndIsrTopicState,
    )
    from ottla.protocol.messages.stop_replica import (
        StopReplicaPartitionState,
        StopReplicaRequest,
        StopReplicaTopicState,
    )
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.broker")

T = TypeVar("T")

_LOGS_PER_STEP = 256  # less than a millisecond
_TOPICS_PER_STEP = 4  # about 0.1 ms
# Directories are renamed: some milliseconds.
_STRAYS_PER_TURN = 32


class HostedReplicas(Protocol):
    """The replicas of this broker; see `leader_and_isr.LeaderAndIsrApplier`."""

    def leader_epoch(self, key: TopicPartition) -> int:
        """The leader epoch of a replica, -1 for a log without one."""

    def remove_strays(self, keys: list[TopicPartition]) -> None:
        """Stops the replicas of logs that are renamed next."""


class _NoReplicas:
    """For a check before the first LeaderAndIsr."""

    def leader_epoch(self, key: TopicPartition) -> int:
        return -1

    def remove_strays(self, keys: list[TopicPartition]) -> None:
        """Nothing to stop."""


class StrayCheck:
    """Looks for stray logs after each registration, and now and then. Loop only."""

    def __init__(
        self,
        logs: LogManager,
        store: ZnodeStore,
        broker_id: int,
        hosted: HostedReplicas,
        metadata: MetadataCache,
    ) -> None:
        self._logs = logs
        self._store = store
        self._broker_id = broker_id
        self._hosted = hosted
        self._metadata = metadata
        # Replicas that were given to others at the last look, with their leader epochs.
        self._unassigned: set[tuple[Log, int]] = set()
        self._checked_epoch = -1
        self._checked = asyncio.Event()

    async def run(self, broker_epoch: int) -> None:
        """The broker registered with `broker_epoch`. Raises StoreError: it is to be run again."""
        await rename_stray_logs(self._logs, self._store, self._broker_id, self._hosted)
        self._checked_epoch = max(self._checked_epoch, broker_epoch)
        checked, self._checked = self._checked, asyncio.Event()
        checked.set()

    async def look_for_unassigned(self) -> None:
        """Renames the logs of replicas that were given to others at the last look already; usually
        a StopReplica has deleted them since.

        The tree decides: at the end of a reassignment the metadata are ahead of it.
        """
        found = await run_in_slices(self._given_to_others())
        again, self._unassigned = found & self._unassigned, found
        if again:
            try:
                await self._rename(sorted((log for log, _ in again), key=_key))
            except StoreError as error:
                logger.info("Failed to look for stray logs: %s", error)

    async def make_way_for(self, request: LeaderAndIsrRequest) -> None:
        """Renames the logs of earlier topics of the same names, which would refuse the new ones.

        A deletion waits for all replicas that are assigned. One that was not any more, and whose
        StopReplica was lost with a controller, may be here until the next look, or longer if its
        topic is deleted before. Raises StoreError: it is to be repeated.
        """
        steps = _selected(request.topic_states, self._log_of_earlier_topic)
        earlier = await run_in_slices(steps)
        if earlier:
            await self._rename(earlier)

    def _log_of_earlier_topic(
        self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState
    ) -> Log | None:
        log = self._logs.get(topic.topic_name, state.partition_index)
        if log is None or log.topic_id in (None, topic.topic_id) or topic.topic_id == ZERO_UUID:
            return None
        return log

    async def not_being_deleted(self, request: StopReplicaRequest) -> set[TopicPartition]:
        """The replicas that the request stops to delete their topics, which are not being deleted.

        The first StopReplica of a deletion only stops them, the next one deletes. The controller
        sends a request again when no response comes, and closes the connection; the first one may
        still arrive, when the topic was created again. The request does not say which topic it
        means. Usually nothing is read: metadata without the topic come before.
        """
        doubtful = await run_in_slices(_selected(request.topic_states, self._doubtful_deletion))
        topics = list(dict.fromkeys(key.topic for key in doubtful))
        if not topics:
            return set()
        try:
            found = await self._store.get_many([znodes.delete_topic_path(each) for each in topics])
        except StoreError as error:
            logger.warning("Stopping no replicas of %s, as ZooKeeper is away: %s", topics, error)
            return set(doubtful)
        kept = {topic for topic, node in zip(topics, found, strict=True) if node is None}
        if kept:
            logger.warning("Ignoring a late StopReplica request of deleted topics: %s", kept)
        return {key for key in doubtful if key.topic in kept}

    def _doubtful_deletion(
        self, topic: StopReplicaTopicState, state: StopReplicaPartitionState
    ) -> TopicPartition | None:
        """The partition, if it is to be deleted and the metadata still have its topic."""
        key = TopicPartition(topic.topic_name, state.partition_index)
        if (
            state.leader_epoch == EPOCH_DURING_DELETE
            and self._metadata.snapshot.partition(*key)
            and self._logs.get(*key)
        ):
            return key
        return None

    async def _rename(self, logs: list[Log]) -> None:
        await rename_stray_logs(self._logs, self._store, self._broker_id, self._hosted, logs)

    def _given_to_others(self) -> Generator[None, None, set[tuple[Log, int]]]:
        found = set()
        for count, log in enumerate(self._logs.logs(), 1):
            if count % _LOGS_PER_STEP == 0:
                yield
            state = self._metadata.snapshot.partition(log.topic, log.partition)
            epoch = self._hosted.leader_epoch(_key(log))
            # A LeaderAndIsr with a higher leader epoch is newer than the metadata. A member of the
            # ISR, or a leader, is one until the controller has removed it. Without a state it is of
            # a topic that is new, or deleted: a LeaderAndIsr that came late.
            if state is None or (
                epoch <= state.leader_epoch
                and self._broker_id not in (*state.replicas, *state.isr, state.leader)
            ):
                found.add((log, epoch))
        return found

    async def wait_for(self, broker_epoch: int) -> None:
        """Waits until the check for this registration, or a later one, is complete."""
        while self._checked_epoch < broker_epoch:
            await self._checked.wait()


def _selected(
    topics: list[Any], select: Callable[[Any, Any], T | None]
) -> Generator[None, None, list[T]]:
    """What `select` returns for the (topic state, partition state) of a request, without None."""
    found = []
    count = 0
    for topic in topics:
        for state in topic.partition_states:
            count += 1
            if count % _LOGS_PER_STEP == 0:
                yield
            selected = select(topic, state)
            if selected is not None:
                found.append(selected)
    return found


async def rename_stray_logs(
    logs: LogManager,
    store: ZnodeStore,
    broker_id: int,
    hosted: HostedReplicas | None = None,
    only: list[Log] | None = None,
) -> int:
    """Renames the logs, all or those of `only`, that are not assigned to this broker; returns their
    number.

    For all of them, call it after the registration and before the first request of the controller:
    a session reads at least everything that was written before its own last write. A replica that
    changes meanwhile is left alone.
    """
    replicas = hosted or _NoReplicas()
    checked = logs.logs() if only is None else only
    before = {log: replicas.leader_epoch(_key(log)) for log in checked}
    topics = list(dict.fromkeys(log.topic for log in before))
    if not topics:
        return 0
    nodes = await store.get_many([znodes.topic_path(topic) for topic in topics])
    states = await run_in_slices(_decoded(dict(zip(topics, nodes, strict=True))))
    strays = [
        (log, reason)
        for log in before
        if log.topic in states and (reason := _stray_reason(log, states[log.topic], broker_id))
    ]
    count = 0
    for start in range(0, len(strays), _STRAYS_PER_TURN):
        if start:
            await asyncio.sleep(0)
        unchanged = [
            (log, reason)
            for log, reason in strays[start : start + _STRAYS_PER_TURN]
            if logs.get(*_key(log)) is log and replicas.leader_epoch(_key(log)) == before[log]
        ]
        if unchanged:
            replicas.remove_strays([_key(log) for log, _ in unchanged])
        count += sum(_rename(logs, log, reason) for log, reason in unchanged)
    return count


def _decoded(
    nodes: dict[str, tuple[bytes, Stat] | None],
) -> Generator[None, None, dict[str, TopicState | None]]:
    """The states of the topics, None for those that are not there; without malformed ones."""
    states: dict[str, TopicState | None] = {}
    for count, (topic, node) in enumerate(nodes.items(), 1):
        if count % _TOPICS_PER_STEP == 0:
            yield
        try:
            states[topic] = None if node is None else znodes.decode_topic(topic, node[0])
        except MalformedZnode as error:
            logger.error("Failed to check for stray logs of topic %s: %s", topic, error)
    return states


def _rename(logs: LogManager, log: Log, reason: str) -> bool:
    try:
        logs.delete_async(log.topic, log.partition, note=Note(Reason.UNKNOWN, reason))
    except StorageError as error:
        logger.error("Failed to rename stray log %s (%s): %s", log.name, reason, error)
        return False
    if log.path.endswith(STRAY_DIRECTORY_SUFFIX):
        logger.warning("Renamed stray log %s to %s: %s", log.name, log.path, reason)
    else:
        logger.warning("Stray log %s is renamed when there is space: %s", log.path, reason)
    return True


def _key(log: Log) -> TopicPartition:
    return TopicPartition(log.topic, log.partition)


def _stray_reason(log: Log, state: TopicState | None, broker_id: int) -> str:
    """Why the log is a stray; "" when it is not."""
    if state is None:
        # Without an id it may belong to a topic that is going to be created for its sake.
        return "" if log.topic_id is None else "the topic does not exist any more"
    if None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id:
        return "the topic was deleted and created again"
    assignment = state.assignments.get(log.partition)
    if assignment is None or broker_id not in assignment.replicas:
        return "the partition is not assigned to this broker any more"
    return ""
