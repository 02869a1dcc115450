"""A streaming query's position over a cluster of plain numbers, with a clock set by hand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange, StreamOffset, decode, encode
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read.stream import (
    COMMIT_PAUSE_SECONDS,
    UNKNOWN_OFFSET_BYTES,
    Limit,
    StreamTracker,
)
from tests.doubles.spark_cluster import FakeCluster

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)
EVERYTHING = Limit()


def options(**given: str) -> SourceOptions:
    named = {name.replace("_", "."): value for name, value in given.items()}
    base = {"kafka.bootstrap.servers": "b:1", "fetchOffset.retryIntervalMs": "0"}
    if not any(name.startswith(("subscribe", "assign")) for name in given):
        base["subscribe"] = "t"
    return parse_source_options(base | named)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def tracker(cluster: FakeCluster, clock: Clock | None = None, **given: str) -> StreamTracker:
    return StreamTracker(cluster, options(**given), clock or Clock())


def through_the_journal(offset: StreamOffset) -> StreamOffset:
    """As Spark keeps it: JSON on disk."""
    return decode(json.loads(json.dumps(encode(offset))))


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster({A: 100, B: 50})


def test_the_start_does_not_move_within_a_run(cluster: FakeCluster) -> None:
    run = tracker(cluster)
    first = run.initial()
    cluster.latest[A] = 300
    assert run.initial() == first == StreamOffset({A: 100, B: 50}, fresh=True)


def test_a_recovered_first_batch_keeps_its_start(cluster: FakeCluster) -> None:
    run = tracker(cluster)
    start = run.initial()
    cluster.latest[A] = 150
    end = through_the_journal(run.next_end(start, EVERYTHING))
    assert run.ranges(start, end) == [OffsetRange(A, 100, 150)]
    cluster.latest[A] = 400
    again = tracker(cluster)
    assert again.ranges(again.initial(), end) == [OffsetRange(A, 100, 150)]


def test_an_empty_first_batch_recovers_as_empty(cluster: FakeCluster) -> None:
    run = tracker(cluster)
    end = through_the_journal(run.next_end(run.initial(), EVERYTHING))
    assert encode(end) == {"t": {"0": 100, "1": 50}}, "nothing but what the JVM source writes"
    cluster.latest[A] = 400
    again = tracker(cluster)
    assert again.ranges(again.initial(), end) == []
    second = again.next_end(end, EVERYTHING)
    assert again.ranges(end, second) == [OffsetRange(A, 100, 400)]


def test_a_first_batch_of_the_jvm_source_recovers_from_earliest(cluster: FakeCluster) -> None:
    run = tracker(cluster, startingOffsets="earliest")
    assert run.ranges(run.initial(), StreamOffset({A: 60, B: 50})) == [
        OffsetRange(A, 0, 60),
        OffsetRange(B, 0, 50),
    ]


def test_nothing_new_is_the_same_offset(cluster: FakeCluster) -> None:
    run = tracker(cluster)
    here = StreamOffset({A: 100, B: 50}, topic_ids={"t": "x"})
    assert run.next_end(here, EVERYTHING) == here


def test_limits_in_offsets_and_bytes(cluster: FakeCluster) -> None:
    run = tracker(cluster, startingOffsets="earliest")
    start = run.initial()
    assert run.next_end(start, Limit(offsets=15)).offsets == {A: 10, B: 5}
    cluster.record_bytes = {A: 100.0, B: 400.0}
    # 100 records of 100 bytes and 50 of 400 wait: 200 bytes each.
    assert run.next_end(start, Limit(bytes=6000)).offsets == {A: 20, B: 10}
    assert run.next_end(start, Limit(offsets=15, bytes=6000)).offsets == {A: 10, B: 5}
    assert run.next_end(start, Limit(offsets=15, everything=True)).offsets == {A: 100, B: 50}
    assert run.latest() == {A: 100, B: 50}


def test_a_limit_in_bytes_holds_if_no_record_can_be_read_just_now(cluster: FakeCluster) -> None:
    """As while leaders move, or while a read of tiered storage takes long."""
    cluster.latest = {A: 10_000_000, B: 5_000_000}
    run = tracker(cluster, startingOffsets="earliest")
    end = run.next_end(run.initial(), Limit(bytes=UNKNOWN_OFFSET_BYTES * 300))
    assert end.offsets == {A: 200, B: 100}


def test_a_limit_in_bytes_holds_if_retention_deleted_the_records_at_the_position(
    cluster: FakeCluster,
) -> None:
    cluster.earliest, cluster.record_bytes = {A: 10, B: 0}, {A: 100.0}
    run = tracker(cluster)
    end = run.next_end(StreamOffset({A: 0, B: 50}), Limit(bytes=3000))
    assert end.offsets == {A: 30, B: 50}


def test_a_limit_in_bytes_holds_where_records_grow(cluster: FakeCluster) -> None:
    """Ten bytes each up to offset 50, then a hundred times as many."""

    def size(tp: TopicPartition, offset: int) -> float:
        return 10.0 if tp == B or offset < 50 else 1000.0

    cluster.bytes_per_offset = size  # type: ignore[method-assign]
    end = tracker(cluster).next_end(StreamOffset({A: 0, B: 50}), Limit(bytes=2000))
    read = sum(size(A, offset) for offset in range(end.offsets[A]))
    assert 500 <= read <= 2000
    # Where they do not grow, nothing changes.
    end = tracker(cluster).next_end(StreamOffset({A: 60, B: 50}), Limit(bytes=20_000))
    assert end.offsets == {A: 80, B: 50}


def test_few_records_wait_until_the_delay_is_over(cluster: FakeCluster) -> None:
    clock = Clock()
    run = tracker(cluster, clock, minOffsetsPerTrigger="20", maxTriggerDelay="10s")
    start = run.initial()
    cluster.latest[A] = 101
    first = run.next_end(start, EVERYTHING)
    assert first.offsets[A] == 101, "the first batch is not held back"
    cluster.latest[A] = 110
    clock.now += 9
    assert run.next_end(first, EVERYTHING) == first
    clock.now += 1
    second = run.next_end(first, EVERYTHING)
    assert second.offsets[A] == 110
    cluster.latest[A] = 130
    assert run.next_end(second, EVERYTHING).offsets[A] == 130, "enough of them"


def test_new_partitions_begin_at_their_beginning(cluster: FakeCluster) -> None:
    run = tracker(cluster)
    start = StreamOffset({A: 100, B: 50})
    cluster.grow("t", 2, 7)
    end = run.next_end(start, EVERYTHING)
    assert end.offsets == {A: 100, B: 50, C: 7}
    assert run.ranges(start, end) == [OffsetRange(C, 0, 7)]


def test_a_new_partition_that_lost_its_beginning_is_a_loss(cluster: FakeCluster) -> None:
    cluster.grow("t", 2, 7, begin=3)
    start, end = StreamOffset({A: 100, B: 50}), StreamOffset({A: 100, B: 50, C: 7})
    with pytest.raises(ConnectorError, match="new partition t-2 begins at offset 3, not at 0"):
        tracker(cluster).ranges(start, end)
    lenient = tracker(cluster, failOnDataLoss="false")
    assert lenient.ranges(start, end) == [OffsetRange(C, 3, 7)]


def test_a_vanished_partition_is_reported_before_it_is_in_the_journal(
    cluster: FakeCluster,
) -> None:
    cluster.grow("other", 0, 5)
    given = {"subscribePattern": ".*", "failOnDataLoss": "false"}
    run = tracker(cluster, **given)
    start = StreamOffset({A: 90, B: 50, TopicPartition("other", 0): 2})
    cluster.drop("t")
    end = run.next_end(start, EVERYTHING)
    assert end.offsets == {TopicPartition("other", 0): 5}
    assert run.ranges(start, end) == [OffsetRange(TopicPartition("other", 0), 2, 5)]
    strict = given | {"failOnDataLoss": "true"}
    for planned in (end, start):
        with pytest.raises(ConnectorError, match="not there any more: t-0, t-1; read were t-0 up"):
            tracker(cluster, **strict).ranges(start, planned)
    with pytest.raises(ConnectorError, match="not there any more: t-0, t-1; read were t-0 up"):
        tracker(cluster, **strict).next_end(start, EVERYTHING)


def test_a_vanished_partition_is_forgotten_after_its_loss_was_reported(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A query over short-lived topics would have all of them in each offset, and could never run
    with failOnDataLoss again."""
    other = TopicPartition("other", 0)
    cluster.grow("other", 0, 5)
    cluster.ids = {"t": "x", "other": "y"}
    run = tracker(cluster, subscribePattern=".*", failOnDataLoss="false")
    end = run.next_end(StreamOffset({A: 90, B: 50, other: 2}, topic_ids=cluster.ids), EVERYTHING)
    cluster.drop("t")
    del cluster.ids["t"]
    run.ranges(end, end)
    # A batch for this alone, so that one lax run is enough.
    cleared = run.next_end(end, EVERYTHING)
    assert cleared == StreamOffset({other: 5}, topic_ids={"other": "y"})
    assert run.ranges(end, cleared) == []
    assert run.next_end(cleared, EVERYTHING) == cleared
    cluster.latest[other] = 9
    later = run.next_end(cleared, EVERYTHING)
    assert run.ranges(cleared, later) == [OffsetRange(other, 5, 9, "y")]
    assert caplog.text.count("not there any more") == 1
    cluster.latest[other] = 12
    strict = tracker(cluster, subscribePattern=".*")
    last = strict.next_end(later, EVERYTHING)
    assert strict.ranges(later, last) == [OffsetRange(other, 9, 12, "y")]
    cluster.grow("t", 0, 3)
    cluster.ids["t"] = "z"
    new = strict.next_end(last, EVERYTHING)
    assert strict.ranges(last, new) == [OffsetRange(A, 0, 3, "z")]


