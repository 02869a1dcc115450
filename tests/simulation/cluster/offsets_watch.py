"""Committed offsets in the memory of a coordinator are those of its log, at all times.

The log is read here by code of its own. A difference may exist for a moment only, while a commit
that has been replicated is on its way into memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ottla.broker.transactions.state import COMPLETING
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

TOPIC = "__consumer_offsets"
SECONDS = 2.0
TRANSACTIONAL, CONTROL = 0x10, 0x20
COMMIT = 1

Key = tuple[str, str]
#: An offset that was committed, and where its record is in the log.
Commit = tuple[int, int]


class Replay:
    """What a log says, up to `position`."""

    def __init__(self) -> None:
        self.position = 0
        self.committed: dict[Key, Commit] = {}
        self._open: dict[int, list[tuple[Key, Commit | None]]] = {}

    def batch(self, data: bytes) -> None:
        """Takes the next batch."""
        producer_id, attributes = struct.unpack_from(">q", data, 43)[0], data[22]
        self.position = (
            struct.unpack_from(">q", data)[0] + struct.unpack_from(">i", data, 23)[0] + 1
        )
        records = list(read_records(data, include_control=True))
        if attributes & CONTROL:
            ended = self._open.pop(producer_id, [])
            if records and struct.unpack_from(">h", records[0].key or b"", 2)[0] == COMMIT:
                for key, commit in ended:
                    self._apply(key, commit)
            return
        for record in records:
            key = _key(bytes(record.key or b""))
            if key is None:
                continue
            commit = None
            if record.value is not None:
                commit = struct.unpack_from(">q", record.value, 2)[0], record.offset
            if attributes & TRANSACTIONAL:
                self._open.setdefault(producer_id, []).append((key, commit))
            else:
                self._apply(key, commit)

    def _apply(self, key: Key, commit: Commit | None) -> None:
        if commit is None:
            self.committed.pop(key, None)
        elif commit[1] > self.committed.get(key, (0, -1))[1]:
            self.committed[key] = commit


def _in_transactions(group: Any, where: str) -> set[int]:
    """The producers that have an offset of this partition in a transaction."""
    return {
        producer_id
        for producer_id, offsets in group.offsets.transactional.items()
        if where in map(str, offsets)
    }


def _key(data: bytes) -> Key | None:
    """Group and partition of the key of a commit; None for other records."""
    if struct.unpack_from(">h", data)[0] > 1:
        return None
    texts, at = [], 2
    for _ in range(2):
        size = struct.unpack_from(">h", data, at)[0]
        texts.append(data[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return texts[0], str(TopicPartition(texts[1], struct.unpack_from(">i", data, at)[0]))


class OffsetsWatch:
    """Compares all active coordinators with their logs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._replays: dict[tuple[int, int, int, int], Replay] = {}
        self._differ_since: dict[tuple[Any, ...], tuple[float, tuple[int | None, ...]]] = {}

    def look(self, node: Node, complain: Callable[[str], None]) -> None:
        """All partitions of a broker that runs."""
        server: Any = node.server
        manager = server.parts.replica_manager
        for home in server.parts.coordinators.groups.partitions.active:
            partition = manager.partitions.get(TopicPartition(TOPIC, home.index))
            if partition is None or partition.log is None or not partition.is_leader:
                continue
            life = (node.broker_id, node.starts, home.index, partition.leader_epoch)
            replay = self._replays.get(life)
            if replay is None:
                replay = self._replays[life] = Replay()
            end = partition.log.log_end_offset
            if partition.log.high_watermark < end:
                continue  # a load applies what is not replicated yet, an append waits for it
            if replay.position < end:
                start = max(replay.position, partition.log.log_start_offset)
                for batch in partition.log.batches(start, end):
                    replay.batch(bytes(batch))
            if home.groups or replay.committed:
                self._compare(node, life, home, replay, complain)

    def _compare(
        self,
        node: Node,
        life: tuple[int, ...],
        home: Any,
        replay: Replay,
        complain: Callable[[str], None],
    ) -> None:
        known = {
            (name, str(where)): found.offset
            for name, group in home.groups.items()
            for where, found in group.offsets.committed.items()
        }
        for key in {**known, **replay.committed}:
            found, commit = known.get(key), replay.committed.get(key)
            written = None if commit is None else commit[0]
            difference = (*life, key)
            if (
                found == written
                or self.world.history.may_appear(key, written, found)
                or self._awaits_marker(home, key)
            ):
                self._differ_since.pop(difference, None)
                continue
            now, values = self.world.loop.now, (found, written)
            since, before = self._differ_since.get(difference, (now, values))
            if before != values:
                since = now
            self._differ_since[difference] = since, values
            if now - since > SECONDS:
                complain(
                    f"{node.host}: the offset of {key} is {found} in memory, and {written} in "
                    f"{TOPIC}-{home.index}"
                )

    def _awaits_marker(self, home: Any, key: Key) -> bool:
        """Whether the marker of a transaction may be sent again: its append had timed out, and it
        is in the log all the same (as in Kafka). Also while a coordinator of transactions loads."""
        group = home.groups.get(key[0])
        producer_ids = set() if group is None else _in_transactions(group, key[1])
        if not producer_ids:
            return False
        coordinated = [
            each
            for node in self.world.nodes.values()
            if node.is_up and node.ready
            for each in cast("Any", node.server).parts.coordinators.transactions.partitions.active
        ]
        return len(coordinated) < self.world.shape.internal_partitions or any(
            transaction.value.producer_id in producer_ids and transaction.state in COMPLETING
            for each in coordinated
            for transaction in each.transactions.values()
        )
