"""What is done to responses that wait: for flushes that take long, and for those after them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.table import ApiKey
from ottla.protocol.topics import TopicPartition
from tests.doubles.async_client import AsyncClient
from tests.simulation.cluster.admin import PASSING_TOPIC, REQUEST_MS, TOPIC, TOPIC_RESOURCE
from tests.simulation.cluster.clients import Producer
from tests.simulation.cluster.disk import Slowness
from tests.simulation.cluster.settled import settles
from tests.simulation.cluster.waiting import of_client, until

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.disk_troubles import DiskTroubles
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

SET, DELETE = 0, 1
WRITERS = 8
# So that a flush is followed by another one: what comes meanwhile arrives within it.
FLUSH_SECONDS = 0.4
MOVED_SECONDS = 15
# Until what a move replaces has ended its last flush.
AFTER_MOVE_SECONDS = 2
# The job that flushes begins 30 s after a start, and has a second between two runs.
FIRST_FLUSHED_SECONDS = 45
FLUSHED_SECONDS = 15
RESPONSE_MS = 15_000
CONFIGURED_SECONDS = 5
DELETED_SECONDS = 10
RESPONSE_SECONDS = 3
# Not a request of any version of Kafka: it ends its connection.
UNKNOWN_API = 999

LogOf = Callable[[Any, int], Any]


class Writer(Producer):
    """acks=1 to one partition, without a pause. What is acknowledged is on the disk."""

    def __init__(self, world: World, name: str, partition: int, node: Node, log_of: LogOf) -> None:
        super().__init__(world, name, TOPIC, partition + 1)
        # A flush may sync many files, each of which takes its time.
        self.client.close()
        self.client = AsyncClient(world.bootstrap, request_timeout_ms=RESPONSE_MS, client_id=name)
        self._partition = partition
        self._node = node
        self._log_of = log_of

    async def write(self, is_over: Callable[[], bool]) -> None:
        """Until it is over, or the broker leads no more."""
        while not is_over():
            before = self._leadership()
            values = self.values()
            try:
                code, offset = await self.produce(self._partition, values, acks=1)
            except (ClientError, KafkaError) as error:
                code, offset = ErrorCode.REQUEST_TIMED_OUT, -1
                self.world.note(f"{self.name}: {error}")
            if before is None or before != self._leadership():
                break
            if code == ErrorCode.REQUEST_TIMED_OUT:
                self._complain("gets no response, and the disk is well")
                break
            log = self._log_of(self._node, self._partition)
            end = offset + len(values)
            if code == ErrorCode.NONE and log is not None and log.recovery_point < end:
                self._complain(f"is flushed up to {log.recovery_point}, and {end} is acknowledged")
                break
        self.close()

    def _leadership(self) -> int | None:
        """The leader epoch while the broker leads the partition."""
        server: Any = self._node.server
        partitions = {} if server is None else server.parts.replica_manager.partitions
        found = partitions.get(TopicPartition(TOPIC, self._partition))
        return found.leader_epoch if found is not None and found.is_leader else None

    def _complain(self, what: str) -> None:
        self.world.complain(f"{self._node.host}: {TOPIC}-{self._partition} {what} ({self.name})")


class FlushTroubles:
    """One method for each; they are played with `--later-kinds` or `--kinds`."""

    def __init__(
        self, world: World, admin: Admin, disks: DiskTroubles, leaders: LeaderTroubles
    ) -> None:
        self.world = world
        self.admin = admin
        self.disks = disks
        self.leaders = leaders
        self.random = Random(f"flush troubles {world.seed}")

    async def moved_in_flush(self, _node: Node) -> None:
        """A replica moves to its other log directory while responses wait for the flush of the log
        that the move replaces."""
        index = self.random.randrange(self.world.shape.partitions)
        if await settles(self.world) is not None:
            return
        node = self.leaders.leader(index)
        log = None if node is None else self.leaders.log(node, index)
        if node is None or log is None or not await self._flush_each(log):
            return
        path = f"{log.log_directory.path}/{TOPIC}-{index}/"
        seconds = self.random.uniform(0.05, 0.5)
        over: list[bool] = []
        writing = self._writers(index, node, over)
        await asyncio.sleep(1)  # what was there before is flushed with the first of them
        self._slow(node, lambda: self.random.uniform(0, seconds), path)
        await asyncio.sleep(1)
        await self.admin.move_away(node, index)
        await until(lambda: self.leaders.log(node, index) is not log, MOVED_SECONDS)
        await asyncio.sleep(AFTER_MOVE_SECONDS)
        node.disk.heal()
        over.append(True)
        await asyncio.gather(*writing)
        await self._reset("flush.messages")

    async def flushes_without_end(self, _node: Node) -> None:
        """Each flush of a log is followed by another one. Other logs are flushed meanwhile."""
        index = self.random.randrange(self.world.shape.partitions)
        if not await self._create() or await settles(self.world) is not None:
            return
        node = self.leaders.leader(index)
        log = None if node is None else self.leaders.log(node, index)
        if node is None or log is None or not await self._flush_each(log):
            return
        over: list[bool] = []
        writing = self._writers(index, node, over)
        await asyncio.sleep(1)
        self._slow(node, lambda: FLUSH_SECONDS, f"/{TOPIC}-{index}/")
        await asyncio.sleep(1)
        # The first one is flushed at the latest when the wait begins that has no end.
        for seconds in (FIRST_FLUSHED_SECONDS, FLUSHED_SECONDS):
            if self.leaders.leader(index) is node:
                await self._check_flushed(node, seconds)
        node.disk.heal()
        over.append(True)
        await asyncio.gather(*writing)
        await self._reset("flush.messages")
        await self.admin.delete()

    async def _check_flushed(self, node: Node, seconds: float) -> None:
        """A record of the other topic is on the disk of a broker in time."""
        producer = self.world.clients.context.run(Producer, self.world, "seldom", PASSING_TOPIC, 1)
        code, offset = await of_client(self.world, producer.produce(0, [b"seldom"])) or (-1, -1)
        producer.close()
        before = self._passing(node)

        def is_flushed() -> bool:
            log = self._passing(node)
            return log is not before or log is None or log.recovery_point > offset

        if code == ErrorCode.NONE and not await until(is_flushed, seconds):
            self.world.complain(
                f"{node.host}: offset {offset} of {PASSING_TOPIC}-0 is not flushed after "
                f"{seconds} s, and flush.ms is 500"
            )

    async def response_before_close(self, node: Node) -> None:
        """A client sends small requests together, the last of which closes the connection. The
        others are handled, so that each of them needs its response."""
        if not node.ready or await settles(self.world) is not None:
            return
        client = RawClient()
        context = self.world.clients.context
        connecting = self.world.network.connect(lambda: client, node.host, 9092)
        try:
            transport, _ = await self.world.loop.create_task(connecting, context=context)
        except OSError:
            return
        requests = [_frame(ApiKey.API_VERSIONS, each) for each in range(self.random.randint(1, 4))]
        transport.write(b"".join([*requests, _frame(UNKNOWN_API, len(requests))]))
        await until(lambda: client.is_closed, RESPONSE_SECONDS)
        if client.is_closed and not client.received and node.ready:
            self.world.complain(
                f"{node.host} has closed a connection without a response to {len(requests)} "
                f"requests that it had handled"
            )
        transport.close()

    async def _flush_each(self, log: Log) -> bool:
        """Each append of the topic is flushed from now on. Whether the log knows that."""
        if not await self._set("flush.messages", "1"):
            return False
        return await until(lambda: log.config.flush_messages == 1, CONFIGURED_SECONDS)

    def _slow(self, node: Node, seconds: Callable[[], float], path_part: str) -> None:
        """Each sync of these files takes so long."""
        node.disk.slowness = Slowness(0, lambda _: self.disks.wait(seconds()), path_part)

    def _writers(self, index: int, node: Node, over: list[bool]) -> list[asyncio.Task[None]]:
        world, tasks = self.world, []
        for number in range(WRITERS):
            writer = world.clients.context.run(
                *(Writer, world, f"waiting{number}", index, node, self.leaders.log)
            )
            writing = writer.write(lambda: bool(over) or world.stopping or bool(world.complaints))
            tasks.append(world.loop.create_task(writing, context=world.clients.context))
        return tasks

    async def _create(self) -> bool:
        """A topic that is flushed by time only."""
        await self.admin.delete()
        configs = {"flush.messages": "1000000", "flush.ms": "500"}
        rows = [CreatableTopicConfig(*each) for each in configs.items()]
        topic = CreatableTopic(PASSING_TOPIC, 1, min(3, self.world.shape.brokers), configs=rows)
        for _ in range(DELETED_SECONDS):
            response = await self.admin.send(CreateTopicsRequest([topic], REQUEST_MS), Controller())
            code = None if response is None else response.topics[0].error_code
            if code != ErrorCode.TOPIC_ALREADY_EXISTS:
                return code == ErrorCode.NONE
            await asyncio.sleep(1)
        return False

    def _passing(self, node: Node) -> Any:
        server: Any = node.server
        return None if server is None else server.parts.logs.get(PASSING_TOPIC, 0)

    async def _set(self, name: str, value: str | None, operation: int = SET) -> bool:
        self.world.note(f"set {name}={value} of {TOPIC}")
        row = AlterableConfig(name, operation, value)
        resource = AlterConfigsResource(TOPIC_RESOURCE, TOPIC, [row])
        request = IncrementalAlterConfigsRequest([resource])
        response = await self.admin.send(request, Controller())
        return response is not None and response.responses[0].error_code == ErrorCode.NONE

    async def _reset(self, name: str) -> None:
        await self._set(name, None, DELETE)


class RawClient:
    """What arrives on a connection."""

    def __init__(self) -> None:
        self.received = b""
        self.is_closed = False

    def connection_made(self, transport: Any) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True


def _frame(api_key: int, correlation_id: int) -> bytes:
    """A request of version 0 without fields."""
    content = struct.pack(">hhih", api_key, 0, correlation_id, -1)
    return struct.pack(">i", len(content)) + content
