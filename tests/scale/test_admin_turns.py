"""How much one turn of the event loop does for admin requests about very much, in calls."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
from ottla.broker.handlers.admin.log_dirs import LogDirsHandlers
from ottla.broker.handlers.cluster.elect_leaders import ElectLeadersHandler
from ottla.broker.handlers.cluster.partition_reassignments import PartitionReassignmentHandlers
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.handlers.security.acls import AclAdminHandlers
from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
from ottla.broker.requests.request_context import DEFERRED, started
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import PatternType, ResourceType
from ottla.controller.errors import OK
from ottla.controller.model import ReplicaAssignment
from ottla.controller.tree.znodes_security import LITERAL, Acl, AclResource
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.steps import run_in_turns
from ottla.protocol.topics import TopicPartition
from tests.doubles.published_metadata import publish
from tests.hostile.turns import TurnMeter
from tests.scale.test_turns import Peer, begin, context_of, in_turns, meter

__all__ = ["meter"]

PARTITIONS = 100_000
RESOURCES = 200_000
ENTITIES = 100_000
MOVED = 5_000
CREDENTIAL = "salt=c2FsdA==,stored_key=a2V5,server_key=a2V5,iterations=4096"


async def sent_in_turns(meter: TurnMeter, handler: Any, request: Message, version: int) -> int:
    """The bytes of the response, which is made in turns."""
    context = context_of(request, version)
    await begin(meter)

    async def handle() -> None:
        found = started(handler(context, request))
        if isinstance(found, Coroutine):
            found = await found
        if found is not DEFERRED:
            await context.respond_in_turns(found)

    await in_turns(handle())
    return cast("Peer", context.connection).sent


@pytest.mark.parametrize("names", ["one", "all"])
async def test_metadata_of_a_large_topic(meter: TurnMeter, names: str) -> None:
    states = [
        UpdateMetadataPartitionState(partition_index=index, leader=1, isr=[1], replicas=[1])
        for index in range(PARTITIONS)
    ]
    cache = MetadataCache()
    endpoint = UpdateMetadataEndpoint(9092, "host", "PLAINTEXT", 0)
    publish(
        cache,
        UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=1,
            live_brokers=[UpdateMetadataBroker(id=1, endpoints=[endpoint])],
            topic_states=[UpdateMetadataTopicState("t", b"t" * 16, states)],
        ),
    )
    endpoints = Endpoints(1, cache, frozenset())
    handler = MetadataHandler(cache, endpoints, "c", cast("Any", None), auto_create=False)
    if names == "one":
        request = MetadataRequest([MetadataRequestTopic(name="t")])
        assert await sent_in_turns(meter, handler.handle, request, 12) > 20 * PARTITIONS
        return
    context = context_of(MetadataRequest(None), 12)
    await begin(meter)
    await in_turns(run_in_turns(cast("Any", handler.handle(context, MetadataRequest(None)))))


@pytest.mark.parametrize("segments", [1, 100])
async def test_all_replicas_are_described(meter: TurnMeter, segments: int) -> None:
    log = SimpleNamespace(
        topic="t",
        segments=range(segments),
        local=SimpleNamespace(size_in_bytes=1),
        high_watermark=1,
        log_end_offset=1,
    )
    logs = [
        SimpleNamespace(**{**log.__dict__, "partition": index})
        for index in range(PARTITIONS // segments)
    ]
    manager = SimpleNamespace(
        directories=SimpleNamespace(all=[SimpleNamespace(path="/", is_offline=False)]),
        logs_in=lambda path: list(logs),
        get=lambda topic, partition: logs[partition],
    )
    handlers = LogDirsHandlers(cast("Any", None), cast("Any", manager))
    sent = await sent_in_turns(meter, handlers.describe_log_dirs, DescribeLogDirsRequest(None), 4)
    assert sent > 20 * len(logs)


async def test_many_replicas_are_moved(meter: TurnMeter) -> None:
    class Mover:
        moved = 0

        def move(self, partition: TopicPartition, path: str) -> None:
            self.moved += 1
            for _ in range(200):  # the calls of a directory, its files and a log
                len(path)

    mover = Mover()
    handlers = LogDirsHandlers(cast("Any", mover), cast("Any", None))
    topic = AlterReplicaLogDirTopic("t", list(range(MOVED)))
    request = AlterReplicaLogDirsRequest([AlterReplicaLogDir("/d", [topic])])
    await sent_in_turns(meter, handlers.alter_replica_log_dirs, request, 2)
    assert mover.moved == MOVED


def many_acls() -> AclRules:
    rules = AclRules()
    for number in range(RESOURCES):
        resource = AclResource(LITERAL, "Topic", f"topic-{number}")
        rules.replace(resource, [Acl("User:alice", "Allow", "Read", "*")])
    return rules


async def test_all_acls_are_described(meter: TurnMeter) -> None:
    handlers = AclAdminHandlers(many_acls(), cast("Any", object()))
    request = DescribeAclsRequest(
        ResourceType.ANY, None, PatternType.ANY, None, None, operation=1, permission_type=1
    )
    assert await sent_in_turns(meter, handlers.describe, request, 3) > 20 * RESOURCES


@pytest.mark.parametrize("name", [None, "no-topic"])
async def test_no_acl_is_deleted(meter: TurnMeter, name: str | None) -> None:
    handlers = AclAdminHandlers(many_acls(), cast("Any", object()))
    wanted = DeleteAclsFilter(
        ResourceType.ANY, name, PatternType.ANY, "User:bob", None, operation=1, permission_type=1
    )
    request = DeleteAclsRequest([wanted] * (1 if name is None else 64))
    context = context_of(request, 3)
    await begin(meter)
    response = await in_turns(handlers.delete(context, request))
    assert isinstance(response, DeleteAclsResponse)
    assert not any(each.matching_acls for each in response.filter_results)
    if name is not None:
        assert meter.all_calls < RESOURCES / 4  # no resource of another name is compared


async def test_many_reassignments_are_listed(meter: TurnMeter) -> None:
    assignment = ReplicaAssignment((1, 2, 3), (1,), (3,))

    async def listed(requested: object) -> dict[TopicPartition, ReplicaAssignment]:
        return {TopicPartition("t", index): assignment for index in range(PARTITIONS)}

    handlers = PartitionReassignmentHandlers(
        cast("Any", SimpleNamespace(list_partition_reassignments=listed))
    )
    request = ListPartitionReassignmentsRequest(topics=None)
    sent = await sent_in_turns(meter, handlers.list_ongoing, request, 0)
    assert sent > 20 * PARTITIONS


async def test_all_leaders_are_elected(meter: TurnMeter) -> None:
    async def elect(*_: object, timeout_ms: int) -> dict[TopicPartition, Any]:
        return {TopicPartition("t", index): OK for index in range(PARTITIONS)}

    handler = ElectLeadersHandler(cast("Any", SimpleNamespace(elect_leaders=elect)))
    request = ElectLeadersRequest(0, None, 1_000)
    assert await sent_in_turns(meter, handler.handle, request, 2) > 5 * PARTITIONS


class Settings:
    """What all users have."""

    async def read_all(self, kind: str) -> dict[str, dict[str, str]]:
        properties = {"SCRAM-SHA-256": CREDENTIAL, "producer_byte_rate": "1000"}
        return {f"{kind}/user-{number}": properties for number in range(ENTITIES)}


async def test_all_quotas_are_described(meter: TurnMeter) -> None:
    handlers = QuotaAdminHandlers(cast("Any", Settings()))
    request = DescribeClientQuotasRequest([], strict=False)
    assert await sent_in_turns(meter, handlers.describe, request, 1) > 20 * ENTITIES


async def test_all_credentials_are_described(meter: TurnMeter) -> None:
    handlers = UserCredentialHandlers(cast("Any", Settings()), lambda: True)
    request = DescribeUserScramCredentialsRequest(None)
    assert await sent_in_turns(meter, handlers.describe, request, 0) > 10 * ENTITIES
