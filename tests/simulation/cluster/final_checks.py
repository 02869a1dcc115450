"""What must hold when troubles and producers have stopped: the cluster is well and lost nothing."""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.doubles.kept_records import kept_records
from tests.simulation.cluster.aborted_checks import missing_aborted
from tests.simulation.cluster.history import Kept
from tests.simulation.cluster.settled import decoded_topic, not_known, not_led, unsettled

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

TOPIC = "t"
PASSING_TOPIC = "passing"
UNCLEAN_TOPIC = "unclean"
IDLE_TOPIC = "idle"
# With tiered storage only.
REMOTE_TOPICS = ("__remote_log_metadata", "brief", "fleeting", "switched")
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


class FinalChecks:
    """Reads the brokers' own objects and at ZooKeeper's tree."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = Random(f"final checks {world.seed}")

    def _topics(self) -> list[str]:
        return [
            name
            for name in (TOPIC, UNCLEAN_TOPIC, IDLE_TOPIC, *REMOTE_TOPICS, *INTERNAL_TOPICS)
            if self.world.ensemble.has_topic(name)
        ]

    def _assignments(self, topic: str) -> dict[int, tuple[int, ...]]:
        """The replicas of each partition; empty without the topic."""
        node = self.world.ensemble.tree.nodes.get(znodes.topic_path(topic))
        if node is None:
            return {}
        found = decoded_topic(topic, node.data).assignments
        return {index: tuple(each.replicas) for index, each in found.items()}

    def _topic_id(self, topic: str) -> bytes | None:
        node = self.world.ensemble.tree.nodes.get(znodes.topic_path(topic))
        return None if node is None else decoded_topic(topic, node.data).topic_id

    def restless(self) -> str | None:
        """Why the cluster has not recovered yet."""
        for node in self.world.nodes.values():
            if not node.ready or node.server is None:
                return f"{node.host} is not ready"
        for client in self.world.producers:
            if not client.finished:
                return f"{client.name} gets no response that it can go on with"
        assigned: dict[TopicPartition, tuple[int, ...]] = {}
        for topic in [*self._topics(), PASSING_TOPIC]:
            for index, replicas in self._assignments(topic).items():
                assigned[TopicPartition(topic, index)] = replicas
                reason = self._unwell(topic, index, replicas)
                if reason:
                    return reason
        return self._has_others(assigned) or unsettled(self.world)

    def _has_others(self, assigned: dict[TopicPartition, tuple[int, ...]]) -> str | None:
        """A broker has no replica and no log that is not assigned to it, and moves have ended."""
        for node in self.world.nodes.values():
            server: Any = node.server
            logs = server.parts.logs
            hosted = {TopicPartition(each.topic, each.partition) for each in logs.logs()}
            for log in logs.logs():
                expected = self._topic_id(log.topic)
                if log.topic_id not in (None, expected):
                    return f"{node.host} has {log.name} of a topic that was deleted"
            for where in sorted(hosted | set(server.parts.replica_manager.partitions)):
                replicas = assigned.get(where)
                if replicas is None and where.topic == PASSING_TOPIC:
                    return f"{node.host} has {where}, which was deleted"
                if replicas is not None and node.broker_id not in replicas:
                    return f"{node.host} has {where}, which is assigned to {replicas}"
                if logs.get_future(*where) is not None:
                    return f"{node.host} has not moved {where} to the other log directory"
        return None

    def _unwell(self, topic: str, index: int, replicas: tuple[int, ...]) -> str | None:
        where = TopicPartition(topic, index)
        reason = not_led(self.world, where, replicas) or not_known(self.world, where)
        if reason:
            return reason
        hosted = {
            each: self.world.nodes[each].server.parts.replica_manager.partitions.get(where)  # type: ignore[union-attr]
            for each in replicas
        }
        ends = {each: found and found.log.log_end_offset for each, found in hosted.items()}
        if len(set(ends.values())) != 1:
            return f"{topic}-{index} has log end offsets {ends}"
        marks = {each: found and found.log.high_watermark for each, found in hosted.items()}
        if set(marks.values()) != set(ends.values()):
            return f"{topic}-{index} has high watermarks {marks}, log end offsets {ends}"
        leader: Any = next(found for found in hosted.values() if found and found.is_leader)
        stable = leader.log.last_stable_offset
        if stable != leader.log.log_end_offset:
            return f"{topic}-{index} has the last stable offset {stable} of {ends}"
        return None

    def check_logs(self) -> None:
        visible: set[bytes] = set()
        for topic in self._topics():
            for index, replicas in self._assignments(topic).items():
                # A leader that lost power may have lost the checkpoint of its log start offset.
                logs = {each: self._log(each, topic, index) for each in replicas}
                starts = {each: log.local_log_start_offset for each, log in logs.items()}
                start = max(starts.values())
                contents: dict[int, Any] = {
                    each: self._latest(each, topic, index, start)
                    if topic in INTERNAL_TOPICS
                    else self._raw(each, topic, index, start)
                    for each in replicas
                }
                # A replica that could not be replaced lacks what an operator has taken.
                has_gap = TopicPartition(topic, index) in self.world.with_gaps
                if not has_gap and any(each != contents[replicas[0]] for each in contents.values()):
                    sizes = {each: len(found) for each, found in contents.items()}
                    self.world.complain(
                        f"{topic}-{index}: replicas differ, sizes {sizes}, log starts {starts}"
                    )
                if topic == TOPIC:
                    self._check_aborted(index, replicas)
                    kept = self._kept(replicas[0], topic, index)
                    visible |= {each.value for each in kept if each.visible}
                    for complaint in self.world.history.check(topic, index, kept):
                        self.world.complain(complaint)
        for complaint in self.world.history.check_atomic(visible):
            self.world.complain(complaint)
        self._check_offsets()

    def _check_aborted(self, index: int, replicas: tuple[int, ...]) -> None:
        for each in replicas:
            reason = missing_aborted(self._log(each, TOPIC, index), self._random)
            if reason:
                self.world.complain(f"b{each}: {TOPIC}-{index}: {reason}")

    def _log(self, broker_id: int, topic: str, index: int) -> Any:
        server: Any = self.world.nodes[broker_id].server
        return server.parts.replica_manager.partitions[TopicPartition(topic, index)].log

    def _raw(self, broker_id: int, topic: str, index: int, start: int) -> bytes:
        log = self._log(broker_id, topic, index)
        return b"".join(bytes(batch) for batch in log.batches(start, log.log_end_offset))

    def _latest(self, broker_id: int, topic: str, index: int, start: int) -> dict[bytes, Any]:
        """The last record of each key. Each replica of a compacted topic is compacted by itself:
        what compaction removes may be in one and not in another."""
        log = self._log(broker_id, topic, index)
        open_: dict[int, list[Any]] = {}
        records: list[Any] = []
        for batch in log.batches(start, log.log_end_offset):
            data = bytes(batch)
            producer_id, attributes = struct.unpack_from(">q", data, 43)[0], data[22]
            found = list(read_records(data, include_control=True))
            if attributes & 0x20:  # a control batch, of which compaction may leave the header
                ended = open_.pop(producer_id, [])
                if found and struct.unpack_from(">h", found[0].key, 2)[0] == 1:
                    records += ended
            elif attributes & 0x10:
                open_.setdefault(producer_id, []).extend(found)
            else:
                records += found
        latest = {
            bytes(each.key or b""): (each.offset, each.value and bytes(each.value))
            for each in sorted(records, key=lambda each: each.offset)
        }
        return {key: found for key, found in latest.items() if found[1] is not None}

    def _kept(self, broker_id: int, topic: str, index: int) -> list[Kept]:
        """All data records, and whether read_committed shows them: markers decide.

        Batches that DeleteRecords removed are taken from what the watch kept of them.
        """
        log = self._log(broker_id, topic, index)
        batches = dict(self.world.watch.batches(topic, index))
        for batch in log.batches(log.local_log_start_offset, log.log_end_offset):
            batches[struct.unpack_from(">q", batch)[0]] = bytes(batch)
        return kept_records(data for _, data in sorted(batches.items()))

    def _check_offsets(self) -> None:
        for group, least in self.world.history.committed_offsets.items():
            found = self._committed_offset(group)
            if found is None or found < least:
                self.world.complain(f"{group}: offset {least} was committed, there is {found}")
        all_offsets = self.all_committed_offsets()
        for key, least in self.world.history.shared_offsets.items():
            found = all_offsets.get(key)
            if found is None or found < least:
                self.world.complain(f"{key}: offset {least} was committed, there is {found}")

    def all_committed_offsets(self) -> dict[tuple[str, str], int]:
        """By group and partition, of all coordinators."""
        found = {}
        for node in self.world.nodes.values():
            server: Any = node.server
            for home in server.parts.coordinators.groups.partitions.active:
                for name, group in home.groups.items():
                    for where, committed in group.offsets.committed.items():
                        found[name, str(where)] = committed.offset
        return found

    def check_same_offsets(self, before: dict[tuple[str, str], int]) -> None:
        """What the coordinators have now is what they had in memory `before` they started again.

        Except for commits that timed out, see `History.may_appear`.
        """
        may_appear = self.world.history.may_appear
        after = self.all_committed_offsets()
        if after != before:
            for key in [*before, *after]:
                known, found = before.get(key), after.get(key)
                if known != found and not may_appear(key, found, known):
                    self.world.complain(
                        f"the offset of {key} was {known} in memory, and is {found} after all "
                        f"brokers started again"
                    )
                    return

    def _committed_offset(self, group: str) -> int | None:
        for node in self.world.nodes.values():
            server: Any = node.server
            partitions = server.parts.coordinators.groups.partitions
            for home in partitions.active:
                found = home.groups.get(group)
                if found is not None:
                    for where, committed in found.offsets.committed.items():
                        if where.topic == TOPIC:
                            offset: int = committed.offset
                            return offset
        return None
