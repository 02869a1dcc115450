"""What is done to requests that wait for replication while their broker loses the leadership."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import AnyBroker, Controller, Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from tests.doubles.pace import steps_per_turn
from tests.simulation.cluster.admin import REQUEST_MS, TOPIC
from tests.simulation.cluster.clients import LoneWriter
from tests.simulation.cluster.settled import settles, state_of
from tests.simulation.cluster.waiting import of_client

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

# The check of a request takes a millisecond, with one in a turn: in this time the leader changes
# twice.
WAITING = 400
JOINED_SECONDS = 10
LED_SECONDS = 5
# The session of the leader before ends first.
ELECTED_SECONDS = 10
WRITTEN_SECONDS = 3
TRUNCATED_SECONDS = 2
WRITE_ATTEMPTS = 20
# Requests to all partitions of a topic, by each of so many clients.
WIDE_WRITERS = 3
WIDE_WRITES = 10


class WaitingWriter(LoneWriter):
    """Sends one batch to one broker."""

    async def write(self, count: int, acks: int) -> int:
        """The error code; what is acknowledged with acks=all has to stay."""
        return (await self.write_to([self.partition], count, acks))[0]

    async def write_to(self, partitions: list[int], count: int, acks: int) -> list[int]:
        """As `write`, to several partitions in one request."""
        values = [self._values(count) for _ in partitions]
        rows = [
            PartitionProduceData(
                partition,
                build_batch([(self.world.now_ms(), b"", value, None) for value in written]),
            )
            for partition, written in zip(partitions, values, strict=True)
        ]
        request = ProduceRequest(None, acks, REQUEST_MS, [TopicProduceData(TOPIC, rows)])
        try:
            response: Any = await self.client.call(
                request, AnyBroker(), versions=Versions(3, 11), resend=False
            )
        except (ClientError, KafkaError):
            return [ErrorCode.REQUEST_TIMED_OUT] * len(partitions)
        responses = response.responses[0].partition_responses
        for found, written in zip(responses, values, strict=True):
            if found.error_code == ErrorCode.NONE and acks == -1:
                self.world.history.acknowledged(TOPIC, found.index, found.base_offset, written)
        return [int(found.error_code) for found in responses]

    def _values(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%s:%d" % (self.name.encode(), self.count - each) for each in range(count)]

    async def write_widely(self, partitions: int) -> None:
        """One request after the other, each to all partitions."""
        try:
            for _ in range(WIDE_WRITES):
                chosen = self.random.sample(range(partitions), partitions)
                await self.write_to(chosen, 1, acks=-1)
        finally:
            self.close()

    async def write_once(self) -> int:
        try:
            return await self.write(1, acks=-1)
        finally:
            self.close()


class LeadershipTroubles:
    """One method for each; they are played with `--later-kinds` or `--kinds`."""

    def __init__(self, world: World, admin: Admin, leaders: LeaderTroubles) -> None:
        self.world = world
        self.admin = admin
        self.leaders = leaders
        self.random = Random(f"leadership troubles {world.seed}")
        self._number = 0

    async def led_again(self, _node: Node) -> None:
        """Many requests wait for replication at a leader, which truncates what they have written
        and leads again before all of them have their errors."""
        index, nodes = self.random.randrange(self.world.shape.partitions), self.world.nodes
        controller = self.leaders.controller()
        others = [each for each in nodes.values() if each is not controller]
        if controller is None or len(nodes) < 3 or await settles(self.world) is not None:
            return
        following = self.random.choice(others)
        former, third = self.random.sample([e for e in nodes.values() if e is not following], 2)
        if not await self._lead(index, former, following, third):
            return
        log = self.leaders.log(former, index)
        if log is None:
            return
        await self.admin.reassign_to(index, [each.broker_id for each in (following, former, third)])
        self.world.network.cut(former.host, following.host)
        self.world.network.cut(former.host, third.host)
        kept = log.log_end_offset
        with steps_per_turn(1):  # of the requests that wait, one is checked at once
            waiting = self._wait_for_replication(former, index)
            await self.leaders.until(lambda: log.log_end_offset >= kept + WAITING, WRITTEN_SECONDS)
            end = log.log_end_offset
            election = asyncio.get_running_loop().create_task(self._elect(index))
            await self.leaders.until(lambda: not self._leads(former, index), LED_SECONDS)
            self.world.network.heal()
            await self.leaders.until(lambda: log.log_end_offset < end, TRUNCATED_SECONDS)
            stopping = asyncio.get_running_loop().create_task(self._stop(following))
            await self.leaders.until(lambda: self._leads(former, index), LED_SECONDS)
            self.world.note(
                f"{former.host} leads {TOPIC}-{index} again: {self._leads(former, index)}"
            )
            await self._write_much(former, index)
            await asyncio.gather(election, stopping, *waiting)
        if not following.is_up:
            following.start()

    async def woken_leader(self, _node: Node) -> None:
        """A leader stands still until another one is elected. When it continues, a write with
        acks=1 is there, and ZooKeeper is heard of later."""
        index = self.random.randrange(self.world.shape.partitions)
        if await settles(self.world) is not None:
            return
        node = self.leaders.leader(index)
        session = None if node is None else self.leaders.session(node)
        if node is None or session is None or node.running is None:
            return
        writer, process = self._writer(node, index), node.running.process
        await of_client(self.world, writer.write(1, acks=1))
        process.pause()
        session.cut()
        await self.leaders.until(lambda: self._is_led_by_another(node, index), ELECTED_SECONDS)
        writing = self.world.loop.create_task(
            self._write_to_former(writer, node), context=self.world.clients.context
        )
        await asyncio.sleep(self.random.uniform(0, 1))
        process.resume()
        await asyncio.sleep(self.random.uniform(0, 1))
        session.heal()
        await writing
        writer.close()

    async def _write_to_former(self, writer: WaitingWriter, node: Node) -> None:
        code = await writer.write(1, acks=1)
        if code == ErrorCode.NONE and self._is_led_by_another(node, writer.partition):
            self.world.complain(
                f"{node.host} stood still until another broker led {TOPIC}-{writer.partition}, "
                f"and acknowledges a write"
            )

    def _is_led_by_another(self, node: Node, index: int) -> bool:
        return self.leaders.leader(index) not in (None, node)

    async def wide_writes(self, node: Node) -> None:
        """Requests to many partitions are appended in parts; between two of them a leader changes,
        or a broker dies."""
        world, partitions = self.world, self.world.shape.partitions
        writing = [
            world.loop.create_task(
                self._writer(each, 0).write_widely(partitions), context=world.clients.context
            )
            for each in world.nodes.values()
            for _ in range(WIDE_WRITERS)
        ]
        await asyncio.sleep(self.random.uniform(0, 0.05))
        if self.random.random() < 0.5:
            node.kill()
            await asyncio.sleep(self.random.uniform(0, 4))
        else:
            await self.admin.reassign()
            await self._elect(self.random.randrange(partitions))
        if not node.is_up:
            node.start()
        await asyncio.gather(*writing)

    async def _lead(self, index: int, *replicas: Node) -> bool:
        """These are the replicas, all are in sync, and the first one leads."""
        where, ids = TopicPartition(TOPIC, index), [each.broker_id for each in replicas]
        await self.admin.reassign_to(index, ids)

        def are_in_sync() -> bool:
            state = state_of(self.world, where)
            return state is not None and set(state.isr) == set(ids)

        await self.leaders.until(are_in_sync, JOINED_SECONDS)
        await self._elect(index)
        await self.leaders.until(lambda: self._leads(replicas[0], index), LED_SECONDS)
        return are_in_sync() and self._leads(replicas[0], index)

    async def _elect(self, index: int) -> None:
        rows = [TopicPartitions(TOPIC, [index])]
        await self.admin.send(ElectLeadersRequest(0, rows, REQUEST_MS), Controller())

    async def _stop(self, node: Node) -> None:
        if node.is_up:
            await node.stop()

    def _leads(self, node: Node, index: int) -> bool:
        server: Any = node.server
        partitions = {} if server is None else server.parts.replica_manager.partitions
        found = partitions.get(TopicPartition(TOPIC, index))
        return found is not None and found.is_leader

    def _writer(self, node: Node, index: int) -> WaitingWriter:
        self._number += 1
        name, world = f"led{self._number}", self.world
        return world.clients.context.run(WaitingWriter, world, name, TOPIC, index, node.host)

    def _wait_for_replication(self, node: Node, index: int) -> list[asyncio.Task[int]]:
        world = self.world
        return [
            world.loop.create_task(
                self._writer(node, index).write_once(), context=world.clients.context
            )
            for _ in range(WAITING)
        ]

    async def _write_much(self, node: Node, index: int) -> None:
        """So much that the log ends behind what was truncated."""
        writer = self._writer(node, index)
        for _ in range(WRITE_ATTEMPTS):
            if await of_client(self.world, writer.write(WAITING, acks=1)) == ErrorCode.NONE:
                break
        writer.close()
