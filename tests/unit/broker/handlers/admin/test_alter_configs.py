from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.broker.config.policies import ConfigAlteration
from ottla.broker.handlers.admin import alter_configs as alter_configs_handler
from ottla.broker.handlers.admin.alter_configs import (
    _OF_KAFKA,
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    ConfigAlterer,
)
from ottla.broker.handlers.admin.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    TOPIC,
)
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import alter_configs, incremental_alter_configs
from tests.doubles.eventually import eventually_async
from tests.doubles.request_context import FakeContext
from tests.doubles.znode_entities import Entities

Change = tuple[str, int, str | None]


class Scene(Entities):
    def __init__(self, **given: str) -> None:
        super().__init__(**given)
        self.handlers = ConfigAlterer(1, self.config, self.dynamic, self.metadata)

    async def incrementally(
        self, kind: int, name: str, *changes: Change, validate_only: bool = False
    ) -> tuple[int, str | None]:
        rows = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
        resource = incremental_alter_configs.AlterConfigsResource(kind, name, rows)
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            [resource], validate_only
        )
        context = cast(RequestContext, FakeContext(44, 1))
        (row,) = (await self.handlers.alter_incrementally(context, request)).responses
        assert (row.resource_type, row.resource_name) == (kind, name)
        return row.error_code, row.error_message

    async def replace(
        self, kind: int, name: str, validate_only: bool = False, **settings: str | None
    ) -> tuple[int, str | None]:
        rows = [
            alter_configs.AlterableConfig(each.replace("_", "."), value)
            for each, value in settings.items()
        ]
        resource = alter_configs.AlterConfigsResource(kind, name, rows)
        request = alter_configs.AlterConfigsRequest([resource], validate_only)
        context = cast(RequestContext, FakeContext(33, 2))
        (row,) = (await self.handlers.alter(context, request)).responses
        return row.error_code, row.error_message


def run(body: Callable[[Scene], Awaitable[None]], **given: str) -> None:
    async def whole() -> None:
        scene = Scene(**given)
        await scene.start()
        try:
            await body(scene)
        finally:
            await scene.stop()

    asyncio.run(whole())


OK = (0, None)


def test_a_topic_gets_and_loses_settings() -> None:
    async def body(scene: Scene) -> None:
        set_two = ("retention.ms", SET, "1000"), ("segment.bytes", SET, "2000")
        assert await scene.incrementally(TOPIC, "t", *set_two) == OK
        both = {"retention.ms": "1000", "segment.bytes": "2000"}
        assert await scene.dynamic.read("topics/t") == both
        # In force at once on the broker that was asked.
        assert scene.dynamic.topic_overrides("t") == both
        assert scene.dynamic.log_config("t").segment_bytes == 2000
        assert await scene.incrementally(TOPIC, "t", ("retention.ms", DELETE, None)) == OK
        assert await scene.dynamic.read("topics/t") == {"segment.bytes": "2000"}

    run(body)


def test_lists_grow_and_shrink() -> None:
    async def body(scene: Scene) -> None:
        name = "cleanup.policy"
        # What is appended to the default keeps the default.
        assert await scene.incrementally(TOPIC, "t", (name, APPEND, "compact")) == OK
        assert scene.dynamic.topic_overrides("t") == {name: "delete,compact"}
        assert await scene.incrementally(TOPIC, "t", (name, APPEND, "compact")) == OK
        assert scene.dynamic.topic_overrides("t") == {name: "delete,compact"}
        assert await scene.incrementally(TOPIC, "t", (name, SUBTRACT, "delete")) == OK
        assert scene.dynamic.topic_overrides("t") == {name: "compact"}
        code, words = await scene.incrementally(TOPIC, "t", ("retention.ms", APPEND, "1"))
        assert (code, words) == (
            ErrorCode.INVALID_CONFIG,
            "Config value append is not allowed for config key: retention.ms",
        )

    run(body)


