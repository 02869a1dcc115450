from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.replication import isr as alter_partition
from ottla.broker.replication.isr import AlterPartitionManager, Build, IsrDecision, IsrProposal
from ottla.broker.replication.partition import Partition
from ottla.broker.requests.request_parts import MAX_UNDIVIDED_ELEMENTS
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import TOPIC_ID, Replicas


def _over_the_wire(request: AlterPartitionRequest, version: int) -> AlterPartitionRequest:
    encoded = encoder(AlterPartitionRequest, version)(request)
    decoded, _ = decoder(AlterPartitionRequest, version)(bytearray(encoded), 0)
    return decoded


class Controller:
    """Commits everything, or what `responses` have first."""

    def __init__(self) -> None:
        self.requests: list[tuple[AlterPartitionRequest, int]] = []
        self.responses: list[AlterPartitionResponse | Exception] = []
        self.decided: dict[int, IsrDecision] = {}
        self.was_asked = asyncio.Event()
        self._decision = asyncio.Event()
        self.newest_version = 3
        self.manager = AlterPartitionManager(self.send)

    async def send(self, newest_version: int, build: Build) -> AlterPartitionResponse:
        version = min(newest_version, self.newest_version)
        request = _over_the_wire(build(version), version)
        self.requests.append((request, version))
        self.was_asked.set()
        await asyncio.sleep(0)
        if self.responses:
            reply = self.responses.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply
        response = AlterPartitionResponse()
        for topic in request.topics:
            rows = [
                AlterPartitionResponsePartitionData(
                    row.partition_index,
                    leader_epoch=row.leader_epoch,
                    isr=[each.broker_id for each in row.new_isr_with_epochs] or row.new_isr,
                    partition_epoch=row.partition_epoch + 1,
                )
                for row in topic.partitions
            ]
            response.topics.append(
                AlterPartitionResponseTopicData(topic.topic_name, topic.topic_id, rows)
            )
        return response

    def submit(self, partition: Partition, *new_isr: int) -> None:
        def decide(decision: IsrDecision) -> None:
            self.decided[partition.index] = decision
            self._decision.set()

        self.manager.submit(IsrProposal(partition, list(new_isr), 3, 8, {2: 77}), decide)

    async def settle(self, decisions: int = 1) -> None:
        async with asyncio.timeout(60):
            while len(self.decided) < decisions:
                await self._decision.wait()
                self._decision.clear()


def run(body: Callable[[Controller, Replicas], Awaitable[None]]) -> None:
    asyncio.run(body(Controller(), Replicas()))  # type: ignore[arg-type]  # a coroutine


def test_very_many_proposals_are_sent_one_part_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alter_partition, "MAX_CHANGES", 3)

    async def body(controller: Controller, replicas: Replicas) -> None:
        controller.responses.append(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))
        for index in range(8):
            controller.submit(replicas.lead(index=index, replicas=[1, 2]), 1, 2)
        await controller.settle(8)
        sizes = [
            sum(len(topic.partitions) for topic in request.topics)
            for request, _ in controller.requests
        ]
        assert sizes == [3, 3, 3, 2], "the first ones are sent again after the error"

    run(body)


def test_one_line_for_the_changes_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.replication")

    async def body(controller: Controller, replicas: Replicas) -> None:
        def decide(partition: Partition) -> Callable[[IsrDecision], None]:
            def decided(decision: IsrDecision) -> None:
                if partition.index != 2:  # that one was overtaken by a LeaderAndIsr
                    partition.set_isr(frozenset(decision.isr))
                controller.decided[partition.index] = decision
                controller._decision.set()

            return decided

        for index in range(3):
            partition = replicas.lead(index=index, replicas=[1, 2], isr=[1])
            proposal = IsrProposal(partition, [1, 2], 3, 8, {2: 77})
            controller.manager.submit(proposal, decide(partition))
        await controller.settle(3)

    run(body)
    lines = [each.getMessage() for each in caplog.records if each.name == "ottla.replication"]
    assert lines == ["The ISRs of 2 partitions changed: t-0 from 1 to 1,2, t-1 from 1 to 1,2"]


def test_a_proposal_is_granted() -> None:
    async def body(controller: Controller, replicas: Replicas) -> None:
        controller.submit(replicas.lead(replicas=[1, 2]), 1, 2)
        await controller.settle()
        assert controller.decided == {0: IsrDecision(0, [1, 2], 3, 9)}
        ((request, version),) = controller.requests
        assert version == 3
        (topic,) = request.topics
        assert topic.topic_id == TOPIC_ID
        # KIP-903: the epoch of the follower's fetches; the leader's is that of the request.
        members = topic.partitions[0].new_isr_with_epochs
        assert [(each.broker_id, each.broker_epoch) for each in members] == [(1, -1), (2, 77)]

    run(body)


