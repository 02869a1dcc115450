"""What is done to the disks of a simulated cluster."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.disk import (
    READING,
    SYNCING,
    WRITING,
    Death,
    Disk,
    Faults,
    Slowness,
)
from tests.simulation.cluster.loop import Process, current_process
from tests.simulation.cluster.settled import assignments

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World


# How long a broker with a new disk waits until it may lose nothing, and for what it has to copy.
SECONDS = 30
# How often a broker that lacked descriptors or inodes is stopped cleanly afterwards.
RESTART_SHARE = 0.4
# Where a process dies. A rename is one of a directory.
DEADLY = ("pwrite", "sync", "sync_directory", "replace", "rename", "rename", "truncate", "remove")

#: By partition, the members.
Proposals = Mapping[TopicPartition, frozenset[int]]


class DiskTroubles:
    """One method for each; the disk is well again when it returns."""

    def __init__(self, world: World, admin: Admin) -> None:
        self.world = world
        self.admin = admin
        self.random = Random(f"disk troubles {world.seed}")

    async def _for_a_while(self, disk: Disk, seconds: float) -> None:
        await asyncio.sleep(self.random.uniform(0, seconds))
        disk.heal()

    async def _maybe_restart(self, node: Node) -> None:
        """A clean stop a while later: the start trusts what the lack has left."""
        if self.random.random() < RESTART_SHARE:
            await asyncio.sleep(self.random.uniform(0, 6))
            if node.is_up:
                await node.stop()
            if not node.is_up:
                node.start()

    async def no_descriptors(self, node: Node) -> None:
        """Some files cannot be opened, and no connections: the process is at its limit."""
        rates = {errno.EMFILE: 120_000, errno.ENFILE: 40_000, errno.ENOMEM: 40_000}
        node.disk.faults = Faults(rates, frozenset(("open",)))
        self.world.network.lack_descriptors(node.host)
        await self._for_a_while(node.disk, 3)
        self.world.network.lack_descriptors("")
        await self._maybe_restart(node)

    async def unopened(self, node: Node) -> None:
        """A broker has restarted and leads again, and cannot open the segments of its logs.

        So its coordinators cannot load at first, and no other broker is elected.
        """
        if node.is_up:
            await node.stop()
        if not node.is_up:
            node.start()
        await self._until(lambda: node.ready and self._is_in_sync(node))
        node.disk.faults = Faults({errno.EMFILE: 700_000}, frozenset(("open",)), ".log")
        await self.admin.elect_preferred()
        await self._for_a_while(node.disk, 4)

    async def no_space(self, node: Node) -> None:
        """Some writes find no space, as when others free and use it all the time. Some file
        systems have none for a longer name either."""
        operations = self.random.choice([("pwrite",), ("pwrite", "replace"), ("replace", "rename")])
        node.disk.faults = Faults({errno.ENOSPC: 300_000}, frozenset(operations))
        await self._for_a_while(node.disk, 3)

    async def full(self, node: Node) -> None:
        """The disk runs full and stays so."""
        node.disk.room = node.disk.used + self.random.randint(0, 20_000)
        await self._for_a_while(node.disk, 10)

    async def short(self, node: Node, begin: Callable[[], None]) -> None:
        """Descriptors, space or speed are lacking from the moment on that `begin` is called.

        Connections are not refused, so that the broker gets to what it needs them for.
        """
        lack = self.random.random()
        if lack < 0.4:
            part = self.random.choice(["", ".log"])
            node.disk.slowness = Slowness(self.random.uniform(1, 3), self.wait, part)
            await asyncio.sleep(self.random.uniform(0, 2))
        elif lack < 0.7 and self.world.shape.descriptor_faults:
            node.disk.faults = Faults({errno.EMFILE: 400_000}, frozenset(("open",)))
        else:
            node.disk.room = node.disk.used
        begin()
        await asyncio.sleep(self.random.uniform(1, 6))
        node.disk.heal()

    async def short_stop(self, node: Node) -> None:
        """A broker lacks descriptors or space while it stops. Its disks are well, and what the
        next start takes for synced without reading it must be."""
        code, operation = self.random.choice([(errno.EMFILE, "open"), (errno.ENOSPC, "pwrite")])
        server: Any = node.server
        if server is not None and node.ready:
            logs = server.parts.logs
            node.disk.faults = Faults({code: 200_000}, frozenset((operation,)))
            await node.stop()
            node.disk.heal()
            for path in logs.offline_directories:
                self.world.complain(f"{node.host}: {path} went offline in a stop")
        if not node.is_up:
            node.start()

    async def no_inodes(self, node: Node) -> None:
        """There is space, but no file can be created."""
        node.disk.room_for_files = node.disk.files + self.random.randint(0, 3)
        await self._for_a_while(node.disk, 10)
        await self._maybe_restart(node)

    async def slow_sync(self, node: Node) -> None:
        """A sync takes up to two seconds, and who waits for it waits."""
        node.disk.slowness = Slowness(self.random.uniform(0.05, 2), self.wait)
        await self._for_a_while(node.disk, 10)

    def read_slowly(self, node: Node, seconds: float, path_part: str) -> None:
        """A read takes up to so long until the disk is healed."""
        node.disk.slow_reading = Slowness(seconds, self.wait, path_part)

    def wait(self, seconds: float) -> None:
        loop, process = self.world.loop, current_process()
        if loop.in_worker or process is None:
            loop.work_seconds += seconds
        elif not process.paused:
            process.pause()
            loop.call_later(seconds, process.resume, context=Process("disk").context)

    async def input_output_errors(self, node: Node) -> None:
        """A log directory fails; the broker is started again with a disk that has been repaired."""
        path = self.random.choice(node.log_directories)
        operations = self.random.choice([READING, WRITING, SYNCING, READING | WRITING | SYNCING])
        rate = self.random.choice([20_000, 1_000_000])
        await self._fail(node, Faults({errno.EIO: rate}, operations, f"{path}/"))

    async def failing_sync(self, node: Node) -> None:
        """A sync fails, and the kernel drops what was to be synced (Linux does)."""
        node.disk.drops_unsynced = self.world.shape.power_loss
        await self._fail(node, Faults({errno.EIO: 200_000}, SYNCING))

    async def dies_within(self, node: Node) -> None:
        """A process dies, or its machine loses power, between two calls of one piece of work."""
        process = None if node.running is None else node.running.process
        if process is None or not node.is_up:
            return

        def strike() -> None:
            self.world.note(f"{node.host} dies in {operation} {path_part}")
            process.pause()  # nothing else of it runs
            power = self.world.shape.power_loss
            self.world.loop.call_soon(
                lambda: node.kill(power=power), context=Process("disk").context
            )

        operation = self.random.choice(DEADLY)
        path_part = self.random.choice(["", "/t-"])
        most = 3 if operation == "rename" else 30
        node.disk.death = Death(operation, path_part, self.random.randrange(most), strike)
        for _ in range(2):
            if self.random.random() < 0.7:  # two of them are work with many calls
                await self.admin.move_away(node, self.admin.any_partition())
            await asyncio.sleep(self.random.uniform(0.5, 4))
        node.disk.death = None
        if not node.is_up:
            await asyncio.sleep(self.random.uniform(0, 8))
        if not node.is_up:
            node.start()

    async def replaced_disk(self, node: Node) -> None:
        """The machine comes back with empty disks, when that may lose nothing.

        It may not while the broker is in an ISR alone. It may be back before its session ends,
        also as the leader or the controller: another member of the ISR must lead then.
        """
        is_quick = self.random.random() < 0.5
        proposed = self._proposed_by(node)
        node.kill(power=True, loses_unsynced=self.world.shape.power_loss)
        await asyncio.sleep(1)  # for what it has sent to the controller
        if is_quick:
            may_erase = self._survives(node, {node.broker_id}, proposed)
        else:
            may_erase = await self._until(lambda: not self._has_isrs(node))
        epochs: dict[TopicPartition, int] = {}
        if may_erase:
            self.world.note(f"{node.host} has empty disks")
            epochs = {where: state["leader_epoch"] for where, state in self._states()}
            node.disk.erase()
        node.start()
        # Until then it is in no ISR, or it has what the leader has committed.
        await self._until(
            lambda: node.ready and (not self._has_isrs(node) or self._is_whole(node, epochs))
        )

    async def new_disk(self, node: Node) -> None:
        """The machine comes back at once, with empty disks if other brokers have all it has."""
        proposed = self._proposed_by(node)
        node.kill(power=True, loses_unsynced=self.world.shape.power_loss)
        await asyncio.sleep(0.3)  # for what it has sent
        if self._survives(node, {node.broker_id}, proposed):
            self.world.note(f"{node.host} has empty disks")
            node.disk.erase()
        node.start()

    def has_survivors(self, node: Node, *lost: Node, of: TopicPartition | None = None) -> bool:
        """Whether another broker can lead where the node is in the ISR, without those of `lost`.
        `of`: only this partition counts."""
        without = {each.broker_id for each in (node, *lost)}
        return self._survives(node, without, self._proposed_by(node), of)

    def _survives(
        self, node: Node, without: set[int], proposed: Proposals, of: TopicPartition | None = None
    ) -> bool:
        tree = self.world.ensemble.tree.nodes
        return all(
            of not in (None, where)
            or node.broker_id not in state["isr"]
            or any(
                each not in without
                and self.world.nodes[each].ready
                and znodes.broker_path(each) in tree
                for each in proposed.get(where, frozenset(state["isr"])).intersection(state["isr"])
            )
            for where, state in self._states()
        )

    @staticmethod
    def _proposed_by(node: Node) -> Proposals:
        """The ISRs that it has proposed as the leader: the controller may write them when it is
        dead, and it may be the only member."""
        server: Any = node.server
        partitions = {} if server is None else server.parts.replica_manager.partitions
        return {
            where: each.pending_isr
            for where, each in partitions.items()
            if each.is_leader and each.pending_isr is not None
        }

    async def _until(self, condition: Callable[[], bool]) -> bool:
        for _ in range(SECONDS * 10):
            if condition():
                return True
            await asyncio.sleep(0.1)
        return False

    def _states(self) -> Iterator[tuple[TopicPartition, dict[str, Any]]]:
        for path, found in self.world.ensemble.tree.nodes.items():
            parts = path.split("/")
            if path.startswith("/brokers/topics/") and parts[-1] == "state" and found.data:
                yield TopicPartition(parts[3], int(parts[5])), json.loads(found.data)

    def _has_isrs(self, node: Node) -> bool:
        return any(node.broker_id in state["isr"] for _, state in self._states())

    def _is_in_sync(self, node: Node) -> bool:
        """Whether it is in the ISR of all that is assigned to it."""
        assigned = assignments(self.world)
        return all(
            node.broker_id in state["isr"]
            for where, state in self._states()
            if node.broker_id in assigned.get(where, ())
        )

    def _is_whole(self, node: Node, epochs: dict[TopicPartition, int]) -> bool:
        """Whether it has what is committed of each partition in whose ISR it is.

        `epochs` are the leader epochs in which its disks became empty: it must not lead in them.
        """
        if not node.ready or node.server is None:
            return False
        own = node.server.parts.replica_manager.partitions
        for where, state in self._states():
            leader = self.world.nodes.get(state["leader"])
            if node.broker_id not in state["isr"]:
                continue
            if leader is node:
                if state["leader_epoch"] == epochs.get(where):
                    return False
                continue
            if leader is None or leader.server is None or where not in own:
                return False
            theirs = leader.server.parts.replica_manager.partitions.get(where)
            if theirs is None or theirs.log is None or own[where].log is None:
                return False
            if own[where].log.log_end_offset < theirs.log.high_watermark:
                return False
        return True

    async def _fail(self, node: Node, faults: Faults) -> None:
        node.may_lose_all_disks = True
        node.disk.faults = faults
        await self._for_a_while(node.disk, 6)
        await asyncio.sleep(self.random.uniform(0, 3))
        if self.random.random() < 0.5:
            node.kill()
        elif node.is_up:
            await node.stop()
        node.may_lose_all_disks = False
        node.start()
