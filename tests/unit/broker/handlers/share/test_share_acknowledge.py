from __future__ import annotations

import asyncio
from typing import cast

from ottla.broker.requests.request_channel import DEFERRED, RequestContext
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from tests.doubles.eventually import eventually_async
from tests.doubles.replicas import TOPIC_ID
from tests.doubles.request_context import FakeContext
from tests.unit.broker.handlers.share.test_share_fetch import acquired, fetch
from tests.unit.broker.share.scene import KEY, ShareScene


async def acknowledge(
    scene: ShareScene, epoch: int, *batches: tuple[int, int, list[int]]
) -> ShareAcknowledgeResponse:
    rows = [AcknowledgementBatch(*each) for each in batches]
    topics = [AcknowledgeTopic(TOPIC_ID, [AcknowledgePartition(0, rows)])]
    request = ShareAcknowledgeRequest("g", "m", epoch, topics=topics)
    context = FakeContext(79, 2)
    response = scene.share_acknowledge.handle(cast(RequestContext, context), request)
    if response is not DEFERRED:
        assert isinstance(response, ShareAcknowledgeResponse)
        return response
    await eventually_async(lambda: context.responses)
    (late,) = context.responses
    assert isinstance(late, ShareAcknowledgeResponse)
    return late


async def test_acknowledgements_are_stored() -> None:
    scene = ShareScene()
    scene.append(3)
    await fetch(scene, 0)
    response = await acknowledge(scene, 1, (0, 0, [1]), (1, 2, [3]))
    assert response.responses[0].partitions[0].error_code == 0
    assert scene.persister.states[KEY] == {0: (2, 1), 1: (4, 1), 2: (4, 1)}


async def test_errors() -> None:
    scene = ShareScene()
    scene.append(3)
    missing = await acknowledge(scene, 1, (0, 0, [1]))
    assert missing.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    await fetch(scene, 0)
    stale = await acknowledge(scene, 7, (0, 0, [1]))
    assert stale.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    twice = await acknowledge(scene, 1, (1, 1, [1]), (1, 1, [1]))
    assert twice.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE


async def test_the_last_request_of_a_session() -> None:
    scene = ShareScene()
    scene.append(2)
    await fetch(scene, 0)
    await acknowledge(scene, -1, (0, 0, [1]))
    assert acquired(await fetch(scene, 0, member="other", max_wait_ms=100)) == [(1, 1, 2)]


async def test_a_session_that_opens_while_the_last_acknowledgement_is_stored() -> None:
    """The end of the former session leaves it and its records alone."""
    scene = ShareScene()
    scene.append(2)
    await fetch(scene, 0, max_records=2)
    scene.persister.gate = asyncio.Event()
    last = spawn(acknowledge(scene, -1, (0, 1, [1])), name="the last acknowledgement")
    await asyncio.sleep(0)
    scene.append(1)
    assert acquired(await fetch(scene, 0)) == [(2, 2, 1)]
    scene.persister.gate.set()
    await last
    assert (await fetch(scene, 1)).error_code == ErrorCode.NONE
    assert acquired(await fetch(scene, 0, member="other")) == []
