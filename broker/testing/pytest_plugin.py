"""Pytest fixtures for tests against a broker; pytest loads them once Ottla is installed.

`kafka_broker` is one embedded broker for the whole run (the ini option `kafka_broker_scope` changes
that), `kafka_topic` the name of a new topic for each test. docs/testing.md has examples.

The broker is imported when the first test uses a fixture, not when pytest starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.broker.testing.cluster import Cluster
    from ottla.broker.testing.embedded import Broker

SCOPES = ("function", "class", "module", "package", "session")

# A topic name has at most 249 characters in Kafka; the rest is for the number.
_NAME_MAX = 200

_numbers = count(1)


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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kafka_topic(partitions=1, **config): the topic that the fixture kafka_topic creates",
    )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    scope = config.getini("kafka_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"kafka_broker_scope = {scope}: use one of {', '.join(SCOPES)}")
    return scope


def _settings(config: pytest.Config) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in config.getini("kafka_broker_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_broker_settings: {line!r} is not name=value")
        found[name.strip().replace(".", "_")] = value.strip()
    return found


@pytest.fixture(scope=_scope)
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A running broker (`ottla.testing.Broker`); its address is `kafka_broker.bootstrap`."""
    from ottla.broker.testing.embedded import Broker

    with Broker(**_settings(pytestconfig)) as broker:
        yield broker


@pytest.fixture(scope=_scope)
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three running brokers (`ottla.testing.Cluster`) on a ZooKeeper of their own."""
    from ottla.broker.testing.cluster import Cluster

    given: dict[str, Any] = dict(_settings(pytestconfig))
    with Cluster(**given) as cluster:
        yield cluster


@pytest.fixture
def kafka_broker_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Broker]]:
    """Start brokers for one test, with settings as arguments; each is its own cluster."""
    from ottla.broker.testing.embedded import Broker

    started: list[Broker] = []

    def start(**settings: object) -> Broker:
        given: dict[str, Any] = {**_settings(pytestconfig), **settings}
        broker = Broker(**given)
        broker.start()
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
    partitions = wanted.pop("partitions", 1)
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_NAME_MAX].strip(".-")
    name = f"{plain}-{next(_numbers)}"
    config = {key.replace("_", "."): value for key, value in wanted.items()}
    kafka_broker.create_topic(name, partitions, config)
    return name


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Remove the faults that the test left on the shared broker."""
    broker = getattr(item, "funcargs", {}).get("kafka_broker")
    if broker is not None and broker.is_running:
        broker.faults.clear()
