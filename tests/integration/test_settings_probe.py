"""Every security setting is flipped: in the file, for one listener and at run time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.broker.config.definitions import PER_BROKER, broker_settings
from ottla.broker.config.dynamic_rules import RENEWABLE
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import find_broker_setting
from ottla.broker.testing.embedded import Broker
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
from tests.doubles.security_settings import PROBED
from tests.doubles.settings_probes import NO_START, PROBES, Probe, World
from tests.doubles.wire import Wire

BROKER = 4
STORED_SECRETS = {"password.encoder.secret": "secret"}
GUARD = "authorizer.class.name"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def probe_id(probe: Probe) -> str:
    return f"{probe.mechanism}.{probe.setting}".lstrip(".")


def text(world: World, value: Any) -> str:
    return str(value(world) if callable(value) else value)


def names_of(probe: Probe, listener: str) -> str:
    prefix = f"listener.name.{listener.lower()}."
    return prefix + (f"{probe.mechanism}." if probe.mechanism else "") + probe.setting


@contextmanager
def started(world: World, settings: Mapping[str, Any]) -> Iterator[Broker | None]:
    """A broker, None when it rejects the settings."""
    broker = Broker()
    broker._settings = {name: text(world, value) for name, value in settings.items()}
    try:
        broker.start()
    except ConfigError:
        yield None
        return
    finally:
        if not broker.is_running:
            broker.stop()
    with broker_stopped(broker):
        yield broker


@contextmanager
def broker_stopped(broker: Broker) -> Iterator[None]:
    try:
        yield
    finally:
        broker.stop()


def seen(world: World, probe: Probe, broker: Broker | None, listener: str = "A") -> object:
    return NO_START if broker is None else probe.observe(world, broker, listener)


def alter(broker: Broker, name: str, value: str) -> int:
    resource = AlterConfigsResource(BROKER, broker_id(broker), [AlterableConfig(name, 0, value)])
    with Wire(plain(broker)) as wire:
        response = wire.ask(IncrementalAlterConfigsRequest([resource], False), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    return response.responses[0].error_code


def described(broker: Broker, name: str) -> list[tuple[str, str | None]]:
    """The dynamic settings of a name."""
    resource = DescribeConfigsResource(BROKER, broker_id(broker), [name])
    with Wire(plain(broker)) as wire:
        response = wire.ask(DescribeConfigsRequest([resource]), 4)
    assert isinstance(response, DescribeConfigsResponse)
    rows = response.results[0].configs
    return [(row.name, row.value) for row in rows if row.config_source == 2]


def broker_id(broker: Broker) -> str:
    return str(broker.server.parts.broker_id)


def plain(broker: Broker) -> str:
    return f"127.0.0.1:{broker.server.ports['PLAINTEXT']}"


def test_the_table_is_complete() -> None:
    assert {probe.setting for probe in PROBES} == PROBED


@pytest.mark.parametrize("probe", PROBES, ids=probe_id)
def test_in_the_file(world: World, probe: Probe) -> None:
    if probe.mechanism:
        return  # without a listener it has no meaning, as in Kafka
    with started(world, probe.more) as broker:
        assert seen(world, probe, broker) == probe.before
    with started(world, {**probe.more, probe.setting: probe.value}) as broker:
        assert seen(world, probe, broker) == probe.at_start


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe.of_listener], ids=probe_id)
def test_for_one_listener(world: World, probe: Probe) -> None:
    with started(world, {**probe.more, names_of(probe, "A"): probe.value}) as broker:
        assert seen(world, probe, broker) == probe.at_start
        if broker is not None:
            assert seen(world, probe, broker, "B") == probe.before


@pytest.mark.parametrize(
    "probe", [probe for probe in PROBES if GUARD not in probe.more], ids=probe_id
)
def test_at_run_time(world: World, probe: Probe) -> None:
    """New connections get the new value, or the broker rejects it; it is never just ignored."""
    name = names_of(probe, "A") if probe.of_listener else probe.setting
    value = text(world, probe.value)
    with started(world, {**probe.more, **STORED_SECRETS}) as broker:
        assert broker is not None
        code = alter(broker, name, value)
        if probe.of_listener and probe.after != NO_START:
            assert code == ErrorCode.NONE
            assert seen(world, probe, broker) == probe.after
            is_secret = find_broker_setting(name).sensitive
            assert described(broker, name) == [(name, None if is_secret else value)]
        else:
            assert code == ErrorCode.INVALID_REQUEST
            assert seen(world, probe, broker) == probe.before
            assert described(broker, name) == []
        if probe.of_listener:
            assert seen(world, probe, broker, "B") == probe.before


OF_ALL_LISTENERS = [
    probe
    for probe in PROBES
    if broker_settings()[probe.setting].mode == PER_BROKER
    and probe.setting not in RENEWABLE
    and probe.of_listener
    and not probe.mechanism
]


@pytest.mark.parametrize("probe", OF_ALL_LISTENERS, ids=probe_id)
def test_at_run_time_for_all_listeners(world: World, probe: Probe) -> None:
    """Also of those that are open; and the next start has the same."""
    with started(world, probe.more) as broker:
        assert broker is not None
        code = alter(broker, probe.setting, text(world, probe.value))
        if probe.after == NO_START:
            assert code == ErrorCode.INVALID_REQUEST
            return
        assert code == ErrorCode.NONE
        assert seen(world, probe, broker) == probe.after
        assert seen(world, probe, broker, "B") == probe.after
        broker.restart()
        assert seen(world, probe, broker) == probe.after


def test_what_stands_in_the_znode_tree_is_used(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """As a broker of Apache Kafka could have written it."""
    probe = next(each for each in PROBES if each.setting == "ssl.client.auth")
    name = names_of(probe, "A")
    with started(world, probe.more) as broker:
        assert broker is not None
        with caplog.at_level(logging.WARNING):
            write_entity(broker, {name: "required", "listener.name.zz.ssl.client.auth": "none"})
        assert seen(world, probe, broker) == probe.after
        assert "there is no listener ZZ" in caplog.text
        broker.restart()
        assert seen(world, probe, broker) == probe.after
        assert seen(world, probe, broker, "B") == probe.before


def write_entity(broker: Broker, properties: dict[str, str]) -> None:
    dynamic = broker.server.parts.dynamic_config

    async def change(_: dict[str, str]) -> dict[str, str]:
        return properties

    broker._call(dynamic.change(f"brokers/{broker_id(broker)}", change), 20)
