from __future__ import annotations

import asyncio
from typing import cast

from ottla.broker.requests.request_channel import DEFERRED, RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.records.reader import read_records
from tests.doubles.replicas import TOPIC_ID
from tests.doubles.request_context import FakeContext
from tests.unit.broker.share.scene import ShareScene


async def fetch(
    scene: ShareScene,
    epoch: int,
    *acknowledged: tuple[int, int, list[int]],
    topic_id: bytes = TOPIC_ID,
    member: str = "m",
    **fields: object,
) -> ShareFetchResponse:
    batches = [AcknowledgementBatch(*each) for each in acknowledged]
    values = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 100, "batch_size": 100, **fields}
    request = ShareFetchRequest(
        "g",
        member,
        share_session_epoch=epoch,
        topics=[FetchTopic(topic_id, [FetchPartition(0, acknowledgement_batches=batches)])],
        **values,  # type: ignore[arg-type]  # passed on
    )
    context = FakeContext(78, 2)
    context.connection.closed = False
    response = scene.share_fetch.handle(cast(RequestContext, context), request)
    if response is not DEFERRED:
        assert isinstance(response, ShareFetchResponse)
        return response
    for _ in range(10):
        await asyncio.sleep(0)
    (late,) = context.responses
    assert isinstance(late, ShareFetchResponse)
    return late


def acquired(response: ShareFetchResponse) -> list[tuple[int, int, int]]:
    return [
        (row.first_offset, row.last_offset, row.delivery_count)
        for topic in response.responses
        for partition in topic.partitions
        for row in partition.acquired_records
    ]


async def test_records_are_fetched_and_acknowledged_with_the_next_fetch() -> None:
    scene = ShareScene()
    scene.append(3)
    first = await fetch(scene, 0)
    assert (first.error_code, acquired(first)) == (0, [(0, 2, 1)])
    assert first.acquisition_lock_timeout_ms == 30_000
    records = first.responses[0].partitions[0].records
    assert isinstance(records, bytes)
    assert len(list(read_records(records))) == 3
    second = await fetch(scene, 1, (0, 1, [1]), (2, 2, [2]), max_wait_ms=100)
    (row,) = second.responses[0].partitions
    assert (row.error_code, row.acknowledge_error_code) == (0, 0)
    assert acquired(second) == [(2, 2, 2)]


async def test_released_records_are_not_fetched_while_the_release_is_stored() -> None:
    scene = ShareScene()
    scene.append(2)
    scene.append(1)
    assert acquired(await fetch(scene, 0, max_records=2)) == [(0, 1, 1)]
    assert acquired(await fetch(scene, 1, (0, 1, [2]), max_wait_ms=100)) == [(2, 2, 1)]
    assert acquired(await fetch(scene, 2, max_wait_ms=100)) == [(0, 1, 2)]


async def test_a_response_without_news_is_empty_except_the_first() -> None:
    scene = ShareScene()
    assert len((await fetch(scene, 0)).responses) == 1
    assert (await fetch(scene, 1)).responses == []


async def test_the_errors_of_sessions_and_partitions() -> None:
    scene = ShareScene()
    assert (await fetch(scene, 5)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert (await fetch(scene, 0, (0, 0, [1]))).error_code == ErrorCode.INVALID_REQUEST
    unknown = await fetch(scene, 0, topic_id=b"?" * 16)
    assert unknown.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    wrong = await fetch(scene, 1, (0, 0, [9]))
    rows = {topic.topic_id: topic.partitions[0] for topic in wrong.responses}
    assert rows[TOPIC_ID].acknowledge_error_code == ErrorCode.INVALID_REQUEST


async def test_topics_that_the_client_may_not_read() -> None:
    scene = ShareScene(may_read=lambda context, is_follower: lambda topic: False)
    denied = await fetch(scene, 0)
    assert denied.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    late = await fetch(scene, 1, (0, 0, [1]))
    code = late.responses[0].partitions[0].acknowledge_error_code
    assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_the_last_request_of_a_session_releases_its_records() -> None:
    scene = ShareScene()
    scene.append(2)
    await fetch(scene, 0)
    await fetch(scene, -1, (0, 0, [1]))
    assert not len(scene.shares)  # the next member reads the state again
    assert acquired(await fetch(scene, 0, member="other", max_wait_ms=100)) == [(1, 1, 2)]


async def test_a_renewal_fetches_nothing() -> None:
    scene = ShareScene()
    scene.append(2)
    await fetch(scene, 0)
    none = {"max_records": 0, "max_bytes": 0, "min_bytes": 0}
    renewed = await fetch(scene, 1, (0, 1, [4]), is_renew_ack=True, **none)
    assert renewed.responses[0].partitions[0].acknowledge_error_code == 0
    assert (await fetch(scene, 2, is_renew_ack=True)).error_code == ErrorCode.INVALID_REQUEST


async def test_a_forgotten_partition() -> None:
    scene = ShareScene()
    await fetch(scene, 0)
    forgotten = [ForgottenTopic(TOPIC_ID, [0])]
    scene.append(1)
    assert acquired(await fetch(scene, 1, forgotten_topics_data=forgotten)) == []
