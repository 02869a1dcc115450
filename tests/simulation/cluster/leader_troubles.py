"""What is done to the leaders of partitions, and to brokers that are away while others continue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.controller.tree.store import DeleteOp, StoreError
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.clients import AbortingProducer, LoneWriter
from tests.simulation.cluster.consumers import RackReader
from tests.simulation.cluster.node import Node
from tests.simulation.cluster.zookeeper import SESSION_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from ottla.controller.model import LeaderAndIsr
    from ottla.storage.log.log import Log
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.disk_troubles import DiskTroubles
    from tests.simulation.cluster.world import World

TOPIC = "t"
POLL_SECONDS = 0.003
LONE_WRITERS = 3
# In this time producers append to a partition, or it gets nothing.
APPENDED_SECONDS = 2
ABORTING_PRODUCERS = 2
# Until the controller has begun with a request.
REQUEST_SECONDS = 0.3
# The retries of an ISR change that is refused become rare: at most eight in this time, each of
# which the controller may write twice, together with others and alone.
THROTTLED_SECONDS = 3
THROTTLED_UPDATES = 25


class LeaderTroubles:
    """One method for each; the network is whole again when it returns."""

    def __init__(self, world: World, admin: Admin, disks: DiskTroubles) -> None:
        self.world = world
        self.disks = disks
        self.admin = admin
        self.random = Random(f"leader troubles {world.seed}")

    async def lag(self, _node: Node) -> None:
        """A follower leaves the ISR and stays registered, and consumers in its rack read again.

        The leader may die in the moment in which the follower is in the ISR again.
        """
        leader, others = self._replicas(0)
        if leader is None or not others:
            return
        readers = [each for each in self.world.producers if isinstance(each, RackReader)]
        racks = [reader.rack for reader in readers]
        near = [each for each in others if each.rack in racks]
        follower = self.random.choice(near or others)
        self.world.network.cut(leader.host, follower.host)
        await self._shrinks()
        self._check_shrunk(0, leader, follower)
        for reader in readers:
            reader.read_again()
        await self.abort_for(self.random.uniform(1, 4))
        self.world.network.heal()
        if self.random.random() < 0.5:
            await self.until(lambda: self.in_isr(0, follower), 3)
            leader.kill()
            await asyncio.sleep(self.random.uniform(2, 8))
            if not leader.is_up:
                leader.start()

    async def abort_for(self, seconds: float) -> None:
        """Two producers abort transactions: the follower fetches many markers at once later."""
        world = self.world
        for each in range(ABORTING_PRODUCERS):
            producer = world.clients.context.run(
                AbortingProducer, world, f"aborting{each}", TOPIC, world.shape.partitions
            )
            world.loop.create_task(producer.abort_for(seconds), context=world.clients.context)
        await asyncio.sleep(seconds)

    async def _shrinks(self) -> None:
        """Time for a follower to leave the ISR. The controller may be unable to write that at
        first: then it responds with an error at once, to the request or for the partition."""
        controller = self.controller()
        session = None if controller is None else self.session(controller)
        await asyncio.sleep(4.5)
        drawn = self.random.random()
        if session is not None and drawn < 0.4:
            session.cut(refuses=True)
            await asyncio.sleep(self.random.uniform(2, 4))
            session.heal()
        elif session is not None and drawn < 0.7:
            session.throttle(znodes.state_path(TopicPartition(TOPIC, 0)))
            await asyncio.sleep(THROTTLED_SECONDS)
            if session.throttled > THROTTLED_UPDATES:
                self.world.complain(
                    f"the state of {TOPIC}-0 was proposed {session.throttled} times in "
                    f"{THROTTLED_SECONDS} s, and each time refused"
                )
            session.throttle("")
        await asyncio.sleep(self.random.uniform(6.5, 8.5))

    async def half_reassigned(self, _node: Node) -> None:
        """The controller has taken a replica out of the assignment, and cannot write the state of
        the partition without it; then another replica has to leave the ISR."""
        index = self.random.randrange(self.world.shape.partitions)
        await self.admin.reassign_to(index, list(self.world.nodes)[:3])
        await self.until(lambda: len(self._isr(index)) == 3, 10)
        state, controller = self._state(index), self.controller()
        session = None if controller is None else self.session(controller)
        if state is None or session is None or len(state.isr) != 3:
            return
        first = state.isr[0]
        kept = [first, self.random.choice([each for each in state.isr if each != first])]
        session.throttle(znodes.state_path(TopicPartition(TOPIC, index)))
        await self.admin.reassign_to(index, kept)
        session.throttle("")
        leader = self.leader(index)
        if leader is None or leader.broker_id not in kept:
            return
        follower = self.world.nodes[next(each for each in kept if each != leader.broker_id)]
        self.world.network.cut(leader.host, follower.host)
        before = self._end_offset(leader, index)
        await asyncio.sleep(APPENDED_SECONDS)
        lacks_records = self._end_offset(leader, index) > before >= 0
        await asyncio.sleep(self.random.uniform(11, 13))
        if lacks_records:  # one that has all records is in sync, whether it fetches or not
            self._check_shrunk(index, leader, follower)
        self.world.network.heal()

    async def replaced_target(self, _node: Node) -> None:
        """The controller dies when it has written a reassignment that replaces another one, whose
        new replica cannot catch up; no other broker knows of that replica."""
        index, nodes = self.random.randrange(self.world.shape.partitions), self.world.nodes
        controller = self.controller()
        session = None if controller is None else self.session(controller)
        if controller is None or session is None or len(nodes) < 3:
            return
        others = [each for each in nodes.values() if each is not controller]
        kept, added = self.random.sample(others, 2)
        chosen = [controller.broker_id, kept.broker_id]
        await self.admin.reassign_to(index, chosen)
        await self.until(lambda: set(self._isr(index)) == set(chosen), 10)
        leader = self.leader(index)
        if leader is None or self.controller() is not controller or not added.ready:
            return
        self.world.network.cut(leader.host, added.host)
        await self.admin.reassign_to(index, [*chosen, added.broker_id])
        session.after_write(znodes.topic_path(TOPIC), controller.kill)
        await self.admin.reassign_to(index, chosen)
        await asyncio.sleep(self.random.uniform(0, 8))
        self.world.network.heal()
        if not controller.is_up:
            controller.start()

    async def lost_stop_replica(self, _node: Node) -> None:
        """The controller dies when it has ended a reassignment, before it could send StopReplica to
        the broker of the removed replica."""
        index, nodes = self.random.randrange(self.world.shape.partitions), self.world.nodes
        controller = self.controller()
        if controller is None or len(nodes) < 3:
            return
        others = [each for each in nodes.values() if each is not controller]
        kept, removed = self.random.sample(others, 2)
        chosen = [controller.broker_id, kept.broker_id]
        await self.admin.reassign_to(index, [*chosen, removed.broker_id])
        await self.until(lambda: len(self._isr(index)) == 3, 10)
        if self.controller() is not controller or not removed.ready:
            return
        self.world.network.cut(controller.host, removed.host)
        await self.admin.reassign_to(index, chosen)
        await self.until(lambda: self._replicas_of(index) == set(chosen), 3)
        controller.kill()
        await asyncio.sleep(self.random.uniform(0, 8))
        self.world.network.heal()
        controller.start()

    def _replicas_of(self, index: int) -> set[int]:
        """The replicas of a partition, as the tree says."""
        found = self.world.ensemble.tree.nodes.get(znodes.topic_path(TOPIC))
        if found is None:
            return set()
        return set(znodes.decode_topic(TOPIC, found.data).assignments[index].replicas)

    def _end_offset(self, node: Node, index: int) -> int:
        """The log end offset of a partition on a broker; -1 without its log."""
        log = self.log(node, index)
        return -1 if log is None else log.log_end_offset

    def log(self, node: Node, index: int) -> Log | None:
        """The log of a partition on a broker that runs, if it has one."""
        partitions = {} if node.server is None else node.server.parts.replica_manager.partitions
        found = partitions.get(TopicPartition(TOPIC, index))
        return None if found is None else found.log

    def _check_shrunk(self, index: int, leader: Node, follower: Node) -> None:
        """acks=all waits for a follower until it has left the ISR."""
        state, controller = self._state(index), self.controller()
        if state is None or state.leader != leader.broker_id or controller in (None, follower):
            return
        alive = follower.ready and leader.ready
        # With all records of the leader it stays, as in Kafka.
        lacks_records = self._end_offset(leader, index) > self._end_offset(follower, index)
        if alive and lacks_records and follower.broker_id in state.isr:
            self.world.complain(
                f"{follower.host} could not fetch from {leader.host} for 11 s and is in the ISR "
                f"{list(state.isr)} of {TOPIC}-{index}"
            )

    async def offline(self, _node: Node) -> None:
        """Both brokers that have a partition are away, so that it has no leader for a while."""
        index, nodes = self.random.randrange(self.world.shape.partitions), self.world.nodes
        chosen = self.random.sample(list(nodes), 2)
        await self.admin.reassign_to(index, chosen)

        def is_moved() -> bool:
            state = self._state(index)
            return state is not None and set(state.isr) == set(chosen)

        await self.until(is_moved, 10)
        await asyncio.sleep(self.random.uniform(0, 2))
        for each in chosen:
            nodes[each].kill()
        await asyncio.sleep(self.random.uniform(3, 15))
        for each in chosen:
            if not nodes[each].is_up:
                nodes[each].start()

    async def stale_member(self, _node: Node) -> None:
        """A follower has caught up and gets an empty disk before the controller hears of it.

        When the proposal to take it into the ISR arrives, the leader dies (KIP-903).
        """
        index, network = self.random.randrange(self.world.shape.partitions), self.world.network
        leader, others = self._replicas(index)
        controller = self.controller()
        others = [each for each in others if each is not controller and each.is_up]
        if leader is None or controller is None or not others:
            return
        follower = self.random.choice(others)
        network.cut(leader.host, follower.host)
        await self.until(lambda: not self.in_isr(index, follower), 15)
        session = self.session(leader) if controller is leader else None
        network.heal()
        if session is not None:
            session.cut()
        else:
            network.cut(leader.host, controller.host)
        await asyncio.sleep(self.random.uniform(0.3, 1.5))
        is_spared = False
        if follower.is_up and not self.in_isr(index, follower):
            network.cut(leader.host, follower.host)
            # Else both replicas that have all of another partition would be lost.
            is_spared = not self.disks.has_survivors(follower, leader)
            await self.disks.new_disk(follower)
            await self.until(lambda: follower.ready, 2)
        network.heal()
        if session is not None:
            session.heal()
        network.cut(leader.host, follower.host)
        await self.until(lambda: self.in_isr(index, follower), 1.5)
        if not is_spared:
            leader.kill()
        network.heal()
        await asyncio.sleep(self.random.uniform(2, 8))
        if not leader.is_up:
            leader.start()

    async def unheard_restart(self, _node: Node) -> None:
        """A member of the ISR gets an empty disk while the controller, which leads, is without
        ZooKeeper. The controller writes a state with that member, and dies before it hears of the
        restart. The member would be the next leader."""
        index = self.random.randrange(self.world.shape.partitions)
        controller = self.controller()
        others = [each for each in self.world.nodes.values() if each is not controller]
        if controller is None or len(others) < 2:
            return
        member, other = self.random.sample(others, 2)
        chosen = [controller.broker_id, member.broker_id, other.broker_id]
        await self.admin.reassign_to(index, chosen)
        await self.until(lambda: set(self._isr(index)) == set(chosen), 10)
        await self.admin.elect_preferred()
        session = self.session(controller)
        is_spared = not self.disks.has_survivors(member, controller)
        if session is None or self.leader(index) is not controller or is_spared:
            return
        session.cut()
        reassigning = asyncio.get_running_loop().create_task(
            self.admin.reassign_to(index, [member.broker_id, other.broker_id, controller.broker_id])
        )
        await asyncio.sleep(REQUEST_SECONDS)
        before = self._registration(member)
        await self.disks.new_disk(member)
        await self.until(lambda: self._registration(member) not in (before, 0), 2)
        session.after_write(znodes.state_path(TopicPartition(TOPIC, index)), controller.kill)
        session.heal()
        await reassigning
        await asyncio.sleep(self.random.uniform(2, 8))
        if not controller.is_up:
            controller.start()

    def _registration(self, node: Node) -> int:
        """The broker epoch of a broker, 0 without one."""
        found = self.world.ensemble.tree.nodes.get(znodes.broker_path(node.broker_id))
        return 0 if found is None else found.czxid

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        for _ in range(int(seconds / POLL_SECONDS)):
            if condition():
                return
            await asyncio.sleep(POLL_SECONDS)

    def in_isr(self, index: int, node: Node) -> bool:
        return node.broker_id in self._isr(index)

    def _isr(self, index: int) -> tuple[int, ...]:
        state = self._state(index)
        return () if state is None else tuple(state.isr)

    def controller(self) -> Node | None:
        found = self.world.ensemble.tree.nodes.get(znodes.CONTROLLER)
        return None if found is None else self.world.nodes[znodes.decode_controller(found.data)]

    async def depose(self, _node: Node) -> None:
        """The controller loses its office, and another one is elected."""
        tree = self.world.ensemble.tree
        admin = tree.open_session()
        with contextlib.suppress(StoreError):
            tree.apply(admin, [DeleteOp(znodes.CONTROLLER)])
        tree.end_session(admin)

    async def leader_lost(self, _node: Node) -> None:
        """A leader loses a follower, maybe ZooKeeper too, and dies before they can come back.

        The follower has left the ISR, or the leader could not remove it from there. What others
        replicated meanwhile must survive.
        """
        leader, others = self._replicas(self.random.randrange(self.world.shape.partitions))
        if leader is None or not others:
            return
        self.world.network.cut(leader.host, self.random.choice(others).host)
        session = self.session(leader) if self.random.random() < 0.5 else None
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
        back = self.cut_off(node)
        await asyncio.sleep(SESSION_TIMEOUT_SECONDS + self.random.uniform(0, 1))
        await self.admin.reassign_from(node)
        await asyncio.sleep(self.random.uniform(1, 8))
        back()

    async def write_alone(self, node: Node) -> None:
        """Writes with acks=1 to a broker, whether or not it leads. A write may wait for a flush,
        and its connection with it, so there are several of them."""
        context = self.world.clients.context
        writers = [
            context.run(LoneWriter, self.world, f"alone-{index}-{each}", TOPIC, index, node.host)
            for index in range(self.world.shape.partitions)
            for each in range(LONE_WRITERS)
        ]
        tasks = [self.world.loop.create_task(each.run(), context=context) for each in writers]
        await asyncio.gather(*tasks)

    def cut_off(self, node: Node) -> Callable[[], None]:
        """Cuts a broker from the others and from ZooKeeper; returns what undoes it."""
        for other in self.world.nodes.values():
            self.world.network.cut(node.host, other.host)
        session = self.session(node)
        if session is not None:
            session.cut()

        def back() -> None:
            self.world.network.heal()
            if session is not None:
                session.heal()

        return back

    def leader(self, index: int) -> Node | None:
        """The leader of a partition, as the tree says."""
        return self._replicas(index)[0]

    def _replicas(self, index: int) -> tuple[Node | None, list[Node]]:
        """The leader of a partition, and the other brokers."""
        nodes, state = self.world.nodes, self._state(index)
        leader = None if state is None else state.leader
        others = [found for each, found in nodes.items() if each != leader]
        return (None if leader is None else nodes.get(leader)), others

    def _state(self, index: int) -> LeaderAndIsr | None:
        where = TopicPartition(TOPIC, index)
        found = self.world.ensemble.tree.nodes.get(znodes.state_path(where))
        return None if found is None else znodes.decode_state(where, found.data, 0)

    def session(self, node: Node) -> Any:
        if not node.is_up or node.running is None:
            return None
        return self.world.ensemble.session_of(node.running.process)
