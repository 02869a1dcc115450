"""The walk over a range against brokers that respond by a script, with time set by hand."""

from __future__ import annotations

import pytest

from ottla.protocol.client.errors import AuthenticationError, BrokerConnectionError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction, PartitionData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.fetch_source import FetchSource
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import EARLIEST, OffsetRange, Offsets
from pyspark_ottla.read.fetch import FIRST_FETCH_BYTES, PartitionFetch, end_of_last_batch
from pyspark_ottla.read.planning import LossReport
from pyspark_ottla.read.task_metrics import TaskMetrics

TP = TopicPartition("t", 0)


def batch(begin: int, end: int) -> bytes:
    records = [(1000, None, b"x" * 100, None)] * (end - begin)
    return bytes(build_batch(records, base_offset=begin))


def data(
    records: bytes = b"",
    *,
    code: int = 0,
    high_watermark: int = 1000,
    stable: int = -1,
    preferred: int = -1,
) -> PartitionData:
    return PartitionData(
        error_code=code,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        preferred_read_replica=preferred,
        records=records,
    )


Step = PartitionData | Exception | tuple[PartitionData, int]


class ScriptedBrokers:
    """Responses in turn; the last response is given for ever."""

    def __init__(
        self, *script: Step, begin: int = 0, end: int = 1000, local_start: int | None = 0
    ) -> None:
        self.script = list(script)
        self.begin, self.end = begin, end
        self.local_start = local_start
        self.has: bool | None = False
        self.sources: list[FetchSource] = []
        self.asked: list[tuple[int, int]] = []
        self.timeout_ms: list[int] = []
        self.forgotten = 0

    def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        bytes_max: int,
        timeout_ms: int,
        source: FetchSource,
    ) -> tuple[PartitionData, int]:
        assert partition == TP
        self.sources.append(source)
        self.timeout_ms.append(timeout_ms)
        self.asked.append((offset, bytes_max))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, tuple) else (step, 0)

    def explain(self, error: Exception) -> str:
        return str(error)

    def forget_leader(self, partition: TopicPartition) -> None:
        self.forgotten += 1

    def offsets_at(self, wanted: dict[TopicPartition, int]) -> Offsets:
        return {tp: self.begin if which == EARLIEST else self.end for tp, which in wanted.items()}

    def has_partition(self, partition: TopicPartition, topic_id: str | None) -> bool:
        if self.has is None:
            raise ConnectorError("BROKER_UNAVAILABLE", "No broker has metadata")
        return self.has

    def local_log_start(self, partition: TopicPartition) -> int | None:
        return self.local_start


class Time:
    """Sleeping is what makes time go on."""

    def __init__(self) -> None:
        self.now = 50.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def fetch_of(
    brokers: ScriptedBrokers,
    wanted: OffsetRange,
    time: Time,
    *,
    action: str = "fail",
    read_committed: bool = False,
    fetch_bytes: int = 1 << 22,
    metrics: TaskMetrics | None = None,
) -> PartitionFetch:
    return PartitionFetch(
        brokers,
        wanted,
        report=LossReport(action),
        fetch_bytes=fetch_bytes,
        read_committed=read_committed,
        timeout_ms=30_000,
        metrics=metrics,
        clock=time.clock,
        sleep=time.sleep,
    )