def test_topics_without_ids_go_by_name() -> None:
    async def body(controller: Controller, replicas: Replicas) -> None:
        partition = replicas.lead(replicas=[1, 2])
        partition.topic_id = bytes(16)
        controller.submit(partition, 1)
        await controller.settle()
        ((request, version),) = controller.requests
        assert (version, request.topics[0].topic_name) == (1, "t")
        assert request.topics[0].partitions[0].new_isr == [1]
        assert controller.decided[0].isr == [1]

    run(body)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_that_a_controller_may_offer(version: int) -> None:
    """Kafka 3.0 has version 0, 3.2 version 1, 3.3 version 2, 3.5 version 3."""

    async def body(controller: Controller, replicas: Replicas) -> None:
        controller.newest_version = version
        controller.submit(replicas.lead(replicas=[1, 2]), 1, 2)
        await controller.settle()
        assert controller.decided == {0: IsrDecision(0, [1, 2], 3, 9)}
        ((request, used),) = controller.requests
        assert used == version
        (topic,) = request.topics
        (row,) = topic.partitions
        assert (topic.topic_name, topic.topic_id) == (
            ("t", bytes(16)) if version < 2 else ("", TOPIC_ID)
        )
        members = [(each.broker_id, each.broker_epoch) for each in row.new_isr_with_epochs]
        assert row.new_isr == ([1, 2] if version < 3 else [])
        assert members == ([(1, -1), (2, 77)] if version == 3 else [])

    run(body)


def test_what_comes_together_goes_together() -> None:
    async def body(controller: Controller, replicas: Replicas) -> None:
        partitions = [replicas.lead(index, replicas=[1, 2]) for index in range(3)]
        for partition in partitions:
            controller.submit(partition, 1)
        await controller.settle(3)
        ((request, _),) = controller.requests
        assert [row.partition_index for row in request.topics[0].partitions] == [0, 1, 2]

    run(body)


def elements(request: AlterPartitionRequest) -> int:
    """As a broker counts them while it decodes the request."""
    return sum(
        1 + sum(1 + len(row.new_isr_with_epochs) for row in topic.partitions)
        for topic in request.topics
    )


@pytest.mark.parametrize("fails", [False, True])
def test_changes_of_many_partitions_are_several_requests(fails: bool) -> None:
    """A controller closes the connection of a request that has too many elements."""
    count = 4_000

    async def body(controller: Controller, replicas: Replicas) -> None:
        if fails:
            controller.responses = [ConnectionError("no controller")]
        for index in range(count):
            key = TopicPartition(f"t{index}", 0)
            topic_id = index.to_bytes(16)
            partition = SimpleNamespace(
                key=key, index=index, topic=key.topic, topic_id=topic_id, isr=frozenset((1, 2, 3))
            )
            controller.submit(cast(Any, partition), 1, 2, 3)
        await controller.settle(count)
        assert {decision.isr == [1, 2, 3] for decision in controller.decided.values()} == {True}
        sizes = [elements(request) for request, _ in controller.requests]
        assert max(sizes) < MAX_UNDIVIDED_ELEMENTS
        assert len(sizes) < 20

    run(body)


def test_it_asks_until_there_is_a_response() -> None:
    async def body(controller: Controller, replicas: Replicas) -> None:
        controller.responses = [
            ConnectionError("no controller"),
            AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER),
        ]
        controller.submit(replicas.lead(replicas=[1, 2]), 1)
        await controller.settle()
        assert len(controller.requests) == 3
        assert controller.decided[0].error_code == 0

    run(body)


def test_a_newer_proposal_replaces_one_without_a_response() -> None:
    async def body(controller: Controller, replicas: Replicas) -> None:
        controller.responses = [ConnectionError("no controller")]
        partition = replicas.lead(replicas=[1, 2, 3])
        controller.submit(partition, 1)
        await controller.was_asked.wait()
        controller.submit(partition, 1, 3)
        await controller.settle()
        assert controller.decided[0].isr == [1, 3]

    run(body)


def test_what_is_left_out_of_the_response_was_not_done() -> None:
    async def body(controller: Controller, replicas: Replicas) -> None:
        controller.responses = [AlterPartitionResponse()]
        controller.submit(replicas.lead(replicas=[1, 2]), 1)
        await controller.settle()
        assert controller.decided[0].error_code == ErrorCode.OPERATION_NOT_ATTEMPTED

    run(body)
