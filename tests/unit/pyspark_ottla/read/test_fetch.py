"""The walk over a range against brokers that respond by a script, with time set by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ottla.protocol.client.errors import AuthenticationError, BrokerConnectionError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction, PartitionData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import EARLIEST, OffsetRange, Offsets
from pyspark_ottla.read.fetch import (
    FIRST_FETCH_BYTES,
    PartitionFetch,
    Prefetcher,
    end_of_last_batch,
)
from pyspark_ottla.read.planning import LossReport

TP = TopicPartition("t", 0)


def batch(begin: int, end: int) -> bytes:
    records = [(1000, None, b"x" * 100, None)] * (end - begin)
    return bytes(build_batch(records, base_offset=begin))


def data(
    records: bytes = b"", *, code: int = 0, high_watermark: int = 1000, stable: int = -1
) -> PartitionData:
    return PartitionData(
        error_code=code,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        records=records,
    )


Step = PartitionData | Exception | tuple[PartitionData, int]


class ScriptedBrokers:
    """Responses in turn; the last response is given for ever."""

    def __init__(self, *script: Step, begin: int = 0, end: int = 1000) -> None:
        self.script = list(script)
        self.begin, self.end = begin, end
        self.asked: list[tuple[int, int]] = []
        self.timeout_ms: list[int] = []
        self.forgotten = 0

    def fetch(
        self, partition: TopicPartition, offset: int, bytes_max: int, timeout_ms: int
    ) -> tuple[PartitionData, int]:
        assert partition == TP
        self.timeout_ms.append(timeout_ms)
        self.asked.append((offset, bytes_max))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, tuple) else (step, 0)

    def forget_leader(self, partition: TopicPartition) -> None:
        self.forgotten += 1

    def offsets_at(self, wanted: dict[TopicPartition, int]) -> Offsets:
        return {tp: self.begin if which == EARLIEST else self.end for tp, which in wanted.items()}


class Time:
    """Sleeping is what makes time go on."""

    def __init__(self) -> None:
        self.now = 50.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def walk(
    brokers: ScriptedBrokers,
    start: int,
    end: int,
    *,
    action: str = "fail",
    read_committed: bool = False,
    fetch_bytes: int = 1 << 22,
) -> list[tuple[int | None, list[tuple[int, int]]]]:
    time = Time()
    fetch = PartitionFetch(
        brokers,
        OffsetRange(TP, start, end),
        report=LossReport(action),
        fetch_bytes=fetch_bytes,
        read_committed=read_committed,
        timeout_ms=30_000,
        clock=time.clock,
        sleep=time.sleep,
    )
    return [
        (end_of_last_batch(response.records), response.aborted) for response in fetch.responses()
    ]


def test_it_continues_where_the_last_batch_ended() -> None:
    brokers = ScriptedBrokers(data(batch(0, 10) + batch(10, 15)), data(batch(15, 40)))
    assert walk(brokers, 3, 30) == [(15, []), (40, [])]
    assert [offset for offset, _ in brokers.asked] == [3, 15]


def test_sizes_are_fitted_to_what_is_left() -> None:
    brokers = ScriptedBrokers(data(batch(0, 1000)), data(batch(1000, 1010)))
    walk(brokers, 0, 1010)
    assert brokers.asked[0][1] == FIRST_FETCH_BYTES
    assert 1000 < brokers.asked[1][1] < 100_000, "ten small records are left"


def test_aborted_transactions_are_handed_on() -> None:
    response = data(batch(0, 5))
    response.aborted_transactions = [AbortedTransaction(producer_id=7, first_offset=2)]
    assert walk(ScriptedBrokers(response), 0, 5) == [(5, [(2, 7)])]


@pytest.mark.parametrize(
    "trouble",
    [
        data(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        data(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        BrokerConnectionError("away"),
        KafkaError(ErrorCode.LEADER_NOT_AVAILABLE),
    ],
)
def test_passing_troubles_are_waited_out(trouble: Step) -> None:
    brokers = ScriptedBrokers(trouble, trouble, data(batch(0, 5)))
    assert walk(brokers, 0, 5) == [(5, [])]
    assert brokers.forgotten == 2


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (data(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), "NOT_AUTHORIZED.*Reading t-0 is not"),
        (data(code=ErrorCode.UNSUPPORTED_VERSION), "FETCH_FAILED.*UNSUPPORTED_VERSION"),
        (AuthenticationError("wrong password"), "FETCH_FAILED.*from offset 0 .*wrong password"),
    ],
)
def test_lasting_troubles_are_raised_at_once(trouble: Step, text: str) -> None:
    brokers = ScriptedBrokers(trouble)
    with pytest.raises(ConnectorError, match=text):
        walk(brokers, 0, 5)
    assert len(brokers.asked) == 1


def test_troubles_that_do_not_pass_end_at_the_deadline() -> None:
    with pytest.raises(ConnectorError, match=r"FETCH_TIMEOUT.*for 30 seconds.*was: away"):
        walk(ScriptedBrokers(BrokerConnectionError("away")), 0, 5)


def test_no_single_request_gets_more_time_than_is_left() -> None:
    brokers = ScriptedBrokers(BrokerConnectionError("away"))
    with pytest.raises(ConnectorError, match="FETCH_TIMEOUT"):
        walk(brokers, 0, 5)
    assert brokers.timeout_ms[0] == 30_000
    assert brokers.timeout_ms == sorted(brokers.timeout_ms, reverse=True)
    assert 0 <= brokers.timeout_ms[-1] < 1500


def test_a_response_says_from_where_on_it_counts() -> None:
    """After a loss the first batch may still hold records before the new beginning of the log."""
    out_of_range = data(code=ErrorCode.OFFSET_OUT_OF_RANGE)
    brokers = ScriptedBrokers(out_of_range, data(batch(0, 10)), begin=6)
    fetch = PartitionFetch(
        brokers,
        OffsetRange(TP, 2, 10),
        report=LossReport("ignore"),
        fetch_bytes=1000,
        read_committed=False,
        timeout_ms=30_000,
    )
    assert [response.start for response in fetch.responses()] == [6]


def test_a_partition_that_stays_unknown_is_a_loss() -> None:
    brokers = ScriptedBrokers(data(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(ConnectorError, match=r"Offsets 0 to 5 of t-0 .*is not there any more"):
        walk(brokers, 0, 5)
    assert walk(brokers, 0, 5, action="ignore") == []


def test_a_log_that_begins_later_is_a_loss() -> None:
    def brokers() -> ScriptedBrokers:
        out = data(code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return ScriptedBrokers(out, data(batch(4, 8)), begin=4)

    with pytest.raises(
        ConnectorError, match=r"COULD_NOT_READ_OFFSET_RANGE.*begins at offset 4 now"
    ):
        walk(brokers(), 0, 8)
    lenient = brokers()
    assert walk(lenient, 0, 8, action="warn") == [(8, [])]
    assert [offset for offset, _ in lenient.asked] == [0, 4]


def test_a_log_that_ends_earlier_is_a_loss() -> None:
    brokers = ScriptedBrokers(data(code=ErrorCode.OFFSET_OUT_OF_RANGE), end=3)
    with pytest.raises(ConnectorError, match=r"Offsets 5 to 8 .*t-0 ends at offset 3 now"):
        walk(brokers, 5, 8)
    assert walk(brokers, 5, 8, action="ignore") == []


def test_a_hole_at_the_end_is_none() -> None:
    """Compaction took the last records; the broker has nothing more up to its high watermark."""
    brokers = ScriptedBrokers(data(batch(0, 5)), data(high_watermark=10))
    assert walk(brokers, 0, 10) == [(5, [])]


def test_a_throttled_response_is_no_hole() -> None:
    empty = (data(high_watermark=10), 500)
    brokers = ScriptedBrokers(empty, empty, empty, empty, data(batch(0, 10)))
    assert walk(brokers, 0, 10) == [(10, [])]


def test_an_open_transaction_is_no_hole() -> None:
    waiting = data(high_watermark=10, stable=5)
    brokers = ScriptedBrokers(data(batch(0, 5)), waiting, waiting, waiting, data(batch(5, 10)))
    assert walk(brokers, 0, 10, read_committed=True) == [(5, []), (10, [])]


def test_a_batch_cut_off_by_an_old_broker_is_requested_with_more_bytes() -> None:
    torn = data(batch(0, 5)[:100])
    brokers = ScriptedBrokers(torn, torn, data(batch(0, 5)))
    assert walk(brokers, 0, 5, fetch_bytes=100) == [(5, [])]
    sizes = [size for _, size in brokers.asked]
    assert sizes[0] == 100
    assert sizes[-1] > sizes[0]


def test_prefetching_hands_over_in_order_and_raises_at_the_end() -> None:
    def source() -> Iterator[int]:
        yield from range(20)
        raise ValueError("after that")

    ahead = Prefetcher(source(), 2, "test")
    taken = []
    with pytest.raises(ValueError, match="after that"):
        taken.extend(ahead)
    assert ahead.close()
    with pytest.raises(StopIteration):
        next(ahead)


def test_prefetching_stops_when_it_is_closed_and_stays_within_its_bound() -> None:
    made = []
    enough = threading.Event()

    def source() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            if number == 3:
                enough.set()
            yield number

    ahead = Prefetcher(source(), 2, "test")
    assert next(ahead) == 0
    assert enough.wait(60)
    assert ahead.close()
    assert len(made) <= 5, "one taken, two waiting, one in the making"
