"""Other clients are served while what a client may see of very much is found out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.handlers.metadata.describe_topic_partitions import TopicPartitionsHandler
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.requests.request_context import (
    DEFERRED,
    Handler,
    Principal,
    RequestContext,
    Route,
)
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.admin_guard import AdminGuard
from ottla.broker.security.authorization.authorizer import Authorizer
from ottla.broker.security.authorization.data_guard import DataGuard
from ottla.broker.security.authorization.group_guard import GroupGuard
from ottla.broker.security.authorization.guard import check_of, protect
from ottla.controller.tree.znodes_security import PREFIXED, Acl, AclResource
from ottla.protocol.headers import RequestHeader, decode_response
from ottla.protocol.message import Message
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.registry import API
from tests.doubles.api_routes import entry_of
from tests.doubles.pace import steps_per_turn
from tests.unit.broker.handlers.fake_metadata import Metadata

COUNT = 5_000
# A step decides about up to eight operations on one name.
MOST_IN_A_TURN = 1_000


class Broker:
    """Topics, groups and transactions, of which anna may describe every tenth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = [f"{'team' if i % 10 == 0 else 'x'}-{i:04}" for i in range(COUNT)]
        self.metadata: Any = Metadata(**dict.fromkeys(self.names, 1))
        self.rules = AclRules()
        for kind in ("Topic", "Group", "TransactionalId"):
            acl = Acl("User:anna", "Allow", "Describe", "*")
            self.rules.replace(AclResource(PREFIXED, kind, "team-"), [acl])
        authorizer = Authorizer(self.rules, SecurityLog(None))
        self.guards = (
            DataGuard(authorizer, self.metadata, auto_create=False),
            GroupGuard(authorizer),
            AdminGuard(authorizer, self.metadata),
        )
        self.turn = 0
        self.decisions: Counter[int] = Counter()
        decide = authorizer.rules.allows

        def counted(*arguments: Any, **more: Any) -> bool:
            self.decisions[self.turn] += 1
            return decide(*arguments, **more)

        monkeypatch.setattr(authorizer.rules, "allows", counted)
        self.sent: list[Any] = []
        self.closed = False
        self.principal = Principal("User", "anna")
        self.client_host, self.client_port = "127.0.0.1", 50_000
        self.listener_name = "PLAINTEXT"
        self.local_address = ("127.0.0.1", 9092)

    def send_response(self, context: RequestContext, parts: list[Any]) -> None:
        self.sent.append(parts)

    async def ask(self, handler: Handler, request: Message) -> Any:
        """The response, with the decisions in each turn of the loop counted."""
        api = API[request.API_KEY]
        entry = entry_of(api.key, handler)
        route = Route(protect(entry, check_of(entry, self.guards)))
        header = RequestHeader(api.key, api.max_version, 1, "client")
        context = RequestContext(header, request, cast("Any", self), route)
        channel = RequestChannel([], lambda _, error: pytest.fail(str(error)))
        with steps_per_turn(100):
            channel.handle(context)
            while not self.sent:
                self.turn += 1
                await asyncio.sleep(0)
        assert sum(self.decisions.values()) >= COUNT
        assert max(self.decisions.values()) <= MOST_IN_A_TURN
        frame = b"".join(self.sent[0])[4:]
        return decode_response(frame, api.key, api.max_version)[1]

    @property
    def visible(self) -> list[str]:
        return [name for name in self.names if name.startswith("team-")]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.mark.parametrize("with_operations", [False, True])
async def test_metadata_of_all_topics(broker: Broker, with_operations: bool) -> None:
    endpoints = Endpoints(1, broker.metadata, frozenset())
    handler = MetadataHandler(broker.metadata, endpoints, "id", cast("Any", None), False)
    request = MetadataRequest(topics=None, include_topic_authorized_operations=with_operations)
    response = await broker.ask(handler.handle, request)
    assert [topic.name for topic in response.topics] == broker.visible
    operations = {topic.topic_authorized_operations for topic in response.topics}
    assert operations == ({1 << 8} if with_operations else {-2147483648})


async def test_all_groups(broker: Broker) -> None:
    async def handle(context: RequestContext, _: Any) -> Any:
        groups = [ListedGroup(name, "consumer", "Stable", "classic") for name in broker.names]
        await context.respond_in_turns(ListGroupsResponse(groups=groups))
        return DEFERRED

    response = await broker.ask(handle, ListGroupsRequest())
    assert [group.group_id for group in response.groups] == broker.visible


async def test_all_transactions(broker: Broker) -> None:
    async def handle(context: RequestContext, _: Any) -> Any:
        states = [TransactionState(name, 1, "Ongoing") for name in broker.names]
        await context.respond_in_turns(ListTransactionsResponse(transaction_states=states))
        return DEFERRED

    response = await broker.ask(handle, ListTransactionsRequest())
    ids = [state.transactional_id for state in response.transaction_states]
    assert ids == broker.visible


async def test_a_page_of_all_topics(broker: Broker) -> None:
    endpoints = Endpoints(1, broker.metadata, frozenset())
    handler = TopicPartitionsHandler(broker.metadata, endpoints, 3)
    request = DescribeTopicPartitionsRequest(response_partition_limit=3)
    response = await broker.ask(handler.handle, request)
    assert [topic.name for topic in response.topics] == broker.visible[:3]
    assert response.next_cursor.topic_name == broker.visible[3]
