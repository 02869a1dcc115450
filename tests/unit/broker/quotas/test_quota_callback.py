"""Quotas that a class of the installation computes: what it is asked, and what it decides."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.quotas import quota_callback
from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.broker.quotas.quota_callback import CallbackTable, QuotaCallback
from ottla.broker.server.quota_limits import build_quotas, cluster_watcher
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.quotas import ClusterMetadata, QuotaEntity
from tests.doubles.published_metadata import publish

SETTING = "client.quota.callback.class"


class ByTeam:
    """A quota of a team, whose users have names such as `team-alice`; `asked` counts limits."""

    made: ClassVar[list[ByTeam]] = []

    def __init__(self) -> None:
        self.limits: dict[tuple[str, str], float] = {}
        self.asked = 0
        self.is_changed = False
        self.share = 1.0
        self.settings: Mapping[str, str] = {}
        self.is_closed = False
        ByTeam.made.append(self)

    def configure(self, settings: Mapping[str, str]) -> None:
        self.settings = settings

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        self.settings = settings

    def quota_metric_tags(self, kind: str, user: str, client_id: str) -> dict[str, str]:
        return {"team": user.partition("-")[0]}

    def quota_limit(self, kind: str, tags: Mapping[str, str]) -> float | None:
        self.asked += 1
        limit = self.limits.get((kind, tags["team"]))
        return None if limit is None else limit * self.share

    def update_quota(self, kind: str, entity: QuotaEntity, limit: float) -> None:
        assert entity.user is not None
        self.limits[kind, entity.user] = limit

    def remove_quota(self, kind: str, entity: QuotaEntity) -> None:
        assert entity.user is not None
        self.limits.pop((kind, entity.user), None)

    def quota_reset_required(self, kind: str) -> bool:
        was, self.is_changed = self.is_changed, False
        return was

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        leaders = [id for topic in cluster.leaders for id in cluster.leaders[topic].values()]
        before, self.share = self.share, leaders.count(cluster.broker_id) / len(leaders)
        return self.share != before

    def close(self) -> None:
        self.is_closed = True


class Failing(ByTeam):
    def quota_metric_tags(self, kind: str, user: str, client_id: str) -> dict[str, str]:
        if user == "unknown":
            raise OSError("no reply")
        return super().quota_metric_tags(kind, user, client_id)

    def quota_limit(self, kind: str, tags: Mapping[str, str]) -> float | None:
        return float(tags["team"])


class Incomplete:
    def quota_limit(self, kind: str, tags: Mapping[str, str]) -> None: ...


def named(cls: type) -> str:
    return f"{__name__}.{cls.__name__}"


def quotas_of(own: object) -> ClientQuotas:
    callback = QuotaCallback(own)
    return ClientQuotas(new_table=lambda kind: CallbackTable(callback, kind))


def test_users_with_the_same_tags_share_a_quota() -> None:
    quotas = quotas_of(ByTeam())
    quotas.apply("users/a", {"producer_byte_rate": "1000"})
    assert quotas.produce.record("a-1", "app", 10_000, 0) == 0
    assert quotas.produce.record("a-2", "other", 10_000, 0) > 0
    assert quotas.produce.record("b-1", "app", 1e9, 0) == 0
    assert quotas.fetch.record("a-1", "app", 1e9, 0) == 0
    assert quotas.produce.rates(0) == {("team", "a"): 2_000}


def test_changes_of_topics_have_a_quota_of_the_class() -> None:
    quotas = quotas_of(ByTeam())
    quotas.apply("users/a", {"controller_mutation_rate": "1"})
    assert quotas.mutation.record("a-1", "", 20, 0) > 0
    assert quotas.mutation.check("a-2", "", 0) > 0
    assert quotas.mutation.check("b-1", "", 0) == 0


def test_a_quota_that_is_removed_counts_no_more() -> None:
    quotas = quotas_of(ByTeam())
    quotas.apply("users/a", {"producer_byte_rate": "1"})
    assert quotas.produce.record("a-1", "", 1000, 0) > 0
    quotas.apply("users/a", {})
    assert quotas.produce.record("a-1", "", 1000, 0) == 0


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("users/<default>", QuotaEntity("<default>", None)),
        ("clients/app", QuotaEntity(None, "app")),
        ("users/a%40b/clients/<default>", QuotaEntity("a@b", "<default>")),
    ],
)
def test_the_class_gets_whom_a_quota_was_set_for(path: str, entity: QuotaEntity) -> None:
    seen = []

    class Own(ByTeam):
        def update_quota(self, kind: str, entity: QuotaEntity, limit: float) -> None:
            seen.append((kind, entity, limit))

        def remove_quota(self, kind: str, entity: QuotaEntity) -> None:
            pass

    quotas_of(Own()).apply(path, {"request_percentage": "50"})
    assert seen == [("REQUEST", entity, 50.0)]


def test_a_limit_is_requested_once_until_it_may_have_changed() -> None:
    own = ByTeam()
    quotas = quotas_of(own)
    quotas.apply("users/a", {"producer_byte_rate": "1000"})
    for _ in range(5):
        quotas.produce.record("a-1", "", 1, 0)
    assert own.asked == 1
    own.is_changed = True
    for _ in range(5):
        quotas.produce.record("a-1", "", 1, 0)
    assert own.asked == 2
    quotas.limits_changed()
    quotas.produce.record("a-1", "", 1, 0)
    assert own.asked == 3


def test_the_bound_of_a_fetch_has_the_limit_of_now() -> None:
    own = ByTeam()
    quotas = quotas_of(own)
    quotas.apply("users/a", {"consumer_byte_rate": "100"})
    assert quotas.fetch.max_at_once("a-1", "") == 1000
    own.share = 0.5
    assert quotas.fetch.max_at_once("a-1", "") == 500
    assert quotas.fetch.max_at_once("b-1", "") == float("inf")


def test_limits_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_callback, "MAX_REMEMBERED", 3)
    quotas = quotas_of(ByTeam())
    table = quotas.produce.table
    assert isinstance(table, CallbackTable)
    for number in range(10):
        table.find(f"{number}-x", "")
        assert len(table._by_tags) <= 3


def test_a_method_that_fails_limits_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quotas = quotas_of(Failing())
    with caplog.at_level(logging.ERROR):
        for user in ("unknown", "unknown", "0-x", "-1-x", "nan-x", "inf-x", "no number-x"):
            assert quotas.produce.record(user, "", 1e12, 0) == 0
    failed = "of client.quota.callback.class failed"
    assert caplog.messages == [f"quota_metric_tags {failed}", f"quota_limit {failed}"]
    assert quotas.produce.record("10-x", "", 1e12, 0) > 0


def test_the_class_follows_the_cluster_and_the_settings() -> None:
    parts = build_quotas(BrokerConfig({SETTING: named(ByTeam), "broker.id": "7"}))
    own = ByTeam.made[-1]
    assert own.settings["broker.id"] == "7"
    parts.clients.apply("users/a", {"consumer_byte_rate": "100"})
    assert parts.clients.fetch.table.find("a-1", "") == (100, ("team", "a"))
    metadata = MetadataCache()
    watcher = cluster_watcher(parts, metadata, 7)
    assert watcher is not None
    states = [
        UpdateMetadataPartitionState(partition_index=index, leader=leader)
        for index, leader in enumerate((7, 8, 8, -1))
    ]
    topic = UpdateMetadataTopicState("t", bytes(16), states)
    publish(metadata, UpdateMetadataRequest(topic_states=[topic]))
    watcher()
    assert parts.clients.fetch.table.find("a-1", "") == (25, ("team", "a"))
    asked = own.asked
    watcher()  # the same share
    assert parts.clients.fetch.table.find("a-1", "") == (25, ("team", "a"))
    assert own.asked == asked
    parts.settings_changed(BrokerConfig({SETTING: named(ByTeam), "broker.id": "8"}))
    assert own.settings["broker.id"] == "8"
    parts.stop()
    assert own.is_closed


def test_without_a_class_nothing_is_watched() -> None:
    parts = build_quotas(BrokerConfig())
    assert parts.callback is None
    assert cluster_watcher(parts, MetadataCache(), 1) is None
    assert not parts.clients.produce.table.has_limits


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("com.acme.Quotas", "no Python class that can be imported here .*Java classes cannot be"),
        (named(Incomplete), r"no class with a method quota_metric_tags \(ottla.quotas\)"),
        (f"{__name__}.SETTING", "no class with a method quota_metric_tags"),
    ],
)
def test_a_class_that_cannot_be_used_is_no_setting(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{SETTING}: .*{words}"):
        BrokerConfig({SETTING: name})
