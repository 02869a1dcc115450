"""An append to many partitions pauses between two of them."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence

import pytest

from ottla.broker.replication.deferred_validation import DeferredValidation, ProduceEntry
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.steps import run, run_at_once
from ottla.storage.log.log import Log
from ottla.storage.records.validation_budget import ValidationBudget
from tests.doubles.fetched import FetchMessages
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.storage_logs import batch_of

PARTITIONS = 7


def entries(partitions: Sequence[int] = range(PARTITIONS)) -> list[ProduceEntry]:
    return [
        (TOPIC, index, batch_of(), PartitionProduceResponse(index, 0, -1, -1, -1))
        for index in partitions
    ]


def led(*, replicas: Sequence[int] = (1,)) -> Replicas:
    made = Replicas()
    for index in range(PARTITIONS):
        made.lead(index, replicas=replicas)
    return made


class Requested:
    """A request in progress, of which each turn appends to three partitions."""

    def __init__(self, replicas: Replicas, given: list[ProduceEntry], acks: int) -> None:
        self.completed = 0
        self.rows = [row for *_, row in given]
        self._steps = replicas.manager.append(acks, 1_000, given, self._complete)

    def _complete(self) -> None:
        self.completed += 1

    def run(self) -> Iterator[None]:
        """Yield after each turn."""
        with steps_per_turn(3):
            rest = run(self._steps)
            assert isinstance(rest, Coroutine)
            try:
                while True:
                    yield rest.send(None)
            except StopIteration as end:
                self.completed += end.value

    @property
    def codes(self) -> list[int]:
        assert self.completed == 1
        return [row.error_code for row in self.rows]


def test_some_partitions_in_a_turn() -> None:
    replicas = led()
    requested = Requested(replicas, entries(), acks=1)
    appended = [
        sum(replicas.log(index).log_end_offset for index in range(PARTITIONS))
        for _ in requested.run()
    ]
    # Then those that wait for them are completed, some in a turn as well.
    assert appended == [3, 6, 7, 7]
    assert requested.codes == [0] * PARTITIONS
    assert [row.base_offset for row in requested.rows] == [0] * PARTITIONS


def test_batches_of_one_partition_keep_their_order() -> None:
    requested = Requested(led(), entries([0] * PARTITIONS), acks=1)
    list(requested.run())
    assert [row.base_offset for row in requested.rows] == list(range(PARTITIONS))


def test_acks_all_waits_for_all_partitions() -> None:
    replicas = led(replicas=(1, 2))
    requested = Requested(replicas, entries(), acks=-1)
    list(requested.run())
    for index in range(PARTITIONS):
        assert not requested.completed
        partition = replicas.partition(index)
        partition.followers[2].record_fetch(1, 0, 1, 0)
        assert partition.maybe_increment_high_watermark()
        replicas.manager.complete_delayed_requests(partition)
    assert requested.codes == [0] * PARTITIONS


def test_a_stop_between_two_partitions_completes_what_was_appended() -> None:
    replicas = led()
    fetched = FetchMessages(replicas.manager, FetchPartition(partition=0, partition_max_bytes=1000))
    steps = replicas.manager.append(1, 1_000, entries(), lambda: None)
    next(steps)
    assert not fetched.responses, "a fetch of several partitions gets the records of all"
    steps.close()
    (((_, data),),) = fetched.responses
    assert data.records


def test_a_leader_that_changes_between_two_partitions() -> None:
    replicas = led()
    given = entries()
    steps = replicas.manager.append(1, 1_000, given, lambda: None)
    next(steps)
    replicas.order(2, index=1, epoch=1, replicas=[1, 2])
    assert run_at_once(steps)
    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [row.error_code for *_, row in given] == [0, not_leader, *[0] * (PARTITIONS - 2)]


def test_records_that_are_rejected_have_spent_the_budget_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas = Replicas(deferred_validation=DeferredValidation(lambda: 0))
    for index in range(PARTITIONS):
        replicas.lead(index)
    left: list[int] = []

    def rejected(*_: object, budget: ValidationBudget, **__: object) -> None:
        left.append(budget.left)
        budget.left -= 10
        raise CorruptRecordError("as planned")

    monkeypatch.setattr(Log, "append", rejected)
    run_at_once(replicas.manager.append(1, 1_000, entries(), lambda: None))
    assert left == [left[0] - 10 * number for number in range(PARTITIONS)]
