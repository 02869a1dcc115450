"""What is done to the leaders of partitions, and to brokers that are away while others continue."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.consumers import RackReader
from tests.simulation.cluster.node import Node, rack_of
from tests.simulation.cluster.zookeeper import SESSION_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.world import World

TOPIC = "t"


class LeaderTroubles:
    """One method for each; the network is whole again when it returns."""

    def __init__(self, world: World, admin: Admin) -> None:
        self.world = world
        self.admin = admin
        self.random = Random(f"leader troubles {world.seed}")

    async def lag(self, _node: Node) -> None:
        """A follower leaves the ISR and stays registered, and consumers in its rack read again."""
        leader, others = self._replicas(0)
        if leader is None or not others:
            return
        readers = [each for each in self.world.producers if isinstance(each, RackReader)]
        racks = [reader.rack for reader in readers]
        near = [each for each in others if rack_of(each.broker_id) in racks]
        follower = self.random.choice(near or others)
        self.world.network.cut(leader.host, follower.host)
        await asyncio.sleep(self.random.uniform(11, 13))
        for reader in readers:
            reader.read_again()
        await asyncio.sleep(self.random.uniform(1, 4))
        self.world.network.heal()

    async def leader_lost(self, _node: Node) -> None:
        """A leader loses a follower, maybe ZooKeeper too, and dies before they can come back.

        The follower has left the ISR, or the leader could not remove it from there. What others
        replicated meanwhile must survive.
        """
        leader, others = self._replicas(self.random.randrange(self.world.shape.partitions))
        if leader is None or not others:
            return
        self.world.network.cut(leader.host, self.random.choice(others).host)
        session = self._session(leader) if self.random.random() < 0.5 else None
        if session is not None:
            session.cut()
        await asyncio.sleep(self.random.uniform(0.5, 12))
        leader.kill()
        if self.random.random() < 0.5:
            self.world.network.heal()
        await asyncio.sleep(self.random.uniform(2, 8))
        self.world.network.heal()
        if not leader.is_up:
            leader.start()

    async def away(self, node: Node) -> None:
        """A broker is without network and session while a partition that it has is given away."""
        for other in self.world.nodes.values():
            self.world.network.cut(node.host, other.host)
        session = self._session(node)
        if session is not None:
            session.cut()
        await asyncio.sleep(SESSION_TIMEOUT_SECONDS + self.random.uniform(0, 1))
        await self.admin.reassign_from(node)
        await asyncio.sleep(self.random.uniform(1, 8))
        self.world.network.heal()
        if session is not None:
            session.heal()

    def _replicas(self, index: int) -> tuple[Node | None, list[Node]]:
        """The leader of a partition, and the other brokers."""
        nodes, where = self.world.nodes, TopicPartition(TOPIC, index)
        state = self.world.ensemble.tree.nodes.get(znodes.state_path(where))
        leader = None if state is None else znodes.decode_state(where, state.data, 0).leader
        others = [found for each, found in nodes.items() if each != leader]
        return (None if leader is None else nodes.get(leader)), others

    def _session(self, node: Node) -> Any:
        if not node.is_up or node.running is None:
            return None
        return self.world.ensemble.session_of(node.running.process)
