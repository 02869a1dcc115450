"""Producer ids: unique in the cluster, handed out from blocks that this broker owns.

A block is taken from the cluster once (a write to `/latest_producer_id_block`) and then used up
here without a request. The first one is fetched when the broker starts, the next one before the
last id is gone, so that producers can start while ZooKeeper is away. Ids of a block that is lost in
a crash are never used again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.producer_ids import ProducerIdBlock
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger("ottla.transactions")

PREFETCH_PERCENT = 90  # as Kafka: fetch the next block when this much of the present one is used
ALLOCATION_DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 1.0  # from a failure to the next attempt, while no id is left
MAX_WAITING = 10_000  # one per connection at most; beyond that clients get a retriable error

IdReply = Callable[[int, int], None]
"""Gets (error code, producer id)."""


AllocateBlock = Callable[[], Coroutine[Any, Any, ProducerIdBlock]]
"""Takes the next block from the cluster; raises when that is not possible now."""


class ProducerIdManager:
    """Hands out producer ids. Loop only."""

    def __init__(self, allocate: AllocateBlock) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._prefetch_at = 0
        self._following: ProducerIdBlock | None = None
        self._waiting: deque[IdReply] = deque()
        self._is_allocating = False
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False

    def startup(self) -> None:
        """Fetch a block for producers to come, as soon as there is a controller."""
        if self._following is None:
            self._fetch()

    def shutdown(self) -> None:
        """Fetch nothing any more."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()

    def take(self, reply: IdReply) -> None:
        """Call back with a new id: at once, or when the next block was allocated.

        When none comes the error is COORDINATOR_LOAD_IN_PROGRESS, on which every client retries.
        """
        if self._next >= self._end and self._following is not None:
            self._use(self._following)
            self._following = None
        if self._next < self._end:
            producer_id = self._next
            self._next += 1
            if self._next >= self._prefetch_at and self._following is None:
                self._fetch()
            reply(ErrorCode.NONE, producer_id)
        elif len(self._waiting) >= MAX_WAITING:
            reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        else:
            self._waiting.append(reply)
            self._fetch()

    def _use(self, block: ProducerIdBlock) -> None:
        self._next = block.first
        self._end = block.first + block.size
        self._prefetch_at = block.first + block.size * PREFETCH_PERCENT // 100

    def _fetch(self) -> None:
        if not self._is_allocating:
            self._is_allocating = True
            spawn(self._await_block(), name="producer-id-block")

    async def _await_block(self) -> None:
        try:
            block = await asyncio.wait_for(self._allocate(), ALLOCATION_DEADLINE_SECONDS)
        except Exception as problem:
            if not self._stopped:
                self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.startup)
            logger.log(
                logging.WARNING if self._waiting else logging.DEBUG,
                "Failed to allocate a block of producer ids, %d producers get "
                "COORDINATOR_LOAD_IN_PROGRESS and retry: %s",
                len(self._waiting),
                str(problem) or type(problem).__name__,
            )
            waiting, self._waiting = self._waiting, deque()
            for reply in waiting:
                reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
            return
        finally:
            self._is_allocating = False
        logger.info("Allocated producer ids %d to %d", block.first, block.first + block.size - 1)
        self._following = block
        waiting, self._waiting = self._waiting, deque()
        for reply in waiting:
            self.take(reply)
