"""Which values AlterConfigs accepts, for every dynamic setting beside Apache Kafka.

And what DescribeConfigs calls read-only: that it cannot be altered, and the rest can.
"""

from __future__ import annotations

import pytest

from ottla.broker.config.definitions import (
    CLUSTER_WIDE,
    READ_ONLY,
    Setting,
    broker_settings,
    dynamic_only_settings,
)
from ottla.broker.config.listeners import LISTENERS, find_broker_setting, find_listener_setting
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.differential.asking import Pair
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

pytestmark = pytest.mark.kafka

BROKER = 4
SET, DELETE = 0, 1

NUMBERS = ("0", "-1", "1", "-2", "2147483647", "9223372036854775807", "x", "", " 5 ", "1.5")
LISTS = ("", "a", "a,b", "compact,delete", "GSSAPI", "PLAIN", "TLSv1.2")
TEXTS = (
    *("", "x", "none", "NONE", "gzip", " ", "DEFAULT", "127.0.0.1", "127.0.0.1:5", "required"),
    "CreateTime",
)
_VALUES = {"boolean": ("true", "FALSE", "", "x"), "list": LISTS}
_VALUES |= dict.fromkeys(("int", "long", "short", "double"), NUMBERS)

# The two brokers of this folder have other numbers of threads; the addresses differ.
OF_ITS_OWN = (
    *("log.cleaner.dedupe.buffer.size", "num.io.threads", "num.network.threads"),
    *LISTENERS,
)
# Kafka accepts it and allocates at once what its heap does not have: the thread that applies
# changes ends with an OutOfMemoryError, and no later change arrives.
ENDS_KAFKA = {("log.cleaner.io.buffer.size", "2147483647")}
# What would be obeyed by Kafka only: docs/configuration.md names both reasons.
STRICTER = ("ssl.provider", "ssl.truststore.location")


def dynamic() -> list[str]:
    tables = {**broker_settings(), **dynamic_only_settings()}
    found = [
        name
        for name, each in tables.items()
        if each.mode != READ_ONLY and not name.startswith(("ottla.", *OF_ITS_OWN))
    ]
    for name in list(found):
        found += [
            f"listener.name.{listener}.{name}"
            for listener in ("plaintext", "absent")
            if find_listener_setting(f"listener.name.{listener}.{name}") is not None
        ]
    return found


def values_of(setting: Setting) -> tuple[str, ...]:
    return _VALUES.get(setting.type, TEXTS)


def alter(wire: Wire, where: str, name: str, operation: int, value: str | None) -> tuple[int, str]:
    change = AlterableConfig(name, operation, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER, where, [change])], False)
    response = wire.ask(request, 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    row = response.responses[0]
    return row.error_code, row.error_message or ""


def is_set(wire: Wire, name: str) -> bool:
    """Whether the broker still has a dynamic value: it hears of a deletion a little later, and a
    value of its own goes before that of the cluster."""
    response = wire.ask(DescribeConfigsRequest([DescribeConfigsResource(BROKER, "0", [name])]), 4)
    assert isinstance(response, DescribeConfigsResponse)
    return any(row.config_source in (2, 3) for row in response.results[0].configs)


def verdicts(bootstrap: str, name: str) -> dict[tuple[str, str], int]:
    found = {}
    with Wire(bootstrap) as wire:
        for value in values_of(find_broker_setting(name)):
            if (name, value) in ENDS_KAFKA:
                continue
            for where in ("0", ""):
                code, message = alter(wire, where, name, SET, value)
                found[where, value] = code
                if code == ErrorCode.NONE:
                    assert alter(wire, where, name, DELETE, None) == (0, ""), (name, value)
                    eventually(lambda: not is_set(wire, name), f"{name} stays set")
                else:
                    assert message, (name, value)
    return found


@pytest.mark.parametrize("name", dynamic())
def test_which_values_are_accepted(pair: Pair, name: str) -> None:
    kafka, ottla = verdicts(pair.kafka, name), verdicts(pair.ottla, name)
    different = {case: (code, ottla[case]) for case, code in kafka.items() if ottla[case] != code}
    if name.endswith(STRICTER):
        assert all(codes == (0, ErrorCode.INVALID_REQUEST) for codes in different.values())
        return
    assert not different


@pytest.mark.parametrize("value", ["100000", "0", "9223372036854775807"])
@pytest.mark.parametrize("name", dynamic_only_settings())
def test_throttles_for_all_brokers(pair: Pair, name: str, value: str) -> None:
    assert dynamic_only_settings()[name].mode == CLUSTER_WIDE
    for bootstrap in (pair.kafka, pair.ottla):
        with Wire(bootstrap) as wire:
            assert alter(wire, "", name, SET, value) == (0, "")
            assert alter(wire, "", name, DELETE, None) == (0, "")


def test_what_is_read_only_cannot_be_altered(pair: Pair) -> None:
    read_only = [name for name, each in broker_settings().items() if each.mode == READ_ONLY]
    for name in read_only:
        if name.startswith(
            ("ottla.", "share.", "group.share.", "super.users", "allow.", "config.")
        ):
            continue
        default = broker_settings()[name].default or "1"
        for bootstrap in (pair.kafka, pair.ottla):
            with Wire(bootstrap) as wire:
                code, message = alter(wire, "0", name, SET, default)
            assert code == ErrorCode.INVALID_REQUEST, (name, bootstrap)
            assert "Cannot update these configs dynamically" in message, (name, message)
