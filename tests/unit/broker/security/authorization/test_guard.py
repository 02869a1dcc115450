"""Every API has a check; one without is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.rules import parse_super_users
from ottla.broker.handlers.table import Handlers, build_table
from ottla.broker.requests.request_context import HandlerEntry
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.access_control import (
    AccessControl,
    allow_all,
    may_read_all,
)
from ottla.broker.security.authorization.guard import protect
from ottla.protocol.errors import ErrorCode, KafkaError

ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"


class Anything:
    """Has every attribute that is read."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


def all_handlers() -> Handlers:
    return Handlers(**{name: cast(Any, Anything()) for name in Handlers._fields})


def access_control(**settings: str) -> AccessControl:
    config = BrokerConfig({name.replace("_", "."): text for name, text in settings.items()})
    # Neither the tree nor the runtime is used before the start.
    return AccessControl(
        config, cast(Any, None), cast(Any, None), MetadataCache(), SecurityLog(None)
    )


def test_every_api_of_the_table_has_a_check() -> None:
    control = access_control(authorizer_class_name=ACL_AUTHORIZER)
    table = build_table(all_handlers())
    unchecked = {entry.name for entry in table if entry.api_key not in control._checks}
    assert unchecked == {entry.name for entry in table if entry.before_authentication}
    for before, after in zip(table, control.protect(table), strict=True):
        assert (after.handler is before.handler) == before.before_authentication


def test_without_an_authorizer_nothing_is_in_the_way() -> None:
    control = access_control()
    table = build_table(all_handlers())
    assert control.protect(table) is table
    assert control.may_read is may_read_all
    assert control.allows is allow_all


def test_an_api_without_a_check_is_refused() -> None:
    def handler(*_: Any) -> None:
        raise AssertionError("it must not get here")

    entry = protect(HandlerEntry(1234, "NewOne", 0, 0, handler), {})
    with pytest.raises(KafkaError) as caught:
        entry.handler(cast(Any, None), None)
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


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
