from types import SimpleNamespace

import pytest

from ottla.broker.quotas import client_quotas as quotas_module
from ottla.broker.quotas.client_quotas import (
    DEFAULT,
    ClientQuota,
    ClientQuotas,
    MutationQuota,
    QuotaTable,
)
from ottla.broker.quotas.connection_quotas import UNLIMITED, ConnectionLimits
from ottla.broker.quotas.rate import Rate
from ottla.protocol.messages.fetch import FetchRequest, ReplicaState
from ottla.protocol.messages.metadata import MetadataRequest

# Kafka's order of precedence: who a quota is set for, and for whom it counts alice's client "app".
LEVELS = [
    (("alice", "app"), ("alice", "app")),
    (("alice", DEFAULT), ("alice", "app")),
    (("alice", ""), ("alice", "")),
    ((DEFAULT, "app"), ("alice", "app")),
    ((DEFAULT, DEFAULT), ("alice", "app")),
    ((DEFAULT, ""), ("alice", "")),
    (("", "app"), ("", "app")),
    (("", DEFAULT), ("", "app")),
]

# (moment, size of a response, throttle time in ms), taken from Apache Kafka 3.9.1's `Rate` with 3
# samples of one second and a quota of 2000. What is throttled is not sent, and taken back.
FETCHES_OF_KAFKA = [
    (10000, 668, 0),
    (10028, 730, 0),
    (10063, 853, 0),
    (10140, 841, 0),
    (10208, 1003, 0),
    (10254, 648, 117),
    (10453, 614, 0),
    (10522, 821, 243),
    (10785, 956, 47),
    (10909, 736, 0),
    (10958, 902, 215),
    (11206, 1061, 1047),
    (12313, 615, 717),
    (13052, 613, 0),
    (13141, 604, 190),
    (13399, 951, 105),
    (13551, 1096, 26),
    (13651, 971, 0),
    (13674, 870, 275),
    (13997, 991, 0),
    (14073, 1080, 0),
    (14156, 883, 0),
    (14205, 776, 0),
    (14254, 946, 189),
]


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_most_specific_quota_counts(level: int) -> None:
    table = QuotaTable()
    for number, (entity, _) in enumerate(LEVELS[level:]):
        table.set(*entity, level + number)
    assert table.find("alice", "app") == (level, LEVELS[level][1])
    table.set(*LEVELS[level][0], None)
    below = (level + 1, LEVELS[level + 1][1]) if level + 1 < len(LEVELS) else None
    assert table.find("alice", "app") == below


def test_quotas_of_others_do_not_count() -> None:
    table = QuotaTable()
    assert not table.has_limits
    table.set("bob", "", 1)
    table.set("", "other", 1)
    assert table.has_limits
    assert table.find("alice", "app") is None
    table.set("bob", "", None)
    assert table.has_limits
    table.set("", "other", None)
    assert not table.has_limits