def test_a_list_grows_to_the_size_that_zookeeper_accepts(caplog: pytest.LogCaptureFixture) -> None:
    name = "leader.replication.throttled.replicas"

    async def body(scene: Scene) -> None:
        numbers = iter(range(10**9))
        for _ in range(60):
            replicas = ",".join(f"{next(numbers)}:1" for _ in range(3_000))
            code, words = await scene.incrementally(TOPIC, "t", (name, APPEND, replicas))
            if code:
                break
        assert code == ErrorCode.INVALID_REQUEST
        assert "have at most 1000000, as in ZooKeeper." in (words or "")
        code, words = await scene.incrementally(TOPIC, "t", (name, APPEND, "x"))
        assert code == ErrorCode.INVALID_CONFIG
        assert len(words or "") < 1_000
        assert await scene.incrementally(TOPIC, "t", (name, SUBTRACT, "0:1")) == OK
        assert scene.dynamic.topic_overrides("t")[name].startswith("1:1,")

    with caplog.at_level(logging.INFO, "ottla.config"):
        run(body)
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000


async def test_others_run_while_a_change_is_validated() -> None:
    scene = Scene()
    await scene.start()
    seen: list[str] = []
    validated = scene.handlers._validated

    async def seen_validated(*given: Any) -> dict[str, str]:
        seen.append("validated")
        return await validated(*given)

    scene.handlers._validated = seen_validated  # type: ignore[method-assign]
    change = spawn(scene.incrementally(TOPIC, "t", ("retention.ms", SET, "1")), name="change")
    asyncio.get_running_loop().call_soon(seen.append, "other")
    assert await change == OK
    assert seen == ["other", "validated"]
    await scene.stop()


def test_replacing_forgets_what_is_not_named() -> None:
    async def body(scene: Scene) -> None:
        assert await scene.replace(TOPIC, "t", retention_ms="1000", segment_bytes="2000") == OK
        assert await scene.replace(TOPIC, "t", segment_bytes="3000") == OK
        assert await scene.dynamic.read("topics/t") == {"segment.bytes": "3000"}
        assert await scene.replace(TOPIC, "t") == OK
        assert scene.dynamic.topic_overrides("t") == {}

    run(body)


