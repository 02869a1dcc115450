"""A partition with a replica on this broker: leader, ISR, followers, high watermark.

Mirrors Kafka's `Partition`. All methods run on the event loop and never await: an append, the
change of the high watermark and the completion of delayed operations are one atomic step.

Consumers read below the high watermark: the smallest log end offset of the replicas in the maximal
ISR. If this broker alone is in the ISR, each append advances it. It does not advance while the ISR
is smaller than `min.insync.replicas`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH
from ottla.broker.metrics.topic_statistics import BrokerTopicStatistics
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
    from ottla.storage.log.log import Log
    from ottla.storage.log.log_info import AppendInfo
    from ottla.storage.log.log_offsets import LogOffsets


NO_LEADER = -1

# The upper bound of a read: high watermark, last stable offset, or (for followers) log end offset.
# The first two are the isolation levels of the protocol.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
READ_LOG_END = -1

UNKNOWN_OFFSET = -1

# Before any allowed lag, also right after boot, when the monotonic clock is near 0.
NEVER = -(1 << 62)

# The value of `replica.selector.class` with which consumers read from a replica in their rack.
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

NO_PREFERENCE = -1


class PartitionContext:
    """What all partitions of a broker share."""

    __slots__ = ("broker_id", "is_alive", "lag_time_max_ms", "now_ms", "topics")

    def __init__(
        self,
        broker_id: int,
        lag_time_max_ms: int,
        is_alive: Callable[[int], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self.broker_id = broker_id
        self.lag_time_max_ms = lag_time_max_ms
        #: Whether a broker is registered; only then it may join an ISR.
        self.is_alive = is_alive
        #: Monotonic milliseconds, for lags.
        self.now_ms = now_ms
        #: What is counted by topic.
        self.topics = BrokerTopicStatistics()


class Partition:
    """The replica of this broker. `log` is None until the first LeaderAndIsr request for it."""

    __slots__ = (
        "_alone",
        "adding_replicas",
        "context",
        "controller_epoch",
        "followers",
        "index",
        "is_leader",
        "isr",
        "key",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "led_since",
        "log",
        "maximal_isr",
        "offline",
        "partition_epoch",
        "pending_isr",
        "removing_replicas",
        "replicas",
        "statistics",
        "topic",
        "topic_id",
    )

    def __init__(self, key: TopicPartition, context: PartitionContext) -> None:
        self.key = key
        self.topic = key.topic
        self.index = key.partition
        self.context = context
        self.statistics = context.topics.add_replica(key.topic)
        self.topic_id = ZERO_UUID
        self.log: Log | None = None
        self.offline = False
        self.is_leader = False
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        # The leader epoch in which this broker became leader, the last time that it did.
        self.led_since = -1
        self.partition_epoch = -1
        self.controller_epoch = 0
        self.replicas: list[int] = []
        self.adding_replicas: list[int] = []
        self.removing_replicas: list[int] = []
        # The committed ISR; `pending_isr` is the one that was sent in an AlterPartition request;
        # `maximal_isr` is the union of both, which the high watermark waits for meanwhile.
        self.isr: frozenset[int] = frozenset()
        self.pending_isr: frozenset[int] | None = None
        self.maximal_isr: frozenset[int] = frozenset()
        self.followers: dict[int, FollowerReplica] = {}
        self._alone = True

    # -- leader and follower --------------------------------------------------------------------

    def make_leader(self, state: LeaderAndIsrPartitionState, log: Log) -> None:
        """Becomes leader, or continues to be it in a higher leader epoch.

        The caller has checked that the leader epoch of `state` is higher. `log` is the local log.
        """
        context = self.context
        was_leader = self.is_leader
        self.log = log
        self._assign(state)
        self.set_isr(frozenset(state.isr))
        start = log.log_end_offset
        # Followers may request the end offset of any epoch up to this one.
        log.assign_epoch(state.leader_epoch, start)
        self.followers = {
            broker_id: self.followers.get(broker_id) or FollowerReplica(broker_id)
            for broker_id in state.replicas
            if broker_id != context.broker_id
        }
        now_ms = context.now_ms()
        for follower in self.followers.values():
            follower.reset(now_ms, start, not was_leader, follower.broker_id in self.isr)
        self.leader_epoch = state.leader_epoch
        self.leader_epoch_start_offset = start
        if not was_leader:
            self.led_since = state.leader_epoch
        self.is_leader = True
        self.leader_id = context.broker_id
        self._alone = not self.followers
        self.maybe_increment_high_watermark()

    def make_follower(self, state: LeaderAndIsrPartitionState, log: Log) -> None:
        """Becomes follower of the leader in `state`, whose leader epoch is higher."""
        self.log = log
        self._assign(state)
        self.is_leader = False
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.leader_epoch_start_offset = -1
        self.followers = {}
        self._alone = True
        self.set_isr(frozenset())

    def resign(self) -> None:
        """Leads no more, and knows of no other leader; the leader epoch stays what it was.

        A pending AlterPartition is dropped."""
        self.is_leader = False
        self.leader_id = NO_LEADER
        self.set_isr(self.isr)

    def _assign(self, state: LeaderAndIsrPartitionState) -> None:
        self.controller_epoch = state.controller_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = list(state.replicas)
        self.adding_replicas = list(state.adding_replicas)
        self.removing_replicas = list(state.removing_replicas)

    def set_isr(self, isr: frozenset[int]) -> None:
        """Sets the committed ISR; a pending AlterPartition is dropped."""
        self.isr = isr
        self.pending_isr = None
        self.maximal_isr = isr

    def leader_log(self) -> Log:
        """The log of the leader; raises NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR."""
        if self.is_leader and self.log is not None and not self.offline:
            return self.log
        if self.offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.key} is offline."
            )
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Broker {self.context.broker_id} is not the leader of {self.key}.",
        )

    def check_topic_id(self, topic_id: bytes) -> None:
        """Raises INCONSISTENT_TOPIC_ID for a reader of an earlier topic of this name; one that
        fetches by name has the zero id."""
        if topic_id != self.topic_id and ZERO_UUID not in (topic_id, self.topic_id):
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"The topic of {self.key} was deleted and created again.",
            )

    def log_for(self, leader_epoch: int, leader_only: bool) -> Log:
        """The log for a reader with the current leader epoch `leader_epoch` (-1: none).

        Raises FENCED_LEADER_EPOCH when that epoch is lower than ours, UNKNOWN_LEADER_EPOCH when it
        is higher, and the errors of `leader_log`.
        """
        if leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            if leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not leader_only and self.log is not None and not self.offline:
            return self.log
        return self.leader_log()

    # -- writing --------------------------------------------------------------------------------

    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, at most the number of replicas."""
        log = self.log
        assert log is not None
        wanted: int = log.config.min_insync_replicas
        return min(wanted, len(self.replicas))

    def check_enough_in_sync(self) -> None:
        """For acks=all: raises NOT_ENOUGH_REPLICAS if the ISR is below `min.insync.replicas`."""
        if len(self.isr) < self.effective_min_isr():
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(self.isr)} is insufficient to satisfy the "
                f"min.isr requirement of {self.effective_min_isr()} for partition {self.key}.",
            )

    def after_append(self, offsets: LogOffsets, info: AppendInfo, magic: int) -> None:
        """Count an append to the log of these `offsets`, of records that came with this magic.

        Advances the high watermark: without followers to the log end offset, if no flush is
        required first.
        """
        statistics = self.statistics
        statistics.produces += 1
        if not info.duplicate:
            statistics.received_bytes += info.bytes
            messages = info.last_offset + 1 - info.first_offset
            statistics.received_messages += messages
            if magic < 2:
                statistics.produce_conversions += messages
        if self._alone and not offsets.flush_required:
            offsets.update_high_watermark(offsets.log_end_offset)
        else:
            self.maybe_increment_high_watermark()

    def maybe_increment_high_watermark(self) -> bool:
        """Computes the leader's high watermark; returns whether it advanced. It never decreases.

        It waits for the leader's own flush, if `flush.messages` requires one.
        """
        log = self.log
        if log is None or len(self.isr) < self.effective_min_isr():
            return False
        context, offsets = self.context, log.offsets
        end_offset = offsets.log_end_offset
        new = offsets.acknowledgeable_offset
        if self.followers:
            now_ms = context.now_ms()
            for follower in self.followers.values():
                if follower.log_end_offset < new and (
                    follower.broker_id in self.maximal_isr
                    # The high watermark waits for a follower that has caught up and is not in the
                    # ISR yet: otherwise it stays ahead of it, and the follower can never join.
                    or (
                        follower.is_caught_up(end_offset, now_ms, context.lag_time_max_ms)
                        and context.is_alive(follower.broker_id)
                    )
                ):
                    new = follower.log_end_offset
        if new <= offsets.high_watermark:
            return False
        offsets.update_high_watermark(new)
        return True

    def replicas_reached(self, led_since: int, required_offset: int) -> tuple[bool, int]:
        """Whether `required_offset`, appended while this broker led the partition since that leader
        epoch, is committed (acks=all), and the error code.

        Mirrors `checkEnoughReplicasReachOffset` of Kafka's `Partition`.
        """
        log = self.log
        if self.offline:
            return False, ErrorCode.KAFKA_STORAGE_ERROR
        if not self.is_leader or self.led_since != led_since or log is None:
            # Leader again, after it may have truncated what it had appended.
            return False, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if log.offsets.high_watermark < required_offset:
            return False, ErrorCode.NONE
        if self.effective_min_isr() <= len(self.maximal_isr):
            return True, ErrorCode.NONE
        return True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    # -- followers ------------------------------------------------------------------------------

    def follower(self, replica_id: int, leader_epoch: int, broker_epoch: int) -> FollowerReplica:
        """The follower `replica_id`, for a fetch with the broker epoch `broker_epoch` (-1: none).

        Raises a retriable error if it is not in the assignment, and NOT_LEADER_OR_FOLLOWER for a
        fetch from before its last registration (KIP-903): it says nothing about the log of now.
        """
        found = self.followers.get(replica_id)
        if found is not None:
            if UNKNOWN_BROKER_EPOCH < broker_epoch < found.broker_epoch:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"Received a stale fetch of broker {replica_id} for {self.key}: broker epoch "
                    f"{broker_epoch}, current {found.broker_epoch}.",
                )
            return found
        code = (
            ErrorCode.UNKNOWN_LEADER_EPOCH
            if leader_epoch >= 0
            else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        raise KafkaError(code, f"Broker {replica_id} is not a replica of {self.key}.")

    def low_watermark(self) -> int:
        """The smallest log start offset of the live replicas, for DeleteRecords (KIP-107)."""
        log = self.leader_log()
        low: int = log.log_start_offset
        for follower in self.followers.values():
            if self.context.is_alive(follower.broker_id):
                low = min(low, follower.log_start_offset)
        return low

    # -- epochs ---------------------------------------------------------------------------------

    def end_offset_for_epoch(self, log: Log, epoch: int) -> tuple[int, int]:
        """(largest leader epoch up to `epoch`, its end offset), or (-1, -1)."""
        if epoch == self.leader_epoch and self.is_leader:
            return epoch, log.offsets.log_end_offset
        found: tuple[int, int] = log.end_offset_for_epoch(epoch)
        return found


class FollowerReplica:
    """A follower's progress, from its fetch requests.

    `last_caught_up_ms` is the last time at which the follower had all records of the leader. A
    fetch at the leader's log end offset sets it to now; a fetch at the log end offset of the
    previous fetch sets it to the time of that fetch.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "refused_until_ms",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = NEVER
        self.last_fetch_ms = NEVER
        self.last_fetch_leader_end_offset = 0
        #: The controller refused it as a member of the ISR: it is not proposed before.
        self.refused_until_ms = NEVER

    def reset(self, now_ms: int, leader_end_offset: int, new_leader: bool, in_sync: bool) -> None:
        """A leader epoch starts. A follower in the ISR counts as caught up for the allowed lag."""
        self.last_caught_up_ms = now_ms if in_sync else NEVER
        self.refused_until_ms = NEVER
        if new_leader:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.last_fetch_ms = NEVER
            self.last_fetch_leader_end_offset = 0
            self.broker_epoch = -1
        else:
            self.last_fetch_ms = now_ms if in_sync else NEVER
            self.last_fetch_leader_end_offset = leader_end_offset

    def record_fetch(self, fetch_offset: int, start_offset: int, end: int, now_ms: int) -> None:
        """The follower fetches from `fetch_offset`, so it has all records below it.

        `end` is the leader's log end offset before the read of this fetch.
        """
        if fetch_offset >= end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = start_offset
        self.last_fetch_leader_end_offset = end
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has all records of the leader, or had within `lag_time_max_ms`."""
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.last_caught_up_ms <= lag_time_max_ms
        )


