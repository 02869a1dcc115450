"""A follower's session reads what may have changed, and misses nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.broker.handlers.records.delete_records import DeleteRecordsHandler
from ottla.broker.replication.delayed_fetch import FetchParams
from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult, FetchSession
from ottla.broker.replication.partition import READ_LOG_END
from ottla.broker.replication.session_watch import MAX_SCAN_INTERVAL_MS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas
from tests.doubles.request_context import Asked

FOLLOWER = 2
PARTITIONS = 3
WAIT_MS = 500


class Follower:
    """The session of a follower that has all records of three partitions, each with one record."""

    def __init__(self) -> None:
        self.replicas = Replicas()
        self.manager = self.replicas.manager
        self.params = FetchParams(FOLLOWER, 40)
        self.params.isolation = READ_LOG_END
        self.params.max_bytes = 1 << 20
        self.params.min_bytes = 1
        self.params.max_wait_ms = WAIT_MS
        self.params.only_news = True
        self.session = FetchSession(1, True, True, 0)
        self.read_items: list[list[int]] = []
        original = self.manager.read

        def read(params: FetchParams, items: list[FetchItem], *more: object) -> object:
            found = list(items)
            self.read_items.append([each.partition for each in found])
            return original(params, found, *more)  # type: ignore[arg-type]

        self.manager.read = read  # type: ignore[assignment, method-assign]
        self.items: list[FetchItem] = []
        for index in range(PARTITIONS):
            self.replicas.lead(index, replicas=[1, FOLLOWER])
            self.replicas.append(1, index=index)
            row = FetchPartition(
                partition=index,
                fetch_offset=1,
                current_leader_epoch=0,
                last_fetched_epoch=0,
                partition_max_bytes=1 << 20,
            )
            item = FetchItem(TOPIC, TOPIC_ID, row)
            self.items.append(item)
            self.session.partitions[TOPIC_ID, index] = item
        self.now()
        for _ in range(3):
            self.round()
        assert self.read_items[-1] == []

    def now(self) -> int:
        return self.manager.context.now_ms()

    def fetch(self) -> list[list[PartitionData]]:
        """The responses, of which one comes: those of the partitions that changed."""
        responses: list[list[PartitionData]] = []

        def respond(results: list[FetchResult]) -> None:
            responses.append([data for item, data in results if item.update_returned(data)])

        steps = self.manager.fetch(
            self.params, self.items, lambda reading: respond(run_at_once(reading)), self.session
        )
        results = run_at_once(steps)
        if results is not None:
            respond(results)
        return responses

    def round(self) -> list[PartitionData]:
        """A request that waits until its time is over, unless something changed."""
        responses = self.fetch()
        for _ in range(8):  # where nothing happens the wait is longer
            if not responses:
                self.replicas.timer.advance(WAIT_MS + 1)
        (found,) = responses
        return found

    def advance(self, index: int) -> None:
        """The follower has another record."""
        item = self.items[index]
        row = FetchPartition(
            partition=index,
            fetch_offset=item.fetch_offset + 1,
            current_leader_epoch=0,
            last_fetched_epoch=0,
            partition_max_bytes=1 << 20,
        )
        item.update(row)
        assert self.session.watch is not None
        self.session.watch.changed(item.key)


def test_an_idle_round_reads_nothing() -> None:
    follower = Follower()
    follower.manager.context.lag_time_max_ms = 60_000
    follower.read_items.clear()
    for _ in range(3):
        assert follower.round() == []
        follower.manager.session_watches.end_silence()
    assert follower.read_items == [[]] * 6, "neither when it begins nor when it ends"


def test_all_partitions_are_read_now_and_then() -> None:
    """Retention moves a log start without a word."""
    follower = Follower()
    follower.replicas.log(1).truncator.delete_records_before(1)
    found: list[PartitionData] = []
    waited = 0
    while not found:
        found = follower.round()
        waited += WAIT_MS
        follower.replicas.clock.advance(WAIT_MS)
        assert waited <= MAX_SCAN_INTERVAL_MS + 2 * WAIT_MS
    ((data),) = found
    assert (data.partition_index, data.log_start_offset) == (1, 1)


def _delete_records(follower: Follower) -> None:
    rows = [DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(1, 1)])]
    Asked(DeleteRecordsHandler(follower.manager).handle, DeleteRecordsRequest(rows, 1000), 2)


def _stop(follower: Follower) -> None:
    key = TopicPartition(TOPIC, 1)
    partition = follower.manager.remove_partition(key)
    assert partition is not None
    follower.manager.complete_all_delayed_requests(partition)


def _fail_directory(follower: Follower) -> None:
    partition = follower.manager.partitions[TOPIC, 1]
    partition.offline = True
    follower.manager.complete_all_delayed_requests(partition)


def _order(follower: Follower, leader: int, epoch: int) -> None:
    follower.replicas.order(leader, index=1, epoch=epoch, replicas=[1, FOLLOWER, 3])
    partition = follower.manager.partitions[TOPIC, 1]
    follower.manager.complete_all_delayed_requests(partition)


CHANGES: dict[str, tuple[Callable[[Follower], object], int]] = {
    "a record": (lambda each: each.replicas.append(1, index=1), 0),
    "a log start": (_delete_records, 0),
    "another leader": (lambda each: _order(each, 3, 1), ErrorCode.FENCED_LEADER_EPOCH),
    "a leader epoch": (lambda each: _order(each, 1, 1), ErrorCode.FENCED_LEADER_EPOCH),
    "no replica here": (_stop, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "no log directory": (_fail_directory, ErrorCode.KAFKA_STORAGE_ERROR),
}


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_in_the_next_response(what: str, is_waiting: bool) -> None:
    change, code = CHANGES[what]
    follower = Follower()
    if is_waiting:
        responses = follower.fetch()
        change(follower)
        if not responses:  # it need not end the wait
            follower.replicas.timer.advance(WAIT_MS + 1)
    else:
        change(follower)
        responses = [follower.round()]
    ((data,),) = responses
    assert (data.partition_index, data.error_code) == (1, code)


def test_a_partition_that_comes_back_is_watched_again() -> None:
    follower = Follower()
    _stop(follower)
    assert follower.round()
    follower.replicas.lead(1, replicas=[1, FOLLOWER])
    follower.items[1].fetch_offset = 0
    responses = follower.fetch()
    follower.replicas.append(1, index=1)
    (found,) = responses
    assert [data.partition_index for data in found if data.records] == [1]


def test_a_follower_that_restarts_or_leaves_the_isr_is_read() -> None:
    follower = Follower()
    follower.params.replica_epoch = 41
    follower.round()
    partition = follower.manager.partitions[TOPIC, 1]
    assert partition.followers[FOLLOWER].broker_epoch == 41
    follower.manager.forget_broker_epochs()
    follower.round()
    assert partition.followers[FOLLOWER].broker_epoch == 41
    follower.round()
    partition.set_isr(frozenset([1]))
    follower.manager.complete_delayed_requests(partition)  # as the ISR manager does
    follower.read_items.clear()
    for _ in range(2):
        follower.round()
        assert [1] in follower.read_items, "it is read until the follower is in the ISR"


def test_a_scan_that_is_requested_during_another_one_takes_place() -> None:
    """Reading pauses; what it had read before may have changed without a report."""
    follower = Follower()
    watch, items = follower.session.watch, follower.items
    assert watch is not None
    watch.scan_next_time()
    for is_requested, expected in ((True, items), (False, items), (False, [])):
        found = watch.begin(items, follower.params.replica_epoch, follower.now(), 1000)
        assert list(found) == expected
        if is_requested:
            follower.manager.forget_broker_epochs()
        watch.end()


def test_the_progress_of_partitions_that_are_not_read() -> None:
    """A follower that was idle for long has caught up until its last request."""
    follower = Follower()
    partition = follower.manager.partitions[TOPIC, 1]
    replica = partition.followers[FOLLOWER]
    before = replica.last_caught_up_ms
    follower.replicas.clock.advance(WAIT_MS)
    last = follower.now()
    follower.round()
    assert replica.last_caught_up_ms == before
    follower.replicas.clock.advance(100)
    follower.replicas.append(1, index=1)
    assert replica.last_caught_up_ms == replica.last_fetch_ms == last > before
    assert replica.is_caught_up(2, last + 30_000, 30_000)
    assert not replica.is_caught_up(2, last + 30_001, 30_000)


def test_partitions_with_records_are_read_last() -> None:
    follower = Follower()
    for index in (2, 0):
        follower.replicas.append(1, index=index)
    assert [each.partition_index for each in follower.round()] == [2, 0]


def test_the_end_of_a_session_completes_its_fetch() -> None:
    follower = Follower()
    responses = follower.fetch()
    assert not responses
    follower.session.close_watch()
    assert responses == [[]]
    follower.replicas.append(1, index=1)
    assert len(responses) == 1
    watches = follower.manager.session_watches.by_key
    assert (TOPIC, 1) not in watches, "it is dropped when its partition changes"
    assert [each.partition_index for each in follower.round()] == [1], "a new watch reads all"
    assert len(watches[TOPIC, 0]) == 1


def wait_of(follower: Follower, *, change_after_ms: int = -1) -> int:
    """How long a request waits, to 100 ms."""
    responses = follower.fetch()
    waited = 0
    while not responses:
        if waited == change_after_ms:
            follower.manager.session_watches.end_silence()
        follower.replicas.timer.advance(100)
        waited += 100
    return waited


def test_silence_makes_waits_longer_and_any_change_ends_it() -> None:
    follower = Follower()
    follower.manager.context.lag_time_max_ms = 32_000
    follower.manager.session_watches.end_silence()
    waits = [wait_of(follower) for _ in range(7)]
    assert waits == [500, 500, 500, 1000, 2000, 4000, 4000]
    assert wait_of(follower, change_after_ms=1000) == 1500
    assert wait_of(follower) == 500
    for _ in range(5):
        wait_of(follower)
    responses = follower.fetch()
    follower.replicas.timer.advance(300)
    _delete_records(follower)
    follower.replicas.timer.advance(400)
    assert not responses
    follower.replicas.timer.advance(101)
    assert [data.log_start_offset for data in responses[0]] == [1]


def test_a_silence_of_months_costs_no_more_than_one_of_minutes() -> None:
    """A number with one bit for each round would be of megabytes."""
    watch = Follower().session.watch
    assert watch is not None
    watch._silent_rounds = 1 << 60
    assert watch.wait_ms(500, 32_000) == 4000


def test_the_first_record_after_silence_is_sent_at_once() -> None:
    follower = Follower()
    for _ in range(8):
        follower.round()
    responses = follower.fetch()
    follower.replicas.append(1, index=2)
    assert [data.partition_index for data in responses[0]] == [2]


def test_a_short_allowed_lag_bounds_the_wait() -> None:
    follower = Follower()
    follower.manager.context.lag_time_max_ms = 2400
    for _ in range(8):
        follower.round()
    assert wait_of(follower) == 600
