"""The persister of a cluster with one broker: its own share coordinator, and the topic for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ottla.broker.coordination.ports import SHARE_STATE_TOPIC
from ottla.broker.share.coordinator.share_coordinator import ShareCoordinator
from ottla.broker.share.persister import (
    PersistedState,
    SharePartitionKey,
    StateSummary,
    StateUpdate,
)
from ottla.protocol.errors import ErrorCode, KafkaError

EnsureTopic = Callable[[str], Coroutine[Any, Any, int]]
"""Creates an internal topic if it does not exist; returns an error code."""


class LocalPersister:
    """Satisfies `ShareStatePersister`; the first initialization creates `__share_group_state`."""

    def __init__(self, coordinator: ShareCoordinator, ensure_topic: EnsureTopic) -> None:
        self._coordinator = coordinator
        self._ensure_topic = ensure_topic

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """See `ShareStatePersister.initialize`; retriable while the topic is being created."""
        code = await self._ensure_topic(SHARE_STATE_TOPIC)
        if code != ErrorCode.NONE:
            raise KafkaError(code, f"Topic {SHARE_STATE_TOPIC} cannot be created.")
        await self._coordinator.initialize(key, state_epoch, start_offset)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """See `ShareStatePersister.read`."""
        return await self._coordinator.read(key, leader_epoch)

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        """See `ShareStatePersister.write`."""
        await self._coordinator.write(key, update)

    async def delete(self, key: SharePartitionKey) -> None:
        """See `ShareStatePersister.delete`."""
        await self._coordinator.delete(key)

    async def summary(self, key: SharePartitionKey, leader_epoch: int) -> StateSummary:
        """See `ShareStatePersister.summary`."""
        return await self._coordinator.summary(key, leader_epoch)
