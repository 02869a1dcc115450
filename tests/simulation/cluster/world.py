"""A simulated cluster in trouble: brokers, clients, and what is done to them, all by one seed."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any, NamedTuple

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.async_client import AsyncClient
from tests.simulation.cluster import seams
from tests.simulation.cluster.clients import PRODUCERS, IdleProducer, Producer
from tests.simulation.cluster.consumers import (
    MEMBERS,
    SESSION_MS,
    RackReader,
    TailReader,
    UncommittedReader,
)
from tests.simulation.cluster.final_checks import FinalChecks
from tests.simulation.cluster.groups import CONSUMER_GROUP, SharingConsumerMember, SharingMember
from tests.simulation.cluster.history import History
from tests.simulation.cluster.loop import FIRST_SECOND, Process, SimulatedLoop
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.node import Node, substitute
from tests.simulation.cluster.owners import Owners
from tests.simulation.cluster.pace import draw_pace
from tests.simulation.cluster.troubles import Troubles
from tests.simulation.cluster.watch import Watch
from tests.simulation.cluster.zookeeper import Ensemble

TOPIC = "t"
# Its leaders may be elected from outside of the ISR: records may be lost.
UNCLEAN_TOPIC = "unclean"
UNCLEAN_PARTITIONS = 2
# Seldom written: leaders are elected and replaced without a record.
IDLE_TOPIC = "idle"
IDLE_PARTITIONS = 2
QUIET_SECONDS = 120


class Shape(NamedTuple):
    """What a simulation consists of."""

    brokers: int = 3
    partitions: int = 3
    min_insync_replicas: int = 2
    internal_partitions: int = 50
    producers: int = 4
    troubles: int = 12
    power_loss: bool = False
    descriptor_faults: bool = True
    #: Only these troubles, separated by commas; "" for all of them.
    kinds: str = ""
    #: The troubles that older seeds do not have, too.
    later_kinds: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    #: What operators and their tools do, too.
    operator: bool = False
    #: Topics with tiered storage, and its troubles.
    tiered: bool = False
    #: Brokers of one machine. If all are, the znode tree is in its supervisor.
    workers: int = 1


class World:
    """One simulation. `run` plays it to its end."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.loop = SimulatedLoop(seed)
        self.network = self.loop.network = Network(self.loop, seed)
        seams.begin(self.loop, seed)
        substitute(self.network)
        self.tiered = self._tiered() if shape.tiered else None
        #: Where work that shares the loop pauses.
        self.pace = draw_pace(seed)
        self.random = Random(f"world {seed}")
        self.ensemble = Ensemble(self.loop, seed)
        self.history = History()
        self.trace: list[str] = []
        self.complaints: list[str] = []
        self._commits = 0
        #: Up to where records of a partition may have been deleted.
        self.deleted_before: dict[TopicPartition, int] = {}
        #: A replica lacks a segment that the operator has moved away, and may be read.
        self.with_gaps: set[TopicPartition] = set()
        #: Producers whose last batch in a partition was in such a segment, by producer id: the
        #: leader expects an older sequence, as Kafka's does.
        self.forgotten_producers: set[tuple[TopicPartition, int]] = set()
        #: The longest pause of a client between two requests: some clusters are busy, some not.
        self.pace_seconds = self.random.choice([0.3, 0.6, 1.2])
        self.stopping = False
        self.abandoned = False
        settings = {
            "default.replication.factor": str(min(3, shape.brokers)),
            "offsets.topic.replication.factor": str(min(3, shape.brokers)),
            "transaction.state.log.replication.factor": str(min(3, shape.brokers)),
            "transaction.state.log.min.isr": str(min(2, shape.brokers)),
            "offsets.topic.num.partitions": str(shape.internal_partitions),
            "transaction.state.log.num.partitions": str(shape.internal_partitions),
            "min.insync.replicas": str(shape.min_insync_replicas),
            "replica.lag.time.max.ms": "5000",
            "replica.socket.timeout.ms": "5000",
            "request.timeout.ms": "5000",
            "controller.socket.timeout.ms": "5000",
            "log.segment.bytes": "4096",
            # Coordinators read many of them when they load.
            "offsets.topic.segment.bytes": "4096",
            # A follower that was away catches up in many steps.
            "replica.fetch.max.bytes": "1500",
            "replica.fetch.response.max.bytes": "4000",
            "log.index.size.max.bytes": "1024",
            "log.index.interval.bytes": "256",
            "log.flush.offset.checkpoint.interval.ms": "3000",
            "replica.high.watermark.checkpoint.interval.ms": "2000",
            "leader.imbalance.check.interval.seconds": "20",
            "log.retention.check.interval.ms": "20000",
            "num.recovery.threads.per.data.dir": "1",
            "group.coordinator.rebalance.protocols": "classic,consumer",
            "group.consumer.min.session.timeout.ms": str(SESSION_MS),
            "group.consumer.session.timeout.ms": str(SESSION_MS),
            "log.dir.failure.timeout.ms": "5000",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # Without power only what was synced is left, so what is acknowledged must be.
            **({"log.flush.interval.messages": "1"} if shape.power_loss else {}),
            # Flushes that no append waits for, so that they run while logs are truncated.
            **({"log.flush.interval.ms": "500"} if self.random.random() < 0.5 else {}),
            **({} if self.tiered is None else self.tiered.settings()),
            **dict(shape.settings),
        }
        self.nodes = {each: Node(self, each, settings) for each in range(1, shape.brokers + 1)}
        self.bootstrap = ",".join(f"b{each}:9092" for each in self.nodes)
        self.owners = Owners(self, CONSUMER_GROUP, SESSION_MS / 1000)
        self.clients = Process("clients")
        self.producers: list[Any] = []
        self.troubles = Troubles(self)
        self.checks = FinalChecks(self)
        self.watch = Watch(self)

    def _tiered(self) -> Any:
        # Late: which modules are loaded decides what the seed draws.
        from tests.simulation.cluster.tiered import Tiered

        return Tiered(self)

    # Notes

    def now_ms(self) -> int:
        return seams.EPOCH_MS + int(self.loop.now * 1000)

    def note(self, line: str) -> None:
        self.trace.append(f"{self.loop.now - FIRST_SECOND:9.3f} {line}")

    def complain(self, line: str) -> None:
        self.complaints.append(line)
        self.note(f"COMPLAINT {line}")

    def disks_failed(self, node: Node, process: Process) -> None:
        line = f"{node.host}: all log directories failed"
        if node.may_lose_all_disks:
            self.note(line)
        else:
            self.complain(line)
        node.kill()

    def next_commit(self) -> int:
        """Grows: what is committed later has a higher number."""
        self._commits += 1
        return self._commits

    def acknowledged(self) -> dict[str, int]:
        """How much each kind of client got acknowledged."""
        done: dict[str, int] = {}
        for each in self.producers:
            done[each.kind] = done.get(each.kind, 0) + each.acknowledged
        return done

    # The course of events

    def run(self) -> None:
        """Plays the whole simulation; complaints are in `complaints`."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self.loop.create_task(self._run()))
        finally:
            self.abandoned = True
            for node in self.nodes.values():
                node.kill()
            self.clients.kill()
            seams.end()

    async def _run(self) -> None:
        sizes = ", ".join(f"{name} {size:g}" for name, size in self.pace.items())
        self.note(f"pace: {sizes}")
        for node in self.nodes.values():
            node.start()
        await self._ready()
        await self._create_topic()
        self._start_clients()
        watching = self.loop.create_task(self.watch.run())
        for _ in range(self.shape.troubles):
            await asyncio.sleep(self.random.uniform(0.2, 5))
            await self.troubles.one()
            if self.complaints:
                return
        await self._rest()
        watching.cancel()

    async def _ready(self) -> None:
        for _ in range(600):
            if all(node.ready for node in self.nodes.values()):
                return
            await asyncio.sleep(0.1)
        self.complain("the brokers did not start within a minute")

    async def _create_topic(self) -> None:
        client = AsyncClient(self.bootstrap, request_timeout_ms=5000)
        replicas = min(3, self.shape.brokers)
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        rows = [CreatableTopicConfig(name, value) for name, value in configs.items()]
        topics = [
            CreatableTopic(TOPIC, self.shape.partitions, replicas),
            CreatableTopic(UNCLEAN_TOPIC, UNCLEAN_PARTITIONS, replicas, configs=rows),
            CreatableTopic(IDLE_TOPIC, IDLE_PARTITIONS, replicas),
        ]
        if self.tiered is not None:
            topics = self.tiered.tier(topics)
        request = CreateTopicsRequest(topics, 5000)
        for _ in range(60):
            with contextlib.suppress(ClientError, KafkaError):
                response: Any = await client.call(request, Controller())
                if all(each.error_code in (0, 36) for each in response.topics):
                    break
            await asyncio.sleep(0.5)
        else:
            self.complain("the topic could not be created")
        client.close()

    def _start_clients(self) -> None:
        for number in range(self.shape.producers):
            kind = PRODUCERS[number % len(PRODUCERS)]
            producer = self.clients.context.run(
                kind, self, f"{kind.kind}{number}", TOPIC, self.shape.partitions
            )
            if kind.kind != "plain":
                self.history.sends_once(producer.name)
            self.producers.append(producer)
            self.loop.create_task(producer.run(), context=self.clients.context)

        consumers: list[Any] = [
            self.clients.context.run(TailReader, self, f"reader{each}", TOPIC, each)
            for each in range(self.shape.partitions)
        ]
        consumers += [
            self.clients.context.run(kind, self, f"{kind.kind}{number}".replace(" ", "-"), TOPIC, 0)
            for kind in (RackReader, UncommittedReader, SharingMember, SharingConsumerMember)
            for number in range(2)
        ]
        consumers += [
            self.clients.context.run(kind, self, f"member{number}", TOPIC, 0)
            for number, kind in enumerate(MEMBERS)
        ]
        consumers.append(
            self.clients.context.run(Producer, self, "lossy", UNCLEAN_TOPIC, UNCLEAN_PARTITIONS)
        )
        consumers.append(
            self.clients.context.run(IdleProducer, self, "idle", IDLE_TOPIC, IDLE_PARTITIONS)
        )
        if self.tiered is not None:
            consumers += self.clients.context.run(self.tiered.clients)
        for consumer in consumers:
            self.producers.append(consumer)
            self.loop.create_task(consumer.run(), context=self.clients.context)

    # At the end

    async def _rest(self) -> None:
        """Troubles stop; the cluster must get well by itself, and everything must be there."""
        self.note("rest")
        self.network.heal()
        self.ensemble.lost_one_in = 0
        for node in self.nodes.values():
            node.disk.heal()
        if self.tiered is not None:
            self.tiered.heal()
        for session in self.ensemble.sessions:
            session.heal()
        for node in self.nodes.values():
            if not node.is_up:
                node.start()
        await asyncio.sleep(15)
        if self.troubles.tiered is not None:
            await self.troubles.tiered.end()
        self.stopping = True
        if not await self._is_well_and_tiered():
            return
        self.checks.check_logs()
        if self.complaints:
            return
        # What is in memory must be what the logs have: all of them start again.
        self.note("all brokers start again")
        before = self.checks.all_committed_offsets()
        for node in self.nodes.values():
            if self.random.random() < 0.5:
                await node.stop()
            else:
                node.kill()
        for node in self.nodes.values():
            node.start()
        if not await self._is_well_and_tiered():
            return
        self.checks.check_logs()
        self.checks.check_same_offsets(before)

    async def _is_well_and_tiered(self) -> bool:
        """Whether all is well now; what is in tiered storage is checked, too."""
        if not await self._gets_well():
            return False
        if self.tiered is None:
            return True
        await self.tiered.checks.check()
        # That takes seconds, in which preferred leaders may have been elected.
        return await self._gets_well()

    async def _gets_well(self) -> bool:
        reason: str | None = "nothing was checked"
        for _ in range(QUIET_SECONDS):
            await asyncio.sleep(1)
            reason = self.checks.restless()
            if reason is None:
                return True
        self.complain(f"the cluster does not get well: {reason}")
        return False
