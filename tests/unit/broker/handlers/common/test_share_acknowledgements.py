import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.handlers.common.share_acknowledgements import (
    acknowledge,
    are_valid,
    session_key,
)
from ottla.broker.share.persister import SharePartitionKey
from ottla.broker.share.sessions import SessionKey, SharedPartition
from ottla.broker.share.share_partition import Acknowledgement
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_acknowledge import ShareAcknowledgeRequest


@pytest.mark.parametrize(
    ("batches", "valid"),
    [
        ([(0, 9, [1])], True),
        ([(0, 2, [0, 1, 3]), (3, 3, [2])], True),
        ([(5, 4, [1])], False),
        ([(5, 9, [1]), (0, 4, [1])], False),
        ([(0, 9, [])], False),
        ([(0, 9, [1, 1])], False),
        ([(0, 0, [5])], False),
        ([(0, 0, [-1])], False),
        ([(0, 0, [4])], False),
    ],
)
def test_batches(batches: list[tuple[int, int, list[int]]], valid: bool) -> None:
    assert are_valid([Acknowledgement(*batch) for batch in batches], may_renew=False) == valid


def test_renewals() -> None:
    assert are_valid([Acknowledgement(0, 0, [4])], may_renew=True)


@pytest.mark.parametrize(("group", "member"), [(None, "m"), ("g", ""), ("g", "m" * 37)])
def test_invalid_groups_and_members(group: str | None, member: str) -> None:
    with pytest.raises(KafkaError) as refused:
        session_key(ShareAcknowledgeRequest(group, member))
    assert refused.value.code == ErrorCode.INVALID_REQUEST


async def test_the_locks_at_the_request_decide_for_all_partitions() -> None:
    """The write of one partition can take as long as the locks of the next."""
    begun: list[int] = []

    def begin(key: SharePartitionKey, *_: object) -> Coroutine[Any, Any, None]:
        if key.partition == 2:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        begun.append(key.partition)
        return store(key.partition)

    async def store(partition: int) -> None:
        if partition == 0:
            await first.wait()
        else:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    first = asyncio.Event()
    where = [SharedPartition(bytes(16), index) for index in range(3)]
    waiting = acknowledge(
        cast(Any, SimpleNamespace(acknowledge=begin)),
        SessionKey("g", "m"),
        {each: [Acknowledgement(0, 0, [1])] for each in where},
        {bytes(16): "t"},
        lambda topic: True,
        False,
    )
    assert begun == [0, 1]
    first.set()
    assert [result.error_code for result in (await waiting).values()] == [
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_RECORD_STATE,
    ]
