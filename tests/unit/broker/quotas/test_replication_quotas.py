import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota, throttled_replicas


def test_without_a_limit_nothing_is_held_back() -> None:
    quota = ReplicationQuota()
    quota.throttle("t", None)
    quota.record(10**12, 0)
    assert not quota.is_exceeded(0)
    assert quota.bytes_per_second(0) == 10**12


def test_a_rate_above_the_limit_holds_back_until_it_is_down() -> None:
    quota = ReplicationQuota()
    quota.limit = 1_000
    quota.record(1_000, 0)
    assert not quota.is_exceeded(0)
    quota.record(1, 0)
    assert quota.is_exceeded(0)
    assert not quota.is_exceeded(1_001)


def test_a_throttle_grants_no_burst_when_copying_begins() -> None:
    """A throttle that did would not hold a small partition back at all."""
    quota = ReplicationQuota(window_count=11, window_ms=1000)
    quota.limit = 1_000
    quota.record(5_000, 0)
    assert quota.is_exceeded(4_999)
    assert not quota.is_exceeded(5_000)
    quota.record(1_000, 5_000)
    assert quota.is_exceeded(5_999)
    assert not quota.is_exceeded(6_000)
    # The first sample has left the windows, the second counts for one window at least.
    assert quota.bytes_per_second(11_000) == pytest.approx(1_000 / 6)
    assert quota.bytes_per_second(16_000) == 0


def test_only_some_partitions_are_throttled() -> None:
    quota = ReplicationQuota()
    quota.throttle("some", [1, 2])
    quota.throttle("all", None)
    assert quota.is_throttled("some", 1)
    assert not quota.is_throttled("some", 3)
    assert quota.is_throttled("all", 3)
    assert not quota.is_throttled("other", 1)
    quota.throttle("some", [3])
    assert not quota.is_throttled("some", 1)
    quota.release("some")
    quota.release("some")
    assert not quota.is_throttled("some", 3)


@pytest.mark.parametrize(
    ("value", "partitions"),
    [
        ("*", None),
        ("", set()),
        ("0:1,1:2,7:1", {0, 7}),
        (" 3:1 , 4:10", {3}),
        ("0:11,1:01,2:1", {1, 2}),
    ],
)
def test_throttled_replicas(value: str, partitions: set[int] | None) -> None:
    assert throttled_replicas(value, 1) == partitions
