"""Clients of a simulated cluster: producers of all kinds. They note in the history what they know.

Each runs as a task of the process `clients`, over the real asyncio client of the protocol package.
A producer sends one batch at a time and repeats it until it knows the outcome, as a client with
max.in.flight=1 and endless retries does.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import (
    GROUP,
    TRANSACTION,
    AnyBroker,
    CoordinatorOf,
    LeaderOf,
    Versions,
)
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.doubles.async_client import AsyncClient

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

REQUEST_MS = 4_000
RETRY_SECONDS = 0.1
LONG_BATCHES = 0.15
IDLE_SECONDS = 30
LONE_BATCHES = 200
LONE_SECONDS = 0.05
# How often another incarnation of a transactional id starts.
TAKEN_OVER = 0.08
# How often a batch of a transaction that has ended arrives after it.
LATE = 0.15
# How often the next transaction follows at once.
AT_ONCE = 0.5

# The client that gets these stops: the producer is fenced, or its transaction is over.
FATAL = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
)


class Producer:
    """What all producers share. Values are `name:number`, unique in a simulation."""

    kind = "plain"
    produce_version = 11

    def __init__(self, world: World, name: str, topic: str, partitions: int) -> None:
        self.world = world
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self.random = Random(f"{name} {world.seed}")
        self.client = AsyncClient(world.bootstrap, request_timeout_ms=REQUEST_MS, client_id=name)
        self.count = 0
        self.acknowledged = 0
        self.finished = False

    async def run(self) -> None:
        """Until the world stops its clients."""
        while not self.world.stopping:
            await asyncio.sleep(self.random.uniform(0.0, self.world.pace_seconds))
            try:
                await self.step()
            except (ClientError, KafkaError):
                await asyncio.sleep(RETRY_SECONDS)
        self.finished = True

    def close(self) -> None:
        self.client.close()

    def is_forgotten(self, partition: int, producer_id: int) -> bool:
        """Whether an operator has taken the segment with this producer's last batch."""
        where = TopicPartition(self.topic, partition)
        return (where, producer_id) in self.world.forgotten_producers

    def values(self) -> list[bytes]:
        made = []
        for _ in range(self.random.randint(1, 4)):
            self.count += 1
            made.append(b"%s:%d" % (self.name.encode(), self.count))
        return made

    async def step(self) -> None:
        """acks=all or acks=1 without idempotence; an unknown outcome is left unknown."""
        partition = self.random.randrange(self.partitions)
        acks = -1 if self.random.random() < 0.8 else 1
        values = self.values()
        code, offset = await self.produce(partition, values, acks=acks)
        if code == ErrorCode.NONE and acks == -1:
            self.acknowledged += 1
            self.world.history.acknowledged(self.topic, partition, offset, values)

    async def produce(
        self, partition: int, values: list[bytes], *, acks: int = -1, **options: Any
    ) -> tuple[int, int]:
        """(error code, base offset) of one attempt. Raises ClientError when it is not known."""
        where = TopicPartition(self.topic, partition)
        now_ms = self.world.now_ms()
        # A long batch often does not fit into a segment where a short one does afterwards.
        size = self.random.randint(1, 600) if self.random.random() < LONG_BATCHES else 1
        batch = build_batch([(now_ms, b"k" * size, value, None) for value in values], **options)
        row = PartitionProduceData(partition, batch)
        transactional_id = self.name if options.get("transactional") else None
        request = ProduceRequest(
            transactional_id, acks, REQUEST_MS, [TopicProduceData(self.topic, [row])]
        )
        try:
            response: Any = await self.client.call(
                request,
                LeaderOf(where),
                versions=Versions(3, self.produce_version),
                resend=False,
            )
        except (ClientError, KafkaError):
            self.client.forget_leader(where)
            raise
        found = response.responses[0].partition_responses[0]
        if found.error_code:
            self.client.forget_leader(where)
        return found.error_code, found.base_offset


class IdleProducer(Producer):
    """Writes one batch to each partition at first, and seldom another one."""

    kind = "idle"

    async def run(self) -> None:
        partition = 0
        while not self.world.stopping:
            try:
                if partition < self.partitions or self.random.randrange(IDLE_SECONDS) == 0:
                    code, _ = await self.produce(partition % self.partitions, self.values())
                    partition += code == ErrorCode.NONE
            except (ClientError, KafkaError):
                pass
            await asyncio.sleep(1)
        self.finished = True


