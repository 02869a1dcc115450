"""Commits of one iteration of the loop are appended as one batch."""

from __future__ import annotations

import pytest

from ottla.broker.coordination.ports import AppendResult
from ottla.broker.groups.commits import Committer
from ottla.broker.groups.log.appender import MAX_GATHERED, MAX_GATHERED_BYTES, GroupAppender
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.helpers import GROUP, T0, Setup

VALUE = b"value"


class Appends:
    """An appender on the partition of a coordinator, and the results of what it appends."""

    def __init__(self) -> None:
        self.setup = Setup()
        self.appender: GroupAppender = self.setup.coordinator.commits._appender
        partition = self.setup.coordinator.partitions.home_of(GROUP)
        assert partition is not None
        self.partition: GroupPartition = partition
        self.results: list[tuple[bytes, int, int]] = []

    def together(self, *keys: bytes, value: bytes = VALUE) -> None:
        self.appender.append_together(
            self.partition, [(key, value) for key in keys], self.result_of(keys[0])
        )

    def alone(self, key: bytes) -> None:
        self.appender.append(self.partition, [(key, VALUE)], self.result_of(key))

    def result_of(self, key: bytes) -> AppendResult:
        return lambda error, offset: self.results.append((key, error, offset))

    @property
    def batches(self) -> list[list[bytes | None]]:
        """The keys of each batch of the log."""
        return [
            [record.key for record in read_records(batch)]
            for batch in self.setup.log.batches.get(self.partition.index, [])
        ]


def test_changes_of_an_iteration_are_one_batch_with_an_offset_each() -> None:
    appends = Appends()
    appends.together(b"a", b"b")
    appends.together(b"c")
    assert not appends.setup.log.appends
    assert len(appends.setup.deferred) == 1
    appends.setup.run_deferred()
    assert appends.batches == [[b"a", b"b", b"c"]]
    assert appends.results == [(b"a", 0, 0), (b"c", 0, 2)]
    appends.together(b"d")
    appends.setup.run_deferred()
    assert appends.results[2:] == [(b"d", 0, 3)]


def test_other_appends_keep_the_order() -> None:
    """Else the tombstone of a deleted group would precede its commit."""
    appends = Appends()
    appends.together(b"a")
    appends.alone(b"b")
    appends.together(b"c")
    appends.setup.run_deferred()
    assert appends.batches == [[b"a"], [b"b"], [b"c"]]
    assert [key for key, _, _ in appends.results] == [b"a", b"b", b"c"]


def test_a_batch_has_a_bound_in_changes_and_in_bytes() -> None:
    appends = Appends()
    for _ in range(MAX_GATHERED + 3):
        appends.together(b"k")
    appends.setup.run_deferred()
    assert [len(keys) for keys in appends.batches] == [MAX_GATHERED, 3]
    for key in (b"a", b"b", b"c"):
        appends.together(key, value=bytes(MAX_GATHERED_BYTES // 2 - 10))
    appends.together(b"d", value=bytes(2 * MAX_GATHERED_BYTES))
    appends.setup.run_deferred()
    assert appends.batches[2:] == [[b"a", b"b"], [b"c"], [b"d"]]
    assert len(appends.results) == MAX_GATHERED + 7


def test_each_iteration_appends_one_batch() -> None:
    appends = Appends()
    for _ in range(2 * MAX_GATHERED):
        appends.together(b"k")
    appends.setup.deferred.pop(0)()
    assert len(appends.results) == MAX_GATHERED
    assert len(appends.setup.deferred) == 1


def test_a_batch_that_is_too_large_is_divided() -> None:
    appends = Appends()
    appends.together(b"a")
    appends.together(b"b")
    appends.setup.log.next_error = ErrorCode.MESSAGE_TOO_LARGE
    appends.setup.run_deferred()
    assert appends.batches == [[b"a"], [b"b"]]
    assert appends.results == [(b"a", 0, 0), (b"b", 0, 1)]


def test_an_error_is_the_result_of_all() -> None:
    appends = Appends()
    appends.together(b"a")
    appends.together(b"b")
    appends.setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    appends.setup.run_deferred()
    assert appends.results == [(key, ErrorCode.NOT_ENOUGH_REPLICAS, -1) for key in (b"a", b"b")]


def test_after_the_resignation_nothing_is_appended() -> None:
    appends = Appends()
    appends.together(b"a")
    appends.setup.coordinator.on_resigned(appends.partition.index, 1)
    appends.setup.elect(2)  # the state of the partition is a new one
    appends.setup.run_deferred()
    assert appends.results == [(b"a", ErrorCode.NOT_COORDINATOR, -1)]
    assert not appends.batches


def test_a_callback_that_fails_does_not_concern_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(_: int, __: int) -> None:
        raise ValueError("as planned")

    appends = Appends()
    appends.appender.append_together(appends.partition, [(b"a", VALUE)], failing)
    appends.together(b"b")
    appends.setup.run_deferred()
    assert appends.results == [(b"b", 0, 1)]
    assert "as planned" in caplog.text


def test_two_commits_of_a_partition_in_one_batch_end_with_the_last() -> None:
    setup = Setup()
    responses: list[dict[TopicPartition, int]] = []
    for offset in (5, 6):
        setup.coordinator.commits.commit(
            Committer(GROUP), {T0: CommittedOffset(offset, -1, "", 0)}, responses.append
        )
    assert setup.group().offsets.is_unstable(T0)
    setup.run_deferred()
    assert responses == [{T0: ErrorCode.NONE}] * 2
    assert setup.log.appends == 1
    committed = setup.group().offsets.committed[T0]
    assert (committed.offset, committed.appended_at) == (6, 1)
    assert not setup.group().offsets.is_unstable(T0)