class RackAwareReplicaSelector:
    """Selects the preferred read replica of a consumer (KIP-392); mirrors Kafka's class.

    A consumer with a `client.rack` reads from an in-sync replica in that rack that has the fetch
    offset: from the leader if it is in the rack, otherwise from the replica with the highest log
    end offset. It goes back to the leader when a fetch from that replica fails. The racks are those
    in the metadata cache.
    """

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def choose(self, partition: Partition, client_rack: str, fetch_offset: int) -> int:
        """The broker id of the preferred read replica, or NO_PREFERENCE for the leader."""
        brokers = self._metadata.snapshot.brokers
        own = brokers.get(partition.context.broker_id)
        if not client_rack or own is None or own.rack == client_rack:
            return NO_PREFERENCE
        best: FollowerReplica | None = None
        for follower in partition.followers.values():
            if follower.broker_id not in partition.isr:
                # It may stay behind for ever, and the consumer with it.
                continue
            broker = brokers.get(follower.broker_id)
            if broker is None or broker.rack != client_rack:
                continue
            if not follower.log_start_offset <= fetch_offset <= follower.log_end_offset:
                continue
            if best is None or _progress(follower) > _progress(best):
                best = follower
        return NO_PREFERENCE if best is None else best.broker_id


def _progress(follower: FollowerReplica) -> tuple[int, int]:
    return follower.log_end_offset, follower.last_caught_up_ms
