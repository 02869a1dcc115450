from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.metadata import first_metadata
from ottla.broker.handlers.metadata.first_metadata import once_known
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.update_metadata import UpdateMetadataBroker, UpdateMetadataRequest
from tests.doubles.request_context import FakeContext

CONTEXT = cast(RequestContext, FakeContext(3, 12))


def response(cache: MetadataCache) -> Any:
    """A handler that tells which controller it knows."""
    return once_known(
        cache,
        lambda context, request: MetadataResponse(controller_id=cache.snapshot.controller_id),
    )


def first_word(cache: MetadataCache) -> None:
    cache.update(UpdateMetadataRequest(controller_id=7, live_brokers=[UpdateMetadataBroker(id=7)]))


def test_what_is_known_is_answered_at_once() -> None:
    cache = MetadataCache()
    first_word(cache)
    found = response(cache)(CONTEXT, MetadataRequest())
    assert found == MetadataResponse(controller_id=7)


async def test_a_question_waits_for_the_first_word_of_the_controller() -> None:
    cache = MetadataCache()
    asking = spawn(response(cache)(CONTEXT, MetadataRequest()), name="asking")
    await asyncio.sleep(0)
    assert not asking.done()
    first_word(cache)
    assert await asking == MetadataResponse(controller_id=7)


async def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_metadata, "WAIT_MS", 1)
    found = await response(MetadataCache())(CONTEXT, MetadataRequest())
    assert found == MetadataResponse(controller_id=-1)