def test_validation_alone_changes_nothing() -> None:
    async def body(scene: Scene) -> None:
        change = ("retention.ms", SET, "1000")
        assert await scene.incrementally(TOPIC, "t", change, validate_only=True) == OK
        assert await scene.replace(TOPIC, "t", validate_only=True, retention_ms="1") == OK
        assert await scene.dynamic.read("topics/t") == {}

    run(body)


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "missing", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("retention.mss", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", SET, "long"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("cleanup.policy", SET, "keep"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("remote.storage.enable", SET, "true"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 4, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "2", ("log.cleaner.threads", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ("log.cleaner.threads", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("broker.id", SET, "2"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("no.such.setting", SET, "2"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("log.cleaner.threads", SET, "many"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("ssl.keystore.password", SET, "secret"), ErrorCode.INVALID_REQUEST),
        # May differ between brokers, so there is no value for all.
        (BROKER, "", ("listeners", SET, "PLAINTEXT://:1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("log.retention.ms", SET, "0"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("log.roll.ms", SET, "0"), ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "x", ("interval.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (3, "x", ("a", SET, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_that_cannot_be(kind: int, name: str, change: Change, code: int) -> None:
    async def body(scene: Scene) -> None:
        given, words = await scene.incrementally(kind, name, change)
        assert given == code, words
        assert words
        assert await scene.dynamic.read("topics/t") == {}
        assert await scene.dynamic.read("brokers/1") == {}

    run(body)


def test_one_setting_twice() -> None:
    async def body(scene: Scene) -> None:
        twice = ("retention.ms", SET, "1"), ("retention.ms", SET, "2")
        code, _ = await scene.incrementally(TOPIC, "t", *twice)
        assert code == ErrorCode.INVALID_REQUEST

    run(body)


def test_one_resource_twice() -> None:
    async def body(scene: Scene) -> None:
        resource = incremental_alter_configs.AlterConfigsResource(
            TOPIC, "t", [incremental_alter_configs.AlterableConfig("retention.ms", SET, "1")]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource, resource])
        context = cast(RequestContext, FakeContext(44, 1))
        response = await scene.handlers.alter_incrementally(context, request)
        codes = [row.error_code for row in response.responses]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2

    run(body)


def test_one_broker_and_all_of_them() -> None:
    async def body(scene: Scene) -> None:
        name = "log.cleaner.threads"
        assert await scene.incrementally(BROKER, "", (name, SET, "2")) == OK
        assert scene.config.log_cleaner_threads == 2
        assert await scene.incrementally(BROKER, "1", (name, SET, "4")) == OK
        assert scene.config.log_cleaner_threads == 4
        assert await scene.dynamic.read("brokers/<default>") == {name: "2"}
        assert await scene.incrementally(BROKER, "1", (name, DELETE, None)) == OK
        assert scene.config.log_cleaner_threads == 2

    run(body)


def test_topics_follow_the_brokers_defaults() -> None:
    async def body(scene: Scene) -> None:
        before = scene.dynamic.log_config("t")
        assert await scene.incrementally(BROKER, "", ("log.segment.bytes", SET, "5000")) == OK
        assert scene.dynamic.log_config("t").segment_bytes == 5000 != before.segment_bytes

    run(body)


def test_levels_of_loggers() -> None:
    logger = logging.getLogger("ottla.test.levels")

    async def body(scene: Scene) -> None:
        async def change(*changes: Change, name: str = "1") -> int:
            return (await scene.incrementally(BROKER_LOGGER, name, *changes))[0]

        assert await change(("ottla.test.levels", SET, "DEBUG")) == 0
        assert logger.level == logging.DEBUG
        assert await change(("ottla.test.levels", DELETE, None)) == 0
        assert logger.level == logging.NOTSET
        assert await change(("ottla.test.levels", SET, "LOUD")) == ErrorCode.INVALID_CONFIG
        assert await change(("ottla.no.such", SET, "INFO")) == ErrorCode.INVALID_CONFIG
        assert await change(("ottla.test.levels", APPEND, "INFO")) == ErrorCode.INVALID_REQUEST
        assert await change(("root", DELETE, None)) == ErrorCode.INVALID_REQUEST
        assert await change(("root", SET, "INFO"), name="") == ErrorCode.INVALID_REQUEST
        assert await change(("root", SET, "INFO"), name="2") == ErrorCode.INVALID_REQUEST
        # Loggers are changed one by one only.
        code, _ = await scene.replace(BROKER_LOGGER, "1", root="INFO")
        assert code == ErrorCode.INVALID_REQUEST

    run(body)


@pytest.mark.parametrize(
    ("kafka", "ours"),
    [
        ("kafka.controller", "ottla.controller"),
        ("kafka.controller.KafkaController", "ottla.controller"),
        ("kafka.controllers", "ottla"),
        ("kafka.server.ReplicaManager", "ottla.replication"),
        ("state.change.logger", "ottla.controller and ottla.replication"),
        ("org.apache.kafka.common.network.Selector", "ottla.net"),
    ],
)
def test_a_logger_of_kafka_gets_the_name_of_ours(kafka: str, ours: str) -> None:
    async def body(scene: Scene) -> None:
        code, message = await scene.incrementally(BROKER_LOGGER, "1", (kafka, SET, "DEBUG"))
        assert code == ErrorCode.INVALID_CONFIG
        assert (message or "").startswith(f"Logger {kafka} does not exist!")
        assert (
            message == f"Logger {kafka} does not exist! It is a logger of Kafka: use {ours} here."
        )

    run(body)


def test_the_loggers_of_the_hints_exist() -> None:
    root = Path(alter_configs_handler.__file__).parents[3]
    sources = [
        path.read_text()
        for each in ("broker", "controller", "storage")
        for path in (root / each).rglob("*.py")
    ]
    defined = {name for text in sources for name in re.findall(r'getLogger\("([a-z.]+)"\)', text)}
    named = {name for _, ours in _OF_KAFKA for name in re.findall(r"ottla\.[a-z]+", ours)}
    assert named <= defined


def test_the_security_log_is_not_switched_off() -> None:
    async def body(scene: Scene) -> None:
        audit = logging.getLogger("ottla.audit")
        before = audit.level
        for change in (("ottla.audit", SET, "FATAL"), ("ottla.audit", DELETE, None)):
            code, words = await scene.incrementally(BROKER_LOGGER, "1", change)
            assert code == ErrorCode.INVALID_CONFIG
            assert "is not switched off" in (words or "")
        assert audit.level == before
        try:
            assert await scene.incrementally(BROKER_LOGGER, "1", ("ottla.audit", SET, "INFO")) == OK
        finally:
            audit.setLevel(before)

    run(body)


def test_a_change_reaches_other_brokers() -> None:
    async def body(scene: Scene) -> None:
        # As another broker writes it: the node, then the announcement.
        from ottla.controller.tree.entity_configs import write_config

        await write_config(scene.store, "topics/t", {"retention.ms": "7"})
        await eventually_async(lambda: scene.changes.topics == ["t"])
        assert scene.dynamic.topic_overrides("t") == {"retention.ms": "7"}
        scene.dynamic.forget_topic("t")
        assert scene.dynamic.topic_overrides("t") == {}
        await scene.dynamic.load_topics(["t"])
        assert scene.dynamic.topic_overrides("t") == {"retention.ms": "7"}

    run(body)


def test_a_value_that_a_topic_cannot_have_is_named_in_kafkas_words() -> None:
    async def body(scene: Scene) -> None:
        code, message = await scene.incrementally(TOPIC, "t", ("compression.type", SET, "zip"))
        assert code == ErrorCode.INVALID_CONFIG
        assert (message or "").startswith(
            "Invalid config value for resource ConfigResource(type=TOPIC, name='t'): "
        )

    run(body)


def test_a_policy_sees_what_the_request_names_after_all_checks() -> None:
    asked: list[ConfigAlteration] = []

    def admit(change: ConfigAlteration) -> None:
        asked.append(change)
        if "min.insync.replicas" in change.configs:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "not here")

    async def body(scene: Scene) -> None:
        scene.handlers = ConfigAlterer(1, scene.config, scene.dynamic, scene.metadata, admit)
        assert await scene.replace(TOPIC, "t", retention_ms="1000") == OK
        changes = ("retention.ms", DELETE, "1"), ("segment.bytes", SET, "2000")
        assert await scene.incrementally(TOPIC, "t", *changes, validate_only=True) == OK
        violation = ErrorCode.POLICY_VIOLATION, "not here"
        rejected = "min.insync.replicas", SET, "2"
        assert await scene.incrementally(TOPIC, "t", rejected) == violation
        assert await scene.incrementally(TOPIC, "t", rejected, validate_only=True) == violation
        assert await scene.dynamic.read("topics/t") == {"retention.ms": "1000"}
        assert await scene.incrementally(BROKER, "", ("log.segment.bytes", SET, "3000")) == OK
        code, _ = await scene.incrementally(TOPIC, "t", ("retention.ms", SET, "soon"))
        assert code == ErrorCode.INVALID_CONFIG

    run(body)
    assert asked == [
        ConfigAlteration("TOPIC", "t", {"retention.ms": "1000"}),
        ConfigAlteration("TOPIC", "t", {"retention.ms": None, "segment.bytes": "2000"}),
        ConfigAlteration("TOPIC", "t", {"min.insync.replicas": "2"}),
        ConfigAlteration("TOPIC", "t", {"min.insync.replicas": "2"}),
        ConfigAlteration("BROKER", "", {"log.segment.bytes": "3000"}),
    ]
