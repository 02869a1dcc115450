import pytest

from ottla.broker.share.coordinator import state_requests
from ottla.broker.share.persister import PersistedState, SharePartitionKey, StateBatch, StateUpdate
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateResponse,
    ReadStateResult,
)
from ottla.protocol.messages.read_share_group_state import StateBatch as Row

KEY = SharePartitionKey("group", bytes(15) + b"\7", 2)


def of_row(row: PartitionResult, topic_id: bytes = KEY.topic_id) -> ReadShareGroupStateResponse:
    return ReadShareGroupStateResponse([ReadStateResult(topic_id, [row])])


def test_a_request_has_one_share_partition() -> None:
    request = state_requests.write(KEY, StateUpdate(1, 2, 3, 4, (StateBatch(3, 5, 2, 1),)))
    (topic,) = request.topics
    (row,) = topic.partitions
    assert (request.group_id, topic.topic_id, row.partition) == KEY
    assert (row.state_epoch, row.leader_epoch, row.start_offset) == (1, 2, 3)
    assert row.delivery_complete_count == 4
    assert [state_requests.batch_of(each) for each in row.state_batches] == [StateBatch(3, 5, 2, 1)]


def test_the_row_of_the_response() -> None:
    row = PartitionResult(2, state_epoch=1, start_offset=7, state_batches=[Row(7, 8, 0, 1)])
    found = state_requests.result(KEY, of_row(row))
    assert state_requests.state_of(found) == PersistedState(1, 7, (StateBatch(7, 8, 0, 1),))


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (of_row(PartitionResult(2, ErrorCode.NOT_COORDINATOR)), ErrorCode.NOT_COORDINATOR),
        (of_row(PartitionResult(1)), ErrorCode.UNKNOWN_SERVER_ERROR),
        (of_row(PartitionResult(2), bytes(16)), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ReadShareGroupStateResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors(response: ReadShareGroupStateResponse, code: int) -> None:
    with pytest.raises(KafkaError) as refused:
        state_requests.result(KEY, response)
    assert refused.value.code == code