def walk(
    brokers: ScriptedBrokers,
    start: int,
    end: int,
    *,
    action: str = "fail",
    read_committed: bool = False,
    fetch_bytes: int = 1 << 22,
    topic_id: str | None = None,
    metrics: TaskMetrics | None = None,
) -> list[tuple[int | None, list[tuple[int, int]]]]:
    fetch = fetch_of(
        brokers,
        OffsetRange(TP, start, end, topic_id),
        Time(),
        action=action,
        read_committed=read_committed,
        fetch_bytes=fetch_bytes,
        metrics=metrics,
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
        data(code=ErrorCode.UNKNOWN_SERVER_ERROR),
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
        (
            data(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            "NOT_AUTHORIZED.*Reading t-0 from .* 0 is not",
        ),
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


def test_a_caller_that_takes_long_leaves_all_the_time_to_the_next_fetch() -> None:
    """A slow query, and a connection that the broker closed while it was idle."""
    closed = BrokerConnectionError("closed while it was idle")
    brokers = ScriptedBrokers(data(batch(0, 5)), closed, data(batch(5, 10)))
    time = Time()
    found = []
    for response in fetch_of(brokers, OffsetRange(TP, 0, 10), time).responses():
        found.append(end_of_last_batch(response.records))
        time.sleep(600)
    assert found == [5, 10]
    assert brokers.timeout_ms[1] == 30_000


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
        report=LossReport("warn"),
        fetch_bytes=1000,
        read_committed=False,
        timeout_ms=30_000,
    )
    assert [response.start for response in fetch.responses()] == [6]


def test_a_partition_that_stays_unknown_is_a_loss() -> None:
    brokers = ScriptedBrokers(data(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(ConnectorError, match=r"Offsets 0 to 5 of t-0 .*is not there any more"):
        walk(brokers, 0, 5)
    assert walk(brokers, 0, 5, action="warn") == []


@pytest.mark.parametrize("has", [True, None], ids=["the metadata has it", "there is no metadata"])
def test_a_partition_is_not_lost_because_its_broker_waits_for_the_controller(
    has: bool | None,
) -> None:
    """A broker that has just started, while the session of the last controller expires."""
    unknown = data(code=ErrorCode.UNKNOWN_TOPIC_ID)
    brokers = ScriptedBrokers(*[unknown] * 20, data(batch(0, 5)))
    brokers.has = has
    assert walk(brokers, 0, 5, action="warn", topic_id="abc") == [(5, [])]
    brokers = ScriptedBrokers(unknown)
    brokers.has = has
    with pytest.raises(ConnectorError, match=r"FETCH_TIMEOUT.*UNKNOWN_TOPIC_ID"):
        walk(brokers, 0, 5, action="warn", topic_id="abc")


def test_a_partition_is_not_lost_because_its_broker_was_away_before_it_was_unknown() -> None:
    """A broker that restarts: no connection for longer than the ten seconds, then no metadata."""
    away = [BrokerConnectionError("away")] * 20
    unknown = data(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    brokers = ScriptedBrokers(data(batch(0, 5)), *away, unknown, data(batch(5, 10)))
    assert walk(brokers, 0, 10, action="warn") == [(5, []), (10, [])]
    assert walk(ScriptedBrokers(*away, unknown, *away[:5], data(batch(0, 5))), 0, 5) == [(5, [])]


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
    assert walk(brokers, 5, 8, action="warn") == []


@pytest.mark.parametrize("high_watermark", [10, 12])
def test_a_hole_at_the_end_is_none(high_watermark: int) -> None:
    """Compaction took the last records; the leader has nothing more on its disk."""
    brokers = ScriptedBrokers(data(batch(0, 5)), data(high_watermark=high_watermark))
    assert walk(brokers, 0, 10) == [(5, [])]
    assert len(brokers.asked) == 2


@pytest.mark.parametrize("local_start", [None, 6], ids=["unknown", "tiered"])
def test_slow_reads_of_tiered_storage_are_no_hole(local_start: int | None) -> None:
    """The remote read takes longer than the fetch may wait: an empty response, again and again."""
    slow = data(high_watermark=10)
    brokers = ScriptedBrokers(
        slow, slow, data(batch(0, 5)), slow, slow, slow, data(batch(5, 10)), local_start=local_start
    )
    assert walk(brokers, 0, 10) == [(5, []), (10, [])]
    never = ScriptedBrokers(data(batch(0, 5)), slow, local_start=local_start)
    with pytest.raises(ConnectorError, match=r"FETCH_TIMEOUT\] No record of t-0 from offset 5 on"):
        walk(never, 0, 10, action="warn")


def test_a_hole_below_the_end_of_the_range_is_none_without_a_batch_behind_it() -> None:
    """The leader has not got as far as the end of the range: the records may still come."""
    brokers = ScriptedBrokers(data(batch(0, 5)), data(high_watermark=8))
    with pytest.raises(ConnectorError, match=r"from offset 5 on \(the range ends at 10\)"):
        walk(brokers, 0, 10)
    brokers = ScriptedBrokers(data(batch(0, 5)), data(high_watermark=8), data(batch(9, 12)))
    assert walk(brokers, 0, 10) == [(5, []), (12, [])]


def test_batches_that_were_read_before_do_not_lead_on() -> None:
    brokers = ScriptedBrokers(data(batch(0, 5)), data(batch(0, 5)))
    with pytest.raises(ConnectorError, match="FETCH_TIMEOUT"):
        walk(brokers, 0, 10)


def test_the_replica_that_the_leader_names_is_read() -> None:
    named = data(preferred=2)
    brokers = ScriptedBrokers(named, data(batch(0, 5)), data(batch(5, 10)))
    assert walk(brokers, 0, 10) == [(5, []), (10, [])]
    assert [(source.node_id, source.names_rack) for source in brokers.sources] == [
        (None, True),
        (2, True),
        (2, True),
    ]


@pytest.mark.parametrize(
    "trouble",
    [
        BrokerConnectionError("away"),
        AuthenticationError("wrong password"),
        data(code=ErrorCode.OFFSET_OUT_OF_RANGE),
        data(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        data(code=ErrorCode.REPLICA_NOT_AVAILABLE),
        data(high_watermark=0),
        data(high_watermark=10),
    ],
)
def test_a_replica_that_cannot_serve_is_left_for_the_leader(trouble: Step) -> None:
    """An empty response of a follower proves nothing."""
    brokers = ScriptedBrokers(data(preferred=2), trouble, data(batch(0, 10)))
    assert walk(brokers, 0, 10) == [(10, [])]
    assert [(source.node_id, source.names_rack) for source in brokers.sources] == [
        (None, True),
        (2, True),
        (None, False),
    ]
    assert brokers.timeout_ms[1] < brokers.timeout_ms[0], "the leader has time left"


def test_a_throttled_replica_is_waited_for() -> None:
    brokers = ScriptedBrokers(data(preferred=2), (data(), 500), data(batch(0, 10)))
    assert walk(brokers, 0, 10) == [(10, [])]
    assert [source.node_id for source in brokers.sources] == [None, 2, 2]


def test_a_leader_that_names_replicas_for_ever_ends_at_the_deadline() -> None:
    brokers = ScriptedBrokers(data(preferred=2, high_watermark=10))
    with pytest.raises(ConnectorError, match=r"FETCH_TIMEOUT.*offset 0 .*named replica 2"):
        walk(brokers, 0, 10)
    assert len(brokers.asked) < 100


def test_the_topic_id_goes_with_every_fetch() -> None:
    brokers = ScriptedBrokers(data(code=ErrorCode.UNKNOWN_TOPIC_ID))
    with pytest.raises(ConnectorError, match=r"Offsets 3 to 9 of t-0 .*topic id abc is not there"):
        walk(brokers, 3, 9, topic_id="abc")
    assert {source.topic_id for source in brokers.sources} == {"abc"}


def test_what_was_fetched_is_counted() -> None:
    metrics = TaskMetrics()
    brokers = ScriptedBrokers(BrokerConnectionError("away"), data(batch(0, 10)))
    walk(brokers, 0, 10, metrics=metrics)
    assert (metrics.fetch_requests, metrics.retries) == (2, 1)
    assert metrics.fetched_bytes == len(batch(0, 10))


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
