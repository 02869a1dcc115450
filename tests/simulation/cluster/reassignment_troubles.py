"""What is done to reassignments whose removed replica only the controller removes in time.

A broker sets a log aside that is not assigned to it any more, half a minute later, and keeps it on
its disk. That hides a controller that has forgotten the replica, but for the space that it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from ottla.protocol.topics import TopicPartition
from ottla.storage.files.layout import STRAY_DIRECTORY_SUFFIX
from tests.simulation.cluster.admin import TOPIC
from tests.simulation.cluster.settled import assignments, settles

if TYPE_CHECKING:
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

# A broker looks every 15 s, and sets aside what it has found twice.
SET_ASIDE_SECONDS = 40


class ReassignmentTroubles:
    """One method for each; they are played with `--later-kinds` or `--kinds`."""

    def __init__(self, world: World, leaders: LeaderTroubles) -> None:
        self.world = world
        self.leaders = leaders

    async def replaced_target_stopped(self, node: Node) -> None:
        """`replaced_target`, after which the controller has stopped the replica."""
        await self._stopped_after(self.leaders.replaced_target(node))

    async def half_reassigned_stopped(self, node: Node) -> None:
        """`half_reassigned`, after which the controller has stopped the replica."""
        await self._stopped_after(self.leaders.half_reassigned(node))

    async def _stopped_after(self, trouble: Awaitable[None]) -> None:
        # What an earlier trouble has left is set aside first.
        await self._no_unassigned()
        starts, before = self._starts(), self._set_aside()
        await trouble
        reason = await settles(self.world)
        if reason is not None:
            self.world.complain(f"the cluster does not settle: {reason}")
            return
        await self._no_unassigned()
        for host, path in sorted(self._set_aside() - before):
            # A broker that was down meanwhile does that when it starts.
            if self._starts()[host] == starts[host]:
                self.world.complain(f"{host} has {path}, which the controller has not stopped")

    async def _no_unassigned(self) -> None:
        """Returns when no log is left that is not assigned, or should have been set aside."""
        for _ in range(SET_ASIDE_SECONDS):
            if not self._has_unassigned():
                break
            await asyncio.sleep(1)

    def _starts(self) -> dict[str, int]:
        return {each.host: each.starts for each in self.world.nodes.values()}

    def _set_aside(self) -> set[tuple[str, str]]:
        """The logs of the topic that brokers have renamed, by host."""
        return {
            (node.host, f"{path}/{name}")
            for node in self.world.nodes.values()
            for path in node.log_directories
            for name in node.disk.directories_in(path)
            if name.startswith(f"{TOPIC}-") and name.endswith(STRAY_DIRECTORY_SUFFIX)
        }

    def _has_unassigned(self) -> bool:
        """Whether a broker has a log of the topic that is not assigned to it."""
        assigned = assignments(self.world)
        for node in self.world.nodes.values():
            if node.server is None:
                continue
            for log in node.server.parts.logs.logs():
                replicas = assigned.get(TopicPartition(log.topic, log.partition), ())
                if log.topic == TOPIC and node.broker_id not in replicas:
                    return True
        return False
