"""Settings of groups (resource type GROUP) in AlterConfigs and DescribeConfigs."""

from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.handlers.admin.alter_configs import DELETE, SET, ConfigAlterer
from ottla.broker.handlers.admin.describe_configs import (
    FROM_DEFAULT,
    FROM_FILE,
    FROM_GROUP,
    GROUP,
    ConfigDescriber,
)
from ottla.broker.requests.request_channel import RequestContext
from ottla.controller.tree.entity_configs import write_config
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import describe_configs
from ottla.protocol.messages import incremental_alter_configs as altering
from tests.doubles.eventually import eventually_async
from tests.doubles.request_context import FakeContext
from tests.doubles.znode_entities import Entities

LOCK = "share.record.lock.duration.ms"
SHARE = {"group_coordinator_rebalance_protocols": "classic,share"}


class Scene(Entities):
    def __init__(self, code: int = 0) -> None:
        """`code` is the error of the check whether all brokers have share groups."""
        super().__init__(**SHARE, group_share_record_lock_duration_ms="20000")
        self.code = code

    async def check(self) -> None:
        if self.code:
            raise KafkaError(self.code)

    async def alter(self, *changes: tuple[str, int, str | None], name: str = "a/b") -> int:
        alterer = ConfigAlterer(
            1, self.config, self.dynamic, self.metadata, check_share_groups=self.check
        )
        rows = [altering.AlterableConfig(*change) for change in changes]
        request = altering.IncrementalAlterConfigsRequest(
            [altering.AlterConfigsResource(GROUP, name, rows)]
        )
        context = cast(RequestContext, FakeContext(44, 1))
        (row,) = (await alterer.alter_incrementally(context, request)).responses
        return row.error_code

    async def describe(self, name: str = "a/b") -> describe_configs.DescribeConfigsResult:
        describer = ConfigDescriber(1, self.config, self.dynamic, self.metadata)
        request = describe_configs.DescribeConfigsRequest(
            [describe_configs.DescribeConfigsResource(GROUP, name, None)], include_synonyms=True
        )
        context = cast(RequestContext, FakeContext(32, 4))
        (result,) = (await describer.handle(context, request)).results
        return result


async def test_a_group_gets_and_loses_a_setting() -> None:
    scene = Scene()
    await scene.start()
    try:
        assert await scene.alter((LOCK, SET, "15000")) == 0
        assert scene.dynamic.group_configs("a/b") == {LOCK: "15000"}
        rows = {row.name: row for row in (await scene.describe()).configs}
        assert (rows[LOCK].value, rows[LOCK].config_source) == ("15000", FROM_GROUP)
        assert [(each.name, each.value, each.source) for each in rows[LOCK].synonyms[:2]] == [
            (LOCK, "15000", FROM_GROUP),
            (f"group.{LOCK}", "20000", FROM_FILE),
        ]
        reset = rows["share.auto.offset.reset"]
        assert (reset.value, reset.config_source) == ("latest", FROM_DEFAULT)
        assert await scene.alter((LOCK, DELETE, None)) == 0
        assert scene.dynamic.group_configs("a/b") == {}
        rows = {row.name: row for row in (await scene.describe()).configs}
        assert (rows[LOCK].value, rows[LOCK].config_source) == ("20000", FROM_FILE)
    finally:
        await scene.stop()


async def test_a_setting_survives_a_restart_and_reaches_other_brokers() -> None:
    scene = Scene()
    await scene.start()
    try:
        await write_config(scene.store, "groups/a%2Fb", {LOCK: "15000"})
        await eventually_async(lambda: scene.dynamic.group_configs("a/b") == {LOCK: "15000"})
        await write_config(scene.store, "groups/c", {LOCK: "16000"})
        scene.dynamic.stop()
        await scene.dynamic.start()
        assert scene.dynamic.group_configs("c") == {LOCK: "16000"}
    finally:
        await scene.stop()


@pytest.mark.parametrize(
    ("setting", "value", "name", "check", "code"),
    [
        (LOCK, "1", "g", 0, ErrorCode.INVALID_CONFIG),
        ("retention.ms", "1", "g", 0, ErrorCode.INVALID_CONFIG),
        (LOCK, "15000", "", 0, ErrorCode.INVALID_REQUEST),
        (LOCK, "15000", "g", ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_what_is_refused(setting: str, value: str, name: str, check: int, code: int) -> None:
    scene = Scene(check)
    await scene.start()
    try:
        assert await scene.alter((setting, SET, value), name=name) == code
        assert scene.dynamic.group_configs(name) == {}
        assert (await scene.describe("")).error_code == ErrorCode.INVALID_REQUEST
    finally:
        await scene.stop()