def test_a_partition_that_vanishes_twice_is_reported_twice(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracker(cluster, failOnDataLoss="false")
    here = StreamOffset({A: 100, B: 50})
    for _ in range(2):
        cluster.latest.pop(B)
        run.ranges(here, here)
        cluster.latest[B] = 50
        assert run.next_end(here, EVERYTHING) == here
        run.ranges(here, here)
    assert caplog.text.count("not there any more: t-1") == 2


def test_a_topic_that_is_missing_for_a_moment_is_not_gone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may know the other brokers before the topics."""
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            cluster.grow("t", 0, 100)
            cluster.grow("t", 1, 50)

    monkeypatch.setattr("pyspark_ottla.read.stream.time.sleep", pause)
    cluster.grow("other", 0, 5)
    start = StreamOffset({A: 90, B: 50, TopicPartition("other", 0): 2})
    cluster.drop("t")
    end = tracker(cluster, subscribe="t,other").next_end(start, EVERYTHING)
    assert end.offsets == {A: 100, B: 50, TopicPartition("other", 0): 5}
    assert len(looks) == 3


def test_a_named_topic_that_vanished_is_a_loss(cluster: FakeCluster) -> None:
    cluster.grow("other", 0, 5)
    start = StreamOffset({A: 90, TopicPartition("other", 0): 2})
    cluster.drop("t")
    with pytest.raises(ConnectorError, match=r"PARTITIONS_DELETED.*t-0; read were t-0 up to"):
        tracker(cluster, subscribe="t,other").next_end(start, EVERYTHING)
    lenient = tracker(cluster, subscribe="t,other", failOnDataLoss="false")
    end = lenient.next_end(start, EVERYTHING)
    assert end.offsets == {TopicPartition("other", 0): 5}


def test_a_named_topic_that_was_never_there_is_named(cluster: FakeCluster) -> None:
    start = StreamOffset({A: 90, B: 50})
    with pytest.raises(ConnectorError, match=r"UNKNOWN_TOPIC.*There is no topic other"):
        tracker(cluster, subscribe="t,other").next_end(start, EVERYTHING)


@pytest.mark.parametrize("way", ["there", "deleted", "created again", "not allowed"])
def test_a_topic_that_is_not_subscribed_to_any_more_leaves(cluster: FakeCluster, way: str) -> None:
    other = TopicPartition("other", 0)
    cluster.grow("other", 0, 5)
    if way == "deleted":
        cluster.drop("other")
    elif way == "created again":
        cluster.latest[other] = 1
    elif way == "not allowed":
        cluster.forbidden.add("other")
    run = tracker(cluster)
    start = StreamOffset({A: 90, B: 50, other: 5})
    end = run.next_end(start, EVERYTHING)
    assert end.offsets == {A: 100, B: 50}
    assert run.ranges(start, end) == [OffsetRange(A, 90, 100)]
    assert tracker(cluster).ranges(start, end) == [OffsetRange(A, 90, 100)]
    assert run.next_end(start._replace(offsets={A: 100, B: 50, other: 5}), EVERYTHING).offsets == {
        A: 100,
        B: 50,
        other: 5,
    }, "no batch for this alone"


def test_the_rest_of_a_topic_that_is_not_subscribed_to_any_more(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its position stays, so that it continues there if it is subscribed to again; a batch that was
    planned before is read."""
    other = TopicPartition("other", 0)
    cluster.grow("other", 0, 9)
    start = StreamOffset({A: 90, B: 50, other: 5})
    end = tracker(cluster).next_end(start, EVERYTHING)
    assert end.offsets == {A: 100, B: 50, other: 5}
    assert (
        "not subscribed to any more are not read; read were other-0 up to offset 5" in caplog.text
    )
    cluster.forbidden.add("other")
    assert tracker(cluster).ranges(start, end) == [OffsetRange(A, 90, 100)]
    cluster.forbidden.clear()
    planned = StreamOffset({A: 100, B: 50, other: 7})
    assert OffsetRange(other, 5, 7) in tracker(cluster).ranges(start, planned)
    lax = tracker(cluster, failOnDataLoss="false")
    assert lax.next_end(start, EVERYTHING).offsets == {A: 100, B: 50}


def test_an_end_that_went_back_is_a_loss(cluster: FakeCluster) -> None:
    start = StreamOffset({A: 200, B: 50})
    run = tracker(cluster, failOnDataLoss="false")
    end = run.next_end(start, EVERYTHING)
    assert end.offsets == {A: 100, B: 50}
    assert run.ranges(start, end) == []
    with pytest.raises(ConnectorError, match="The end of t-0 went back from offset 200 to 100"):
        tracker(cluster).ranges(start, end)


def test_an_end_that_lags_is_in_no_journal(cluster: FakeCluster) -> None:
    """Spark would plan the batch again at each restart, although the end is where it was."""
    start = StreamOffset({A: 100, B: 50})
    cluster.latest[A] = 80
    with pytest.raises(ConnectorError, match="The end of t-0 went back from offset 100 to 80"):
        tracker(cluster).next_end(start, Limit(offsets=5))
    cluster.latest[A] = 110
    run = tracker(cluster)
    end = run.next_end(start, EVERYTHING)
    assert run.ranges(start, end) == [OffsetRange(A, 100, 110)]


def test_a_log_start_behind_the_position_is_a_loss(cluster: FakeCluster) -> None:
    cluster.earliest[A] = 60
    start, end = StreamOffset({A: 50, B: 50}), StreamOffset({A: 100, B: 50})
    with pytest.raises(ConnectorError, match="begins at 60 now: 10 offsets are gone"):
        tracker(cluster).ranges(start, end)
    assert tracker(cluster, failOnDataLoss="warn").ranges(start, end) == [OffsetRange(A, 60, 100)]


def test_a_log_start_behind_an_empty_range_is_none(cluster: FakeCluster) -> None:
    """Everything was read before retention took it away."""
    cluster.earliest[B] = 50
    start = StreamOffset({A: 90, B: 50})
    assert tracker(cluster).ranges(start, StreamOffset({A: 100, B: 50})) == [
        OffsetRange(A, 90, 100)
    ]


def test_a_topic_created_again_is_read_from_its_beginning(cluster: FakeCluster) -> None:
    cluster.ids = {"t": "new"}
    start = StreamOffset({A: 20, B: 10}, topic_ids={"t": "old"})
    run = tracker(cluster, failOnDataLoss="false")
    end = run.next_end(start, EVERYTHING)
    assert end.topic_ids == {"t": "new"}
    assert run.ranges(start, end) == [OffsetRange(A, 0, 100, "new"), OffsetRange(B, 0, 50, "new")]
    with pytest.raises(ConnectorError, match=r"TOPIC_RECREATED.*id old, now new.*offset 20 of t-0"):
        tracker(cluster).ranges(start, end)
    ignorant = tracker(cluster, trackTopicIds="false")
    end = ignorant.next_end(start, EVERYTHING)
    assert end.topic_ids is None
    assert ignorant.ranges(start, end) == [OffsetRange(A, 20, 100), OffsetRange(B, 10, 50)]


def test_a_topic_created_again_with_as_many_records(cluster: FakeCluster) -> None:
    cluster.ids = {"t": "new"}
    start = StreamOffset({A: 100, B: 50}, topic_ids={"t": "old"})
    strict = tracker(cluster)
    end = strict.next_end(start, EVERYTHING)
    with pytest.raises(ConnectorError, match="TOPIC_RECREATED"):
        strict.ranges(start, end)
    run = tracker(cluster, failOnDataLoss="false")
    end = run.next_end(start, Limit(offsets=15))
    assert end == StreamOffset({A: 10, B: 5}, topic_ids={"t": "new"})
    assert run.ranges(start, end) == [OffsetRange(A, 0, 10, "new"), OffsetRange(B, 0, 5, "new")]


@pytest.mark.parametrize("mode", ["continuous", "available now"])
def test_a_partition_that_a_topic_created_again_gets_later(cluster: FakeCluster, mode: str) -> None:
    cluster.latest, cluster.ids = {A: 10}, {"t": "new"}
    start = StreamOffset({A: 20, B: 40}, topic_ids={"t": "old"})
    run = tracker(cluster, failOnDataLoss="false")
    if mode == "available now":
        run.freeze()
    end = run.next_end(start, EVERYTHING)
    assert run.ranges(start, end) == [OffsetRange(A, 0, 10, "new")]
    assert end == StreamOffset({A: 10}, topic_ids={"t": "new"}), "B is of the old topic"
    cluster.latest[B] = 60
    run = tracker(cluster, failOnDataLoss="false")
    later = run.next_end(through_the_journal(end), EVERYTHING)
    assert run.ranges(end, later) == [OffsetRange(B, 0, 60, "new")]
    del cluster.latest[B]
    with pytest.raises(ConnectorError, match=r"Partitions are not there any more.*t-1"):
        tracker(cluster).ranges(start, end)


def test_a_topic_created_again_under_available_now(cluster: FakeCluster) -> None:
    cluster.ids = {"t": "old"}
    run = tracker(cluster, startingOffsets="earliest", failOnDataLoss="false")
    run.freeze()
    first = run.next_end(run.initial(), Limit(offsets=15))
    cluster.ids, cluster.latest = {"t": "new"}, {A: 3, B: 2}
    end = run.next_end(first, EVERYTHING)
    assert end == StreamOffset({A: 3, B: 2}, topic_ids={"t": "new"})
    assert run.ranges(first, end) == [OffsetRange(A, 0, 3, "new"), OffsetRange(B, 0, 2, "new")]
    assert run.next_end(end, EVERYTHING) == end


def test_a_repeated_batch_of_a_topic_created_again(cluster: FakeCluster) -> None:
    """The journal has the batch; its records are gone, and those of the new topic are not its."""
    cluster.ids = {"t": "new"}
    old = {"t": "old"}
    start = StreamOffset({A: 20, B: 10}, topic_ids=old)
    end = StreamOffset({A: 30, B: 10}, topic_ids=old)
    with pytest.raises(ConnectorError, match=r"TOPIC_RECREATED\] Offsets 20 to 30 of t-0"):
        tracker(cluster).ranges(start, end)
    run = tracker(cluster, failOnDataLoss="false")
    assert run.ranges(start, end) == []
    following = run.next_end(end, EVERYTHING)
    assert run.ranges(end, following) == [
        OffsetRange(A, 0, 100, "new"),
        OffsetRange(B, 0, 50, "new"),
    ]


def test_an_id_that_a_broker_does_not_return_is_kept(cluster: FakeCluster) -> None:
    start = StreamOffset({A: 20, B: 10}, topic_ids={"t": "old"})
    assert tracker(cluster).next_end(start, EVERYTHING).topic_ids == {"t": "old"}


def test_available_now_ends_at_what_was_there(cluster: FakeCluster) -> None:
    run = tracker(cluster, startingOffsets="earliest", minOffsetsPerTrigger="1000")
    run.freeze()
    first = run.next_end(run.initial(), Limit(offsets=90))
    assert first.offsets == {A: 60, B: 30}
    cluster.latest[A] = 500
    cluster.grow("t", 2, 9)
    last = run.next_end(first, EVERYTHING)
    assert last.offsets == {A: 100, B: 50}
    assert run.next_end(last, EVERYTHING) == last


def test_available_now_notices_an_end_that_went_back(cluster: FakeCluster) -> None:
    run = tracker(cluster)
    run.freeze()
    ahead = StreamOffset({A: 120, B: 50})
    with pytest.raises(ConnectorError, match=r"PARTITION_OFFSET_CHANGED.*t-0.*from offset 120"):
        run.next_end(ahead, EVERYTHING)
    run = tracker(cluster, failOnDataLoss="false")
    run.freeze()
    end = run.next_end(ahead, EVERYTHING)
    assert run.ranges(ahead, end) == []
    assert run.next_end(end, EVERYTHING) == end


def test_available_now_notices_a_topic_that_went_away(cluster: FakeCluster) -> None:
    chosen = {"subscribe": "t,u"}
    cluster.grow("u", 0, 5)
    position = tracker(cluster, **chosen).initial()._replace(fresh=False)
    cluster.drop("t")
    for action in ("true", "false"):
        run = tracker(cluster, failOnDataLoss=action, **chosen)
        run.freeze()
        if action == "true":
            with pytest.raises(ConnectorError, match="PARTITIONS_DELETED"):
                run.next_end(position, EVERYTHING)
        else:
            end = run.next_end(position, EVERYTHING)
            assert end.offsets == {TopicPartition("u", 0): 5}


def test_the_group_gets_what_is_done(cluster: FakeCluster) -> None:
    run = tracker(cluster, commitOffsets="true", kafka_group_id="g", startingOffsets="earliest")
    start = run.initial()
    end = run.next_end(start, EVERYTHING)
    assert "commit" not in cluster.questions, "nothing is done yet"
    run.next_end(end, EVERYTHING)
    assert cluster.groups["g"] == {A: 100, B: 50}
    run.next_end(end, EVERYTHING)
    run.finished(end)
    assert cluster.questions.count("commit") == 1, "the same again is not worth a request"


def test_a_failed_commit_is_left_alone_for_a_while(cluster: FakeCluster) -> None:
    clock = Clock()
    cluster.commit_failures = 1
    run = tracker(cluster, clock, commitOffsets="true", kafka_group_id="g")
    run.finished(StreamOffset({A: 1}))
    run.finished(StreamOffset({A: 2}))
    assert cluster.questions.count("commit") == 1
    clock.now += COMMIT_PAUSE_SECONDS
    run.finished(StreamOffset({A: 3}))
    assert cluster.groups["g"] == {A: 3}


def test_a_start_from_the_group_is_made_certain(cluster: FakeCluster) -> None:
    """A query that dies before its first journal entry starts at the same place again."""
    given: dict[str, Any] = {"startingOffsets": "committed:latest", "commitOffsets": "true"}
    first = tracker(cluster, kafka_group_id="g", **given).initial()
    cluster.latest[A] = 900
    assert tracker(cluster, kafka_group_id="g", **given).initial() == first


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=12),
    st.integers(1, 40),
)
def test_whatever_happens_every_offset_is_planned_once(
    steps: list[tuple[int, int, bool]], limit: int
) -> None:
    """Growth, limits, new partitions and crashes in any order."""
    cluster = FakeCluster({A: 0})
    run = tracker(cluster, startingOffsets="earliest")
    planned: list[OffsetRange] = []
    position = run.initial()
    start = position
    for more_a, more_b, crash in [*steps, (0, 0, False), (0, 0, False)]:
        cluster.latest[A] += more_a
        if more_b:
            cluster.grow("t", 1, cluster.latest.get(B, 0) + more_b)
        end = through_the_journal(run.next_end(start, Limit(offsets=limit)))
        if crash:
            run = tracker(cluster, startingOffsets="earliest")
            start = run.initial() if start.fresh else start
        planned += run.ranges(start, end)
        start = end
    final = through_the_journal(run.next_end(start, EVERYTHING))
    planned += run.ranges(start, final)
    for tp, latest in cluster.latest.items():
        position_now = 0
        for piece in (piece for piece in planned if piece.partition == tp):
            assert piece.start == position_now
            position_now = piece.end
        assert position_now == latest
