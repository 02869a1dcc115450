"""A produce request to many partitions waits for each: a change of one checks that one only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.replication import delayed_writes
from ottla.broker.replication.delayed_writes import DelayedAppend
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.storage_logs import batch_of

PARTITIONS = 50


class Checks:
    """Counts the checks of partitions that wait."""

    def __init__(self, check: Callable[[object], bool]) -> None:
        self.count = 0
        self._check = check

    def __call__(self, waiting: object) -> bool:
        self.count += 1
        return self._check(waiting)


class Request:
    """Appends one batch to each partition with acks=all."""

    def __init__(self, replicas: Replicas) -> None:
        self.rows = [PartitionProduceResponse(index, 0, -1, -1, -1) for index in range(PARTITIONS)]
        self.completed = 0
        entries = [(TOPIC, row.index, batch_of(), row) for row in self.rows]
        replicas.manager.append_records(-1, 1_000, entries, self._complete)

    def _complete(self) -> None:
        self.completed += 1

    @property
    def codes(self) -> list[int]:
        assert self.completed == 1
        return [row.error_code for row in self.rows]


def led(*, replicas: tuple[int, ...], **settings: object) -> Replicas:
    made = Replicas(**settings)
    made.commit_in_groups()
    for index in range(PARTITIONS):
        made.lead(index, replicas=replicas)
    return made


def replicate(replicas: Replicas, index: int) -> None:
    partition = replicas.partition(index)
    partition.followers[2].record_fetch(1, 0, 1, 0)
    assert partition.maybe_increment_high_watermark()
    replicas.manager.complete_delayed_requests(partition)


def test_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = Checks(delayed_writes._is_replicated)  # type: ignore[arg-type]  # of any entry
    monkeypatch.setattr(delayed_writes, "_is_replicated", checks)
    replicas = led(replicas=(1, 2))
    request = Request(replicas)
    for index in range(PARTITIONS):
        assert not request.completed
        replicate(replicas, index)
    assert request.codes == [0] * PARTITIONS
    assert checks.count == 2 * PARTITIONS


def test_those_that_are_not_replicated_in_time() -> None:
    replicas = led(replicas=(1, 2))
    request = Request(replicas)
    replicate(replicas, 7)
    replicas.timer.advance(1_001)
    expected = [ErrorCode.REQUEST_TIMED_OUT] * PARTITIONS
    expected[7] = ErrorCode.NONE
    assert request.codes == expected


def test_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = Checks(delayed_writes._is_flushed)  # type: ignore[arg-type]  # of any entry
    monkeypatch.setattr(delayed_writes, "_is_flushed", checks)

    async def whole() -> Request:
        request = Request(led(replicas=(1,), flush_messages=1))
        for _ in range(100):
            await asyncio.sleep(0)
        return request

    assert asyncio.run(whole()).codes == [0] * PARTITIONS
    assert checks.count <= 3 * PARTITIONS


Entry = tuple[Any, int, PartitionProduceResponse]


class Waiting(DelayedAppend[Entry]):
    """For offsets that a partition reaches."""

    __slots__ = ("checked",)

    checked: list[str]

    def _left(self, waiting: list[Entry]) -> list[Entry]:
        self.checked.append(waiting[0][0].key)
        return [entry for entry in waiting if entry[0].end < entry[1]]


def test_a_change_checks_its_own_partition_and_the_others_expire() -> None:
    first, second = (SimpleNamespace(key=key, end=0) for key in ("first", "second"))
    entries: list[Entry] = [
        (partition, offset, PartitionProduceResponse(0, 0, -1, -1, -1))
        for partition, offset in ((first, 1), (second, 1), (first, 2))
    ]
    calls: list[int] = []
    operation = Waiting(100, entries, lambda: calls.append(1))
    operation.checked = []
    assert not operation.try_complete()
    first.end = 1
    assert not operation.try_complete_for("first")
    second.end = 1
    assert not operation.try_complete_for("second")
    assert not operation.try_complete_for("second")
    assert operation.checked == ["first", "second", "first", "second"]
    operation.expire()
    assert calls == [1]
    codes = [response.error_code for _, _, response in entries]
    assert codes == [0, 0, ErrorCode.REQUEST_TIMED_OUT]
