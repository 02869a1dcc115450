from ottla.broker.share.acquisition import GroupLimits
from ottla.broker.share.group_settings import (
    BrokerShareSettings,
    OffsetReset,
    ShareGroupSettings,
)


def settings(**configs: str) -> ShareGroupSettings:
    rows = {name.replace("_", "."): value for name, value in configs.items()}
    return ShareGroupSettings(BrokerShareSettings(), lambda group: rows if group == "g" else {})


def test_a_group_without_settings_has_those_of_the_broker() -> None:
    assert settings().limits("g") == GroupLimits(2000, 5, 30_000, True)
    assert settings(share_record_lock_duration_ms="1000").limits("other").lock_duration_ms == 30_000
    assert not settings().is_read_committed("g")
    assert settings().offset_reset("g") == OffsetReset(False)


def test_the_settings_of_a_group() -> None:
    made = settings(
        share_partition_max_record_locks="100",
        share_delivery_count_limit="2",
        share_record_lock_duration_ms="15000",
        share_renew_acknowledge_enable="false",
        share_isolation_level="read_committed",
        share_auto_offset_reset="by_duration:PT1H30M",
    )
    assert made.limits("g") == GroupLimits(100, 2, 15_000, False)
    assert made.is_read_committed("g")
    assert made.offset_reset("g") == OffsetReset(False, 5_400_000)
    assert settings(share_auto_offset_reset="earliest").offset_reset("g").is_earliest


def test_sessions() -> None:
    made = settings(share_session_timeout_ms="50000", share_heartbeat_interval_ms="6000")
    assert (made.session_timeout_ms("g"), made.heartbeat_interval_ms("g")) == (50_000, 6_000)
    assert (made.session_timeout_ms("x"), made.heartbeat_interval_ms("x")) == (45_000, 5_000)


def test_spaces_and_capitals_that_are_valid_change_nothing() -> None:
    made = settings(
        share_renew_acknowledge_enable=" True ", share_isolation_level=" read_committed "
    )
    assert made.limits("g") == GroupLimits(2000, 5, 30_000, True)
    assert made.is_read_committed("g")