class LoneWriter(Producer):
    """Sends with acks=1 to one broker, whether or not it leads. Nothing of it need stay."""

    kind = "alone"

    def __init__(self, world: World, name: str, topic: str, partition: int, host: str) -> None:
        super().__init__(world, name, topic, 1)
        self.partition = partition
        # Another broker may not know this one any more.
        self.client.close()
        self.client = AsyncClient(f"{host}:9092", request_timeout_ms=REQUEST_MS, client_id=name)

    async def run(self) -> None:
        try:
            for _ in range(LONE_BATCHES):
                batch = build_batch([(self.world.now_ms(), b"", self.values()[0], None)])
                row = PartitionProduceData(self.partition, batch)
                request = ProduceRequest(None, 1, REQUEST_MS, [TopicProduceData(self.topic, [row])])
                with contextlib.suppress(ClientError, KafkaError):
                    await self.client.call(
                        request, AnyBroker(), versions=Versions(3, 11), resend=False
                    )
                await asyncio.sleep(LONE_SECONDS)
        finally:
            self.client.close()


class IdempotentProducer(Producer):
    """acks=all, one producer id, sequences by partition; repeats until it knows."""

    kind = "idempotent"

    def __init__(self, world: World, name: str, topic: str, partitions: int) -> None:
        super().__init__(world, name, topic, partitions)
        self.producer_id = -1
        self.sequences = [0] * partitions

    async def step(self) -> None:
        if self.producer_id < 0:
            response: Any = await self.client.call(InitProducerIdRequest(None, 60_000, -1, -1))
            if response.error_code:
                raise KafkaError(response.error_code)
            self.producer_id = response.producer_id
        partition = self.random.randrange(self.partitions)
        values = self.values()
        while not self.world.abandoned:
            try:
                code, offset = await self.produce(
                    partition,
                    values,
                    producer_id=self.producer_id,
                    producer_epoch=0,
                    base_sequence=self.sequences[partition],
                )
            except (ClientError, KafkaError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if code == ErrorCode.NONE:
                self.sequences[partition] += len(values)
                self.acknowledged += 1
                self.world.history.acknowledged(self.topic, partition, offset, values)
                return
            if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                # Written, and the broker no longer knows where.
                self.sequences[partition] += len(values)
                self.world.history.written(self.topic, partition, values)
                return
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.is_forgotten(
                partition, self.producer_id
            ):
                # A real client takes another producer id, too, and its user sends the batch again.
                self.producer_id, self.sequences = -1, [0] * self.partitions
                return
            if code in (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.UNKNOWN_PRODUCER_ID,
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
            ):
                self.world.complain(
                    f"{self.name}: {error_name(code)} in {self.topic}-{partition} for sequence "
                    f"{self.sequences[partition]}: what was acknowledged before it is gone"
                )
                return
            await asyncio.sleep(RETRY_SECONDS)


class TransactionalProducer(Producer):
    """Transactions over some partitions, sometimes with offsets, committed or aborted."""

    kind = "transactional"
    newest = Versions(0, 3)

    def __init__(self, world: World, name: str, topic: str, partitions: int) -> None:
        super().__init__(world, name, topic, partitions)
        self.producer_id, self.epoch = -1, -1
        self.sequences = [0] * partitions
        self.position = 0

    async def coordinator(self, request: Any) -> Any:
        return await self.client.call(
            request, CoordinatorOf(self.name, TRANSACTION), resend=False, versions=self.newest
        )

    async def begin_again(self) -> bool:
        response = await self.coordinator(InitProducerIdRequest(self.name, 20_000, -1, -1))
        if response.error_code:
            return False
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.sequences = [0] * self.partitions
        return True

    async def step(self) -> None:
        if self.producer_id < 0 and not await self.begin_again():
            await asyncio.sleep(RETRY_SECONDS)
            return
        if self.random.random() < TAKEN_OVER:
            await self.take_over()
        chosen = self.random.sample(range(self.partitions), self.random.randint(1, self.partitions))
        transaction = self.world.history.begin(self.name, self.topic)
        with_offsets = self.random.random() < 0.4
        try:
            done = await self.write(chosen, transaction, with_offsets=with_offsets)
        except (ClientError, KafkaError):
            done = False
        if done and self.random.random() < TAKEN_OVER:
            await self.take_over()
            transaction.aborted()
            return
        committed = done and self.random.random() < 0.65
        if done:
            outcome = await self.end(committed=committed)
        else:
            outcome = None
        if outcome is None:
            # As a client after an abortable or fatal error: fence what is there, start again.
            await self.begin_at_last()
            if not committed:
                transaction.aborted()
            return
        if committed:
            self.acknowledged += 1
            transaction.committed()
            if with_offsets:
                self.world.history.offset_committed(self.name, self.position)
        else:
            transaction.aborted()

    async def begin_at_last(self) -> None:
        self.producer_id = -1
        while not self.world.abandoned:
            try:
                if await self.begin_again():
                    break
            except (ClientError, KafkaError):
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def take_over(self) -> None:
        """Another incarnation starts, and the old one continues: nothing of it may be accepted."""
        old_id, old_epoch = self.producer_id, self.epoch
        await self.begin_at_last()
        request = EndTxnRequest(self.name, old_id, old_epoch, True)
        response = await self.until_known(request, lambda found: found.error_code)
        if response is not None:
            self.world.complain(f"{self.name}: a fenced producer has ended a transaction")
        await self.send_late(old_id, old_epoch)

    async def send_late(self, old_id: int, old_epoch: int) -> None:
        """A batch of a transaction that has ended, or of a fenced producer, arrives."""
        partition = self.random.randrange(self.partitions)
        values = self.values()
        options = {"producer_id": old_id, "producer_epoch": old_epoch, "transactional": True}
        while not self.world.abandoned:
            try:
                code, offset = await self.produce(partition, values, base_sequence=0, **options)
            except (ClientError, KafkaError):
                code, offset = ErrorCode.REQUEST_TIMED_OUT, -1
            if code in FATAL:
                return
            # A leader without network, which does not know of the new incarnation, may take it for
            # the first batch of the old one, which it has: it writes nothing.
            if code == ErrorCode.NONE and self.is_written(partition, offset, values):
                self.world.complain(
                    f"{self.name}: {self.topic}-{partition} has taken a batch of a fenced producer "
                    "or of a transaction that has ended"
                )
                return
            await asyncio.sleep(RETRY_SECONDS)

    def is_written(self, partition: int, offset: int, values: list[bytes]) -> bool:
        """Whether a log has them at the offset, and not an earlier batch."""
        servers: list[Any] = [node.server for node in self.world.nodes.values() if node.ready]
        where = self.topic, partition
        found = [server.parts.replica_manager.partitions.get(where) for server in servers]
        return any(
            [bytes(record.value or b"") for record in read_records(bytes(batch))] == values
            for each in found
            if each
            and each.log
            and each.log.local_log_start_offset <= offset < each.log.log_end_offset
            for batch in each.log.batches(offset, offset + 1)
        )

    async def write(self, chosen: list[int], transaction: Any, *, with_offsets: bool) -> bool:
        response = await self.until_known(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(self.topic, chosen)],
            ),
            lambda found: max(
                row.partition_error_code
                for topic in found.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ),
        )
        if response is None:
            return False
        for partition in chosen:
            values = self.values()
            transaction.wrote(partition, values)
            if not await self.write_one(partition, values):
                return False
        return not with_offsets or await self.commit_offsets()

    async def write_one(self, partition: int, values: list[bytes]) -> bool:
        while not self.world.abandoned:
            try:
                code, _ = await self.produce(
                    partition,
                    values,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    base_sequence=self.sequences[partition],
                    transactional=True,
                )
            except (ClientError, KafkaError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self.sequences[partition] += len(values)
                return True
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self.is_forgotten(
                partition, self.producer_id
            ):
                self.world.complain(
                    f"{self.name}: {error_name(code)} in {self.topic}-{partition} for sequence "
                    f"{self.sequences[partition]} of epoch {self.epoch}"
                )
            if code in FATAL or code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return False
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def commit_offsets(self) -> bool:
        group = f"group-{self.name}"
        response = await self.until_known(
            AddOffsetsToTxnRequest(self.name, self.producer_id, self.epoch, group),
            lambda found: found.error_code,
        )
        return response is not None and await self.send_offsets(group)

    async def send_offsets(self, group: str) -> bool:
        self.position += 1
        request = TxnOffsetCommitRequest(
            self.name,
            group,
            self.producer_id,
            self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    self.topic, [TxnOffsetCommitRequestPartition(0, self.position)]
                )
            ],
        )
        self.world.history.offset_sent(group, self.topic, 0, self.position)
        response = await self.until_known(
            request, lambda found: found.topics[0].partitions[0].error_code, group=group
        )
        return response is not None

    async def end(self, *, committed: bool) -> bool | None:
        """Repeats EndTxn until it has a response; None when the producer is fenced."""
        response = await self.until_known(
            EndTxnRequest(self.name, self.producer_id, self.epoch, committed),
            lambda found: found.error_code,
        )
        return None if response is None else True

    async def until_known(self, request: Any, code_of: Any, group: str | None = None) -> Any:
        """The response without an error; None when the error is fatal."""
        own = (self.name, TRANSACTION)
        while not self.world.abandoned:
            try:
                if group is None:
                    response = await self.coordinator(request)
                else:
                    response = await self.client.call(
                        request, CoordinatorOf(group), resend=False, versions=self.newest
                    )
            except (ClientError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code in FATAL:
                    return None
                await asyncio.sleep(RETRY_SECONDS)
                continue
            code = code_of(response)
            if code == ErrorCode.NONE:
                return response
            if code in FATAL or code == ErrorCode.OPERATION_NOT_ATTEMPTED:
                return None
            # A DeleteTopics request that the client had given up may be handled later.
            has_topic = self.world.ensemble.has_topic(self.topic)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not has_topic:
                return None
            # The code may be where the client does not look for it.
            self.client.state.forget_coordinator(*((group, GROUP) if group else own))
            await asyncio.sleep(RETRY_SECONDS)
        return None


class RaisingProducer(TransactionalProducer):
    """As before, with transaction version 2: each end raises the epoch, and nothing is added to a
    transaction before it is written."""

    kind = "raising"
    produce_version = 12
    newest = Versions(0, 5)

    async def step(self) -> None:
        """Now and then several, one at once after the other: the last one is being completed."""
        await super().step()
        while self.random.random() < AT_ONCE and not self.world.stopping:
            await super().step()

    async def write(self, chosen: list[int], transaction: Any, *, with_offsets: bool) -> bool:
        for partition in chosen:
            values = self.values()
            transaction.wrote(partition, values)
            if not await self.write_one(partition, values):
                return False
        return not with_offsets or await self.commit_offsets()

    async def commit_offsets(self) -> bool:
        return await self.send_offsets(f"group-{self.name}")

    async def end(self, *, committed: bool) -> bool | None:
        response = await self.until_known(
            EndTxnRequest(self.name, self.producer_id, self.epoch, committed),
            lambda found: found.error_code,
        )
        if response is None:
            return None
        given = response.producer_id, response.producer_epoch
        is_new = given[0] != self.producer_id and given[1] == 0
        if given != (self.producer_id, self.epoch + 1) and not is_new:
            self.world.complain(
                f"{self.name}: {given} follows {(self.producer_id, self.epoch)} at the end of a "
                "transaction"
            )
        before = self.producer_id, self.epoch
        self.producer_id, self.epoch = given
        self.sequences = [0] * self.partitions
        if self.random.random() < LATE:
            await self.send_late(*before)
        return True


class AbortingProducer(TransactionalProducer):
    """One short transaction after the other for some seconds, and all of them are aborted."""

    kind = "aborting"

    async def abort_for(self, seconds: float) -> None:
        end = self.world.loop.now + seconds
        try:
            while self.world.loop.now < end and not self.world.stopping:
                with contextlib.suppress(ClientError, KafkaError):
                    if self.producer_id >= 0 or await self.begin_again():
                        await self.abort_one()
                        continue
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self.client.close()

    async def abort_one(self) -> None:
        transaction = self.world.history.begin(self.name, self.topic)
        transaction.aborted()
        done = await self.write([0], transaction, with_offsets=False)
        if not done or await self.end(committed=False) is None:
            self.producer_id = -1


PRODUCERS = (Producer, IdempotentProducer, TransactionalProducer, RaisingProducer)
