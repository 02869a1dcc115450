"""The table of APIs."""

from __future__ import annotations

from typing import Any, cast

from ottla.broker.cluster.features import FeatureCache
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.broker.handlers.table import build_table
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_response
from ottla.broker.requests.request_channel import HandlerEntry, RequestChannel, RequestContext
from ottla.broker.requests.request_parts import LARGE, ORDINARY, Items, items_of
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.access_control import AccessControl
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.broker.security.authorization.guard import Guard
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.znodes_security import LITERAL, Acl, AclResource
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import RequestHeader, decode_response
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from ottla.protocol.registry import API, ApiKey
from tests.doubles.api_routes import whole_table
from tests.doubles.channel import Peer
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.request_context import Asked

# The APIs that Kafka 3.9 lists in ZooKeeper mode, without those that depend on settings.
OF_KAFKA = {*range(52), *range(56, 59), 60, 61, 65, 66, 67, 68, 69, 75}


def test_every_api_has_one_line_and_all_of_its_versions() -> None:
    table = whole_table()
    keys = [entry.api_key for entry in table]
    assert len(set(keys)) == len(keys)
    for entry in table:
        api = API[entry.api_key]
        assert (entry.name, entry.min_version, entry.max_version) == (
            api.name,
            api.min_version,
            api.max_version,
        )
    assert set(keys) >= OF_KAFKA


class Greeter:
    """The handlers of a module that no other file knows."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def handle(self, context: RequestContext, request: Any) -> Message:
        names = [each.name for each in request.topics]
        self.seen.append(names)
        if "bad" in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return DescribeTopicPartitionsResponse(
            topics=[DescribeTopicPartitionsResponseTopic(name=name) for name in names]
        )


def error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        response.topics.append(DescribeTopicPartitionsResponseTopic(code, topic.name))


def check(guard: Guard, context: RequestContext, request: Any) -> None:
    guard.keep_allowed(
        context,
        request,
        Operation.READ,
        ResourceType.TOPIC,
        ("topics", "topics"),
        lambda topic: str(topic.name),
    )


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        Greeter.handle,
        check=check,
        errors=error_rows,
        items=(Items("topics", "topics"),),
    ),
)


def ask(table: list[HandlerEntry], *names: str) -> tuple[Peer, RequestContext]:
    """Sends a request through a channel with this table; its response is sent to the peer."""
    (entry,) = (each for each in table if each.api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names])
    peer = Peer()
    channel = RequestChannel(table, error_response)
    header = RequestHeader(entry.api_key, 0, 1, "client")
    context = RequestContext(header, request, cast(Any, peer), channel.routes[entry.api_key])
    channel.handle(context)
    return peer, context


def rows(peer: Peer) -> list[tuple[str | None, int]]:
    (parts,) = peer.sent
    frame = b"".join(parts)[4:]
    response: Any = decode_response(frame, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)[1]
    return [(row.name, row.error_code) for row in response.topics]


async def test_a_new_api_needs_its_definition_its_module_and_the_object() -> None:
    """Here this file is the module of handlers: its versions are listed, its errors have rows, its
    requests are checked and divided, and no other file of the broker says anything about it."""
    features = FeatureCache(EmbeddedStore(), ManualRuntime(), {})
    greeter = Greeter()
    table = build_table([greeter], features)
    assert [(each.name, each.limits) for each in table] == [
        ("DescribeTopicPartitions", LARGE),
        ("ApiVersions", ORDINARY),
    ]
    listed = Asked(table[1].handler, ApiVersionsRequest(), 0).response(ApiVersionsResponse)
    assert [row.api_key for row in listed.api_keys] == [18, 75]

    peer, _ = ask(table, "a", "b")
    assert rows(peer) == [("a", 0), ("b", 0)]
    peer, context = ask(table, "a", "bad")
    assert rows(peer) == [("a", ErrorCode.INVALID_REQUEST), ("bad", ErrorCode.INVALID_REQUEST)]
    items = items_of(context.route.entry.items, context.request or cast(Any, None))
    assert items == Items("topics", "topics")

    control = AccessControl(
        BrokerConfig({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}),
        cast(Any, None),
        cast(Any, None),
        MetadataCache(),
        SecurityLog(None),
        UnusableZnodes(),
    )
    acl = Acl("User:ANONYMOUS", "Allow", "Read", "*")
    control.rules.replace(AclResource(LITERAL, "Topic", "a"), [acl])
    greeter.seen.clear()
    peer, _ = ask(control.protect(table), "a", "b")
    assert rows(peer) == [("a", 0), ("b", ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    assert greeter.seen == [["a"]]


def test_requests_of_brokers_are_exempt_from_the_request_quota() -> None:
    names = {entry.name for entry in whole_table() if entry.exempt_from_request_quota}
    assert names == {
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "WriteTxnMarkers",
        "AlterPartition",
    }


def test_what_comes_before_authentication() -> None:
    names = {entry.name for entry in whole_table() if entry.before_authentication}
    assert names == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
