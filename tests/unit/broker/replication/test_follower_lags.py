from __future__ import annotations

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.replication.follower_lags import FollowerLags
from ottla.protocol.topics import TopicPartition

KEY, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)


def test_a_partition_lags_until_a_response_says_more() -> None:
    lags = FollowerLags(None)
    lags.add(KEY)
    lags.add(OTHER)
    assert (set(lags.lagging), lags.largest) == ({KEY, OTHER}, 0)
    lags.record(KEY, 0, 7)
    lags.record(OTHER, 0, 0)
    assert (set(lags.lagging), lags.largest) == ({KEY}, 7)
    lags.remove(KEY)
    assert (lags.lagging, lags.largest) == ({}, 0)
    assert not lags.is_held_back(KEY)


async def test_records_of_throttled_partitions_count() -> None:
    quota = ReplicationQuota()
    quota.throttle(KEY.topic, None)
    quota.limit = 1_000
    lags = FollowerLags(quota)
    lags.record(OTHER, 1 << 20, 1)
    assert not lags.is_held_back(KEY)
    lags.record(KEY, 1 << 20, 1)
    assert lags.is_held_back(KEY)
    assert not lags.is_held_back(OTHER)
