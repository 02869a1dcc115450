"""What is done to work that takes several steps, between two of them: ends of transactions, moves
between log directories, replicas that a broker gets while it lacks something."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.broker.transactions.state import TransactionState
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.admin import PAIR_TOPIC, TOPIC
from tests.simulation.cluster.clients import Producer
from tests.simulation.cluster.disk import SYNCING, WRITING, Faults
from tests.simulation.cluster.node import Node
from tests.simulation.cluster.settled import state_of
from tests.simulation.cluster.waiting import of_client
from tests.simulation.cluster.zookeeper import SESSION_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.world import World

ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
FULL = {errno.ENOSPC: 1_000_000}
# A request for a move fails when its copy cannot begin.
MOVE_ATTEMPTS = 4
MOVED_SECONDS = 60
# Clients end a transaction every few seconds.
ENDING_SECONDS = 10
OFFSETS_PART = "/__consumer_offsets-"
POLL_SECONDS = 0.003
# How long one read of a coordinator that loads takes at most.
LOADING_SECONDS = 0.4
TOPIC_SETTINGS_PATH = "/config/topics"
# Less than the session timeout.
REFUSED_SECONDS = 4.5
# Until a follower that has caught up is proposed for the ISR, and one that cannot fetch has left.
PROPOSED_SECONDS = 5
SHRINK_SECONDS = 15
# A request that was cut off times out, and so does the next connection.
REFUSED_JOIN_SECONDS = 20
# Until a broker has written to a log directory, and until it has fetched what it lacks.
FAILED_SECONDS = 5
JOINED_SECONDS = 30
# Until a leader has handled the controller's response.
COMMITTED_SECONDS = 0.5


class UnfinishedTroubles:
    """One method for each; the disks are well again when it returns."""

    def __init__(self, world: World, admin: Admin, leaders: LeaderTroubles) -> None:
        self.world = world
        self.admin = admin
        self.leaders = leaders
        self.disks = leaders.disks
        self.random = Random(f"unfinished troubles {world.seed}")

    async def ending(self, _node: Node) -> None:
        """A coordinator dies when a transaction ends and not all of its markers are written.

        There is no space for them for a while, in topics or in `__consumer_offsets`.
        """
        part = self.random.choice(["/t-", OFFSETS_PART])
        for each in self.world.nodes.values():
            each.disk.faults = Faults(FULL, frozenset(("pwrite",)), part)
        found: list[Node] = []

        def is_ending() -> bool:
            found[:] = [each for each in self.world.nodes.values() if self._ends(each)]
            return bool(found)

        await self._until(is_ending, ENDING_SECONDS)
        await asyncio.sleep(self.random.uniform(0, 0.3))
        for each in found:
            each.kill()
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.uniform(0, 8))
        self._heal()
        for each in found:
            if not each.is_up:
                each.start()

    async def loading(self, _node: Node) -> None:
        """The marker of a transaction comes while the next coordinator of its group loads, from a
        disk that reads slowly. The last one had no space for it."""
        nodes = self.world.nodes.values()
        found: list[Node] = []

        def has_open() -> bool:
            found[:] = [each for each in nodes if _has_open_offsets(each)]
            return bool(found)

        await self._until(has_open, ENDING_SECONDS)
        for each in nodes:
            each.disk.faults = Faults(FULL, frozenset(("pwrite",)), OFFSETS_PART)
        await self._until(lambda: any(self._ends(each) for each in nodes), 2)
        self._heal()
        for each in nodes:
            self.disks.read_slowly(each, LOADING_SECONDS, OFFSETS_PART)
        for each in found[:1]:
            each.kill()
        await asyncio.sleep(self.random.uniform(3, 8))
        self._heal()
        for each in found[:1]:
            if not each.is_up:
                each.start()

    def _ends(self, node: Node) -> bool:
        if not node.is_up or node.server is None or not node.ready:
            return False
        server: Any = node.server
        return any(
            transaction.state in ENDING
            for home in server.parts.coordinators.transactions.partitions.active
            for transaction in home.transactions.values()
        )

    async def unfinished_move(self, _node: Node) -> None:
        """A leader moves a replica to its other log directory, which has hardly any space, while
        it is away alone; so it truncates before the move ends."""
        index = self.random.randrange(self.world.shape.partitions)
        node = self.leaders.leader(index)
        if node is None or not node.is_up:
            return
        rate = self.random.choice([500_000, 800_000])
        operations = self.random.choice([("rename", "pwrite"), ("rename",), ("replace", "pwrite")])
        node.disk.faults = Faults({errno.ENOSPC: rate}, frozenset(operations), "-future")
        if self.random.random() < 0.5:
            await self.admin.move_away(node, index)
        back = self.leaders.cut_off(node)
        await asyncio.sleep(self.random.uniform(0, 3))
        await self.admin.move_away(node, index)
        await asyncio.sleep(self.random.uniform(4, 9))
        back()
        await asyncio.sleep(self.random.uniform(0.5, 4))
        self._heal()

    async def unwritten_epochs(self, _node: Node) -> None:
        """A leader moves a replica to its other log directory, which has no space for half of the
        writes of the leader epochs of the copy, neither at the begin nor at the end."""
        index = self.random.randrange(self.world.shape.partitions)
        node = self.leaders.leader(index)
        if node is None or not node.is_up:
            return
        operations = frozenset(("replace", "pwrite"))
        node.disk.faults = Faults({errno.ENOSPC: 500_000}, operations, "-future/leader-epoch")
        for _ in range(MOVE_ATTEMPTS):
            await self.admin.move_away(node, index)
            await asyncio.sleep(self.random.uniform(2, 4))
        self._heal()
        where = TopicPartition(TOPIC, index)
        if not await self._until(lambda: not _is_moving(node, where), MOVED_SECONDS):
            self.world.complain(f"{node.host} does not end the move of {where}")

    async def failed_target(self, _node: Node) -> None:
        """A leader that is away alone moves a replica to its other log directory, which fails, and
        truncates when it is back: the replica itself is on a disk that is well."""
        index = self.random.randrange(self.world.shape.partitions)
        where, node = TopicPartition(TOPIC, index), self.leaders.leader(index)
        log = None if node is None else _log(node, where)
        if node is None or log is None:
            return
        source = log.log_directory.path
        target = next(each for each in node.log_directories if each != source)
        node.disk.faults = Faults(FULL, frozenset(("rename",)), "-future")  # copied, not replaced
        back = self.leaders.cut_off(node)
        writing = asyncio.get_running_loop().create_task(self.leaders.write_alone(node))
        await self.admin.move_away(node, index)
        await asyncio.sleep(SESSION_TIMEOUT_SECONDS + self.random.uniform(1, 4))
        writing.cancel()
        node.may_lose_all_disks = True
        node.disk.faults = Faults({errno.EIO: 1_000_000}, WRITING | SYNCING, f"{target}/")
        await self._until(lambda: target in _offline(node), FAILED_SECONDS)
        back()
        await asyncio.sleep(self.random.uniform(0.5, 2))

        def has_joined() -> bool:
            state = state_of(self.world, where)
            return state is not None and node.broker_id in state.isr

        if not await self._until(has_joined, JOINED_SECONDS):
            log = _log(node, where)
            path = None if log is None else log.log_directory.path
            if path == source and source not in _offline(node):
                self.world.complain(
                    f"{node.host} does not join the ISR of {where} for {JOINED_SECONDS} s, and its "
                    f"log directory is well"
                )
        node.kill()
        self._heal()
        node.may_lose_all_disks = False
        node.start()

    async def assigned(self, node: Node) -> None:
        """A broker gets new replicas while it lacks descriptors, inodes or space."""
        self._lacks(node)
        if self.random.random() < 0.5:
            await self.admin.recreate()
        else:
            await self.admin.reassign_to_node(node)
        await asyncio.sleep(self.random.uniform(0.2, 4))
        self._heal()

    async def deleted(self, node: Node) -> None:
        """A topic is deleted while a broker lacks what it needs to start its replicas of it.

        The controller may change before the deletion can end.
        """
        self._lacks(node)
        await self.admin.recreate(replicas=3)
        await asyncio.sleep(self.random.uniform(0, 1))
        await self.admin.delete()
        await asyncio.sleep(self.random.uniform(0, 2))
        if self.random.random() < 0.3:
            await self.leaders.depose(node)
        self._heal()

    def _lacks(self, node: Node) -> None:
        """A broker lacks descriptors, inodes or space from now on."""
        lack = self.random.random()
        if lack < 0.4 and self.world.shape.descriptor_faults:
            node.disk.faults = Faults({errno.EMFILE: 500_000}, frozenset(("open",)))
        elif lack < 0.7:
            node.disk.room_for_files = node.disk.files
        else:
            node.disk.room = node.disk.used

    async def refused(self, node: Node) -> None:
        """A broker gets replicas of a new topic while ZooKeeper refuses its calls.

        It cannot read the settings of the topic, and takes nothing of the LeaderAndIsr request. The
        controller, which sends that request to itself, has refused the reads of settings only.
        """
        session = self.leaders.session(node)
        if session is None or not node.ready:
            return
        is_controller = node is self.leaders.controller()
        recreation = asyncio.get_running_loop().create_task(self.admin.recreate(replicas=3))
        await asyncio.sleep(self.random.uniform(0, 0.2))
        if is_controller:
            session.refuse_reads(TOPIC_SETTINGS_PATH)
        else:
            session.cut(refuses=True)
        await asyncio.sleep(self.random.uniform(1, REFUSED_SECONDS))
        session.refuse_reads("")
        session.heal()
        await recreation

    async def refused_join(self, _node: Node) -> None:
        """A follower is proposed for the ISR and dies, and the controller refuses it.

        What waited for it must be committed then, though nothing else happens in the partition.
        """
        network, controller = self.world.network, self.leaders.controller()
        others = [each for each in self.world.nodes.values() if each is not controller]
        if controller is None or len(others) < 2 or not all(each.ready for each in others):
            return
        leader, follower = self.random.sample(others, 2)
        await self.admin.create_pair(leader.broker_id, follower.broker_id)
        await self._until(lambda: len(_isr_of_pair(leader)) == 2, PROPOSED_SECONDS)
        network.cut(leader.host, follower.host)
        await self._until(lambda: len(_isr_of_pair(leader)) == 1, SHRINK_SECONDS)
        network.heal()
        network.cut(leader.host, controller.host)
        await self._until(lambda: _is_proposed(leader), PROPOSED_SECONDS)
        proposed = _is_proposed(leader)
        if proposed:
            follower.kill()
            await self._write_to_pair()
            await asyncio.sleep(SESSION_TIMEOUT_SECONDS)
        network.heal()
        await self._until(lambda: not _is_proposed(leader), REFUSED_JOIN_SECONDS)
        await asyncio.sleep(COMMITTED_SECONDS)
        if proposed and _isr_of_pair(leader) == {leader.broker_id} and not _is_proposed(leader):
            log = _pair(leader).log
            if log.high_watermark != log.log_end_offset:
                self.world.complain(
                    f"{leader.host}: {PAIR_TOPIC}-0 waits at {log.high_watermark} of "
                    f"{log.log_end_offset} for {follower.host}, which the controller refused"
                )
        await self.admin.delete(PAIR_TOPIC)
        if not follower.is_up:
            follower.start()

    async def _write_to_pair(self) -> None:
        """One record with acks=all, which need not be acknowledged."""
        world = self.world
        producer = world.clients.context.run(Producer, world, PAIR_TOPIC, PAIR_TOPIC, 1)
        await of_client(world, producer.produce(0, producer.values()))
        producer.close()

    def _heal(self) -> None:
        for each in self.world.nodes.values():
            each.disk.heal()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        for _ in range(int(seconds / POLL_SECONDS)):
            if condition():
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False


def _is_moving(node: Node, where: TopicPartition) -> bool:
    server: Any = node.server
    if not node.ready or server is None:
        return False
    return server.parts.logs.get_future(*where) is not None


def _log(node: Node, where: TopicPartition) -> Any:
    """The log of a replica, None without one."""
    server: Any = node.server
    if not node.ready or server is None:
        return None
    found = server.parts.replica_manager.partitions.get(where)
    return None if found is None else found.log


def _offline(node: Node) -> list[str]:
    """The log directories of a broker that have failed."""
    server: Any = node.server
    return [] if server is None else list(server.parts.logs.offline_directories)


def _pair(node: Node) -> Any:
    """The partition of the topic with two replicas, if a broker leads it."""
    server: Any = node.server
    if not node.ready or server is None:
        return None
    found = server.parts.replica_manager.partitions.get(TopicPartition(PAIR_TOPIC, 0))
    return found if found is not None and found.is_leader else None


def _isr_of_pair(node: Node) -> frozenset[int]:
    found = _pair(node)
    return frozenset() if found is None else found.isr


def _is_proposed(node: Node) -> bool:
    """Whether a leader waits for the controller's response to an expansion of the ISR."""
    found = _pair(node)
    return found is not None and found.pending_isr is not None and len(found.pending_isr) == 2


def _has_open_offsets(node: Node) -> bool:
    """Whether a broker leads a partition of `__consumer_offsets` with a transaction in it."""
    if not node.is_up or node.server is None or not node.ready:
        return False
    server: Any = node.server
    return any(
        where.topic == "__consumer_offsets"
        and partition.is_leader
        and partition.log.last_stable_offset < partition.log.high_watermark
        for where, partition in server.parts.replica_manager.partitions.items()
    )
