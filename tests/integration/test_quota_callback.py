"""Quotas of a class as an operator installs it: a module of its own, and throttled producers."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from ottla.testing import Broker

SECONDS = 60.0
MODULE = '''
from collections.abc import Mapping

from ottla.quotas import ClusterMetadata, QuotaEntity


class Groups:
    """Clients `slow.x` share a quota, which is a setting."""

    def __init__(self) -> None:
        self.limit: float | None = None
        self.partitions = 0
        self.changed: set[str] = set()

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        self.limit = float(settings["groups.limit"])
        self.changed = {"PRODUCE"}

    def quota_reset_required(self, kind: str) -> bool:
        is_required = kind in self.changed
        self.changed.discard(kind)
        return is_required

    def quota_metric_tags(self, kind: str, user: str, client_id: str) -> dict[str, str]:
        return {"group": client_id.partition(".")[0]}

    def quota_limit(self, kind: str, tags: Mapping[str, str]) -> float | None:
        return self.limit if (kind, tags["group"]) == ("PRODUCE", "slow") else None

    def update_quota(self, kind: str, entity: QuotaEntity, limit: float) -> None:
        pass

    def remove_quota(self, kind: str, entity: QuotaEntity) -> None:
        pass

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        self.partitions = sum(
            leader == cluster.broker_id
            for topic in cluster.leaders
            for leader in cluster.leaders[topic].values()
        )
        return False
'''


def alter(broker: Broker, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    broker_id = str(broker.server.parts.broker_id)
    resource = ConfigResource(ConfigResource.Type.BROKER, broker_id, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def produce(broker: Broker, client_id: str) -> None:
    """100 kB, acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": client_id})
    producer.produce("t", bytes(100_000), partition=0)
    assert producer.flush(SECONDS) == 0


def test_clients_of_a_group_share_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_quotas.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Broker(
        tmp_path / "data", num_partitions=3, client_quota_callback_class="own_quotas.Groups"
    ) as broker:
        parts = broker.server.parts
        broker.server.config.ignored_prefixes = ("groups.",)  # as --ignore-unknown sets it
        quota = parts.quotas.clients.produce
        produce(broker, "slow.0")
        assert quota.throttled_total == 0  # the group has no limit
        callback = parts.quotas.callback
        assert callback is not None
        assert callback._own.partitions == 3
        alter(broker, "groups.limit", "1000000000")
        produce(broker, "slow.1")
        assert quota.throttled_total == 0
        alter(broker, "groups.limit", "1000")
        produce(broker, "slow.2")
        assert quota.throttled_total == 1
        produce(broker, "fast.1")
        assert quota.throttled_total == 1
        assert list(quota.rates(parts.clock.now_ms())) == [("group", "slow")]
