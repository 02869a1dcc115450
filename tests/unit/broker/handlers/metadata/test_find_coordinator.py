"""FindCoordinator: who coordinates a key, in every version."""

import asyncio
import logging
from typing import cast

import pytest

from ottla.broker.cluster.endpoints import Node
from ottla.broker.coordination.ports import partition_for_key
from ottla.broker.handlers.metadata import find_coordinator
from ottla.broker.handlers.metadata.find_coordinator import FindCoordinatorHandler
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.tasks import running_tasks, spawn
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.topics import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from tests.doubles.request_context import Asked, FakeContext
from tests.unit.broker.handlers.fake_metadata import Metadata

GROUP, TRANSACTION, SHARE = 0, 1, 2


def context() -> RequestContext:
    return cast("RequestContext", FakeContext(FindCoordinatorRequest.API_KEY, 1))


class Cluster:
    """A handler, and the topics that it created."""

    def __init__(
        self, *, has_share_groups: bool = False, waits: bool = False, **topics: int
    ) -> None:
        self.metadata = Metadata(**topics)
        self.created: list[str] = []
        self.creation_error = ErrorCode.NONE
        self.handler = FindCoordinatorHandler(
            self.metadata,
            lambda key: partition_for_key(key, 4),
            lambda key: partition_for_key(key, 2),
            self.create,
            self.node,
            share_partition_for=(lambda key: 1) if has_share_groups else None,
            waits_for_creation=waits,
        )
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def create(self, topic: str) -> int:
        self.created.append(topic)
        await self.may_go_on.wait()
        return self.creation_error

    def node(self, context: RequestContext, broker_id: int) -> Node | None:
        endpoint = self.metadata.snapshot.alive(broker_id, context.listener_name)
        return None if endpoint is None else Node(broker_id, endpoint.host, endpoint.port, None)

    async def ask_and_wait(self, key: str = "g") -> FindCoordinatorResponse:
        response = self.handler.handle(context(), FindCoordinatorRequest(key, GROUP))
        return response if isinstance(response, FindCoordinatorResponse) else await response

    def ask(self, version: int, *keys: str, key_type: int = GROUP) -> FindCoordinatorResponse:
        request = FindCoordinatorRequest(keys[0], key_type)
        if version >= 4:
            request = FindCoordinatorRequest("", key_type, list(keys))
        asked = Asked(self.handler.handle, request, version)
        return asked.response(FindCoordinatorResponse)


BOTH = {GROUP_METADATA_TOPIC: 4, TRANSACTION_STATE_TOPIC: 2}


@pytest.mark.parametrize("version", range(4))
def test_one_key(version: int) -> None:
    response = Cluster(**BOTH).ask(version, "g")
    assert (response.error_code, response.node_id, response.host, response.port) == (
        0,
        1,
        "127.0.0.1",
        9_091,
    )
    assert response.error_message == ("NONE" if version else "")


@pytest.mark.parametrize("version", range(4, 7))
def test_several_keys(version: int) -> None:
    cluster = Cluster(**BOTH)
    cluster.metadata.set_leader(GROUP_METADATA_TOPIC, partition_for_key("b", 4), 2)
    response = cluster.ask(version, "a", "b", "a")
    assert [(row.key, row.node_id, row.port) for row in response.coordinators] == [
        ("a", 1, 9_091),
        ("b", 2, 9_092),
        ("a", 1, 9_091),
    ]


@pytest.mark.parametrize("version", range(1, 7))
def test_transactional_ids_have_a_topic_of_their_own(version: int) -> None:
    cluster = Cluster(**BOTH)
    for index in range(2):
        cluster.metadata.set_leader(TRANSACTION_STATE_TOPIC, index, 2)
    response = cluster.ask(version, "t", key_type=TRANSACTION)
    found = response.coordinators[0] if version >= 4 else response
    assert found.node_id == 2


