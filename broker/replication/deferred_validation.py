"""Appends with records that take long to validate: a worker thread validates, the loop appends.

Compacted topics need a key in each record, other settings another compression, old clients another
message format. A batch may decompress to a hundred megabytes; its validation would block the event
loop for all clients. So the loop validates what is within the budget of a request
(`ottla.storage.records.validation_budget`), which is nearly all batches; the others are deferred.

When a worker thread has validated the records of a partition, one step of the loop checks that the
topic's settings have not changed since, and appends. Leader, ISR, sequence numbers and transactions
are checked in that step, not before. The connection handles no other request meanwhile, so the
batches of a client stay in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.requests.memory_pool import Pool
from ottla.broker.runtime.countdown import countdown
from ottla.broker.runtime.tasks import WorkerPool, WorkerPoolClosed, spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.records.errors import DecompressedTooLargeError
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES
from ottla.storage.records.validation import ValidatedRecords, validate_records
from ottla.storage.records.validation_budget import MemoryOnly, ValidationBudgetExceeded

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.config import LogConfig
    from ottla.storage.producer.verification import Verification

# One partition of a produce request: topic, index, what to append, and the response to fill.
ProduceEntry = tuple[str, int, bytearray | memoryview, PartitionProduceResponse]

# Each may need a hundred megabytes for decompressed records, and shares the interpreter with the
# loop.
_THREADS = 2
# Of most batches that are compressed.
_USUAL_RATIO = 16
_LEAST_BYTES = 1 << 20
# How often an append is validated again because the topic's settings changed meanwhile.
_ATTEMPTS = 10


class DeferredValidation:
    """Validates in threads of its own, so that large batches do not delay reads from disk."""

    def __init__(self, now_ms: Callable[[], int], memory: Pool | None = None) -> None:
        """`memory`: for records that are decompressed; without a limit if None."""
        self._now_ms = now_ms
        self._memory = Pool("records") if memory is None else memory
        self.workers = WorkerPool(threads=_THREADS, name="records")
        self.total = 0  # batches that were not validated on the loop

    async def close(self) -> None:
        """Waits for running validations; later ones fail with NOT_LEADER_OR_FOLLOWER."""
        await self.workers.close()

    def start(
        self,
        appender: ReplicaManager,
        required_acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        callback: Callable[[], None],
        guards: Mapping[tuple[str, int], Verification] | None,
    ) -> Callable[[], None]:
        """Validates `entries`, then appends each; parameters as `ReplicaManager.append_records`.

        Returns the callback for the rest of the request; `callback` runs when all parts are done.
        """
        completed = countdown(len(entries) + 1, callback)

        async def run() -> None:
            for entry in entries:
                topic, index, _, response = entry
                try:
                    validated = await self._validate(appender, entry)
                except Exception as error:
                    appender.append_failed(topic, index, error, response)
                    completed()
                    continue
                # Nothing awaits between the check of the settings and the append.
                appender.append_records(
                    required_acks,
                    timeout_ms,
                    [entry],
                    completed,
                    guards=guards,
                    validated=validated,
                )

        spawn(run(), name="validate-records")
        return completed

    async def _validate(self, appender: ReplicaManager, entry: ProduceEntry) -> ValidatedRecords:
        topic, index, records, _ = entry
        self.total += 1
        for _ in range(_ATTEMPTS):
            config = appender.partition(topic, index).leader_log().config
            try:
                found = await self._run(topic, records, config)
            except WorkerPoolClosed:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, "The broker is stopping."
                ) from None
            if appender.partition(topic, index).leader_log().config is config:
                return found
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The settings of topic {topic} keep changing."
        )

    async def _run(
        self, topic: str, records: bytearray | memoryview, config: LogConfig
    ) -> ValidatedRecords:
        """Validate in a worker thread, with a lease of what is probably decompressed, or of all the
        memory that there is for it."""
        most = min(self._memory.limit, MAX_DECOMPRESSED_BYTES)
        size = min(max(len(records) * _USUAL_RATIO, _LEAST_BYTES), most)
        while True:
            lease = await self._memory.leased(topic, size)
            try:
                return await self.workers.run(
                    validate_records,
                    records,
                    config,
                    AppendOrigin.CLIENT,
                    self._now_ms(),
                    MemoryOnly(size),
                )
            except ValidationBudgetExceeded:
                if size >= most:
                    raise DecompressedTooLargeError(
                        f"a batch for topic {topic} decompresses to more than {most} bytes, which "
                        "is the limit"
                    ) from None
                size = most
            finally:
                lease.release()
