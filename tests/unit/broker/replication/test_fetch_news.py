from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.broker.handlers.records.delete_records import DeleteRecordsHandler
from ottla.broker.replication.delayed_fetch import FetchParams, with_news
from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult
from ottla.broker.replication.partition import READ_LOG_END
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.steps import Steps, run_at_once
from tests.doubles.fetched import fetch, read
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas
from tests.doubles.request_context import Asked
from tests.doubles.storage_logs import batch_of

FOLLOWER = 2


class Scene:
    """A leader with one record, which its only follower has, and the follower's fetch session."""

    def __init__(self) -> None:
        self.replicas = Replicas()
        self.partition = self.replicas.lead(replicas=[1, FOLLOWER])
        self.replicas.append(1)
        self.params = FetchParams(FOLLOWER, 40)
        self.params.isolation = READ_LOG_END
        self.params.max_bytes = 1 << 20
        self.item = FetchItem(
            TOPIC,
            TOPIC_ID,
            FetchPartition(fetch_offset=1, current_leader_epoch=0, last_fetched_epoch=0),
        )
        self.respond()
        # The high watermark has advanced since that read.
        self.respond()
        self.params.only_news = True

    def read(self) -> list[PartitionData]:
        return read(self.replicas.manager, self.params, self.item)

    def respond(self) -> None:
        (data,) = self.read()
        self.item.update_returned(data)

    def has_no_news(self, now_ms: int | None = None) -> bool:
        items = with_news([self.item], lambda _: self.partition, self.params, now_ms)
        return not [item for item in items if item is not None]

    def move(self, **fields: int) -> None:
        """The follower's next request has another position."""
        row = FetchPartition(
            **{"fetch_offset": 1, "current_leader_epoch": 0, "last_fetched_epoch": 0, **fields}
        )
        self.item.update(row)


def test_a_partition_in_which_nothing_happened_is_left_out_of_the_response() -> None:
    scene = Scene()
    assert scene.has_no_news()
    assert scene.read() == []
    scene.params.only_news = False
    (data,) = scene.read()
    assert not scene.item.update_returned(data), "a read comes to the same"


def test_the_fetch_counts_as_one_of_a_follower_that_has_caught_up() -> None:
    scene = Scene()
    follower = scene.partition.followers[FOLLOWER]
    before = follower.last_caught_up_ms
    assert scene.has_no_news(None)
    assert follower.last_caught_up_ms == before, "the fetch is completed later"
    assert scene.has_no_news(before + 700)
    assert follower.last_caught_up_ms == follower.last_fetch_ms == before + 700


def _high_watermark_behind(scene: Scene) -> None:
    scene.replicas.append(1)
    scene.move(fetch_offset=2)
    scene.item.is_settled = True


