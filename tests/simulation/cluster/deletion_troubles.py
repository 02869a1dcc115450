"""What is done to topics that are deleted, and created again: to requests about them that the
network delivers late, and to offsets that groups have committed in them."""

from __future__ import annotations

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.protocol.client.operations import CoordinatorOf, Versions
from ottla.protocol.client.operations import Node as To
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.table import ApiKey
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.admin import PASSING_TOPIC, REQUEST_MS
from tests.simulation.cluster.clients import LoneWriter, Producer, TransactionalProducer
from tests.simulation.cluster.disk import Faults
from tests.simulation.cluster.network import Network, Pipe
from tests.simulation.cluster.settled import assignments, not_deleted, not_led, settles, state_of
from tests.simulation.cluster.waiting import POLL_SECONDS, of_client, until

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

AnyProducer = TypeVar("AnyProducer", bound=Producer)

WHERE = TopicPartition(PASSING_TOPIC, 0)
OFFSETS_PART = "/__consumer_offsets-"
# Of files of that topic.
NO_DESCRIPTORS = Faults({errno.EMFILE: 1_000_000}, frozenset(("open",)), f"/{PASSING_TOPIC}-")
# The request is sent again after its time-out, and the deletion ends after the response to that.
DELETED_SECONDS = 20
SENT_SECONDS = 3
# What is lost after a late request is lost soon.
ARRIVED_SECONDS = 3
# Tombstones that found no space are retried after 5 s. The next coordinator compares the topics
# with those of ZooKeeper within 30 s.
FORGOTTEN_SECONDS = 60
# Session timeout, and an election.
ELECTED_SECONDS = 15
JOINED_SECONDS = 30
# Until a follower that fetches all the time has learned the log start offset.
LEARNED_SECONDS = 5
ACKNOWLEDGED_ATTEMPTS = 20


class Held(ABC):
    """What belongs to a request of a kind between two brokers that names a topic, and all that its
    connection has after it in that direction, is under way until it `arrives`; other connections
    are well."""

    def __init__(self, network: Network, source: str, target: str, kind: int) -> None:
        self._network = network
        self._hosts = source, target
        self._kind = kind.to_bytes(2, "big")
        self._pipe: Pipe | None = None
        network.on_send = self._sent

    @property
    def is_under_way(self) -> bool:
        return self._pipe is not None

    @abstractmethod
    def _sent(self, pipe: Pipe, data: bytes) -> None:
        """Holds the pipe when the time has come."""

    def _is_request(self, pipe: Pipe, data: bytes) -> bool:
        hosts = pipe.source.host, pipe.target.host
        return hosts == self._hosts and data[4:6] == self._kind and PASSING_TOPIC.encode() in data

    def _hold(self, pipe: Pipe) -> None:
        self._pipe, pipe.is_held = pipe, True
        self._network.on_send = None

    def arrives(self) -> None:
        self._network.on_send = None
        if self._pipe is not None:
            self._pipe.is_held = False


class LateRequest(Held):
    """The next such request, or the one after the next ones."""

    def __init__(self, network: Network, source: str, target: str, kind: int, earlier: int) -> None:
        super().__init__(network, source, target, kind)
        self._earlier = earlier

    def _sent(self, pipe: Pipe, data: bytes) -> None:
        if self._is_request(pipe, data):
            self._earlier -= 1
            if self._earlier < 0:
                self._hold(pipe)


class LostResponse(Held):
    """The response to the next such request."""

    _request: Pipe | None = None

    def _sent(self, pipe: Pipe, data: bytes) -> None:
        if self._request is None:
            if self._is_request(pipe, data):
                self._request = pipe
        elif pipe.source is self._request.target:
            self._hold(pipe)