class TestClientQuota:
    def test_without_quotas_nothing_is_recorded(self) -> None:
        quota = ClientQuota()
        assert quota.record("alice", "app", 1e12, 0) == 0
        assert quota.max_at_once("alice", "app") == float("inf")
        assert quota.rates(0) == {}

    def test_who_is_over_the_limit_must_be_silent(self) -> None:
        quota = ClientQuota()
        quota.table.set("alice", "", 1000)
        assert quota.record("alice", "app", 10_000, 0) == 0
        assert quota.record("alice", "other", 1_000, 0) == 1_000  # all of alice's clients together
        assert quota.record("bob", "app", 1_000_000, 0) == 0
        assert quota.rates(0) == {("alice", ""): 1100}

    def test_clients_are_counted_one_by_one_under_a_default(self) -> None:
        quota = ClientQuota()
        quota.table.set("", DEFAULT, 1000)
        assert quota.record("alice", "app", 11_000, 0) > 0
        assert quota.record("alice", "other", 10_000, 0) == 0
        assert quota.record("bob", "app", 1, 0) > 0

    def test_a_change_counts_at_once(self) -> None:
        quota = ClientQuota()
        quota.table.set("alice", "", 1000)
        assert quota.record("alice", "app", 20_000, 0) == 10_000
        quota.table.set("alice", "", 2001)
        assert quota.record("alice", "app", 0, 0) == 0

    def test_undo(self) -> None:
        quota = ClientQuota()
        quota.table.set("alice", "", 1000)
        assert quota.record("alice", "app", 20_000, 0) > 0
        quota.undo("alice", "app", 20_000, 0)
        assert quota.record("alice", "app", 10_000, 0) == 0
        quota.undo("bob", "app", 1, 0)  # no limit, nothing to take back

    def test_a_consumer_is_throttled_for_as_long_as_by_kafka(self) -> None:
        quota = ClientQuota(window_count=3)
        quota.table.set("", "app", 2000)
        for now_ms, size, throttle_ms in FETCHES_OF_KAFKA:
            assert quota.record("alice", "app", size, now_ms) == throttle_ms, now_ms
            if throttle_ms:
                quota.undo("alice", "app", size, now_ms)

    def test_the_throttle_time_may_be_bounded(self) -> None:
        quota = ClientQuota(max_throttle_ms=1000)
        quota.table.set("alice", "", 1)
        assert quota.record("alice", "app", 1_000_000, 0) == 1000

    def test_the_most_at_once_is_what_all_full_windows_allow(self) -> None:
        quota = ClientQuota(window_count=11, window_ms=2000)
        quota.table.set("", "app", 50)
        assert quota.max_at_once("alice", "app") == 50 * 10 * 2

    def test_silent_clients_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quotas_module, "MAX_REMEMBERED", 5)
        quota = ClientQuota()
        quota.table.set("", DEFAULT, 1)
        for number in range(20):
            quota.record("alice", f"app-{number}", 1, number * 20_000)
            assert len(quota.rates(number * 20_000)) <= 5

    def test_a_new_name_does_not_cost_a_look_at_all_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client may send another client id with each request."""
        looks = 0
        is_idle = Rate.is_idle

        def counted(rate: Rate, now_ms: int) -> bool:
            nonlocal looks
            looks += 1
            return is_idle(rate, now_ms)

        monkeypatch.setattr(Rate, "is_idle", counted)
        monkeypatch.setattr(quotas_module, "MAX_REMEMBERED", 100)
        quota = ClientQuota()
        quota.table.set("", DEFAULT, 1)
        for number in range(200):
            quota.record("alice", f"app-{number}", 1, 0)
        assert looks <= 2 * 100
        # They are forgotten when others come.
        for number in range(200, 300):
            quota.record("alice", f"app-{number}", 1, 60_000)
        assert len(quota.rates(60_000)) <= 101


class TestMutationQuota:
    def test_strict_callers_check_before_they_change(self) -> None:
        quota = MutationQuota(window_count=10, window_ms=1000)
        quota.table.set("alice", "", 2)
        assert quota.check("alice", "app", 0) == 0
        quota.record("alice", "app", 30, 0)  # ten more than the bucket held: allowed once
        assert quota.check("alice", "app", 0) == 5_000
        assert quota.check("alice", "app", 5_000) == 0
        assert quota.check("bob", "app", 0) == 0

    def test_permissive_callers_are_throttled_afterwards(self) -> None:
        quota = MutationQuota(window_count=10, window_ms=1000)
        quota.table.set("", DEFAULT, 1)
        assert quota.record("alice", "app", 10, 0) == 0
        assert quota.record("alice", "app", 3, 0) == 3_000
        assert quota.record("alice", "other", 3, 0) == 0
        assert MutationQuota().record("alice", "app", 1_000, 0) == 0


class TestClientQuotas:
    def test_a_user_called_default_is_not_all_users(self) -> None:
        quotas = ClientQuotas()
        quotas.apply("clients/%3Cdefault%3E", {"producer_byte_rate": "1"})
        assert quotas.produce.table.find("bob", "x") is None

    def test_settings_of_entities_are_taken_and_removed(self) -> None:
        quotas = ClientQuotas()
        quotas.apply(
            "users/CN%3Dalice/clients/my%2Fapp",
            {"producer_byte_rate": "1024.0", "consumer_byte_rate": "2048"},
        )
        quotas.apply("users/<default>", {"request_percentage": "50"})
        quotas.apply("clients/<default>", {"controller_mutation_rate": "5"})
        assert quotas.produce.table.find("CN=alice", "my/app") == (1024, ("CN=alice", "my/app"))
        assert quotas.fetch.table.find("CN=alice", "my/app") == (2048, ("CN=alice", "my/app"))
        assert quotas.request.table.find("bob", "x") == (50, ("bob", ""))
        assert quotas.mutation.table.find("bob", "x") == (5, ("", "x"))
        quotas.apply("users/CN%3Dalice/clients/my%2Fapp", {"consumer_byte_rate": "1"})
        assert quotas.produce.table.find("CN=alice", "my/app") is None
        assert quotas.fetch.table.find("CN=alice", "my/app") == (1, ("CN=alice", "my/app"))

    def test_addresses(self) -> None:
        limits = ConnectionLimits()
        quotas = ClientQuotas(connection_limits=limits)
        quotas.apply("ips/10.0.0.1", {"connection_creation_rate": "7"})
        quotas.apply("ips/<default>", {"connection_creation_rate": "3.0"})
        assert limits.ip_creation_rates == {"10.0.0.1": 7}
        assert limits.default_ip_creation_rate == 3
        quotas.apply("ips/10.0.0.1", {})
        quotas.apply("ips/<default>", {})
        assert limits.ip_creation_rates == {}
        assert limits.default_ip_creation_rate == UNLIMITED
        ClientQuotas().apply("ips/10.0.0.1", {"connection_creation_rate": "7"})

    @pytest.mark.parametrize(
        ("request_", "throttle_ms"),
        [
            (FetchRequest(), 1_000),
            (FetchRequest(replica_id=1), 0),
            (FetchRequest(replica_state=ReplicaState(1, 5)), 0),
        ],
    )
    def test_fetches_of_followers_are_exempt(
        self, request_: FetchRequest, throttle_ms: int
    ) -> None:
        quotas = ClientQuotas()
        quotas.apply("users/<default>", {"request_percentage": "1"})
        context = SimpleNamespace(
            dequeued_at=100.0,
            local_done_at=101.0,
            header=SimpleNamespace(client_id="broker-1-fetcher-0"),
            principal=SimpleNamespace(name="ANONYMOUS"),
            request=request_,
        )
        assert quotas.throttle_request(context) == throttle_ms

    def test_request_time_is_counted_in_percent_and_bounded_by_a_window(self) -> None:
        quotas = ClientQuotas()
        context = SimpleNamespace(
            dequeued_at=100.0,
            local_done_at=101.0,
            header=SimpleNamespace(client_id=None),
            principal=SimpleNamespace(name="alice"),
            request=MetadataRequest(),
        )
        assert quotas.throttle_request(context) == 0
        quotas.apply("users/alice", {"request_percentage": "5"})
        # One whole second of work is ten percent over ten seconds: twice what is allowed.
        assert quotas.throttle_request(context) == 1_000
        assert quotas.request.rates(101_000) == {("alice", ""): 10}


@pytest.mark.parametrize("text", ["", "x", "-1", "NaN", "1,5"])
def test_a_value_that_is_no_limit_allows_nothing(text: str) -> None:
    """And the other limits of the entity are taken."""
    quotas = ClientQuotas()
    properties = {"producer_byte_rate": text, "consumer_byte_rate": "5"}
    (problem,) = quotas.apply("users/alice", properties)
    assert f"producer_byte_rate is {text!r}" in problem
    assert quotas.produce.table.find("alice", "") == (0.0, ("alice", ""))
    assert quotas.fetch.table.find("alice", "") == (5.0, ("alice", ""))
    assert quotas.produce.record("alice", "app", 1, 1000) > 0
    assert quotas.apply("users/alice", {"producer_byte_rate": "Infinity"}) == []
    assert quotas.produce.record("alice", "app", 10**9, 1000) == 0


def test_nothing_is_allowed_to_whom_the_quotas_are_not_known() -> None:
    limits = ConnectionLimits()
    quotas = ClientQuotas(connection_limits=limits)
    quotas.block("clients/app")
    for quota in (quotas.produce, quotas.fetch, quotas.request):
        assert quota.record("bob", "app", 1, 1000) > 0
        assert quota.record("bob", "other", 1, 1000) == 0
    assert quotas.mutation.record("bob", "app", 1, 1000) > 0
    quotas.block("ips/10.0.0.1")
    assert limits.ip_creation_rates["10.0.0.1"] == 0
    quotas.apply("clients/app", {})
    assert quotas.produce.record("bob", "app", 1, 1000) == 0
