"""Produce requests to thousands of partitions, some of them in a turn of the event loop.

A producer that has waited long enough (`linger.ms`) sends a batch for each partition that a broker
leads in one request: up to 13,000 small ones in the megabyte of `max.request.size`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from ottla.broker.runtime.countdown import countdown
from ottla.broker.runtime.slices import in_parts
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.replication.deferred_validation import ProduceEntry
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.producer.verification import Verification

logger = logging.getLogger("ottla.replication")

# An append takes about 20 us.
MAX_PARTITIONS_PER_TURN = 500


def append_in_turns(
    manager: ReplicaManager,
    required_acks: int,
    timeout_ms: int,
    entries: Sequence[ProduceEntry],
    callback: Callable[[], None],
    guards: Mapping[tuple[str, int], Verification] | None = None,
) -> None:
    """As `ReplicaManager.append_records`, in several turns of the loop if there are many entries.

    Every part is replicated while later ones are appended. What a part raises becomes the error of
    its partitions.
    """
    if len(entries) <= MAX_PARTITIONS_PER_TURN:
        manager.append_records(required_acks, timeout_ms, entries, callback, guards=guards)
        return
    completed = countdown(ceil(len(entries) / MAX_PARTITIONS_PER_TURN), callback)

    def append_part(part: Sequence[ProduceEntry]) -> None:
        try:
            manager.append_records(required_acks, timeout_ms, part, completed, guards=guards)
        except Exception:
            logger.exception("records of %d partitions could not be appended", len(part))
            for _, _, _, response in part:
                response.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            completed()

    async def append() -> None:
        for _ in in_parts(entries, MAX_PARTITIONS_PER_TURN, append_part):
            await asyncio.sleep(0)

    spawn(append(), name="append-records")
