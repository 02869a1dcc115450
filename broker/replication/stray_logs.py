"""Stray logs: logs on the disks that the tree does not give to this broker.

While a broker is down, or without a session, its partitions may be reassigned, and a topic may be
deleted and created again with the same name. The controller sends no StopReplica for those when the
broker is back, so the broker looks for them after each registration, before it handles LeaderAndIsr
requests for it. (Kafka does this in KRaft mode; in ZooKeeper mode it leaves such a log where it is,
and refuses the new topic of that name.)

The znode of a topic alone proves nothing: a tool may have rewritten it, ZooKeeper may have been
restored from an older copy, and the broker may have been started against the wrong one. So a log is
set aside (`-stray`) only if a second fact agrees:

| the znode says           | second fact                                                          |
|--------------------------|----------------------------------------------------------------------|
| the topic is gone        | a controller has stored that it deleted the topic of this id         |
| the topic has another id | the same; or its znode is younger than the log; or its leader epochs |
|                          | have begun again below those of the log                              |
| the replica is elsewhere | the ISR has others, in an epoch that is not below those of the log   |

A log without records is set aside in any of these cases. Otherwise the log stays where it is:
it is not served, nothing is deleted from it, and the broker reports a fault that says what to do.

A broker may also miss a StopReplica while it is registered: the controller that had it in its queue
died. So it looks now and then for replicas that the metadata give to other brokers, and a
LeaderAndIsr of a new topic makes it look for logs of earlier topics of that name.

The other way round, a log that was set aside is taken back if the tree gives it to this broker
again, with the same topic id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.broker.replication.leader_and_isr import EPOCH_DURING_DELETE
from ottla.controller.admin.producer_ids import SKIPPED_IDS, allocate_block
from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_deleted_topic_ids
from ottla.protocol.errors import KafkaError
from ottla.protocol.listed import listed
from ottla.protocol.steps import Steps, over, run_in_turns
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID, uuid_to_string
from ottla.storage.config import LogConfig
from ottla.storage.errors import StorageError
from ottla.storage.files.known_zxid import (
    KNOWN_ZXID_FILE,
    read_known_zxid,
    write_known_zxid,
)
from ottla.storage.files.layout import STRAY_DIRECTORY_SUFFIX
from ottla.storage.files.set_aside import Note, Reason

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
    from ottla.controller.model import LeaderAndIsr, TopicState
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

# A burst of requests is one change for the file.
_NOTE_INTERVAL_MS = 1000
# The response to the controller waits for it.
_NOTE_SECONDS = 2.0
_OFTEN_CHANGED = (znodes.BROKER_IDS, znodes.TOPICS, znodes.CONTROLLER_EPOCH, znodes.REGISTRATIONS)

_NOTHING_KNOWN: Mapping[Log, int] = {}
_KEEP_EVERYTHING = {
    "cleanup_policy": ("delete",),
    "retention_ms": -1,
    "retention_bytes": -1,
    "local_retention_ms": -2,
    "local_retention_bytes": -2,
}
_FIX_OLDER = (
    "start ZooKeeper with its newest data; if it was restored on purpose, stop the broker, remove "
    f"{KNOWN_ZXID_FILE} from its log directories and start it"
)


class HeldLog(NamedTuple):
    """A log that stays where it is, although the tree does not give it to this broker."""

    problem: str
    fix: str


RunInWorker = Callable[[Callable[[], "Log | None"]], "Awaitable[Log | None]"]


async def _run_here(function: Callable[[], Log | None]) -> Log | None:
    return function()


class StrayCheck:
    """Looks for stray logs after each registration, and now and then. Loop only."""

    def __init__(
        self,
        logs: LogManager,
        store: ZnodeStore,
        broker_id: int,
        hosted: LeaderAndIsrApplier,
        metadata: MetadataCache,
        *,
        log_config: Callable[[str], LogConfig] = lambda topic: LogConfig(),
        now_ms: Callable[[], int] = lambda: 0,
        run: RunInWorker = _run_here,
        on_compared: Callable[[bool], None] = lambda is_older: None,
    ) -> None:
        """`log_config` returns the settings of a topic's logs; `run` opens a log that was set
        aside in a worker thread. `on_compared` is called after each registration: whether the tree
        is older than what this broker has seen."""
        self._logs = logs
        self._store = store
        self._broker_id = broker_id
        self._hosted = hosted
        self._metadata = metadata
        self._log_config = log_config
        self._now_ms = now_ms
        self._run = run
        self._on_compared = on_compared
        # Replicas that were given to others at the last look, with their leader epochs.
        self._unassigned: set[tuple[Log, int]] = set()
        self._checked_epoch = -1
        self._checked = asyncio.Event()
        #: The broker epoch with which this broker was registered before, if the tree is older.
        self.newer_zxid = -1
        self._tree, self._epoch = "none", -1
        self._noted_zxid, self._noted_ms = -1, -_NOTE_INTERVAL_MS
        # The broker epoch for which the producer ids of an older tree were left out.
        self._skipped_epoch = -1
        #: The logs that are not served until an operator has decided, and why.
        self.held: dict[Log, HeldLog] = {}
        # A zxid at which each log was there already.
        self._known_since: dict[Log, int] = {}
        self._taking_back = asyncio.Lock()

    async def run(self, broker_epoch: int) -> None:
        """The broker registered with `broker_epoch`. Raises StoreError: it is to be run again."""
        if not await self._continues(broker_epoch):
            self._known_since = {}
        if self.newer_zxid >= 0 and self._skipped_epoch != broker_epoch:
            # Exhausted ids and a damaged znode are reported when the next block is requested.
            with suppress(KafkaError, MalformedZnode):
                await allocate_block(self._store, self._broker_id, skipped=SKIPPED_IDS)
            self._skipped_epoch = broker_epoch
        self._on_compared(self.newer_zxid >= 0)
        await self._rename(self._logs.logs())
        known, self._known_since = self._known_since, {}
        for log in self._logs.logs():
            self._known_since[log] = min(known.get(log, broker_epoch), broker_epoch)
        self._checked_epoch = max(self._checked_epoch, broker_epoch)
        checked, self._checked = self._checked, asyncio.Event()
        checked.set()

    async def _continues(self, broker_epoch: int) -> bool:
        """Whether this is the tree of the last registration, and not an older copy of it."""
        stat = await self._store.exists(znodes.CLUSTER_ID)
        tree = "" if stat is None else f"{stat.czxid}-{stat.ctime_ms}"
        if (tree, broker_epoch) == (self._tree, self._epoch):
            return True  # repeated after a failure
        before, self._tree = self._tree, tree
        online = self._logs.directories.online()
        # Later the client itself connects to no server that is behind it, and what is noted may be
        # newer than a registration that is being handled.
        known = self._epoch
        if before != tree:
            known = read_known_zxid(self._logs.fs, [each.path for each in online], tree)
        self._epoch = broker_epoch
        # Each registration has a zxid of its own: an equal one was given twice, in two copies.
        self.newer_zxid = known if known >= broker_epoch else -1
        if self.newer_zxid >= 0:
            logger.error(
                "ZooKeeper is an older copy of itself: this broker was registered with zxid %d, "
                "and has seen %d before. Its logs stay as they are",
                broker_epoch,
                known,
            )
            return False
        self._write_known_zxid(broker_epoch)
        return before == tree

    def _write_known_zxid(self, zxid: int, *, sync: bool = True) -> None:
        self._noted_zxid = zxid
        for directory in self._logs.directories.online():
            try:
                write_known_zxid(self._logs.fs, directory.path, self._tree, zxid, sync=sync)
            except OSError as error:
                directory.write_failed(error)

    async def leaders_changed(self) -> None:
        """After a LeaderAndIsr request: what it is about has a newer zxid than is known."""
        now_ms = self._now_ms()
        if now_ms - self._noted_ms >= _NOTE_INTERVAL_MS:
            self._noted_ms = now_ms
            try:
                async with asyncio.timeout(_NOTE_SECONDS):
                    await self.note_newest()
            except (StoreError, TimeoutError) as error:
                logger.info("Failed to read the newest zxid: %s", error or "timeout")

    async def note_newest(self) -> None:
        """Stores the newest zxid of what every change of a cluster changes: registrations, topics
        and elections. Raises StoreError."""
        if self.newer_zxid >= 0 or self._checked_epoch < 0:
            return
        nodes = await self._store.get_many(_OFTEN_CHANGED)
        newest = max(
            (max(stat.mzxid, stat.pzxid) for node in nodes if node for stat in [node[1]]),
            default=-1,
        )
        if self.newer_zxid < 0 and newest > self._noted_zxid:
            self._write_known_zxid(newest, sync=False)

    def accept_tree(self) -> None:
        """The tree is older, and the right one: its controller has all replicas of a partition."""
        if self.newer_zxid >= 0:
            logger.warning("ZooKeeper was restored from an older copy, which is used from now on")
            self.newer_zxid = -1
            self._write_known_zxid(self._epoch)

    async def look_for_unassigned(self) -> None:
        """Renames the logs of replicas that were given to others at the last look already; usually
        a StopReplica has deleted them since.

        The tree decides: at the end of a reassignment the metadata are ahead of it.
        """
        try:
            await self.note_newest()
        except StoreError as error:
            logger.info("Failed to read the newest zxid: %s", error)
        found = await run_in_turns(self._given_to_others())
        again, self._unassigned = found & self._unassigned, found
        self._forget_closed()
        logs = dict.fromkeys([*sorted((log for log, _ in again), key=_key), *self.held])
        if logs:
            try:
                await self._rename(list(logs))
            except StoreError as error:
                logger.info("Failed to look for stray logs: %s", error)

    def _forget_closed(self) -> None:
        """Of logs that were deleted or set aside."""
        for log in [*self.held, *self._known_since]:
            if self._logs.get(*_key(log)) is not log:
                self.held.pop(log, None)
                self._known_since.pop(log, None)

    def is_held(self, topic: str, partition: int) -> bool:
        """Whether there is a log of the partition which is not served."""
        log = self._logs.get(topic, partition)
        return log is not None and log in self.held

    async def make_way_for(self, request: LeaderAndIsrRequest) -> None:
        """Renames the logs of earlier topics of the same names, which would refuse the new ones.

        A deletion waits for all replicas that are assigned. One that was not any more, and whose
        StopReplica was lost with a controller, may be here until the next look, or longer if its
        topic is deleted before. Raises StoreError: it is to be repeated.
        """
        steps = _selected(request.topic_states, self._log_of_earlier_topic)
        earlier = await run_in_turns(steps)
        if earlier:
            await self._rename(earlier)

    def _log_of_earlier_topic(
        self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState
    ) -> Log | None:
        log = self._logs.get(topic.topic_name, state.partition_index)
        if log is None or log in self.held:
            return log
        if log.topic_id in (None, topic.topic_id) or topic.topic_id == ZERO_UUID:
            return None
        return log

    async def not_being_deleted(self, request: StopReplicaRequest) -> set[TopicPartition]:
        """The replicas that the request stops to delete their topics, which are not being deleted.

        The first StopReplica of a deletion only stops them, the next one deletes. The controller
        sends a request again when no response comes, and closes the connection; the first one may
        still arrive, when the topic was created again. The request does not say which topic it
        means. Usually nothing is read: metadata without the topic come before.
        """
        doubtful = await run_in_turns(_selected(request.topic_states, self._doubtful_deletion))
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
        await rename_stray_logs(
            self._logs,
            self._store,
            self._broker_id,
            self._hosted,
            logs,
            known_since=self._known_since,
            held=self.held,
            log_config=self._log_config,
            tree_is_older=self.newer_zxid >= 0,
            now_ms=self._now_ms(),
        )

    async def take_back(self, request: LeaderAndIsrRequest) -> None:
        """Takes the logs back that were set aside, and that the request gives to this broker again.

        Otherwise an empty log would be created. The request waits for the recovery of these logs.
        """
        wanted = await run_in_turns(_selected(request.topic_states, self._to_take_back))
        for key, topic_id in wanted:
            async with self._taking_back:
                await self._take_back(key, topic_id)

    def _to_take_back(
        self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState
    ) -> tuple[TopicPartition, bytes] | None:
        key = TopicPartition(topic.topic_name, state.partition_index)
        log = self._logs.get(*key)
        if (
            topic.topic_id == ZERO_UUID
            # A new replica copies from its leader: what it had long ago is of no use to it.
            or state.is_new
            or self._broker_id not in state.replicas
            or (log is not None and not self._is_unused(key, log, state.leader))
            or not self._logs.has_set_aside(*key)
        ):
            return None
        return key, topic.topic_id

    def _is_unused(self, key: TopicPartition, log: Log, leader: int) -> bool:
        """An empty log that was created in place of the one that was set aside. As a follower of a
        leader that is empty, too, the one with the records would be truncated."""
        is_empty = log.log_end_offset == 0 and leader == self._broker_id
        return is_empty and self._hosted.leader_epoch(key) < 0

    async def _take_back(self, key: TopicPartition, topic_id: bytes) -> None:
        opened: Log | None = None
        try:
            opened = await self._run(
                lambda: self._logs.open_set_aside(
                    *key, topic_id, self._log_config(key.topic), self._now_ms()
                )
            )
            current = self._logs.get(*key)
            if opened is None or (current is not None and current.log_end_offset):
                if opened is not None:
                    opened.local.release()
                return
            before = opened.path
            self._logs.take_back(opened, self._now_ms())
        except StorageError as error:
            if opened is not None:
                opened.local.release()
            logger.error("Failed to take back the log of %s: %s", key, error)
            return
        logger.warning(
            "Took back log %s, which was set aside as %s: ZooKeeper gives this broker the "
            "partition again, with the same topic id",
            opened.path,
            before,
        )

    def _given_to_others(self) -> Steps[set[tuple[Log, int]]]:
        found = set()
        for log in self._logs.logs():
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


def _selected(topics: list[Any], select: Callable[[Any, Any], T | None]) -> Steps[list[T]]:
    """The results of `select` for the (topic state, partition state) of a request, without None."""
    found = []
    for topic in topics:
        for state in topic.partition_states:
            yield
            selected = select(topic, state)
            if selected is not None:
                found.append(selected)
    return found


async def rename_stray_logs(
    logs: LogManager,
    store: ZnodeStore,
    broker_id: int,
    hosted: LeaderAndIsrApplier,
    only: list[Log] | None = None,
    *,
    known_since: Mapping[Log, int] = _NOTHING_KNOWN,
    held: dict[Log, HeldLog] | None = None,
    log_config: Callable[[str], LogConfig] = lambda topic: LogConfig(),
    tree_is_older: bool = False,
    now_ms: int = -1,
) -> int:
    """Sets the logs aside, all or those of `only`, that are not assigned to this broker, if two
    facts agree; returns their number. `held` gets the others, and loses those that are assigned.

    For all of them, call it after the registration and before the first request of the controller:
    a session reads at least everything that was written before its own last write. A replica that
    changes meanwhile is left alone. `known_since` has a zxid at which a log was there already.
    """
    checked = logs.logs() if only is None else only
    before = {log: hosted.leader_epoch(_key(log)) for log in checked}
    topics = list(dict.fromkeys(log.topic for log in before))
    if not topics:
        return 0
    nodes = await store.get_many([znodes.topic_path(topic) for topic in topics])
    states = await run_in_turns(_decoded(dict(zip(topics, nodes, strict=True))))
    suspected = {
        log: reason
        for log in before
        if log.topic in states and (reason := _suspicion(log, states[log.topic], broker_id))
    }
    held = {} if held is None else held
    for log in before.keys() & held.keys() - suspected.keys():
        if log.topic in states:
            del held[log]
            log.update_config(log_config(log.topic))
            logger.info("Log %s is assigned to this broker again", log.path)
    if not suspected:
        return 0
    stats = {topic: node[1] for topic, node in zip(topics, nodes, strict=True) if node is not None}
    evidence = await _read_evidence(store, suspected, stats, known_since)
    strays: list[tuple[Log, Note]] = []
    for log, reason in suspected.items():
        verdict = _judge(log, reason, evidence, broker_id)
        if isinstance(verdict, Note) and tree_is_older:
            verdict = HeldLog(f"{verdict.detail}; but ZooKeeper is an older copy", _FIX_OLDER)
        if isinstance(verdict, Note):
            strays.append((log, verdict._replace(set_aside_ms=now_ms)))
        else:
            _hold(held, log, verdict)
    renamed = 0
    async for log, note in over(strays):
        key = _key(log)
        # It may have changed while others were renamed.
        if logs.get(*key) is log and hosted.leader_epoch(key) == before[log]:
            hosted.stop_stray(key)
            held.pop(log, None)
            try:
                renamed += _rename(logs, log, note, now_ms)
            finally:  # in this step: after a pause it may be there again
                hosted.on_strays_removed([key])
    return renamed


def _hold(held: dict[Log, HeldLog], log: Log, verdict: HeldLog) -> None:
    """Keeps the log as it is: also retention and compaction wait. The settings of its topic may be
    gone with the topic, and those of the broker may be shorter."""
    if held.get(log) != verdict:
        logger.error("Keeping log %s: %s; %s", log.path, verdict.problem, verdict.fix)
    held[log] = verdict
    values = log.config.values
    if values != (kept := {**values, **_KEEP_EVERYTHING}):
        log.update_config(LogConfig(**kept))


def _decoded(
    nodes: dict[str, tuple[bytes, Stat] | None],
) -> Steps[dict[str, TopicState | None]]:
    """The states of the topics, None for those that are not there; without malformed ones."""
    states: dict[str, TopicState | None] = {}
    for topic, node in nodes.items():
        yield
        try:
            states[topic] = None if node is None else znodes.decode_topic(topic, node[0])
        except MalformedZnode as error:
            logger.error("Failed to check for stray logs of topic %s: %s", topic, error)
    return states


def _rename(logs: LogManager, log: Log, note: Note, now_ms: int) -> bool:
    try:
        logs.delete_async(log.topic, log.partition, now_ms, note)
    except StorageError as error:
        logger.error("Failed to rename stray log %s (%s): %s", log.name, note.detail, error)
        return False
    if log.path.endswith(STRAY_DIRECTORY_SUFFIX):
        logger.warning("Renamed stray log %s to %s: %s", log.name, log.path, note.detail)
    else:
        logger.warning("Stray log %s is renamed when there is space: %s", log.path, note.detail)
    return True


def _key(log: Log) -> TopicPartition:
    return TopicPartition(log.topic, log.partition)


# -- what is known about a log that is not assigned ---------------------------------------------


class _Evidence(NamedTuple):
    """The facts of the tree beside the assignments of topics."""

    #: By topic, the ids of those that a controller has deleted.
    deleted: dict[str, tuple[str, ...]]
    #: By topic, the ids of those whose znode something else has removed.
    removed: dict[str, tuple[str, ...]]
    states: dict[Log, LeaderAndIsr]
    stats: dict[str, Stat]
    known_since: Mapping[Log, int]


async def _read_evidence(
    store: ZnodeStore,
    logs: Collection[Log],
    stats: dict[str, Stat],
    known_since: Mapping[Log, int],
) -> _Evidence:
    paths = [znodes.state_path(_key(log)) for log in logs]
    nodes = await store.get_many([znodes.DELETED_TOPICS, *paths])
    deleted: dict[str, tuple[str, ...]] = {}
    removed: dict[str, tuple[str, ...]] = {}
    if nodes[0] is not None:
        try:
            deleted, removed = decode_deleted_topic_ids(nodes[0][0])
        except MalformedZnode as error:
            logger.error("Ignoring the ids of deleted topics: %s", error)
    states: dict[Log, LeaderAndIsr] = {}
    for log, node in zip(logs, nodes[1:], strict=True):
        if node is None:
            continue
        try:
            states[log] = znodes.decode_state(_key(log), node[0], node[1].version)
        except MalformedZnode as error:
            logger.error("Ignoring the state of partition %s: %s", _key(log), error)
    return _Evidence(deleted, removed, states, stats, known_since)


def _suspicion(log: Log, state: TopicState | None, broker_id: int) -> Reason | None:
    """The reason against the log in the znode of the topic."""
    if state is None:
        # Without an id it may belong to a topic that is going to be created for its sake.
        return None if log.topic_id is None else Reason.TOPIC_GONE
    if None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id:
        return Reason.TOPIC_RECREATED
    assignment = state.assignments.get(log.partition)
    if assignment is None or broker_id not in assignment.replicas:
        return Reason.NOT_ASSIGNED
    return None


def _judge(log: Log, reason: Reason, evidence: _Evidence, broker_id: int) -> Note | HeldLog:
    """A note if a second fact agrees with the znode of the topic."""
    topic_id = "" if log.topic_id is None else uuid_to_string(log.topic_id)
    if topic_id and topic_id in evidence.deleted.get(log.topic, ()):
        return Note(reason, f"the topic with id {topic_id} was deleted", needs_attention=False)
    if log.log_end_offset == 0:
        return Note(reason, f"{_SAID[reason]}, and the log is empty", needs_attention=False)
    if reason is Reason.NOT_ASSIGNED:
        return _judge_assignment(log, evidence.states.get(log), broker_id)
    if reason is Reason.TOPIC_GONE:
        return HeldLog(
            f"topic {log.topic} is not in ZooKeeper, and no controller has stored that it deleted "
            f"the topic with id {topic_id}",
            f"if ZooKeeper was restored or is the wrong one, repair that; if the topic is not "
            f"needed any more, stop the broker and move {log.path} away",
        )
    return _judge_recreation(log, topic_id, evidence)


def _judge_assignment(log: Log, state: LeaderAndIsr | None, broker_id: int) -> Note | HeldLog:
    epoch = log.leader_epochs.latest_epoch
    said = _SAID[Reason.NOT_ASSIGNED]
    if state is None:
        second = "it has no leader and ISR"
    elif broker_id in state.isr:
        second = "this broker is in its ISR"
    elif state.leader_epoch < epoch:
        second = f"its leader epoch is {state.leader_epoch}, below {epoch} in the log"
    elif not state.isr:
        second = "its ISR is empty"
    else:
        return Note(
            Reason.NOT_ASSIGNED,
            f"{said}, and the replicas {listed(state.isr)} are in sync in leader epoch "
            f"{state.leader_epoch}",
            needs_attention=False,
        )
    return HeldLog(
        f"ZooKeeper does not assign {log.name} to this broker, but {second}",
        "if a tool has changed the assignment, assign it again with `ottla partitions reassign`; "
        f"if the log is not needed any more, stop the broker and move {log.path} away",
    )


def _judge_recreation(log: Log, topic_id: str, evidence: _Evidence) -> Note | HeldLog:
    state, stat = evidence.states.get(log), evidence.stats[log.topic]
    epoch = log.leader_epochs.latest_epoch
    said = _SAID[Reason.TOPIC_RECREATED]
    if topic_id in evidence.removed.get(log.topic, ()):
        detail = f"{said}: the znode of the topic with id {topic_id} was removed"
    elif log in evidence.known_since and stat.czxid > evidence.known_since[log]:
        detail = f"{said}: its znode is younger than the log"
    elif state is not None and state.leader_epoch < epoch:
        detail = f"{said}: its leader epoch {state.leader_epoch} is below {epoch} in the log"
    else:
        return HeldLog(
            f"topic {log.topic} has another id in ZooKeeper than {topic_id} in {log.path}, and "
            "nothing else says that it was deleted and created again",
            f'if a tool has rewritten {znodes.topic_path(log.topic)}, set its "topic_id" to '
            f'"{topic_id}"; if the topic was created again, stop the broker and move {log.path} '
            "away",
        )
    return Note(Reason.TOPIC_RECREATED, detail)


_SAID = {
    Reason.TOPIC_GONE: "the topic is not in ZooKeeper",
    Reason.TOPIC_RECREATED: "ZooKeeper has another topic of this name",
    Reason.NOT_ASSIGNED: "ZooKeeper does not assign the partition to this broker",
}
