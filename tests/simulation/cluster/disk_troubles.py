"""What is done to the disks of a simulated cluster."""

from __future__ import annotations

import asyncio
import errno
import json
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.cluster.disk import (
    READING,
    SYNCING,
    WRITING,
    Disk,
    Faults,
    Slowness,
)
from tests.simulation.cluster.loop import Process, current_process

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World


class DiskTroubles:
    """One method for each; the disk is well again when it returns."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(f"disk troubles {world.seed}")

    async def _for_a_while(self, disk: Disk, seconds: float) -> None:
        await asyncio.sleep(self.random.uniform(0, seconds))
        disk.heal()

    async def no_descriptors(self, node: Node) -> None:
        """Some files cannot be opened: the process, the machine or its memory is at a limit."""
        rates = {errno.EMFILE: 120_000, errno.ENFILE: 40_000, errno.ENOMEM: 40_000}
        node.disk.faults = Faults(rates, frozenset(("open",)))
        await self._for_a_while(node.disk, 3)

    async def no_space(self, node: Node) -> None:
        """Some writes find no space, as when others free and use it all the time."""
        node.disk.faults = Faults({errno.ENOSPC: 300_000}, frozenset(("pwrite",)))
        await self._for_a_while(node.disk, 3)

    async def full(self, node: Node) -> None:
        """The disk runs full and stays so."""
        node.disk.room = node.disk.used + self.random.randint(0, 20_000)
        await self._for_a_while(node.disk, 10)

    async def no_inodes(self, node: Node) -> None:
        """There is space, but no file can be created."""
        node.disk.room_for_files = node.disk.files + self.random.randint(0, 3)
        await self._for_a_while(node.disk, 10)

    async def slow_sync(self, node: Node) -> None:
        """A sync takes up to two seconds, and who waits for it waits."""
        node.disk.slowness = Slowness(self.random.uniform(0.05, 2), self._wait)
        await self._for_a_while(node.disk, 10)

    def _wait(self, seconds: float) -> None:
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

    async def replaced_disk(self, node: Node) -> None:
        """The machine comes back with empty disks, unless it may have the only copy of something.

        That is when it alone is in an ISR: what the others have is enough otherwise.
        """
        node.kill(power=True)
        await asyncio.sleep(1)  # for what it has sent to the controller
        if not self._is_alone(node):
            self.world.note(f"{node.host} has empty disks")
            node.disk.erase()
        await asyncio.sleep(self.random.uniform(0, 4))
        node.start()

    def _is_alone(self, node: Node) -> bool:
        states = [
            json.loads(found.data)
            for path, found in self.world.ensemble.tree.nodes.items()
            if path.startswith("/brokers/topics/") and path.endswith("/state") and found.data
        ]
        return any(set(state["isr"]) <= {node.broker_id} for state in states)

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
