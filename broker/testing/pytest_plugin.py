"""Pytest fixtures for tests against a broker; pytest loads them once Ottla is installed.

`kafka_broker` is one embedded broker for the whole run (the ini option `kafka_broker_scope` changes
that), `kafka_topic` the name of a new topic for each test. docs/testing.md has examples.

The broker is imported when the first test uses a fixture, not when pytest starts.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.broker.testing.cluster import Cluster
    from ottla.broker.testing.embedded import Broker
    from ottla.broker.testing.shared import SharedBrokerServer

SCOPES = ("function", "class", "module", "package", "session")

# A topic name has at most 249 characters in Kafka; the rest is for the number.
_NAME_MAX = 200

_numbers = count(1)

# What a mark may have beside settings of the topic.
_TOPIC_ARGUMENTS = ("partitions", "replication_factor", "config")

_NAME_IS_MADE = "the fixture makes the name; kafka_broker.create_topic(name) takes one"
# Arguments that other clients have, and what the mark has instead.
_OF_OTHER_CLIENTS = {
    "name": _NAME_IS_MADE,
    "topic": _NAME_IS_MADE,
    "replicas": "did you mean replication_factor?",
    "num_partitions": "did you mean partitions?",
    "settings": "did you mean config?",
}

# Where the controlling process of pytest-xdist tells its workers the address of the shared broker.
_WORKER_INPUT = "ottla_shared_broker"
_SHARED: pytest.StashKey[SharedBrokerServer] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "kafka_broker_scope",
        f"scope of the fixture kafka_broker: {', '.join(SCOPES)}",
        default="session",
    )
    parser.addini(
        "kafka_broker_settings",
        "broker settings of the fixture kafka_broker, one name=value a line",
        type="linelist",
        default=[],
    )

    parser.addini(
        "kafka_broker_shared",
        "whether the workers of pytest-xdist share the broker of the fixture kafka_broker",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kafka_topic(partitions=1, replication_factor=-1, config={}, **config): the topic that "
        "the fixture kafka_topic creates; topic settings with _ for .",
    )
    _scope("kafka_broker", config)  # a wrong one is an error of the run, not of pytest


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist starts a worker: tell it where the shared broker is."""
    config = node.config
    if not config.getini("kafka_broker_shared"):
        return
    if _scope("kafka_broker", config) != "session":
        raise pytest.UsageError("kafka_broker_shared needs kafka_broker_scope = session")
    server = config.stash.get(_SHARED, None)
    if server is None:
        from ottla.broker.testing.shared import SharedBrokerServer

        server = config.stash[_SHARED] = SharedBrokerServer(_settings(config))
    node.workerinput[_WORKER_INPUT] = (server.address, server.key)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared broker, after the workers."""
    server = config.stash.get(_SHARED, None)
    if server is not None:
        server.stop()


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    scope = config.getini("kafka_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"kafka_broker_scope = {scope}: use one of {', '.join(SCOPES)}")
    return scope


def _settings(config: pytest.Config) -> dict[str, Any]:
    """By Kafka's names, as in the ini file."""
    found: dict[str, Any] = {}
    for line in config.getini("kafka_broker_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_broker_settings: {line!r} is not name=value")
        found[name.strip()] = value.strip()
    tls = found.get("tls")
    if tls is not None:
        if tls not in ("true", "false"):
            raise pytest.UsageError(f"kafka_broker_settings: tls={tls}: use true or false")
        found["tls"] = tls == "true"
    return found


@pytest.fixture(scope=_scope)
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A running broker (`ottla.testing.Broker`); its address is `kafka_broker.bootstrap`."""
    shared = getattr(pytestconfig, "workerinput", {}).get(_WORKER_INPUT)
    if shared is not None:
        from ottla.broker.testing.shared import SharedBroker

        broker: Any = SharedBroker(*shared)
        yield broker
        return
    from ottla.broker.testing.embedded import Broker

    with Broker(**_settings(pytestconfig)) as broker:
        broker.owner = (
            "a test has stopped it, which is the broker of all tests of the fixture kafka_broker: "
            "a test that stops a broker uses kafka_broker_factory"
        )
        yield broker


@pytest.fixture(scope=_scope)
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three running brokers (`ottla.testing.Cluster`) on a ZooKeeper of their own."""
    from ottla.broker.testing.cluster import Cluster

    with Cluster(**_settings(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def kafka_broker_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Broker]]:
    """Start brokers for one test, with settings as arguments; each is its own cluster."""
    from ottla.broker.testing.embedded import Broker, setting_name

    started: list[Broker] = []

    def start(**settings: object) -> Broker:
        names = {setting_name(name) for name in settings}
        given = {k: v for k, v in _settings(pytestconfig).items() if setting_name(k) not in names}
        arguments: dict[str, Any] = {**given, **settings}
        broker = Broker(**arguments)
        broker.start()
        broker.owner = "kafka_broker_factory starts the broker, and the end of the test stops it"
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic; `@pytest.mark.kafka_topic(partitions=3)` configures it."""
    mark = request.node.get_closest_marker("kafka_topic")
    wanted = dict(mark.kwargs) if mark is not None else {}
    if mark is not None and mark.args:
        raise pytest.UsageError(
            f"kafka_topic{mark.args}: name the argument, such as kafka_topic(partitions=3)"
        )
    named = {name: wanted.pop(name) for name in _TOPIC_ARGUMENTS if name in wanted}
    named.setdefault("partitions", 1)  # end_offset(kafka_topic) is that of the whole topic
    config = {**named.pop("config", {})}
    for key, value in wanted.items():
        if key in _OF_OTHER_CLIENTS:
            raise pytest.UsageError(f"kafka_topic({key}=...): {_OF_OTHER_CLIENTS[key]}")
        matches = difflib.get_close_matches(key, _TOPIC_ARGUMENTS, n=1, cutoff=0.8)
        if matches:
            raise pytest.UsageError(f"kafka_topic({key}=...): did you mean {matches[0]}?")
        config[key if "." in key else key.replace("_", ".")] = value
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_NAME_MAX].strip(".-")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    name = "-".join(part for part in (plain, worker, str(next(_numbers))) if part)
    kafka_broker.create_topic(name, config=config, **named)
    return name


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Remove the faults that the test left on the shared broker."""
    broker = getattr(item, "funcargs", {}).get("kafka_broker")
    if broker is not None and broker.is_running:
        broker.faults.clear()
