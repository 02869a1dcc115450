"""Appends whose records take long to validate: validated in a worker thread, then appended.

Compacted topics ask for a key in every record, other settings for another compression, old clients
for another format. A batch may unpack to a hundred megabytes; looking at those would hold up every
other client. So the loop looks at what it has time for
(`ottla.storage.records.validation_budget`), which is nearly all there is, and the rest comes here.

What was found is not allowed to age: as soon as a worker thread is done with a partition's records,
one step of the loop makes sure that the settings are still those by which they were validated, and
appends. Leadership, in-sync replicas, sequence numbers and transactions are looked at in that step,
not before. The connection takes no other request meanwhile, so the order of a client's batches is
kept; other clients' batches may overtake, as they may anywhere on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPool, WorkerPoolClosed, spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation import ValidatedRecords, validate_records

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ProduceEntry, ReplicaManager
    from ottla.storage.producer.verification import Verification

# Each may unpack a hundred megabytes at a time; and what computes here takes turns with the loop.
_THREADS = 2
# How often an append follows settings that change while its records are looked at.
_ATTEMPTS = 10


class DeferredValidation:
    """The worker threads, apart from those for disks: who sends bombs holds up nobody's reads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.workers = WorkerPool(threads=_THREADS, name="records")
        self.total = 0  # batches that were not looked at on the loop

    async def close(self) -> None:
        """Waits for what has begun; nothing more is begun."""
        await self.workers.close()

    def start(
        self,
        replica_manager: ReplicaManager,
        required_acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        callback: Callable[[], None],
        guards: Mapping[tuple[str, int], Verification] | None,
    ) -> Callable[[], None]:
        """Begins with `entries`; as `ReplicaManager.append_records`.

        Gives the callback for the rest of the request: the last of all that end calls the real one.
        """
        left = len(entries) + 1

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                callback()

        async def run() -> None:
            for entry in entries:
                topic, index, _, response = entry
                try:
                    validated = await self._validate(replica_manager, entry)
                except Exception as error:
                    replica_manager.append_failed(topic, index, error, response)
                    ended()
                    continue
                # From here on nothing awaits: what was found is still true.
                replica_manager.append_records(
                    required_acks, timeout_ms, [entry], ended, guards=guards, validated=validated
                )

        spawn(run(), name="validate-records")
        return ended

    async def _validate(
        self, replica_manager: ReplicaManager, entry: ProduceEntry
    ) -> ValidatedRecords:
        topic, index, records, _ = entry
        self.total += 1
        for _ in range(_ATTEMPTS):
            config = replica_manager.partition(topic, index).leader_log().config
            try:
                found = await self.workers.run(
                    validate_records, records, config, AppendOrigin.CLIENT, self._now_ms()
                )
            except WorkerPoolClosed:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, "The broker is stopping."
                ) from None
            if replica_manager.partition(topic, index).leader_log().config is config:
                return found
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The settings of {topic} change too often just now."
        )
