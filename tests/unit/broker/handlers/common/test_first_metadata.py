from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.common import first_metadata
from ottla.broker.handlers.common.first_metadata import after_first_metadata
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.doubles.published_metadata import publish
from tests.doubles.request_context import FakeContext

CONTEXT = cast(RequestContext, FakeContext(3, 12))


def response(cache: MetadataCache) -> Any:
    """A handler that responds with the controller id in the cache."""
    return after_first_metadata(
        cache,
        lambda context, request: MetadataResponse(controller_id=cache.snapshot.controller_id),
    )


def first_update(cache: MetadataCache) -> None:
    publish(
        cache, UpdateMetadataRequest(controller_id=7, live_brokers=[UpdateMetadataBroker(id=7)])
    )


def test_a_request_is_handled_at_once_when_there_are_brokers() -> None:
    cache = MetadataCache()
    first_update(cache)
    found = response(cache)(CONTEXT, MetadataRequest())
    assert found == MetadataResponse(controller_id=7)


async def test_a_request_waits_for_the_first_update_of_the_controller() -> None:
    cache = MetadataCache()
    asking = spawn(response(cache)(CONTEXT, MetadataRequest()), name="asking")
    await asyncio.sleep(0)
    assert not asking.done()
    first_update(cache)
    assert await asking == MetadataResponse(controller_id=7)


async def test_it_waits_for_topics_where_there_are_some() -> None:
    """A new controller sends the brokers before it has elected leaders."""
    cache = MetadataCache()
    cache.expects_topics = True
    first_update(cache)
    asking = spawn(response(cache)(CONTEXT, MetadataRequest()), name="asking")
    await asyncio.sleep(0)
    assert not asking.done()
    states = [UpdateMetadataPartitionState(partition_index=0, leader=7)]
    publish(
        cache,
        UpdateMetadataRequest(
            controller_id=7,
            live_brokers=[UpdateMetadataBroker(id=7)],
            topic_states=[UpdateMetadataTopicState("t", b"1" * 16, states)],
        ),
    )
    assert await asking == MetadataResponse(controller_id=7)
    assert cache.is_loaded()


async def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_metadata, "MAX_WAIT_MS", 1)
    found = await response(MetadataCache())(CONTEXT, MetadataRequest())
    assert found == MetadataResponse(controller_id=-1)
