from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ottla.broker.config.definitions import broker_settings, topic_settings
from ottla.broker.config.documentation import broker_documentation
from ottla.broker.handlers.admin.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    FROM_BROKER,
    FROM_CLUSTER,
    FROM_DEFAULT,
    FROM_FILE,
    FROM_LOGGER,
    FROM_TOPIC,
    TOPIC,
    ConfigDescriber,
)
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import encode_config
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tests.doubles.pace import steps_per_turn
from tests.doubles.request_context import Asked, FakeContext
from tests.doubles.znode_entities import Entities

NEWEST = 4
Rows = dict[str, DescribeConfigsResourceResult]


def describe(
    entities: Entities,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    version: int = NEWEST,
    synonyms: bool = True,
) -> DescribeConfigsResult:
    handlers = ConfigDescriber(1, entities.config, entities.dynamic, entities.metadata)
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, keys)])
    if version >= 1:
        request.include_synonyms = synonyms
    (result,) = Asked(handlers.handle, request, version).response(DescribeConfigsResponse).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def rows(
    entities: Entities,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    version: int = NEWEST,
) -> Rows:
    result = describe(entities, kind, name, keys, version)
    assert (result.error_code, result.error_message) == (0, "")
    return {row.name: row for row in result.configs}


def origins(row: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in row.synonyms]


def with_changes(
    entities: Entities, *, topic: dict[str, str] | None = None, **layers: dict[str, str]
) -> Entities:
    """Entities that hold these settings; the layers are `cluster` and `broker`."""

    async def write() -> None:
        await entities.start()
        if topic is not None:
            await entities.write("topics/t", topic)
        if "cluster" in layers:
            await entities.write("brokers/<default>", layers["cluster"])
        if "broker" in layers:
            await entities.write("brokers/1", layers["broker"])
        await entities.stop()

    asyncio.run(write())
    return entities


def test_a_topic_shows_every_setting_and_where_it_comes_from() -> None:
    entities = with_changes(
        Entities(log_retention_hours="2"),
        topic={"segment.bytes": "1000"},
        cluster={"log.segment.bytes": "2000"},
    )
    found = rows(entities, TOPIC, "t")
    assert found.keys() == topic_settings().keys()
    segment = found["segment.bytes"]
    assert (segment.value, segment.config_source, segment.config_type) == ("1000", FROM_TOPIC, 3)
    assert origins(segment) == [
        ("segment.bytes", "1000", FROM_TOPIC),
        ("log.segment.bytes", "2000", FROM_CLUSTER),
        ("log.segment.bytes", "1073741824", FROM_DEFAULT),
    ]
    # Hours given for the broker are milliseconds for its topics. That they were given does not
    # show, as in Kafka: synonyms begin with the setting's own name.
    retention = found["retention.ms"]
    assert (retention.value, retention.config_source) == ("7200000", FROM_DEFAULT)
    assert found["flush.ms"].config_source == FROM_DEFAULT
    assert not any(row.read_only or row.is_sensitive for row in found.values())


def test_a_broker_shows_every_setting() -> None:
    entities = with_changes(
        Entities(num_io_threads="5", ssl_keystore_password="secret"),
        cluster={"num.io.threads": "6"},
        broker={"num.io.threads": "7"},
    )
    found = rows(entities, BROKER, "1")
    assert found.keys() >= broker_settings().keys()
    threads = found["num.io.threads"]
    assert (threads.value, threads.config_source, threads.read_only) == ("7", FROM_BROKER, False)
    assert origins(threads) == [
        ("num.io.threads", "7", FROM_BROKER),
        ("num.io.threads", "6", FROM_CLUSTER),
        ("num.io.threads", "5", FROM_FILE),
        ("num.io.threads", "8", FROM_DEFAULT),
    ]
    assert found["broker.id"].read_only
    secret = found["ssl.keystore.password"]
    assert (secret.value, secret.is_sensitive, secret.config_source) == (None, True, FROM_FILE)
    assert origins(secret) == [("ssl.keystore.password", None, FROM_FILE)]


def test_settings_of_listeners_are_shown_by_their_base() -> None:
    entities = Entities(
        **{
            "listener.name.plaintext.ssl.key.password": "secret",
            "listener.name.plaintext.ssl.client.auth": "required",
        }
    )
    found = rows(entities, BROKER, "1")
    assert found["listener.name.plaintext.ssl.key.password"].value is None
    own = found["listener.name.plaintext.ssl.client.auth"]
    assert own.value == "required"
    assert [each.name for each in own.synonyms][-1] == "ssl.client.auth"


