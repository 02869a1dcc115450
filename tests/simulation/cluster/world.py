"""A simulated cluster in trouble: brokers, clients, and what is done to them, all by one seed."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any, NamedTuple

from ottla.controller.tree import znodes
from ottla.protocol.client.aio import AsyncClient
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster import seams
from tests.simulation.cluster.clients import PRODUCERS
from tests.simulation.cluster.history import History, Kept
from tests.simulation.cluster.loop import Process, SimulatedLoop
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.node import Node, substitute
from tests.simulation.cluster.zookeeper import Ensemble

TOPIC = "t"
QUIET_SECONDS = 120
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


class Shape(NamedTuple):
    """What a simulation consists of."""

    brokers: int = 3
    partitions: int = 3
    min_insync_replicas: int = 2
    internal_partitions: int = 50
    producers: int = 4
    troubles: int = 12
    power_loss: bool = False
    settings: tuple[tuple[str, str], ...] = ()


class World:
    """One simulation. `run` plays it to its end."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.loop = SimulatedLoop(seed)
        self.network = self.loop.network = Network(self.loop, seed)
        seams.begin(self.loop, seed)
        substitute(self.network)
        self.random = Random(f"world {seed}")
        self.ensemble = Ensemble(self.loop, seed)
        self.history = History()
        self.trace: list[str] = []
        self.complaints: list[str] = []
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
            "log.index.size.max.bytes": "1024",
            "log.flush.offset.checkpoint.interval.ms": "3000",
            "replica.high.watermark.checkpoint.interval.ms": "2000",
            "leader.imbalance.check.interval.seconds": "20",
            "log.retention.check.interval.ms": "20000",
            "num.recovery.threads.per.data.dir": "1",
            **dict(shape.settings),
        }
        self.nodes = {each: Node(self, each, settings) for each in range(1, shape.brokers + 1)}
        self.bootstrap = ",".join(f"b{each}:9092" for each in self.nodes)
        self.clients = Process("clients")
        self.producers: list[Any] = []

    # Notes

    def now_ms(self) -> int:
        return seams.EPOCH_MS + int(self.loop.now * 1000)

    def note(self, line: str) -> None:
        self.trace.append(f"{self.loop.now - 1000:9.3f} {line}")

    def complain(self, line: str) -> None:
        self.complaints.append(line)
        self.note(f"COMPLAINT {line}")

    def disks_failed(self, node: Node, process: Process) -> None:
        self.complain(f"{node.host}: all log directories failed")
        node.kill()

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
        for node in self.nodes.values():
            node.start()
        await self._ready()
        await self._create_topic()
        self._start_clients()
        for _ in range(self.shape.troubles):
            await asyncio.sleep(self.random.uniform(0.2, 5))
            await self._trouble()
            if self.complaints:
                return
        await self._rest()

    async def _ready(self) -> None:
        for _ in range(600):
            if all(node.ready for node in self.nodes.values()):
                return
            await asyncio.sleep(0.1)
        self.complain("the brokers did not start within a minute")

    async def _create_topic(self) -> None:
        client = AsyncClient(self.bootstrap, request_timeout_ms=5000)
        request = CreateTopicsRequest(
            [CreatableTopic(TOPIC, self.shape.partitions, min(3, self.shape.brokers))], 5000
        )
        for _ in range(60):
            with contextlib.suppress(ClientError, KafkaError):
                response: Any = await client.call(request, Controller())
                if response.topics[0].error_code in (0, 36):
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

    # Troubles

    async def _trouble(self) -> None:
        kinds = ["kill", "kill", "quick", "stop", "cut", "isolate", "zookeeper", "expire", "depose"]
        kinds += ["two", "lossy"]
        if self.shape.power_loss:
            kinds += ["power", "power"]
        kind = self.random.choice(kinds)
        node = self.random.choice(list(self.nodes.values()))
        self.note(f"trouble: {kind} {node.host}")
        await getattr(self, f"_{kind}")(node)

    async def _kill(self, node: Node) -> None:
        node.kill()
        await asyncio.sleep(self.random.uniform(0, 8))
        self._start(node)

    async def _quick(self, node: Node) -> None:
        node.kill()
        await asyncio.sleep(self.random.uniform(0, 0.5))
        self._start(node)

    async def _power(self, node: Node) -> None:
        node.kill(power=True)
        await asyncio.sleep(self.random.uniform(0, 8))
        self._start(node)

    async def _stop(self, node: Node) -> None:
        if node.is_up:
            await node.stop()
        await asyncio.sleep(self.random.uniform(0, 4))
        self._start(node)

    async def _two(self, node: Node) -> None:
        other = self.random.choice(list(self.nodes.values()))
        node.kill()
        await asyncio.sleep(self.random.uniform(0, 2))
        other.kill()
        await asyncio.sleep(self.random.uniform(0, 5))
        self._start(node)
        await asyncio.sleep(self.random.uniform(0, 3))
        self._start(other)

    async def _cut(self, node: Node) -> None:
        other = self.random.choice(["clients", *(each.host for each in self.nodes.values())])
        self.network.cut(node.host, other)
        await asyncio.sleep(self.random.uniform(0, 10))
        self.network.heal()

    async def _isolate(self, node: Node) -> None:
        for other in self.nodes.values():
            self.network.cut(node.host, other.host)
        session = self._session(node)
        if session is not None and self.random.random() < 0.5:
            session.cut()
        await asyncio.sleep(self.random.uniform(0, 12))
        self.network.heal()
        if session is not None:
            session.heal()

    async def _zookeeper(self, node: Node) -> None:
        session = self._session(node)
        if session is not None:
            session.cut()
            await asyncio.sleep(self.random.uniform(0, 12))
            session.heal()

    async def _expire(self, node: Node) -> None:
        session = self._session(node)
        if session is not None:
            session.expire()

    async def _depose(self, node: Node) -> None:
        from ottla.controller.tree.store import DeleteOp, StoreError

        tree = self.ensemble.tree
        admin = tree.open_session()
        with contextlib.suppress(StoreError):
            tree.apply(admin, [DeleteOp("/controller")])
        tree.end_session(admin)

    async def _lossy(self, node: Node) -> None:
        self.ensemble.lost_one_in = 40
        await asyncio.sleep(self.random.uniform(0, 6))
        self.ensemble.lost_one_in = 0

    def _session(self, node: Node) -> Any:
        return (
            self.ensemble.session_of(node.running.process) if node.is_up and node.running else None
        )

    def _start(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    # At the end

    async def _rest(self) -> None:
        """Troubles stop; the cluster must get well by itself, and everything must be there."""
        self.note("rest")
        self.network.heal()
        self.ensemble.lost_one_in = 0
        for session in self.ensemble.sessions:
            session.heal()
        for node in self.nodes.values():
            self._start(node)
        await asyncio.sleep(15)
        self.stopping = True
        reason: str | None = "nothing was looked at"
        for _ in range(QUIET_SECONDS):
            await asyncio.sleep(1)
            reason = self._restless()
            if reason is None:
                break
        else:
            self.complain(f"the cluster does not get well: {reason}")
            return
        self._check_logs()

    def _topics(self) -> list[str]:
        return [
            name
            for name in (TOPIC, *INTERNAL_TOPICS)
            if znodes.topic_path(name) in self.ensemble.tree.nodes
        ]

    def _assignments(self, topic: str) -> dict[int, tuple[int, ...]]:
        data = self.ensemble.tree.nodes[znodes.topic_path(topic)].data
        found = znodes.decode_topic(topic, data).assignments
        return {index: tuple(each.replicas) for index, each in found.items()}

    def _restless(self) -> str | None:
        """Why the cluster is not well yet."""
        for node in self.nodes.values():
            if not node.ready or node.server is None:
                return f"{node.host} is not ready"
        for topic in self._topics():
            for index, replicas in self._assignments(topic).items():
                reason = self._unwell(topic, index, replicas)
                if reason:
                    return reason
        return None

    def _unwell(self, topic: str, index: int, replicas: tuple[int, ...]) -> str | None:
        where = TopicPartition(topic, index)
        hosted = {
            each: self.nodes[each].server.parts.replica_manager.partitions.get(where)  # type: ignore[union-attr]
            for each in replicas
        }
        leaders = [each for each, found in hosted.items() if found is not None and found.is_leader]
        if len(leaders) != 1:
            return f"{topic}-{index} has leaders {leaders} of {replicas}"
        leader: Any = hosted[leaders[0]]
        if set(leader.isr) != set(replicas):
            return f"{topic}-{index} has ISR {sorted(leader.isr)} of {replicas}"
        ends = {each: found and found.log.log_end_offset for each, found in hosted.items()}
        if len(set(ends.values())) != 1:
            return f"{topic}-{index} has log end offsets {ends}"
        marks = {each: found and found.log.high_watermark for each, found in hosted.items()}
        if set(marks.values()) != set(ends.values()):
            return f"{topic}-{index} has high watermarks {marks}, log end offsets {ends}"
        stable = leader.log.last_stable_offset
        if stable != leader.log.log_end_offset:
            return f"{topic}-{index} has the last stable offset {stable} of {ends}"
        return None

    def _check_logs(self) -> None:
        visible: set[bytes] = set()
        for topic in self._topics():
            for index, replicas in self._assignments(topic).items():
                contents = {each: self._raw(each, topic, index) for each in replicas}
                if len(set(contents.values())) != 1:
                    sizes = {each: len(found) for each, found in contents.items()}
                    self.complain(f"{topic}-{index}: replicas differ, bytes {sizes}")
                if topic == TOPIC:
                    kept = self._kept(replicas[0], topic, index)
                    visible |= {each.value for each in kept if each.visible}
                    for complaint in self.history.check(topic, index, kept):
                        self.complain(complaint)
        for complaint in self.history.check_atomic(visible):
            self.complain(complaint)
        self._check_offsets()

    def _log(self, broker_id: int, topic: str, index: int) -> Any:
        server: Any = self.nodes[broker_id].server
        return server.parts.replica_manager.partitions[TopicPartition(topic, index)].log

    def _raw(self, broker_id: int, topic: str, index: int) -> bytes:
        log = self._log(broker_id, topic, index)
        return b"".join(
            bytes(batch) for batch in log.batches(log.log_start_offset, log.log_end_offset)
        )

    def _kept(self, broker_id: int, topic: str, index: int) -> list[Kept]:
        """All data records, and whether read_committed shows them: markers decide."""
        import struct

        log = self._log(broker_id, topic, index)
        open_: dict[int, list[Kept]] = {}
        kept: list[Kept] = []
        for batch in log.batches(log.log_start_offset, log.log_end_offset):
            data = bytes(batch)
            producer_id, attributes = struct.unpack_from(">q", data, 43)[0], data[22]
            records = list(read_records(data, include_control=True))
            if attributes & 0x20:  # a control batch
                committed = struct.unpack_from(">h", records[0].key, 2)[0] == 1
                for each in open_.pop(producer_id, []):
                    kept.append(each._replace(visible=committed))
                continue
            found = [Kept(record.offset, record.value, True) for record in records]
            if attributes & 0x10:
                open_.setdefault(producer_id, []).extend(
                    each._replace(visible=False) for each in found
                )
            else:
                kept.extend(found)
        for left in open_.values():
            kept.extend(left)
        return sorted(kept, key=lambda each: each.offset)

    def _check_offsets(self) -> None:
        for group, least in self.history.committed_offsets.items():
            found = self._committed_offset(group)
            if found is None or found < least:
                self.complain(f"{group}: offset {least} was committed, there is {found}")

    def _committed_offset(self, group: str) -> int | None:
        for node in self.nodes.values():
            server: Any = node.server
            partitions = server.parts.coordinators.groups.partitions
            for home in partitions.active:
                found = home.groups.get(group)
                if found is not None:
                    for where, committed in found.offsets.committed.items():
                        if where.topic == TOPIC:
                            offset: int = committed.offset
                            return offset
        return None
