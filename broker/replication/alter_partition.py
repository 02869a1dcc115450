"""Sends ISR changes to the controller (AlterPartition, KIP-497).

Mirrors Kafka's `AlterPartitionManager`. One request is in flight at a time; it has the changes that
were submitted while the previous one was in flight, MAX_CHANGES at the most. A request is retried
until the controller responds: a change without a response may or may not have been applied, and the
next LeaderAndIsr request has the state that holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH
from ottla.broker.replication.isr import IsrDecision, IsrProposal
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

logger = logging.getLogger("ottla.replication")

_RETRY_SECONDS = 0.05

# Changes in one request: a broker that restarts joins the ISR of thousands of partitions at once.
# A controller writes so many in some tens of milliseconds, and the others wait for the response.
MAX_CHANGES = 800

Decided = Callable[[IsrDecision], None]
# Builds the request in a version.
Build = Callable[[int], AlterPartitionRequest]
# Called with the newest version that can be built; sends the newest that the controller has, too.
Send = Callable[[int, Build], Coroutine[Any, Any, AlterPartitionResponse]]

# Versions before 2 have topic names, and since then topic ids; version 3 has broker epochs.
_NEWEST_VERSION = 3
_NEWEST_VERSION_WITH_NAMES = 1


class AlterPartitionManager:
    """Implements `IsrSubmitter`. Loop only."""

    def __init__(self, send: Send) -> None:
        self._send = send
        # One entry a partition: bounded by what this broker hosts.
        self._waiting: dict[TopicPartition, tuple[IsrProposal, Decided]] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, proposal: IsrProposal, on_decision: Decided) -> None:
        """Queues a change; it replaces one for the same partition that was not sent yet."""
        self._waiting[proposal.partition.key] = (proposal, on_decision)
        if self._task is None or self._task.done():
            self._task = spawn(self._run(), name="alter-partition")

    async def _run(self) -> None:
        is_failing = False
        while self._waiting:
            batch = dict(islice(self._waiting.items(), MAX_CHANGES))
            for key in batch:
                del self._waiting[key]
            problem: object = None
            try:
                response = await self._send(_newest_version(batch), _builder(batch))
                if response.error_code != ErrorCode.NONE:
                    problem = error_name(response.error_code)
            except Exception as error:
                problem = error or type(error).__name__
            if problem is None:
                is_failing = False
                _decide(batch, response)
                continue
            if not is_failing:
                is_failing = True
                logger.warning(
                    "Failed to send AlterPartition to the controller, retrying: %s", problem
                )
            # A change that was submitted meanwhile is newer.
            self._waiting = {**batch, **self._waiting}
            await asyncio.sleep(_RETRY_SECONDS)


def _newest_version(batch: dict[TopicPartition, tuple[IsrProposal, Decided]]) -> int:
    ids = all(proposal.partition.topic_id != ZERO_UUID for proposal, _ in batch.values())
    return _NEWEST_VERSION if ids else _NEWEST_VERSION_WITH_NAMES


def _builder(batch: dict[TopicPartition, tuple[IsrProposal, Decided]]) -> Build:
    return lambda version: _request(batch, version)


def _request(
    batch: dict[TopicPartition, tuple[IsrProposal, Decided]], version: int
) -> AlterPartitionRequest:
    """The request for a batch; each version has fields that others do not have."""
    topics: dict[str, AlterPartitionRequestTopicData] = {}
    for key, (proposal, _) in batch.items():
        topic = topics.get(key.topic)
        if topic is None:
            topic = topics[key.topic] = AlterPartitionRequestTopicData()
            if version > _NEWEST_VERSION_WITH_NAMES:
                topic.topic_id = proposal.partition.topic_id
            else:
                topic.topic_name = key.topic
        row = AlterPartitionRequestPartitionData(
            partition_index=key.partition,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
        )
        if version >= _NEWEST_VERSION:
            # The leader itself is fenced by the broker epoch of the request.
            row.new_isr_with_epochs = [
                BrokerState(broker_id, proposal.broker_epochs.get(broker_id, UNKNOWN_BROKER_EPOCH))
                for broker_id in proposal.new_isr
            ]
        else:
            row.new_isr = proposal.new_isr
        topic.partitions.append(row)
    return AlterPartitionRequest(topics=list(topics.values()))


def _decide(
    batch: dict[TopicPartition, tuple[IsrProposal, Decided]], response: AlterPartitionResponse
) -> None:
    by_id = {proposal.partition.topic_id: key.topic for key, (proposal, _) in batch.items()}
    for topic in response.topics:
        name = topic.topic_name or by_id.get(topic.topic_id, "")
        for row in topic.partitions:
            entry = batch.pop(TopicPartition(name, row.partition_index), None)
            if entry is not None:
                entry[1](
                    IsrDecision(row.error_code, row.isr, row.leader_epoch, row.partition_epoch)
                )
    for proposal, decided in batch.values():
        # Missing in the response: nothing was changed.
        decided(IsrDecision(ErrorCode.OPERATION_NOT_ATTEMPTED, [], proposal.leader_epoch, -1))