def _open_transaction(scene: Scene) -> None:
    scene.replicas.append(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    scene.params.only_news = False
    scene.move(fetch_offset=2)
    scene.respond()
    scene.respond()


NEWS: dict[str, Callable[[Scene], object]] = {
    "a record": lambda scene: scene.replicas.append(1),
    "another position": lambda scene: scene.move(fetch_offset=0),
    "the first fetch of a position": lambda scene: scene.move(),
    "another log start of the follower": lambda scene: scene.move(log_start_offset=1),
    "a log start": lambda scene: scene.replicas.log().truncator.delete_records_before(1),
    "a leader epoch": lambda scene: scene.replicas.order(1, epoch=1, replicas=[1, FOLLOWER]),
    "another leader": lambda scene: scene.replicas.order(3, epoch=1, replicas=[1, FOLLOWER, 3]),
    "no log directory": lambda scene: setattr(scene.partition, "offline", True),
    "a restart of the follower": lambda scene: setattr(scene.params, "replica_epoch", 41),
    "a new topic of its name": lambda scene: setattr(scene.partition, "topic_id", b"2" * 16),
    "another replica": lambda scene: setattr(scene.params, "replica_id", 3),
    "the ISR": lambda scene: scene.partition.set_isr(frozenset([1])),
    "the high watermark is behind": _high_watermark_behind,
    "an open transaction": _open_transaction,
}


@pytest.mark.parametrize("what", NEWS)
def test_anything_else_is_read(what: str) -> None:
    scene = Scene()
    NEWS[what](scene)
    assert not scene.has_no_news()


def test_a_partition_that_is_not_here_is_read() -> None:
    scene = Scene()
    item = scene.item
    assert list(with_news([item], lambda _: None, scene.params, None)) == [None, item]


class Session:
    """An incremental session of a follower that has all records of three partitions."""

    def __init__(self) -> None:
        self.replicas = Replicas()
        self.params = FetchParams(FOLLOWER)
        self.params.isolation = READ_LOG_END
        self.params.max_bytes = 1 << 20
        self.params.min_bytes = 1
        self.params.max_wait_ms = 500
        self.items = []
        for index in range(3):
            self.replicas.lead(index, replicas=[1, FOLLOWER])
            self.replicas.append(1, index=index)
            row = FetchPartition(
                partition=index, fetch_offset=1, partition_max_bytes=1 << 20, **EPOCHS
            )
            self.items.append(FetchItem(TOPIC, TOPIC_ID, row))
        for _ in range(2):
            results = read(self.replicas.manager, self.params, *self.items)
            for item, data in zip(self.items, results, strict=True):
                item.update_returned(data)
        self.params.only_news = True

    def fetch(self) -> list[list[PartitionData]]:
        """The responses, of which one comes."""
        responses: list[list[PartitionData]] = []
        fetch(
            self.replicas.manager,
            self.params,
            self.items,
            lambda results: responses.append([data for _, data in results]),
        )
        return responses


EPOCHS = {"current_leader_epoch": 0, "last_fetched_epoch": 0}


def test_a_fetch_that_waited_reads_what_has_changed() -> None:
    session = Session()
    responses = session.fetch()
    assert not responses
    session.replicas.append(1, index=2)
    ((data,),) = responses
    assert (data.partition_index, len(data.records or b"")) == (2, len(batch_of(1)))


def test_after_its_time_it_reads_all() -> None:
    """Records that retention has deleted do not end the wait."""
    session = Session()
    responses = session.fetch()
    session.replicas.log(1).truncator.delete_records_before(1)
    assert not responses
    session.replicas.timer.advance(501)
    ((data,),) = responses
    assert (data.partition_index, data.log_start_offset) == (1, 1)


def test_a_log_start_of_delete_records_comes_with_the_first_response() -> None:
    """Its response waits for the followers, who would get it with their next fetch but one."""
    session = Session()
    responses = session.fetch()
    rows = [DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(1, 1)])]
    deleted = Asked(
        DeleteRecordsHandler(session.replicas.manager).handle, DeleteRecordsRequest(rows, 1000), 2
    )
    assert not responses, "there is nothing to read"
    assert deleted.is_pending
    session.replicas.append(1, index=2)
    (found,) = responses
    assert [(data.partition_index, data.log_start_offset) for data in found] == [(1, 1), (2, 0)]
    session.items[1].update(
        FetchPartition(partition=1, fetch_offset=1, log_start_offset=1, **EPOCHS)
    )
    session.fetch()
    assert not deleted.is_pending


def test_a_record_that_the_read_of_the_fetch_itself_brings_is_not_missed() -> None:
    """A coordinator appends in the moment in which its record is committed: to a partition that
    was left out before."""
    session = Session()
    produced = PartitionProduceResponse(2, 0, -1, -1, -1)
    entry = (TOPIC, 2, batch_of(1), produced)
    session.replicas.manager.append_records(
        -1, 1_000, [entry], lambda: session.replicas.append(1, index=0) and None
    )
    session.items[2].update(FetchPartition(partition=2, fetch_offset=2, **EPOCHS))
    responses = session.fetch()
    assert produced.base_offset == 1
    (found,) = responses
    assert [data.partition_index for data in found if data.records] == [0]


def test_what_changes_while_the_fetch_is_read_is_not_missed() -> None:
    """It pauses between partitions: another request appends to one that was left out before."""
    session = Session()
    for item in session.items[1:]:
        item.update(FetchPartition(partition=item.partition, fetch_offset=1, **EPOCHS))
    responses: list[list[int]] = []

    def respond(reading: Steps[list[FetchResult]]) -> None:
        responses.append([item.partition for item, data in run_at_once(reading) if data.records])

    steps = session.replicas.manager.fetch(session.params, session.items, respond)
    for _ in range(2):  # before the first and between the last two
        next(steps)
    session.replicas.append(1, index=0)
    assert run_at_once(steps) is None
    assert responses == [[0]]


def test_a_follower_that_has_caught_up_waits() -> None:
    scene = Scene()
    scene.params.max_wait_ms, scene.params.min_bytes = 500, 1
    scene.replicas.append(1)
    scene.move(fetch_offset=2)
    before = scene.replicas.log().high_watermark
    responses: list[object] = []
    fetch(scene.replicas.manager, scene.params, [scene.item], responses.append)
    assert not responses
    assert scene.replicas.manager.fetch_purgatory.delayed == 1
    assert (before, scene.replicas.log().high_watermark) == (1, 2)
