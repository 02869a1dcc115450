"""ListConfigResources, and the settings of client metrics in DescribeConfigs."""

from __future__ import annotations

from typing import cast

from ottla.broker.handlers.admin.config_resources import ConfigResourcesHandler
from ottla.broker.handlers.admin.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    FROM_CLIENT_METRICS,
    FROM_DEFAULT,
    GROUP,
    TOPIC,
    ConfigDescriber,
)
from ottla.broker.requests.request_channel import RequestContext
from ottla.controller.tree.entity_configs import write_config
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import describe_configs
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.steps import run_at_once
from tests.doubles.eventually import eventually_async
from tests.doubles.request_context import FakeContext
from tests.doubles.znode_entities import Entities

SHARE = {"group_coordinator_rebalance_protocols": "classic,share"}


def listed(scene: Entities, types: list[int], version: int = 1) -> ListConfigResourcesResponse:
    handler = ConfigResourcesHandler(scene.metadata, scene.dynamic)
    context = cast(RequestContext, FakeContext(74, version))
    return run_at_once(handler.list_resources(context, ListConfigResourcesRequest(types)))


def rows(response: ListConfigResourcesResponse) -> list[tuple[int, str]]:
    assert not response.error_code
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


async def test_groups_without_members_are_listed_with_their_settings() -> None:
    scene = Entities(**SHARE)
    await scene.start()
    try:
        await write_config(scene.store, "groups/a%2Fb", {"consumer.session.timeout.ms": "50000"})
        await write_config(scene.store, "client-metrics/all", {"metrics": "*"})
        await eventually_async(lambda: bool(scene.dynamic.group_configs("a/b")))
        await eventually_async(lambda: "all" in scene.dynamic.client_metrics)
        assert rows(listed(scene, [GROUP])) == [(GROUP, "a/b")]
        everything = rows(listed(scene, []))
        assert everything[:2] == [(GROUP, "a/b"), (CLIENT_METRICS, "all")]
        brokers = [(BROKER, str(each)) for each in scene.metadata.snapshot.brokers]
        assert [row for row in everything if row[0] == BROKER] == brokers
        topics = [(TOPIC, name) for name in scene.metadata.snapshot.topics]
        assert [row for row in everything if row[0] == TOPIC] == topics
        assert {row[0] for row in everything} >= {GROUP, CLIENT_METRICS}
        assert rows(listed(scene, [BROKER_LOGGER, GROUP]))[0] == (GROUP, "a/b")
    finally:
        await scene.stop()


async def test_version_0_has_client_metrics_only_and_unknown_types_are_refused() -> None:
    scene = Entities(**SHARE)
    await scene.start()
    try:
        await write_config(scene.store, "client-metrics/all", {"metrics": "*"})
        await eventually_async(lambda: "all" in scene.dynamic.client_metrics)
        assert rows(listed(scene, [], 0)) == [(CLIENT_METRICS, "all")]
        refused = ErrorCode.UNSUPPORTED_VERSION
        assert listed(scene, [GROUP], 0).error_code == refused
        assert listed(scene, [GROUP, 99]).error_code == refused
    finally:
        await scene.stop()


async def test_settings_of_client_metrics_have_synonyms_as_in_kafka_4() -> None:
    scene = Entities(**SHARE, ottla_metrics_address="127.0.0.1:0")
    await scene.start()
    try:
        await write_config(scene.store, "client-metrics/all", {"interval.ms": "5000"})
        await eventually_async(lambda: "all" in scene.dynamic.client_metrics)
        describer = ConfigDescriber(1, scene.config, scene.dynamic, scene.metadata)
        request = describe_configs.DescribeConfigsRequest(
            [
                describe_configs.DescribeConfigsResource(CLIENT_METRICS, name, None)
                for name in ("all", "unknown")
            ],
            include_synonyms=True,
        )
        context = cast(RequestContext, FakeContext(32, 4))
        known, unknown = (await describer.handle(context, request)).results
        found = {row.name: row for row in known.configs}
        assert found.keys() == {"interval.ms", "match", "metrics"}
        interval = found["interval.ms"]
        assert (interval.value, interval.config_source) == ("5000", FROM_CLIENT_METRICS)
        assert [(each.name, each.value) for each in interval.synonyms] == [("interval.ms", "5000")]
        assert (found["match"].value, found["match"].config_source) == ("", FROM_DEFAULT)
        assert not found["match"].synonyms
        assert {row.config_source for row in unknown.configs} == {FROM_DEFAULT}
        assert {row.name: row.value for row in unknown.configs}["interval.ms"] == "300000"
    finally:
        await scene.stop()
