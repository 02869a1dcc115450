"""Tests as a project has them that uses Ottla: fixtures, embedded broker, modules of its own."""

from __future__ import annotations

from pathlib import Path

# The contents of a project's own module.
OWN = "OWNER = 'the project'\n"

_TESTS = """
import asyncio
import importlib
import sys

from confluent_kafka import Producer

from ottla.testing import Broker

MODULE, PACKAGES, SITE = {module!r}, {packages!r}, {site!r}


def write(bootstrap, topic):
    producer = Producer({{"bootstrap.servers": bootstrap, "log_level": 0}})
    producer.produce(topic, b"v")
    assert producer.flush(60) == 0


def test_each_has_its_own_modules():
    assert importlib.import_module(MODULE).OWNER == "the project"
    for package in map(importlib.import_module, PACKAGES):
        assert package.__file__.startswith(SITE), package.__file__
    assert not [name for name in sys.modules if name.split(".")[0] in ("controller", "tests")]


def test_the_fixtures(kafka_broker, kafka_topic):
    write(kafka_broker.bootstrap, kafka_topic)
    assert kafka_broker.end_offset(kafka_topic) == 1


def test_the_embedded_broker():
    async def main():
        async with Broker() as broker:
            broker.create_topic("t")
            await asyncio.to_thread(write, broker.bootstrap, "t")
            assert broker.end_offset("t") == 1

    asyncio.run(main())
"""


def project_tests(module: str, packages: tuple[str, ...], site: Path) -> str:
    """A test file of three tests. The project has `module`; `site` must hold the packages."""
    return _TESTS.format(module=module, packages=packages, site=str(site))
