from __future__ import annotations

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.quotas.replication_quotas import UNLIMITED, ReplicationQuota
from ottla.broker.replication.throttles import ReplicationThrottles

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


def test_rates_are_set_and_removed() -> None:
    config = BrokerConfig()
    throttles = ReplicationThrottles(config, 1)
    disks = ReplicationQuota()
    config.update_dynamic(
        {}, {LEADER_RATE: "100", "replica.alter.log.dirs.io.max.bytes.per.second": "300"}
    )
    throttles.apply_broker(disks)
    assert (throttles.leader.limit, disks.limit) == (100, 300)
    assert throttles.follower.limit == UNLIMITED
    config.update_dynamic({FOLLOWER_RATE: "200"}, {})
    throttles.apply_broker(disks)
    assert (throttles.leader.limit, throttles.follower.limit) == (UNLIMITED, 200)
    assert disks.limit == UNLIMITED


def test_replicas_are_throttled_by_their_topic() -> None:
    throttles = ReplicationThrottles(BrokerConfig(), 1)
    throttles.apply_topic("t", {LEADERS: "0:1,1:2", FOLLOWERS: "*"})
    assert [throttles.leader.is_throttled("t", index) for index in (0, 1)] == [True, False]
    assert throttles.follower.is_throttled("t", 1)
    assert not throttles.leader.is_throttled("u", 0)
    throttles.apply_topic("t", {})
    assert not throttles.leader.is_throttled("t", 0)
    assert not throttles.follower.is_throttled("t", 1)
