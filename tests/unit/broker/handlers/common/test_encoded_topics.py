"""Large responses have the same bytes as the usual ones, and come in slices."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.common import encoded_topics
from ottla.broker.handlers.common.encoded_topics import MAX_KINDS
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import HandlerEntry, Route, amend
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.headers import RequestHeader, encode_response
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps, run_at_once, run_in_turns
from tests.doubles.pace import steps_per_turn
from tests.doubles.published_metadata import publish
from tests.doubles.request_context import FakeContext

VERSIONS = range(13)
TOPICS, PARTITIONS = 250, 9


class Connection:
    """Keeps what is sent."""

    listener_name = "PLAINTEXT"
    client_host = "127.0.0.1"
    client_port = 1
    local_address = ("10.0.0.9", 9092)
    principal = FakeContext(3, 0).principal
    closed = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_response(self, context: object, parts: list[bytes]) -> None:
        self.sent.append(b"".join(parts))


def topic(number: int, leader: int = 1, partitions: int = PARTITIONS) -> UpdateMetadataTopicState:
    return UpdateMetadataTopicState(
        f"topic-{number}",
        number.to_bytes(16, "big"),
        [
            UpdateMetadataPartitionState(
                partition_index=index, leader=leader, leader_epoch=3, isr=[1], replicas=[1, 2]
            )
            for index in range(partitions)
        ],
    )


def update(*topics: UpdateMetadataTopicState, brokers: tuple[int, ...] = (1, 2)) -> Any:
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        live_brokers=[
            UpdateMetadataBroker(
                id=each, endpoints=[UpdateMetadataEndpoint(9092, f"host{each}", "PLAINTEXT", 0)]
            )
            for each in brokers
        ],
        topic_states=list(topics),
    )


@pytest.fixture
def cache() -> MetadataCache:
    cache = MetadataCache()
    publish(cache, update(*(topic(number) for number in range(TOPICS))))
    assert cache.snapshot.partition_count == TOPICS * PARTITIONS
    return cache


def handler_of(cache: MetadataCache) -> MetadataHandler:
    return MetadataHandler(
        cache, Endpoints(1, cache, frozenset()), "cluster", cast("Any", None), auto_create=False
    )


def context_of(version: int, request: MetadataRequest) -> tuple[RequestContext, Connection]:
    connection = Connection()
    route = Route(HandlerEntry(ApiKey.METADATA, "Metadata", 0, 12, lambda c, r: None))
    header = RequestHeader(ApiKey.METADATA, version, 77, "client")
    return RequestContext(header, request, cast("Any", connection), route), connection


def request_of(version: int, **fields: bool) -> MetadataRequest:
    return MetadataRequest(None if version else [], **fields)


async def large(handler: MetadataHandler, version: int, **fields: bool) -> bytes:
    """The response with all topics, as a client receives it."""
    return await sent(handler, version, request_of(version, **fields))


async def sent(handler: MetadataHandler, version: int, request: MetadataRequest) -> bytes:
    context, connection = context_of(version, request)
    result = handler.handle(context, request)
    context.respond(await run_in_turns(cast("Any", result)))
    (frame,) = connection.sent
    return frame


def plain(cache: MetadataCache, version: int, **fields: bool) -> bytes:
    """The response to a client that names all topics: those are not kept encoded."""
    names = [MetadataRequestTopic(name=name) for name in cache.snapshot.topics]
    request = MetadataRequest(names, **fields)
    context, _ = context_of(version, request)
    response = run_at_once(cast("Any", handler_of(cache).handle(context, request)))
    return b"".join(cast("Any", encode_response(ApiKey.METADATA, version, 77, response)))


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_bytes_are_those_of_the_usual_response(
    cache: MetadataCache, version: int
) -> None:
    handler = handler_of(cache)
    first = await large(handler, version)
    assert first == plain(cache, version)
    assert await large(handler, version) == first
    if version >= 8:
        fields = {"include_topic_authorized_operations": True}
        if version <= 10:
            fields["include_cluster_authorized_operations"] = True
        assert await large(handler, version, **fields) == plain(cache, version, **fields) != first


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_of_many_partitions_has_the_usual_bytes(version: int) -> None:
    cache = MetadataCache()
    publish(cache, update(topic(0, partitions=70), topic(1, partitions=2_500), topic(2)))
    handler = handler_of(cache)
    for _ in range(2):
        assert await large(handler, version) == plain(cache, version)


async def test_changes_are_seen(cache: MetadataCache) -> None:
    handler = handler_of(cache)
    before = await large(handler, 12)
    publish(cache, update(topic(7, leader=2), topic(TOPICS)))
    changed = await large(handler, 12)
    assert changed == plain(cache, 12) != before
    publish(cache, update(topic(8, leader=-2)))  # deleted
    assert await large(handler, 12) == plain(cache, 12) != changed
    assert len(next(iter(handler._encoded._kept.values()))) == TOPICS
    publish(cache, update(brokers=(2,)))  # the leaders are away
    assert await large(handler, 12) == plain(cache, 12)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the topics that are encoded."""
    names: list[str] = []
    encode = encoded_topics.encode_topic

    def counted(row: MetadataResponseTopic, version: int) -> Steps[bytes]:
        names.append(cast("str", row.name))
        return encode(row, version)

    monkeypatch.setattr(encoded_topics, "encode_topic", counted)
    return names