def test_settings_of_listeners_are_described_as_read_only_although_they_change() -> None:
    name = "listener.name.plaintext.max.connections"
    entities = with_changes(Entities(), cluster={name: "6"}, broker={name: "7"})
    assert rows(entities, BROKER, "1")[name].read_only
    assert rows(entities, BROKER, "")[name].read_only
    assert not rows(entities, BROKER, "1")["max.connections"].read_only


def test_the_empty_name_shows_what_holds_for_all_brokers() -> None:
    entities = with_changes(
        Entities(), cluster={"num.io.threads": "6"}, broker={"log.cleaner.threads": "7"}
    )
    found = rows(entities, BROKER, "")
    assert list(found) == ["num.io.threads"]
    assert origins(found["num.io.threads"]) == [("num.io.threads", "6", FROM_CLUSTER)]


def test_single_settings() -> None:
    entities = Entities()
    keys = ["segment.bytes", "no.such"]
    assert list(rows(entities, TOPIC, "t", keys)) == ["segment.bytes"]
    # No keys at all is every one, as in Kafka.
    assert len(rows(entities, TOPIC, "t", [])) == len(topic_settings())


def test_a_value_that_no_response_can_carry_is_named() -> None:
    name = "leader.replication.throttled.replicas"
    replicas = ",".join(f"{index}:1" for index in range(10_000))
    entities = with_changes(Entities(), topic={name: replicas})
    result = describe(entities, TOPIC, "t")
    assert (result.error_code, result.configs) == (ErrorCode.INVALID_REQUEST, [])
    assert f"The value of {name} has more than 32767 bytes" in (result.error_message or "")
    assert list(rows(entities, TOPIC, "t", ["segment.bytes"])) == ["segment.bytes"]


def test_loggers_show_their_levels() -> None:
    logging.getLogger("ottla.test.shown").setLevel(logging.WARNING)
    found = rows(Entities(), BROKER_LOGGER, "1")
    assert found["ottla.test.shown"].value == "WARN"
    assert found["root"].config_source == FROM_LOGGER


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_what_every_version_returns(version: int) -> None:
    row = rows(Entities(), TOPIC, "t", ["segment.bytes"], version)["segment.bytes"]
    assert row.value == "1073741824"
    assert row.config_source == (FROM_DEFAULT if version >= 1 else -1)
    assert len(row.synonyms) == (1 if version >= 1 else 0)
    assert row.config_type == (3 if version >= 3 else 0)


@pytest.mark.parametrize("asked", [True, False])
def test_documentation_on_request_only(asked: bool) -> None:
    entities = Entities()
    handlers = ConfigDescriber(1, entities.config, entities.dynamic, entities.metadata)
    request = DescribeConfigsRequest(
        [
            DescribeConfigsResource(BROKER_LOGGER, "1", ["root"]),
            DescribeConfigsResource(BROKER, "1", ["log.retention.ms"]),
        ],
        include_documentation=asked,
    )
    logger, broker = Asked(handlers.handle, request, 3).response(DescribeConfigsResponse).results
    [row] = broker.configs
    assert row.documentation == (broker_documentation("log.retention.ms") if asked else None)
    assert [row.documentation for row in logger.configs] == [""]


def test_synonyms_on_request_only() -> None:
    result = describe(Entities(), TOPIC, "t", synonyms=False)
    assert all(row.synonyms == [] for row in result.configs)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "--1", ErrorCode.INVALID_REQUEST),
        (BROKER, "1" * 5_000, ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "x", ErrorCode.INVALID_REQUEST),
        (3, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described(kind: int, name: str, code: int) -> None:
    result = describe(Entities(), kind, name)
    assert (result.error_code, result.configs) == (code, [])


async def test_others_run_while_many_resources_are_described() -> None:
    entities = Entities()
    handlers = ConfigDescriber(1, entities.config, entities.dynamic, entities.metadata)
    resources = [DescribeConfigsResource(BROKER, "1", None) for _ in range(10)]
    request = DescribeConfigsRequest(resources, include_synonyms=True)
    context: Any = FakeContext(32, NEWEST)
    with steps_per_turn(100):
        work = spawn(handlers.handle(context, request), name="response")
        turns = 0
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
    response = work.result()
    rows_built = sum(len(each.configs) for each in response.results)
    assert turns >= rows_built // 100
    assert [len(each.configs) > 300 for each in response.results] == [True] * 10


def test_settings_that_were_not_announced() -> None:
    """As a broker of Kafka or a tool creates a topic: only brokers with a replica read them."""

    async def whole() -> None:
        entities = await Entities().start()
        path = znodes.config_path("topics/t")
        await entities.store.create(path, encode_config({"max.message.bytes": "500000"}))
        assert entities.dynamic.topic_overrides("t") == {}
        row = rows(entities, TOPIC, "t")["max.message.bytes"]
        assert (row.value, row.config_source) == ("500000", FROM_TOPIC)
        await entities.stop()

    asyncio.run(whole())