class DeletionTroubles:
    """One method for each; they are played with `--later-kinds` or `--kinds`."""

    def __init__(self, world: World, admin: Admin, leaders: LeaderTroubles) -> None:
        self.world = world
        self.admin = admin
        self.leaders = leaders
        self.random = Random(f"deletion troubles {world.seed}")
        self._number = 0
        self._group = ""

    async def late_deletion(self, _node: Node) -> None:
        """The controller sends a request about a topic again, as the first one is lost on the way.
        That arrives when the topic is deleted, and created again."""
        controller = self.leaders.controller()
        others = [each for each in self.world.nodes.values() if each is not controller]
        if controller is None or not others:
            return
        target = self.random.choice(others)
        kind = self.random.choice([ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA])
        is_creation = kind == ApiKey.UPDATE_METADATA and self.random.random() < 0.5
        if not is_creation and not await self._create():
            return
        # The first StopReplica of a deletion stops the replicas, the second one deletes them.
        earlier = self.random.randrange(2) if kind == ApiKey.STOP_REPLICA else 0
        late = LateRequest(self.world.network, controller.host, target.host, kind, earlier)
        if is_creation:
            await self.admin.recreate(replicas=3)
        else:
            await self.admin.delete()
        await until(lambda: late.is_under_way, SENT_SECONDS)
        self.world.note(f"request {kind} to {target.host} is late: {late.is_under_way}")
        if is_creation:
            await self._settle()
            await self.admin.delete()
        if await until(lambda: not self._exists(), DELETED_SECONDS) and await self._create():
            written = await self._write()
            committed = await self._commit(f"late-{self._number}")
            late.arrives()
            await asyncio.sleep(ARRIVED_SECONDS)
            await self._settle()
            self._check(written, committed)
        late.arrives()

    async def _create(self) -> bool:
        """Whether the topic is new, and all brokers know it."""
        await self.admin.recreate(replicas=3)
        return self._exists() and await self._settle()

    async def _settle(self) -> bool:
        reason = await settles(self.world)
        if reason is not None:
            self.world.complain(f"the cluster does not settle: {reason}")
        return reason is None

    def _exists(self) -> bool:
        return self.world.ensemble.has_topic(PASSING_TOPIC)

    async def _write(self) -> int:
        """Records with acks=all; returns the end of what is acknowledged."""
        producer = self._client(Producer, f"late-{self._number}")
        self._number += 1
        end = 0
        for _ in range(ACKNOWLEDGED_ATTEMPTS):
            values = producer.values()
            code, offset = await of_client(self.world, producer.produce(0, values)) or (-1, -1)
            if code == ErrorCode.NONE:
                end = offset + len(values)
                break
            await asyncio.sleep(POLL_SECONDS)
        producer.close()
        return end

    async def _commit(self, group: str) -> int:
        """A group without members commits an offset; returns it, or -1."""
        offset = self.world.next_commit()
        rows = [OffsetCommitRequestPartition(WHERE.partition, offset)]
        request = OffsetCommitRequest(
            group, -1, "", topics=[OffsetCommitRequestTopic(WHERE.topic, rows)]
        )
        self.world.history.offset_sent(group, *WHERE, offset)
        for _ in range(ACKNOWLEDGED_ATTEMPTS):
            response = await self.admin.send(request, CoordinatorOf(group), Versions(2, 7))
            if response is not None and not response.topics[0].partitions[0].error_code:
                self._group = group
                return offset
            await asyncio.sleep(POLL_SECONDS)
        return -1

    def _check(self, written: int, committed: int) -> None:
        """What was acknowledged in the new topic is there."""
        if self.world.complaints:
            return
        for node in self.world.nodes.values():
            server: Any = node.server
            found = server.parts.replica_manager.partitions.get(WHERE)
            if found is not None and found.log.log_end_offset < written:
                self.world.complain(
                    f"{node.host}: {WHERE} ends at {found.log.log_end_offset}, and {written} were "
                    f"acknowledged"
                )
        offsets = self.world.checks.all_committed_offsets()
        if committed >= 0 and offsets.get((self._group, str(WHERE))) != committed:
            self.world.complain(f"{self._group}: the offset {committed} of {WHERE} is gone")

    async def halted_deletion(self, node: Node) -> None:
        """A broker cannot start its replicas of a topic, whose deletion waits for them. The next
        controller starts all replicas, and another broker, which has deleted its own, cannot."""
        await self._delete_unstarted(node)
        node.disk.heal()
        other = self.random.choice(list(self.world.nodes.values()))
        other.disk.faults = NO_DESCRIPTORS
        await self.leaders.depose(node)
        await asyncio.sleep(self.random.uniform(0, SENT_SECONDS))
        other.disk.heal()

    async def _delete_unstarted(self, node: Node) -> None:
        """A topic is created, and its deletion begins. The broker lacks the descriptors for it."""
        node.disk.faults = NO_DESCRIPTORS
        await self.admin.recreate(replicas=3)
        await asyncio.sleep(self.random.uniform(0, 1))
        await self.admin.delete()
        await asyncio.sleep(self.random.uniform(0, SENT_SECONDS))

    async def unconfirmed_start(self, node: Node) -> None:
        """A broker cannot start its replicas of a topic, whose deletion waits for them. Then it
        starts them, and its response is lost."""
        controller = self.leaders.controller()
        if controller is None:
            return
        await self._delete_unstarted(node)
        network, kind = self.world.network, ApiKey.LEADER_AND_ISR
        lost = LostResponse(network, controller.host, node.host, kind)
        node.disk.heal()
        if await until(lambda: lost.is_under_way, SENT_SECONDS):
            await asyncio.sleep(DELETED_SECONDS)
        lost.arrives()
        await self._settle()

    async def deleted_offsets(self, _node: Node) -> None:
        """A topic is deleted in which groups have offsets, one of them in a transaction that ends
        later. There may be no space for the records that remove them, for a while."""
        await self._delete_with_offsets(self.random.random)

    async def orphaned_offsets(self, _node: Node) -> None:
        """The same without space, and the coordinators die before they have removed them."""
        await self._delete_with_offsets(lambda: 0, dies=True)

    async def _delete_with_offsets(self, draw: Callable[[], float], *, dies: bool = False) -> None:
        if not await self._create():
            return
        producer = self._client(TransactionalProducer, f"deleted-{self._number}")
        self._number += 1
        await self._commit(f"deleted-{self._number}")
        is_open = await of_client(self.world, self._begin(producer))
        if draw() < 0.5:
            full = Faults({errno.ENOSPC: 1_000_000}, frozenset(("pwrite",)), OFFSETS_PART)
            for each in self.world.nodes.values():
                each.disk.faults = full
        await self.admin.delete()
        await until(lambda: not self._exists(), DELETED_SECONDS)
        await asyncio.sleep(self.random.uniform(0.5, 4))
        dead = [each for each in self.world.nodes.values() if dies and self._left_at(each)]
        for each in dead:
            each.kill()
        if dead:
            await asyncio.sleep(ELECTED_SECONDS)
        for each in self.world.nodes.values():
            each.disk.heal()
        for each in dead:
            if not each.is_up:
                each.start()
        if is_open:
            await of_client(self.world, producer.end(committed=True))
        producer.close()
        if dead and not await self._settle():
            return
        if not await until(lambda: not self._left(), FORGOTTEN_SECONDS):
            self.world.complain(
                f"{self._left()[0]} has an offset of {PASSING_TOPIC}, which is gone"
            )

    async def missed_deletion(self, _node: Node) -> None:
        """A leader is away alone and is written to, while the next one deletes all records.

        Nothing is written later: what the broker does not learn when it has to truncate, it has to
        learn without a record.
        """
        if not await self._create() or not await self._write():
            return
        former = self._leader()
        if former is None:
            return
        back = self.leaders.cut_off(former)
        await until(lambda: self._leader() not in (former, None), ELECTED_SECONDS)
        leader = self._leader()
        if leader not in (former, None):
            await self._write_alone(former)
            rows = [DeleteRecordsTopic(WHERE.topic, [DeleteRecordsPartition(WHERE.partition, -1)])]
            await self.admin.send(DeleteRecordsRequest(rows, REQUEST_MS), To(leader.broker_id))
            self.world.note(f"records of {WHERE} are deleted")
        back()
        await until(self._is_in_sync, JOINED_SECONDS)
        # A later election would have the leader send everything again.
        if self._is_in_sync() and not await until(lambda: not self._kept(), LEARNED_SECONDS):
            self.world.complain(self._kept())
        await self._settle()

    def _is_in_sync(self) -> bool:
        state = state_of(self.world, WHERE)
        return state is not None and len(state.isr) == len(self._replicas())

    def _kept(self) -> str:
        """What followers have not deleted, "" when it is not known."""
        replicas = self._replicas()
        if not replicas or not_led(self.world, WHERE, replicas):
            return ""
        return not_deleted(self.world, WHERE, replicas) or ""

    def _replicas(self) -> tuple[int, ...]:
        return assignments(self.world).get(WHERE, ())

    def _leader(self) -> Node | None:
        state = state_of(self.world, WHERE)
        return None if state is None else self.world.nodes.get(state.leader)

    async def _write_alone(self, node: Node) -> None:
        world = self.world
        writer = world.clients.context.run(LoneWriter, world, "alone", *WHERE, node.host)
        await world.loop.create_task(writer.run(), context=world.clients.context)

    async def _begin(self, producer: TransactionalProducer) -> bool:
        await producer.begin_at_last()
        return await producer.commit_offsets()

    def _left_at(self, node: Node) -> bool:
        """Whether it coordinates such a group."""
        server: Any = node.server
        return server is not None and any(
            where.topic == PASSING_TOPIC
            for home in server.parts.coordinators.groups.partitions.active
            for group in home.groups.values()
            for where in group.offsets.partitions()
        )

    def _left(self) -> list[str]:
        """The groups with an offset in the topic, which was deleted."""
        found = self.world.checks.all_committed_offsets()
        return [group for group, where in found if where.rpartition("-")[0] == PASSING_TOPIC]

    def _client(self, kind: type[AnyProducer], name: str) -> AnyProducer:
        return self.world.clients.context.run(kind, self.world, name, PASSING_TOPIC, 2)
