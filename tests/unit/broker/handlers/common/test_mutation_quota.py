"""Partitions created and deleted count against the controller mutation quota."""

from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.handlers.common import mutation_quota
from ottla.broker.handlers.common.mutation_quota import RequestMutationQuota
from ottla.broker.quotas.client_quotas import MutationQuota
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.request_context import FakeContext

STRICT_SINCE = 6


class Scene:
    """A client that may change one partition a second, ten at once, at a time that stands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000_000
        monkeypatch.setattr(mutation_quota, "_now_ms", lambda: self.now_ms)
        self.quota = MutationQuota(window_count=10, window_ms=1000)
        self.quota.table.set("", "client", 1)

    def request(
        self, version: int, client_id: str = "client"
    ) -> tuple[RequestMutationQuota, FakeContext]:
        context = FakeContext(19, version, client_id)
        return RequestMutationQuota(
            self.quota, cast(RequestContext, context), STRICT_SINCE
        ), context


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_new_versions_fail_once_the_quota_is_exhausted(scene: Scene) -> None:
    mutations, context = scene.request(STRICT_SINCE)
    mutations.record(14)  # four more than there were: allowed once
    mutations.throttle()
    assert context.throttle_time_ms == 0
    mutations, context = scene.request(STRICT_SINCE)
    with pytest.raises(KafkaError) as raised:
        mutations.record(1)
    assert raised.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    mutations.throttle()
    assert context.throttle_time_ms == 4_000
    scene.now_ms += 4_000  # what was refused was not counted
    mutations, context = scene.request(STRICT_SINCE)
    mutations.record(1)


def test_old_versions_are_throttled_afterwards(scene: Scene) -> None:
    mutations, context = scene.request(STRICT_SINCE - 1)
    mutations.record(10)
    mutations.throttle()
    assert context.throttle_time_ms == 0
    mutations, context = scene.request(STRICT_SINCE - 1)
    mutations.record(2)
    mutations.record(1)
    mutations.throttle()
    assert context.throttle_time_ms == 3_000


def test_the_duration_of_the_request_reduces_the_throttle_time(scene: Scene) -> None:
    mutations, context = scene.request(0)
    mutations.record(13)
    scene.now_ms += 1_000
    mutations.throttle()
    assert context.throttle_time_ms == 2_000
    mutations, context = scene.request(0)
    mutations.record(0)
    scene.now_ms += 5_000
    mutations.throttle()
    assert context.throttle_time_ms == 0


def test_clients_without_a_quota_are_not_throttled(scene: Scene) -> None:
    for version in (0, STRICT_SINCE):
        mutations, context = scene.request(version, "other")
        mutations.record(1_000_000)
        mutations.record(1_000_000)
        mutations.throttle()
        assert context.throttle_time_ms == 0


def test_a_quota_of_zero_fails_requests_and_does_not_throttle(scene: Scene) -> None:
    scene.quota.table.set("", "client", 0)
    mutations, context = scene.request(STRICT_SINCE)
    mutations.record(1)
    with pytest.raises(KafkaError):
        mutations.record(1)
    mutations.throttle()
    assert context.throttle_time_ms == 0
