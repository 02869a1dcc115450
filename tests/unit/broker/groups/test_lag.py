"""Lag in records and in time."""

import pytest

from ottla.broker.groups.lag import MAX_SAMPLES, LagReader
from ottla.broker.groups.metrics import add_groups
from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.helpers import GROUP, T0, T1, Setup

KEY = (GROUP, "t", "0")


class Logs:
    """A coordinator, and the high watermarks of partitions."""

    def __init__(self) -> None:
        self.setup = Setup()
        self.ends: dict[TopicPartition, int] = {}
        self.clock = self.setup.timer.clock
        self.reader = LagReader(self.setup.coordinator.admin, self.ends.get, self.clock.now_ms)

    def after(self, seconds: int, end: int) -> tuple[float, float]:
        """Time passes, records are written; the lag in records and seconds of partition 0."""
        self.clock.advance(seconds * 1_000)
        self.ends[T0] = end
        lags = run_at_once(self.reader.read())
        return lags.records[KEY], lags.seconds[KEY]


def test_the_lag_in_records_is_what_lies_between() -> None:
    logs = Logs()
    logs.ends = {T0: 17, T1: 20}
    logs.reader = LagReader(logs.setup.coordinator.admin, logs.ends.get, logs.clock.now_ms)
    logs.setup.commit({T0: 10, T1: 25, TopicPartition("elsewhere", 0): 3})
    assert run_at_once(logs.reader.read()).records == {KEY: 7, (GROUP, "t", "1"): 0}


def test_the_lag_in_time_is_the_age_of_the_oldest_unread_record() -> None:
    logs = Logs()
    logs.setup.commit({T0: 100})
    assert logs.after(0, 100) == (0, 0)
    assert logs.after(10, 100) == (0, 0)
    assert logs.after(10, 200) == (100, pytest.approx(10))  # written within these ten seconds
    assert logs.after(30, 200) == (100, pytest.approx(40))
    logs.setup.commit({T0: 150})
    assert logs.after(0, 200) == (50, pytest.approx(35))  # in the middle of them
    logs.setup.commit({T0: 200})
    assert logs.after(5, 200) == (0, 0)


def test_what_was_written_before_the_first_look_counts_from_there() -> None:
    logs = Logs()
    logs.setup.commit({T0: 5})
    assert logs.after(0, 100) == (95, 0)
    assert logs.after(60, 100)[1] == pytest.approx(60)


def test_the_picture_gets_coarser_and_not_bigger() -> None:
    logs = Logs()
    logs.setup.commit({T0: 3_000})
    for number in range(3 * MAX_SAMPLES):
        logs.after(10, (number + 1) * 10)
    assert len(logs.reader._ends[T0].offsets) <= MAX_SAMPLES
    records, seconds = logs.after(0, 3 * MAX_SAMPLES * 10)
    assert records == 3 * MAX_SAMPLES * 10 - 3_000
    assert seconds == pytest.approx(records, rel=0.05)  # one record a second


def test_samples_of_partitions_without_commits_are_dropped() -> None:
    logs = Logs()
    logs.setup.commit({T0: 1})
    logs.after(0, 5)
    logs.setup.coordinator.admin.on_partitions_deleted([T0])
    run_at_once(logs.reader.read())
    assert not logs.reader._ends


def test_metrics() -> None:
    logs = Logs()
    logs.ends[T0] = 9
    (member,) = logs.setup.stable_group()
    logs.setup.commit({T0: 4}, member, 1)
    logs.setup.commit({T1: 4}, group_id="simple")
    registry = MetricsRegistry()
    add_groups(registry, logs.setup.coordinator, logs.ends.get, logs.clock.now_ms)
    for preparation in registry.preparations:
        run_at_once(preparation())
    readings = {metric.name: metric.read() for metric in registry.metrics}
    assert readings == {
        "ottla_groups": {
            ("Empty",): 1,
            ("PreparingRebalance",): 0,
            ("CompletingRebalance",): 0,
            ("Stable",): 1,
            ("Dead",): 0,
        },
        "ottla_group_members": 1,
        "ottla_group_rebalances": 1,
        "ottla_group_lag_records": {KEY: 5},
        "ottla_group_lag_seconds": {KEY: 0},
    }
