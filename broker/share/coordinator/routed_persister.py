"""The persister of a broker: finds the share coordinator of a key, here or on another broker.

Mirrors Kafka's `DefaultStatePersister` and `PersisterStateManager`. The coordinator of a key is the
leader of its partition of `__share_group_state`. While that moves, is elected or loads, a call is
retried for RETRY_SECONDS. Every call can be repeated: the second time it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.share.coordinator import state_requests
from ottla.broker.share.coordinator.share_coordinator import ShareCoordinator, coordinator_key
from ottla.broker.share.persister import (
    UNINITIALIZED_START_OFFSET,
    UNKNOWN_DELIVERY_COMPLETE_COUNT,
    PersistedState,
    SharePartitionKey,
    StateSummary,
    StateUpdate,
)
from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, PartitionMetadata
    from ottla.protocol.message import Message

logger = logging.getLogger("ottla.share")

Result = TypeVar("Result")

EnsureTopic = Callable[[str], Coroutine[Any, Any, int]]
"""Creates an internal topic if it does not exist; returns an error code."""

Send = Callable[[int, "Message"], Awaitable["Message"]]
"""Sends a request to a broker; raises after a deadline, and when the broker cannot be reached."""

# A call begins no further attempt after this time: as long as a change of leader usually takes.
RETRY_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

_RETRIABLE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


class RoutedPersister:
    """Satisfies `ShareStatePersister`; the first initialization creates `__share_group_state`.

    After the retries the error is COORDINATOR_NOT_AVAILABLE, or REQUEST_TIMED_OUT if the last
    attempt had no response: then the outcome is unknown.
    """

    def __init__(
        self,
        broker_id: int,
        coordinator: ShareCoordinator,
        metadata: MetadataCache,
        send: Send,
        ensure_topic: EnsureTopic,
        now_s: Callable[[], float] = monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._metadata = metadata
        self._send = send
        self._ensure_topic = ensure_topic
        self._now_s = now_s
        self._pause = pause

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """See `ShareStatePersister.initialize`; retriable while the topic is being created."""
        # Not if it exists: then only the leader of the partition of the key is waited for.
        if self._partition(key) is None:
            code = await self._ensure_topic(SHARE_STATE_TOPIC)
            if code != ErrorCode.NONE:
                raise KafkaError(code, f"Topic {SHARE_STATE_TOPIC} cannot be created.")
        await self._call(
            key,
            lambda: self._coordinator.initialize(key, state_epoch, start_offset),
            lambda: state_requests.initialize(key, state_epoch, start_offset),
            lambda row: None,
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """See `ShareStatePersister.read`."""
        return await self._call(
            key,
            lambda: self._coordinator.read(key, leader_epoch),
            lambda: state_requests.read(key, leader_epoch),
            state_requests.state_of,
        )

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        """See `ShareStatePersister.write`."""
        await self._call(
            key,
            lambda: self._coordinator.write(key, update),
            lambda: state_requests.write(key, update),
            lambda row: None,
        )

    async def delete(self, key: SharePartitionKey) -> None:
        """See `ShareStatePersister.delete`."""
        await self._call(
            key,
            lambda: self._coordinator.delete(key),
            lambda: state_requests.delete(key),
            lambda row: None,
        )

    async def summary(self, key: SharePartitionKey, leader_epoch: int) -> StateSummary:
        """See `ShareStatePersister.summary`; before the topic exists nothing has a state."""
        if self._partition(key) is None:
            return StateSummary(
                0,
                0,
                UNINITIALIZED_START_OFFSET,
                UNKNOWN_DELIVERY_COMPLETE_COUNT,
            )
        return await self._call(
            key,
            lambda: self._coordinator.summary(key, leader_epoch),
            lambda: state_requests.summary(key, leader_epoch),
            state_requests.summary_of,
        )

    async def _call(
        self,
        key: SharePartitionKey,
        local: Callable[[], Awaitable[Result]],
        request: Callable[[], Message],
        read_row: Callable[[Any], Result],
    ) -> Result:
        last_start_s = self._now_s() + RETRY_SECONDS
        pause_s = _FIRST_PAUSE_SECONDS
        while True:
            try:
                leader = self._leader(key)
                if leader == self._broker_id:
                    return await local()
                response = await self._ask(leader, request())
                return read_row(state_requests.result(key, response))
            except KafkaError as error:
                if error.code not in _RETRIABLE:
                    raise
                if self._now_s() + pause_s > last_start_s:
                    code = error.code
                    if code != ErrorCode.REQUEST_TIMED_OUT:
                        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    raise KafkaError(code, error.message) from None
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)

    def _leader(self, key: SharePartitionKey) -> int:
        partition = self._partition(key)
        if partition is None or partition.leader not in self._metadata.snapshot.brokers:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"The partition of {SHARE_STATE_TOPIC} for {coordinator_key(key)} has no leader.",
            )
        return partition.leader

    def _partition(self, key: SharePartitionKey) -> PartitionMetadata | None:
        index = self._coordinator.partitions.partition_for(coordinator_key(key))
        return self._metadata.snapshot.partition(SHARE_STATE_TOPIC, index)

    async def _ask(self, broker_id: int, request: Message) -> Message:
        try:
            return await self._send(broker_id, request)
        except (ClientError, OSError) as problem:  # includes TimeoutError and ConnectionError
            logger.info(
                "Share coordinator %d cannot be reached: %s",
                broker_id,
                problem,
                extra={"broker": broker_id},
            )
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"No response of share coordinator {broker_id}."
            ) from None
