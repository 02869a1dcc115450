from __future__ import annotations

from typing import Any, cast

from ottla.broker.handlers.share.share_state import ShareStateHandlers
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import initialize_share_group_state as initializing
from ottla.protocol.messages import write_share_group_state as writing
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.eventually import eventually_async
from tests.doubles.request_context import FakeContext
from tests.unit.broker.share.coordinator.test_share_coordinator import coordinator

TOPIC = bytes(16)


async def respond(handle: Any, request: Any) -> list[tuple[int, int]]:
    """(partition, error code) of each row."""
    context = FakeContext(83, 0)
    handle(cast(RequestContext, context), request)
    await eventually_async(lambda: bool(context.responses))
    (response,) = context.responses
    return [
        (row.partition, row.error_code)
        for topic in cast(Any, response).results
        for row in topic.partitions
    ]


async def test_each_partition_has_an_error_of_its_own() -> None:
    made = coordinator(MemoryLog())
    handlers = ShareStateHandlers(made)
    rows = [initializing.PartitionData(index, 0, 5) for index in (-1, 0, *range(1, 100))]
    request = initializing.InitializeShareGroupStateRequest(
        "g", [initializing.InitializeStateData(TOPIC, rows)]
    )
    found = await respond(handlers.initialize, request)
    assert found == [(-1, ErrorCode.INVALID_REQUEST), *((index, 0) for index in range(100))]
    assert (await made.read(SharePartitionKey("g", TOPIC, 99), 1)).start_offset == 5
    request.group_id = ""
    assert {code for _, code in await respond(handlers.initialize, request)} == {
        ErrorCode.INVALID_REQUEST
    }


async def test_batches_with_invalid_offsets() -> None:
    handlers = ShareStateHandlers(coordinator(MemoryLog()))
    for batch in (writing.StateBatch(5, 4, 2, 1), writing.StateBatch(-1, 4, 2, 1)):
        row = writing.PartitionData(0, state_batches=[batch])
        request = writing.WriteShareGroupStateRequest("g", [writing.WriteStateData(TOPIC, [row])])
        assert await respond(handlers.write, request) == [(0, ErrorCode.INVALID_REQUEST)]


async def test_another_broker_is_the_coordinator() -> None:
    handlers = ShareStateHandlers(coordinator(MemoryLog(), elected=False))
    row = writing.PartitionData(0)
    request = writing.WriteShareGroupStateRequest("g", [writing.WriteStateData(TOPIC, [row])])
    assert await respond(handlers.write, request) == [(0, ErrorCode.NOT_COORDINATOR)]
