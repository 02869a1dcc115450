"""How much one turn of the event loop does in a large cluster, in calls of functions.

The number of calls depends on the work alone, not on the machine. Half a million of them take 50 ms
on a slow machine. What is measured is one turn: the whole work is much more in each test.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.broker.groups.consumer.records import GroupEpoch, MemberSubscription
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
from ottla.broker.handlers.groups.offsets import OffsetFetchHandler
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.handlers.transactions.descriptions import TransactionQueryHandlers
from ottla.broker.requests.request_context import (
    HandlerEntry,
    HandlerResult,
    RequestContext,
    Route,
    started,
)
from ottla.broker.runtime.tasks import spawn
from ottla.broker.transactions.state import Transaction, TransactionState, TransactionValue
from ottla.controller.requests.shared_metadata import SharedMetadata
from ottla.protocol import steps
from ottla.protocol.codec import raw_encoder
from ottla.protocol.consumer_protocol import Assignment, encode_assignment
from ottla.protocol.headers import RequestHeader
from ottla.protocol.message import Message
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import Replicas
from tests.doubles.request_context import FakeContext
from tests.hostile.turns import TurnMeter
from tests.unit.broker.groups.consumer_helpers import Catalog, ConsumerSetup
from tests.unit.broker.groups.helpers import GROUP, SUBSCRIPTION, T0, PendingResponse, Setup
from tests.unit.broker.transactions.helpers import Setup as TransactionSetup

TOPICS, PARTITIONS, BROKERS = 5_000, 10, 100
GROUPS = 5_000
LISTED = 50_000
MEMBERS, ASSIGNED = 1_000, 10_000
JOINED = 10_000
CONVERTED = 2_000
MAX_CALLS = 500_000
T = TypeVar("T")


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[TurnMeter]:
    meter = TurnMeter()
    original = asyncio.events.Handle._run
    monkeypatch.setattr(asyncio.events.Handle, "_run", lambda handle: meter.run(handle, original))
    meter.watch(threading.current_thread())
    yield meter
    assert 0 < meter.most_calls < MAX_CALLS, meter.where


def update_metadata() -> UpdateMetadataRequest:
    """Of the whole cluster."""
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        live_brokers=[
            UpdateMetadataBroker(
                id=each, endpoints=[UpdateMetadataEndpoint(9092, f"host{each}", "PLAINTEXT", 0)]
            )
            for each in range(1, BROKERS + 1)
        ],
        topic_states=[
            UpdateMetadataTopicState(
                f"topic-{number}",
                number.to_bytes(16, "big"),
                [
                    UpdateMetadataPartitionState(
                        partition_index=index,
                        leader=(number + index) % BROKERS + 1,
                        isr=[1, 2, 3],
                        replicas=[1, 2, 3],
                    )
                    for index in range(PARTITIONS)
                ],
            )
            for number in range(TOPICS)
        ],
    )


async def begin(meter: TurnMeter) -> None:
    """What the test has prepared does not count."""
    await asyncio.sleep(0)
    meter.reset()


async def in_turns(work: Coroutine[Any, Any, T]) -> T:
    """In a task, whose turns are counted."""
    return await spawn(work, name="work")


async def respond(context: RequestContext, result: HandlerResult) -> None:
    """Finish the result of a handler and send the response, as the request channel does."""
    result = started(result)
    response = await result if isinstance(result, Coroutine) else result
    await context.respond_in_turns(cast("Message", response))


async def test_metadata_of_all_topics(meter: TurnMeter) -> None:
    cache = MetadataCache()
    publish(cache, update_metadata())
    endpoints = Endpoints(1, cache, frozenset())
    handler = MetadataHandler(cache, endpoints, "c", cast("Any", None), auto_create=False)
    await begin(meter)
    for _ in range(2):  # the second one from what is kept
        result = handler.handle(cast("Any", FakeContext(3, 12)), MetadataRequest(None))
        response = await in_turns(steps.run_in_turns(cast("Any", result)))
        await in_turns(encode(response))
        pieces: list[bytes] = []
        response.encode_pieces(12, pieces)
        assert b"".join(pieces).count(b"topic-") == TOPICS


async def encode(response: MetadataResponse) -> None:
    raw_encoder(type(response), 12)(response, [], [])


async def test_update_metadata(meter: TurnMeter) -> None:
    replicas = Replicas()
    control = ReplicaControl(
        replicas.leader_and_isr,
        replicas.metadata,
        cast("Any", None),
        BrokerEpoch(),
        lambda deleted: None,
    )
    request = update_metadata()
    await begin(meter)
    result = control.update_metadata(request)
    assert isinstance(result, Coroutine)
    assert (await in_turns(result)).error_code == 0
    assert replicas.metadata.snapshot.partition_count >= TOPICS * PARTITIONS


async def test_the_controller_encodes_metadata(meter: TurnMeter) -> None:
    shared = SharedMetadata(update_metadata(), 8)

    async def send_all() -> None:
        for epoch in range(BROKERS):
            await shared.request_for(epoch)

    await begin(meter)
    await in_turns(send_all())


@pytest.mark.parametrize("reason", ["expired", "topic deleted"])
async def test_offsets_of_many_groups_are_removed(meter: TurnMeter, reason: str) -> None:
    setup = Setup()
    setup.coordinator.shutdown()
    setup = Setup(setup.log)
    for number in range(GROUPS):
        setup.commit({T0: 1}, group_id=f"group-{number}")
    admin = setup.coordinator.admin
    later_ms = setup.timer.clock.now_ms() + GroupSettings().offsets_retention_ms

    async def start() -> None:
        if reason == "expired":
            admin.expire(later_ms)
        else:
            admin.on_partitions_deleted([T0])

    await begin(meter)
    await in_turns(start())
    while setup.deferred:
        asyncio.get_running_loop().call_soon(setup.deferred.pop())
        await asyncio.sleep(0)
    assert list(admin.all_groups()) == []


@pytest.mark.parametrize("reason", ["expired", "not expired", "deleted", "topics deleted"])
async def test_a_group_of_many_offsets(meter: TurnMeter, reason: str) -> None:
    setup = Setup()
    now_ms = setup.timer.clock.now_ms()
    offsets = setup.coordinator.partitions.find_or_create(GROUP).offsets
    for number in range(LISTED):
        where = TopicPartition(f"topic-{number // 100}", number % 100)
        offsets.replay(where, CommittedOffset(number, -1, "", now_ms), 0)
    admin = setup.coordinator.admin
    retention_ms = GroupSettings().offsets_retention_ms

    async def start() -> None:
        if reason == "deleted":
            admin.delete_groups([GROUP], lambda result: None)
        elif reason == "topics deleted":
            admin.on_partitions_deleted(offsets.committed)
        else:
            admin.expire(now_ms + retention_ms - (reason == "not expired"))

    await begin(meter)
    await in_turns(start())
    assert await run_in_turns(setup) > 1
    left = LISTED if reason == "not expired" else 0
    assert sum(len(group.offsets.committed) for group in admin.all_groups()) == left


async def run_in_turns(setup: Setup) -> int:
    """Each deferred call in a turn of its own; returns their number."""
    slices = 0
    while setup.deferred:
        asyncio.get_running_loop().call_soon(setup.deferred.pop(0))
        await asyncio.sleep(0)
        slices += 1
    return slices


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize("topics", [1, 100])
async def test_the_assignment_of_a_large_group(
    meter: TurnMeter, assignor: str, topics: int
) -> None:
    catalog = Catalog(**{f"t{number}": ASSIGNED // topics for number in range(topics)})
    names = [f"t{number}" for number in range(topics)]
    setup = ConsumerSetup(catalog=catalog)
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    partition.replay_consumer_group(GroupEpoch(GROUP, 1))
    for number in range(MEMBERS):
        member = ConsumerMember(f"{number:036d}", topics=frozenset(names), assignor=assignor)
        partition.replay_consumer_group(MemberSubscription(GROUP, member.member_id, member))

    async def join(member_id: str) -> PendingResponse[ConsumerGroupHeartbeatResponse]:
        return setup.beat(member_id, 0, topics=names, owned={}, timeout_ms=30_000)

    await begin(meter)
    for member_id in ("first", "second"):
        response = await in_turns(join(member_id))
        assert await run_in_turns(setup) > 10
        assert response.value.error_code == 0
    assert setup.consumer_group.assignment_epoch == 3


async def test_a_large_group_is_described(meter: TurnMeter) -> None:
    setup = ConsumerSetup(catalog=Catalog(t=1))
    setup.enter("m")
    topic_ids = [number.to_bytes(16) for number in range(10, 60)]
    setup.catalog.name_of = lambda topic_id: "name"  # type: ignore[method-assign]
    assigned = dict.fromkeys(topic_ids, frozenset((0,)))
    group = setup.consumer_group
    for number in range(MEMBERS):
        name = f"{number:036d}"
        group.members[name] = ConsumerMember(name, assigned=assigned)
        group.targets[name] = assigned
    request = ConsumerGroupDescribeRequest([GROUP])
    context = context_of(request, 1)
    nothing = cast("Any", None)  # neither is used
    handlers = ConsumerGroupHandlers(cast("Any", setup.coordinator.consumers), nothing, nothing)
    await begin(meter)
    await in_turns(respond(context, handlers.describe(context, request)))
    assert cast("Peer", context.connection).sent > MEMBERS * len(topic_ids) * 2 * 20


async def test_a_coordinator_of_many_groups_resigns(meter: TurnMeter) -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    responses = [setup.join(group_id=f"group-{number}") for number in range(4 * GROUPS)]

    async def resign() -> None:
        setup.coordinator.on_resigned(0, 1)

    await begin(meter)
    await in_turns(resign())
    await run_in_turns(setup)
    assert all(response.value.error_code for response in responses)


async def test_a_large_classic_group_rebalances(meter: TurnMeter) -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    handlers = GroupMembershipHandlers(
        setup.coordinator.membership, GroupRequestErrorLog(setup.coordinator.events, lambda: 0)
    )

    def join(member_id: str) -> Peer:
        protocols = [JoinGroupRequestProtocol("range", SUBSCRIPTION)]
        request = JoinGroupRequest(GROUP, 10_000, 60_000, member_id, None, "consumer", protocols)
        context = context_of(request, 3)
        handlers.join_group(context, request)
        return cast("Peer", context.connection)

    def sync(member_id: str, given: list[SyncGroupRequestAssignment]) -> Peer:
        generation_id = setup.group().generation_id
        request = SyncGroupRequest(GROUP, generation_id, member_id, assignments=given)
        context = context_of(request, 3)
        handlers.sync_group(context, request)
        return cast("Peer", context.connection)

    async def call(act: Callable[..., object], *arguments: object) -> None:
        act(*arguments)

    peers = [join("") for _ in range(JOINED)]
    await begin(meter)
    await in_turns(call(setup.timer.advance, 6_000))
    await run_in_turns(setup)
    assert meter.most_calls < MAX_CALLS, "JoinGroup"
    ids = list(setup.group().members)
    peers += [sync(member_id, []) for member_id in ids[1:]]
    given = [SyncGroupRequestAssignment(member_id, b"assignment") for member_id in ids]
    await begin(meter)
    await in_turns(call(sync, ids[0], given))
    await run_in_turns(setup)
    assert meter.most_calls < MAX_CALLS, "SyncGroup"
    peers += [join(member_id) for member_id in ids]
    setup.run_deferred()
    peers += [sync(member_id, []) for member_id in ids[1:]]
    await begin(meter)
    await in_turns(call(setup.leave, (ids[0], None)))  # ends the wait of the others
    await run_in_turns(setup)
    assert all(peer.sent for peer in peers)


async def test_a_large_group_is_converted_and_back(meter: TurnMeter) -> None:
    setup = ConsumerSetup(
        catalog=Catalog(t=CONVERTED),
        group_initial_rebalance_delay_ms=3_000,
        group_consumer_migration_policy="bidirectional",
    )
    joins = [setup.join() for _ in range(CONVERTED)]
    setup.timer.advance(6_000)
    setup.run_deferred()
    ids = [join.value.member_id for join in joins]
    given = {
        member_id: encode_assignment(Assignment([TopicPartition("t", number)]))
        for number, member_id in enumerate(ids)
    }
    setup.sync(ids[0], 1, given)
    setup.run_deferred()

    async def beat(epoch: int) -> PendingResponse[ConsumerGroupHeartbeatResponse]:
        return setup.beat("new", epoch, topics=["t"], owned={}, timeout_ms=30_000)

    await begin(meter)
    for epoch in (0, -1):  # joins, and leaves
        response = await in_turns(beat(epoch))
        assert await run_in_turns(setup) > 10
        assert response.value.error_code == 0
    assert list(setup.group().members) == ids


@pytest.mark.parametrize("members", [10, 100_000])
async def test_members_of_consumer_groups_are_watched_until_the_coordinator_resigns(
    meter: TurnMeter, members: int
) -> None:
    setup = ConsumerSetup(catalog=Catalog(t=1))
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    for number in range(120_000 // members):
        group_id = f"group-{number}"
        partition.replay_consumer_group(GroupEpoch(group_id, 1))
        for index in range(members):
            member = ConsumerMember(f"{number}-{index}")
            partition.replay_consumer_group(MemberSubscription(group_id, member.member_id, member))

    async def load() -> None:
        setup.coordinator._on_loaded(partition)

    async def resign() -> None:
        setup.coordinator.on_resigned(0, 1)

    await begin(meter)
    await in_turns(load())
    assert await run_in_turns(setup) > 10
    await in_turns(resign())
    assert await run_in_turns(setup) > 10


class Peer:
    """A connection that notes the bytes of its responses."""

    closed = False
    client_host = "127.0.0.1"
    listener_name = "PLAINTEXT"

    def __init__(self) -> None:
        self.sent = 0

    def send_response(self, context: RequestContext, parts: list[Any]) -> None:
        self.sent += sum(map(len, parts))


def context_of(request: Message, version: int) -> RequestContext:
    header = RequestHeader(request.API_KEY, version, 1, "client")
    route = Route(HandlerEntry(request.API_KEY, "List", 0, version, lambda *_: None))
    return RequestContext(header, request, cast("Any", Peer()), route)


async def test_many_groups_are_listed(meter: TurnMeter) -> None:
    setup = Setup()
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    for number in range(LISTED):
        partition.find_or_create(f"group-{number}")
    request = ListGroupsRequest()
    context = context_of(request, 5)
    await begin(meter)
    await in_turns(
        respond(context, GroupAdminHandlers(setup.coordinator.admin).list_groups(context, request))
    )
    assert cast("Peer", context.connection).sent > 20 * LISTED


async def test_many_transactions_are_listed(meter: TurnMeter) -> None:
    setup = TransactionSetup()
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    for number in range(LISTED):
        name = f"transaction-{number}"
        value = TransactionValue(TransactionState.EMPTY, number, 0, 60_000)
        partition.transactions[name] = Transaction(name, value)
    request = ListTransactionsRequest()
    context = context_of(request, 1)
    await begin(meter)
    await in_turns(
        respond(
            context, TransactionQueryHandlers(setup.queries).list_transactions(context, request)
        )
    )
    assert cast("Peer", context.connection).sent > 20 * LISTED


@pytest.mark.parametrize("version", [7, 8])
async def test_all_offsets_of_a_group_are_fetched(meter: TurnMeter, version: int) -> None:
    setup = Setup()
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    offsets = partition.find_or_create("group").offsets
    for number in range(LISTED):
        where = TopicPartition(f"topic-{number // 10}", number % 10)
        offsets.replay(where, CommittedOffset(number, -1, "", 0), number)
    request = OffsetFetchRequest(group_id="group", topics=None)
    if version >= 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("group", topics=None)])
    context = context_of(request, version)
    handler = OffsetFetchHandler(setup.coordinator.commits, cast("Any", None), cast("Any", None))
    await begin(meter)
    await in_turns(respond(context, handler.handle(context, request)))
    assert cast("Peer", context.connection).sent > 18 * LISTED
