"""Pytest fixtures for tests against a broker; pytest finds them by itself once Ottla is installed.

`kafka_broker` is one embedded broker for the whole run (`kafka_broker_scope` in the ini file
says otherwise), `kafka_topic` the name of a topic of the test's own. docs/testing.md has examples.

Nothing of the broker is imported before a test uses a fixture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.broker.testing.embedded import Broker

SCOPES = ("function", "class", "module", "package", "session")

# Kafka's names have 249 characters at the most; some are left for the number.
_NAME_MAX = 200

_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "kafka_broker_scope",
        f"how long a kafka_broker lives: {', '.join(SCOPES)}",
        default="session",
    )
    parser.addini(
        "kafka_broker_settings",
        "settings of kafka_broker, one name=value a line",
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
    """A broker of this machine's, on a free port: `kafka_broker.bootstrap`."""
    from ottla.broker.testing.embedded import Broker

    with Broker(**_settings(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def kafka_broker_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Broker]]:
    """Starts brokers of the test's own, with settings as arguments; each is its own cluster."""
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
    """The name of a new topic; `@pytest.mark.kafka_topic(partitions=3)` says more about it."""
    mark = request.node.get_closest_marker("kafka_topic")
    wanted = dict(mark.kwargs) if mark is not None else {}
    partitions = wanted.pop("partitions", 1)
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_NAME_MAX].strip(".-")
    name = f"{plain}-{next(_numbers)}"
    config = {key.replace("_", "."): value for key, value in wanted.items()}
    kafka_broker.create_topic(name, partitions, config)
    return name


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A fault is the business of the test that asked for it."""
    broker = getattr(item, "funcargs", {}).get("kafka_broker")
    if broker is not None and broker.is_running:
        broker.faults.clear()