@pytest.mark.parametrize("leader", [-1, 9])
@pytest.mark.parametrize("version", [1, 4])
def test_without_a_live_leader_the_client_comes_back(leader: int, version: int) -> None:
    cluster = Cluster(**BOTH)
    cluster.metadata.set_leader(GROUP_METADATA_TOPIC, partition_for_key("g", 4), leader)
    response = cluster.ask(version, "g")
    found = response.coordinators[0] if version >= 4 else response
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    assert (found.host, found.port) == ("", -1)


async def test_the_first_user_has_the_topic_created(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.creation_error = ErrorCode.INVALID_REPLICATION_FACTOR
    for _ in range(3):
        assert cluster.ask(1, "g").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    with caplog.at_level(logging.WARNING):
        for task in running_tasks():
            await task
    assert cluster.created == [GROUP_METADATA_TOPIC]
    assert (
        "__consumer_offsets cannot be created: 2 live brokers are fewer than the replicas of "
        "offsets.topic.replication.factor"
    ) in caplog.text
    caplog.clear()
    cluster.ask(1, "g")
    cluster.ask(1, "t", key_type=TRANSACTION)
    for task in running_tasks():
        await task
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        TRANSACTION_STATE_TOPIC
    ], "one line for each topic and minute"
    assert cluster.created[1:] == [GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC]


async def test_all_requests_wait_for_one_creation() -> None:
    cluster = Cluster(waits=True)
    cluster.may_go_on.clear()
    asking = [spawn(cluster.ask_and_wait(f"g{number}"), name="ask") for number in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in asking)
    cluster.metadata.snapshot = Metadata(**BOTH).snapshot
    cluster.may_go_on.set()
    assert [response.error_code for response in await asyncio.gather(*asking)] == [0, 0, 0]
    assert cluster.created == [GROUP_METADATA_TOPIC]


async def test_a_topic_that_cannot_be_created_is_not_waited_for() -> None:
    cluster = Cluster(waits=True)
    cluster.creation_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    response = await cluster.ask_and_wait()
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(cluster.created) == 1, "the response begins no second attempt"


async def test_no_response_waits_for_a_creation_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find_coordinator, "_WAIT_SECONDS", 0.0)
    cluster = Cluster(waits=True)
    cluster.may_go_on.clear()
    for _ in range(2):
        response = await cluster.ask_and_wait()
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    at_once = cluster.handler.handle(context(), FindCoordinatorRequest("g", GROUP))
    assert isinstance(at_once, FindCoordinatorResponse)
    assert cluster.created == [GROUP_METADATA_TOPIC]
    cluster.may_go_on.set()
    for task in running_tasks():
        await task


@pytest.mark.parametrize(
    ("version", "key_type", "error"),
    [
        (1, SHARE, ErrorCode.INVALID_REQUEST),
        (5, SHARE, ErrorCode.INVALID_REQUEST),
        (6, SHARE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (3, 7, ErrorCode.INVALID_REQUEST),
        (6, -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_other_key_types(version: int, key_type: int, error: int) -> None:
    response = Cluster(**BOTH).ask(version, "k", key_type=key_type)
    found = response.coordinators[0] if version >= 4 else response
    assert found.error_code == error


TOPIC_ID = "A" * 22


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (f"g:{TOPIC_ID}:0", ErrorCode.NONE),
        (f"a:b:{TOPIC_ID}:12", ErrorCode.NONE),
        (f":{TOPIC_ID}:0", ErrorCode.INVALID_REQUEST),
        (f"g:{TOPIC_ID}:-1", ErrorCode.INVALID_REQUEST),
        (f"g:{TOPIC_ID}", ErrorCode.INVALID_REQUEST),
        ("g:topic:0", ErrorCode.INVALID_REQUEST),
        ("g", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_share_coordinator(key: str, error: int) -> None:
    cluster = Cluster(has_share_groups=True, **{SHARE_STATE_TOPIC: 2})
    (found,) = cluster.ask(6, key, key_type=SHARE).coordinators
    assert found.error_code == error
    (old,) = cluster.ask(5, key, key_type=SHARE).coordinators
    assert old.error_code == ErrorCode.INVALID_REQUEST
