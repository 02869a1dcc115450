"""Checks all brokers many times a second: what is committed never changes, epochs only grow."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, SetOp
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.offsets_watch import OffsetsWatch
from tests.simulation.cluster.storage_watch import StorageWatch

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

TOPIC = "t"
SECONDS = 0.1
# Committed offsets are compared at each of so many looks.
OFFSETS_LOOKS = 5
# So many AlterPartition errors of a partition in a second are more than a back-off lets pass.
FAILED_UPDATES = 25


class Watch:
    """Remembers every record seen below a leader's high watermark."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._batches: dict[tuple[str, int], dict[int, bytes]] = {}
        self.seen: dict[tuple[str, int], dict[int, bytes]] = {}
        self._scanned: dict[tuple[int, int, int, int], int] = {}
        self._epochs: dict[tuple[int, int, int], int] = {}
        self._controller_epoch = 0
        self._failed_updates: dict[tuple[int, int], tuple[float, int]] = {}
        self._in_sync: dict[tuple[int, int], float] = {}
        self._znode_epochs: dict[int, int] = {}
        self._offsets = OffsetsWatch(world)
        self._storage = StorageWatch()
        # By partition: the state in the tree as it was read last, and what it says.
        self._states: dict[int, tuple[bytes, Any]] = {}
        self._looks = 0
        self._watch_tree()

    def _watch_tree(self) -> None:
        tree = self.world.ensemble.tree
        self._apply = tree.apply
        tree.apply = self._applied  # type: ignore[method-assign]

    def tree_was_restored(self) -> None:
        """An operator has put an older tree in place: epochs in it may be lower than before."""
        self._watch_tree()
        self._controller_epoch = 0
        self._znode_epochs.clear()
        self._states.clear()

    async def run(self) -> None:
        """Until the world ends."""
        while not self.world.complaints:
            await asyncio.sleep(SECONDS)
            try:
                with ExitStack() as disks:
                    for node in self.world.nodes.values():
                        disks.enter_context(node.disk.checked())
                    self.look()
            except Exception as error:
                self.world.complain(f"the checks ended with {error!r}")
                raise

    def _applied(self, session_id: int, ops: Any) -> Any:
        """At most one controller writes: the states in the tree are of the present epoch."""
        results = self._apply(session_id, ops)
        for op in ops:
            if isinstance(op, (CreateOp, SetOp)) and op.path.endswith("/state") and op.data:
                written = json.loads(op.data).get("controller_epoch", 0)
                current = int(self.world.ensemble.tree.nodes[znodes.CONTROLLER_EPOCH].data)
                if written < current:
                    self.world.complain(
                        f"a controller of epoch {written} wrote {op.path} in epoch {current}"
                    )
        return results

    def look(self) -> None:
        """All oracles, once."""
        self._looks += 1
        for node in self.world.nodes.values():
            if node.ready and node.is_readable and node.server is not None:
                manager = node.server.parts.replica_manager
                self._look_at_broker(node, manager)
                self._look_at_isr_updates(node)
                self._look_at_directories(node)
                if self._looks % OFFSETS_LOOKS == 0:
                    self._offsets.look(node, self.world.complain)
                for line in self._storage.complaints(node, manager, self.world.shape.partitions):
                    self.world.complain(line)
        if self.world.tiered is not None:
            self.world.tiered.checks.look()
        self._look_at_tree()
        for line in self.world.loop.too_long:
            self.world.complain(line)
        self.world.loop.too_long.clear()

    def batches(self, topic: str, index: int) -> list[tuple[int, bytes]]:
        """Every batch that was committed, with its base offset."""
        return sorted(self._batches.get((topic, index), {}).items())

    def compare(self, where: TopicPartition, found: dict[int, bytes]) -> None:
        """What a consumer gets of a partition, with what was committed. Keeps what it missed."""
        known = self._batches.setdefault((where.topic, where.partition), {})
        for base, data in found.items():
            if known.setdefault(base, data) != data:
                self.world.complain(f"{where}: the batch at {base} is another one for a consumer")

    def was_in_sync(self, index: int, broker_id: int, seconds: float) -> bool:
        """Whether a leader had the broker in its ISR within the last `seconds`."""
        self.look()
        return self._in_sync.get((index, broker_id), 0.0) >= self.world.loop.now - seconds

    def any_offset(self, topic: str, index: int, random: Random) -> int:
        """An offset that has been seen."""
        self.look()
        offsets = list(self.seen.get((topic, index), {}))
        return random.choice(offsets) if offsets else 0

    def _look_at_isr_updates(self, node: Node) -> None:
        """A leader whose AlterPartition is refused must wait before it sends the next one."""
        assert node.server is not None
        parts, now = node.server.parts, self.world.loop.now
        life, failed = (node.broker_id, node.starts), parts.isr_manager.failed_updates_total
        last_at, before = self._failed_updates.setdefault(life, (now, failed))
        if now - last_at < 1.0:
            return
        self._failed_updates[life] = now, failed
        # Which of them were refused is not known: a proposal can start and stop between two looks.
        count = len(parts.replica_manager.partitions)
        if failed - before > FAILED_UPDATES * max(2, count) * (now - last_at):
            self.world.complain(
                f"{node.host}: {failed - before} AlterPartition errors in {now - last_at:.1f} s "
                f"of {count} partitions"
            )

    def _look_at_directories(self, node: Node) -> None:
        """Only a disk that fails takes a log directory offline, not one that is full."""
        assert node.server is not None
        offline = node.server.parts.logs.offline_directories
        if offline and not node.may_lose_all_disks:
            self.world.complain(f"{node.host}: {offline[0]} is offline, and its disk is well")

    def _look_at_broker(self, node: Node, manager: Any) -> None:
        for index in range(self.world.shape.partitions):
            partition = manager.partitions.get(TopicPartition(TOPIC, index))
            if partition is None or partition.log is None or partition.offline:
                continue
            life = (node.broker_id, node.starts, index)
            before = self._epochs.get(life, -1)
            if partition.leader_epoch < before and partition.leader_epoch >= 0:
                self.world.complain(
                    f"{node.host}: leader epoch of {TOPIC}-{index} went back from {before} to "
                    f"{partition.leader_epoch}"
                )
            self._epochs[life] = max(before, partition.leader_epoch)
            if partition.is_leader:
                for broker_id in partition.isr:
                    self._in_sync[index, broker_id] = self.world.loop.now
                self._read(node, index, partition)

    def _read(self, node: Node, index: int, partition: Any) -> None:
        """What this leadership committed since the last look, against what others had."""
        log = partition.log
        reign = (node.broker_id, node.starts, index, partition.leader_epoch)
        start = max(self._scanned.get(reign, 0), log.local_log_start_offset)
        end = log.high_watermark
        if end <= start:
            return
        self._scanned[reign] = end
        seen = self.seen.setdefault((TOPIC, index), {})
        batches = self._batches.setdefault((TOPIC, index), {})
        for batch in log.batches(start, end):
            data = bytes(batch)
            batches[struct.unpack_from(">q", data)[0]] = data
            for record in read_records(data, include_control=True):
                content = bytes(record.value or b"") + bytes(record.key or b"")
                if not start <= record.offset < end:
                    continue
                known = seen.setdefault(record.offset, content)
                if known != content:
                    self.world.complain(
                        f"{node.host}: offset {record.offset} of {TOPIC}-{index} was committed as "
                        f"{known!r} and is {content!r} now"
                    )
                    return

    def _look_at_tree(self) -> None:
        nodes = self.world.ensemble.tree.nodes
        found = nodes.get(znodes.CONTROLLER_EPOCH)
        if found is not None and found.data:
            epoch = int(found.data)
            if epoch < self._controller_epoch:
                self.world.complain(f"the controller epoch went back to {epoch}")
            self._controller_epoch = epoch
        for index in range(self.world.shape.partitions):
            state = nodes.get(znodes.state_path(TopicPartition(TOPIC, index)))
            if state is None:
                continue
            known, written = self._states.get(index, (None, None))
            if known is not state.data:
                written = znodes.decode_state(TopicPartition(TOPIC, index), state.data, 0)
                self._states[index] = state.data, written
            assert written is not None
            for broker_id in written.isr:
                self._in_sync[index, broker_id] = self.world.loop.now
            epoch = written.leader_epoch
            if epoch < self._znode_epochs.get(index, 0):
                self.world.complain(f"the leader epoch of {TOPIC}-{index} went back to {epoch}")
            self._znode_epochs[index] = epoch
