"""Every API has a check; one without is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.rules import parse_super_users
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.broker.requests.request_context import HandlerEntry, OnCluster
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.access_control import (
    AccessControl,
    allow_all,
    may_read_all,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.api_routes import whole_table

ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"


def access_control(**settings: str) -> AccessControl:
    config = BrokerConfig({name.replace("_", "."): text for name, text in settings.items()})
    # Neither the tree nor the runtime is used before the start.
    return AccessControl(
        config,
        cast(Any, None),
        cast(Any, None),
        MetadataCache(),
        SecurityLog(None),
        UnusableZnodes(),
    )


def test_every_api_has_a_check() -> None:
    control = access_control(authorizer_class_name=ACL_AUTHORIZER)
    table = whole_table()
    unchecked = {entry.name for entry in table if entry.check is None}
    assert unchecked == {entry.name for entry in table if entry.before_authentication}
    for before, after in zip(table, control.protect(table), strict=True):
        assert (after.handler is before.handler) == before.before_authentication
    on_cluster = {entry.api_key for entry in table if isinstance(entry.check, OnCluster)}
    assert control.checks_on_cluster.keys() == on_cluster


def test_without_an_authorizer_nothing_is_in_the_way() -> None:
    control = access_control()
    table = whole_table()
    assert control.protect(table) is table
    assert control.may_read is may_read_all
    assert control.allows is allow_all


def test_an_api_without_a_check_is_refused() -> None:
    entry = HandlerEntry(1234, "NewOne", 0, 0, lambda *_: pytest.fail("it must not get here"))
    (entry,) = access_control(authorizer_class_name=ACL_AUTHORIZER).protect([entry])
    with pytest.raises(KafkaError) as caught:
        entry.handler(cast(Any, None), None)
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_check_that_no_guard_has_stops_the_start() -> None:
    entry = HandlerEntry(1234, "NewOne", 0, 0, lambda *_: None, check="new_one")
    with pytest.raises(LookupError, match="NewOne names the check 'new_one', which no guard has"):
        access_control(authorizer_class_name=ACL_AUTHORIZER).protect([entry])


def test_super_users() -> None:
    assert parse_super_users("") == frozenset()
    assert parse_super_users("User:a; User:CN=b,O=c ;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ValueError, match="write it as User:bob"):
        parse_super_users("User:a;bob")


def test_settings_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match="which this broker cannot load"):
        access_control(authorizer_class_name="org.example.Mine")
    with pytest.raises(ConfigError, match="write it as User:bob"):
        access_control(authorizer_class_name=ACL_AUTHORIZER, super_users="bob")
