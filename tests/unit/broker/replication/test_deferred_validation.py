"""Appends whose records are validated in a worker thread, and what may happen meanwhile."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest

from ottla.broker.replication import deferred_validation
from ottla.broker.replication.deferred_validation import DeferredValidation
from ottla.broker.runtime.tasks import running_tasks
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.records.reader import read_records
from ottla.storage.config import LogConfig
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation import validate_records
from tests.doubles.eventually import eventually_async
from tests.doubles.replicas import TOPIC, Appended, Replicas
from tests.doubles.storage_logs import NOW_MS, NewRecord, batch_of

MANY = 6_000  # more records than there is time for at once
DEADLINE_SECONDS = 60.0


def keyed(count: int, value: bytes = b"v") -> list[NewRecord]:
    return [(NOW_MS, b"key%d" % n, value, []) for n in range(count)]


async def until_completed(appended: Appended) -> None:
    await eventually_async(lambda: appended.is_completed)


class Gate:
    """Blocks `validate_records`: the test sees a worker thread come, and lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._arrived: list[int] = []
        self._go_on = threading.Semaphore(0)

        def at_the_gate(*arguments: object) -> object:
            self._arrived.append(1)
            assert self._go_on.acquire(timeout=DEADLINE_SECONDS)
            return validate_records(*arguments)  # type: ignore[arg-type]  # handed through

        monkeypatch.setattr(deferred_validation, "validate_records", at_the_gate)

    async def until_arrived(self, count: int = 1) -> None:
        await eventually_async(lambda: len(self._arrived) >= count)

    def open(self) -> None:
        self._go_on.release()


@pytest.fixture
async def worker() -> AsyncIterator[DeferredValidation]:
    found = DeferredValidation(lambda: NOW_MS)
    yield found
    await found.close()
    await eventually_async(
        lambda: all(task.get_name() != "validate-records" for task in running_tasks())
    )


@pytest.fixture
def compacted(worker: DeferredValidation) -> Replicas:
    replicas = Replicas(deferred_validation=worker, cleanup_policy=("compact",))
    replicas.lead()
    return replicas


async def test_small_batches_are_appended_at_once(
    compacted: Replicas, worker: DeferredValidation
) -> None:
    assert compacted.append(keyed(3)).offset == 0
    assert worker.total == 0


async def test_large_ones_come_later(compacted: Replicas, worker: DeferredValidation) -> None:
    appended = compacted.append(keyed(MANY))
    assert not appended.is_completed
    await until_completed(appended)
    assert appended.offset == 0
    assert compacted.log().log_end_offset == compacted.log().high_watermark == MANY
    assert worker.total == 1


async def test_a_coordinator_waits_for_no_thread(worker: DeferredValidation) -> None:
    replicas = Replicas(deferred_validation=worker, cleanup_policy=("compact",))
    replicas.lead()
    appended = Appended(0)
    replicas.manager.append_records(
        1, 1_000, [(TOPIC, 0, batch_of(keyed(MANY)), appended.response)], appended.finish,
        AppendOrigin.COORDINATOR,
    )  # fmt: skip
    assert appended.offset == 0


async def test_what_is_wrong_is_returned_as_ever(compacted: Replicas) -> None:
    records = keyed(MANY)
    records[4_321] = (NOW_MS, None, b"v", [])
    appended = compacted.append(records)
    await until_completed(appended)
    assert appended.code == ErrorCode.INVALID_RECORD
    (error,) = appended.response.record_errors
    assert error.batch_index == 4_321
    assert compacted.log().log_end_offset == 0


async def test_a_request_is_completed_once_when_all_of_it_is_done(compacted: Replicas) -> None:
    compacted.lead(1)
    compacted.lead(2)
    rows = [PartitionProduceResponse(index, 0, -1, -1, -1) for index in range(3)]
    contents = [batch_of(keyed(MANY)), batch_of(keyed(2)), batch_of(keyed(MANY))]
    entries = [(TOPIC, row.index, c, row) for row, c in zip(rows, contents, strict=True)]
    responses = Appended(0)
    compacted.manager.append_records(-1, 1_000, entries, responses.finish)
    assert compacted.log(1).log_end_offset == 2
    assert not responses.is_completed
    await until_completed(responses)
    assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0), (0, 0), (0, 0)]
    assert [compacted.log(index).log_end_offset for index in range(3)] == [MANY, 2, MANY]


async def test_others_append_meanwhile(
    compacted: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    appended = compacted.append(keyed(MANY))
    await gate.until_arrived()
    assert compacted.append(keyed(5)).offset == 0
    gate.open()
    await until_completed(appended)
    assert appended.offset == 5
    stored = read_records(b"".join(compacted.log().batches(0)))
    assert [record.offset for record in stored] == list(range(MANY + 5))


async def test_a_leader_that_is_none_any_more_appends_nothing(
    compacted: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    appended = compacted.append(keyed(MANY))
    await gate.until_arrived()
    compacted.follow(2, epoch=1)
    gate.open()
    await until_completed(appended)
    assert appended.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert compacted.log().log_end_offset == 0


async def test_it_is_the_epoch_of_the_append_that_counts(
    compacted: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    appended = compacted.append(keyed(MANY))
    await gate.until_arrived()
    compacted.lead(epoch=7)
    gate.open()
    await until_completed(appended)
    assert appended.offset == 0
    assert next(compacted.log().batches(0))[12:16] == (7).to_bytes(4, "big")


async def test_settings_that_change_meanwhile_are_obeyed(
    compacted: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    appended = compacted.append([(NOW_MS, b"k", bytes(100), [])] * MANY)
    await gate.until_arrived()
    compacted.log().update_config(LogConfig(max_message_bytes=1_000))
    gate.open()
    await gate.until_arrived(2)
    gate.open()
    await until_completed(appended)
    assert appended.code == ErrorCode.MESSAGE_TOO_LARGE


async def test_the_same_batch_twice_is_written_once(
    compacted: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose connection broke sends it again, while the first is still validated."""
    gate = Gate(monkeypatch)
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    both = [compacted.append(keyed(MANY), **fields) for _ in range(2)]
    await gate.until_arrived(2)
    gate.open()
    gate.open()
    for appended in both:
        await until_completed(appended)
    assert [appended.offset for appended in both] == [0, 0]
    assert compacted.log().log_end_offset == MANY


async def test_a_gap_in_the_sequence_is_seen_after_the_look(compacted: Replicas) -> None:
    fields = {"producer_id": 5, "producer_epoch": 0}
    assert compacted.append(keyed(1), base_sequence=0, **fields).offset == 0
    appended = compacted.append(keyed(MANY), base_sequence=7, **fields)
    await until_completed(appended)
    assert appended.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_broker_that_stops_says_so(compacted: Replicas, worker: DeferredValidation) -> None:
    await worker.close()
    appended = compacted.append(keyed(MANY))
    await until_completed(appended)
    assert appended.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