async def test_only_what_has_changed_is_encoded_again(
    cache: MetadataCache, built: list[str]
) -> None:
    handler = handler_of(cache)
    await large(handler, 12)
    built.clear()
    publish(cache, update(topic(7, leader=2)))
    await large(handler, 12)
    assert built == ["topic-7"]


@pytest.mark.parametrize("steps", [1, 100])
async def test_a_topic_is_encoded_once_for_all_responses_that_wait(
    cache: MetadataCache, built: list[str], steps: int
) -> None:
    """Many clients refresh at once after each change of the brokers."""
    handler = handler_of(cache)
    with steps_per_turn(steps):
        tasks = [spawn(large(handler, 12), name="large") for _ in range(20)]
        found = [await task for task in tasks]
    assert sorted(built) == sorted(cache.snapshot.topics)
    assert set(found) == {plain(cache, 12)}


async def test_responses_that_access_control_leaves_as_they_are_share_their_bytes(
    cache: MetadataCache,
) -> None:
    """Each of two thousand clients would get a copy of some megabytes otherwise."""
    handler = handler_of(cache)

    async def whole(**fields: bool) -> bytes:
        request = request_of(12, **fields)
        result = handler.handle(context_of(12, request)[0], request)
        response = await run_in_turns(cast("Any", result))
        parts = encode_response(ApiKey.METADATA, 12, 77, response)
        (view,) = [each for each in parts if isinstance(each, memoryview)]
        return cast("bytes", view.obj)

    first = await whole()
    assert await whole() is first
    other = await whole(include_topic_authorized_operations=True)
    assert await whole() is first
    publish(cache, update(topic(7, leader=2)))
    assert await whole() is not first
    assert await whole(include_topic_authorized_operations=True) is not other
    assert len(handler._encoded._whole) == 2  # those of the snapshot before are not kept


async def test_snapshots_of_responses_that_wait_do_not_replace_each_other(
    cache: MetadataCache, built: list[str]
) -> None:
    handler = handler_of(cache)
    with steps_per_turn(1):
        tasks = []
        expected = []
        for leader in (1, 2, 3):
            publish(cache, update(topic(7, leader=leader), brokers=(1, 2, 3)))
            expected.append(plain(cache, 12))
            for _ in range(2):
                tasks.append(spawn(large(handler, 12), name="large"))
                await asyncio.sleep(0)
        found = [await task for task in tasks]
    assert found == [each for each in expected for _ in range(2)]
    assert len(built) == TOPICS + 2
    assert len(next(iter(handler._encoded._kept.values()))) == TOPICS


async def test_a_topic_that_cannot_be_encoded_is_tried_again(
    cache: MetadataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = handler_of(cache)

    def fails(row: MetadataResponseTopic, version: int) -> Steps[bytes]:
        yield
        raise ValueError("no bytes")

    with monkeypatch.context() as patch, steps_per_turn(1):
        patch.setattr(encoded_topics, "encode_topic", fails)
        tasks = [spawn(large(handler, 12), name="large") for _ in range(2)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, (ValueError, RuntimeError)) for each in outcomes)
    assert await large(handler, 12) == plain(cache, 12)


async def test_access_control_filters_adds_and_sets_operations(cache: MetadataCache) -> None:
    request = request_of(12, include_topic_authorized_operations=True)
    context, connection = context_of(12, request)

    def change(response: Any) -> None:
        response.topics = [row for row in response.topics if row.name in ("topic-3", "topic-4")]
        response.topics[0].topic_authorized_operations = 5
        response.topics.append(MetadataResponseTopic(29, "secret"))

    amend(context, change)
    result = handler_of(cache).handle(context, request)
    context.respond(await run_in_turns(cast("Any", result)))
    named = MetadataRequest(
        [MetadataRequestTopic(name=name) for name in cache.snapshot.topics],
        include_topic_authorized_operations=True,
    )
    expected = run_at_once(cast("Any", handler_of(cache).handle(context_of(12, named)[0], named)))
    change(expected)
    parts = encode_response(ApiKey.METADATA, 12, 77, cast("Any", expected))
    assert connection.sent == [b"".join(cast("Any", parts))]


async def test_others_run_between_the_turns(cache: MetadataCache) -> None:
    with steps_per_turn(8):
        task = spawn(large(handler_of(cache), 12), name="large")
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns >= TOPICS * PARTITIONS // 8
    assert task.result() == plain(cache, 12)


async def test_the_kinds_that_are_kept_are_bounded(cache: MetadataCache) -> None:
    handler = handler_of(cache)
    for version in VERSIONS:
        await large(handler, version)
    assert [kind.version for kind in handler._encoded._kept] == [9, 10, 11, 12]
    assert [kind.version for kind, _ in handler._encoded._whole] == [9, 10, 11, 12]
    assert MAX_KINDS == 4
