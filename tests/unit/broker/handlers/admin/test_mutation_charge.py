"""What requests pay of the quota on partitions made and deleted."""

from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.handlers.admin import mutation_charge
from ottla.broker.handlers.admin.mutation_charge import MutationCharge
from ottla.broker.quotas.client_quotas import MutationQuota
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.request_context import FakeContext

STRICT_SINCE = 6


class Scene:
    """A client that may change one partition a second, ten at once, at a time that stands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000_000
        monkeypatch.setattr(mutation_charge, "_now_ms", lambda: self.now_ms)
        self.quota = MutationQuota(window_count=10, window_ms=1000)
        self.quota.table.set("", "client", 1)

    def request(
        self, version: int, client_id: str = "client"
    ) -> tuple[MutationCharge, FakeContext]:
        context = FakeContext(19, version, client_id)
        return MutationCharge(self.quota, cast(RequestContext, context), STRICT_SINCE), context


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_new_versions_are_refused_once_the_quota_is_used_up(scene: Scene) -> None:
    charge, context = scene.request(STRICT_SINCE)
    charge(14)  # four more than there were: allowed once
    charge.throttle()
    assert context.throttle_time_ms == 0
    charge, context = scene.request(STRICT_SINCE)
    with pytest.raises(KafkaError) as raised:
        charge(1)
    assert raised.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    charge.throttle()
    assert context.throttle_time_ms == 4_000
    scene.now_ms += 4_000  # what was refused was not counted
    charge, context = scene.request(STRICT_SINCE)
    charge(1)


def test_old_versions_are_throttled_afterwards(scene: Scene) -> None:
    charge, context = scene.request(STRICT_SINCE - 1)
    charge(10)
    charge.throttle()
    assert context.throttle_time_ms == 0
    charge, context = scene.request(STRICT_SINCE - 1)
    charge(2)
    charge(1)
    charge.throttle()
    assert context.throttle_time_ms == 3_000


def test_time_that_the_request_took_is_taken_off(scene: Scene) -> None:
    charge, context = scene.request(0)
    charge(13)
    scene.now_ms += 1_000
    charge.throttle()
    assert context.throttle_time_ms == 2_000
    charge, context = scene.request(0)
    charge(0)
    scene.now_ms += 5_000
    charge.throttle()
    assert context.throttle_time_ms == 0


def test_clients_without_a_quota_pay_nothing(scene: Scene) -> None:
    for version in (0, STRICT_SINCE):
        charge, context = scene.request(version, "other")
        charge(1_000_000)
        charge(1_000_000)
        charge.throttle()
        assert context.throttle_time_ms == 0


def test_who_may_change_nothing_is_refused_but_not_silenced(scene: Scene) -> None:
    scene.quota.table.set("", "client", 0)
    charge, context = scene.request(STRICT_SINCE)
    charge(1)
    with pytest.raises(KafkaError):
        charge(1)
    charge.throttle()
    assert context.throttle_time_ms == 0
