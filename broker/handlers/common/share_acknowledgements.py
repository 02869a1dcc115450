"""The acknowledgements of ShareFetch and ShareAcknowledge: their checks, and their results."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.runtime.tasks import gather_limited
from ottla.broker.share.persister import SharePartitionKey
from ottla.broker.share.sessions import SessionKey, SharedPartition
from ottla.broker.share.share_partition import Acknowledgement, AcknowledgeType
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.share.share_partitions import SharePartitions

MAX_MEMBER_ID_LENGTH = 36  # of a UUID, as Kafka demands
_STORES_AT_ONCE = 64  # partitions: each is a request to a share coordinator


class AcknowledgeResult(NamedTuple):
    error_code: int
    error_message: str | None = None


AcknowledgeResults = dict[SharedPartition, AcknowledgeResult]
Acknowledgements = dict[SharedPartition, list[Acknowledgement]]
MayReadTopic = Callable[[str], bool]


def session_key(request: Any) -> SessionKey:
    """The group and the member of a request; raises INVALID_REQUEST."""
    group_id, member_id = request.group_id, request.member_id
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > MAX_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return SessionKey(group_id, member_id)


def acknowledgements_of(topics: Iterable[Any]) -> Acknowledgements:
    """What a request acknowledges, by partition."""
    return {
        SharedPartition(topic.topic_id, row.partition_index): [
            Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in row.acknowledgement_batches
        ]
        for topic in topics
        for row in topic.partitions
        if row.acknowledgement_batches
    }


def are_valid(acknowledgements: Iterable[Acknowledgement], may_renew: bool) -> bool:
    """Whether the batches are in order, with one type each or one for each offset."""
    highest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    previous = -1
    for first, last, types in acknowledgements:
        if first > last or first < previous or not types:
            return False
        if len(types) > 1 and last - first != len(types) - 1:
            return False
        if min(types) < AcknowledgeType.GAP or max(types) > highest:
            return False
        previous = last
    return True


def acknowledge(
    shares: SharePartitions,
    key: SessionKey,
    acknowledgements: Acknowledgements,
    topic_names: dict[bytes, str],
    may_read: MayReadTopic,
    may_renew: bool,
) -> Coroutine[Any, Any, AcknowledgeResults]:
    """Acknowledges records; an error of one partition does not stop the others.

    The locks at this call decide, for all partitions: the write of one can take long, and the locks
    of the next would end meanwhile. Durable when the coroutine returns, which has to run.
    """
    results: AcknowledgeResults = {}
    stores: list[Coroutine[Any, Any, None]] = []
    for where, batches in acknowledgements.items():
        topic = topic_names.get(where.topic_id)
        if topic is None:
            results[where] = AcknowledgeResult(ErrorCode.UNKNOWN_TOPIC_ID)
        elif not may_read(topic):
            results[where] = AcknowledgeResult(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif not are_valid(batches, may_renew):
            results[where] = AcknowledgeResult(ErrorCode.INVALID_REQUEST)
        else:
            partition = SharePartitionKey(key.group_id, *where)
            results[where] = AcknowledgeResult(ErrorCode.NONE)
            try:
                store = shares.acknowledge(partition, topic, key.member_id, batches)
            except Exception as error:
                results[where] = _failed(error)
            else:
                stores.append(_stored(store, results, where))
    return _finish(stores, results)


async def _stored(
    store: Coroutine[Any, Any, None], results: AcknowledgeResults, where: SharedPartition
) -> None:
    try:
        await store
    except Exception as error:
        results[where] = _failed(error)


async def _finish(
    stores: list[Coroutine[Any, Any, None]], results: AcknowledgeResults
) -> AcknowledgeResults:
    await gather_limited(stores, _STORES_AT_ONCE)
    return results


def _failed(error: Exception) -> AcknowledgeResult:
    return AcknowledgeResult(error_code(error), error_message(error))
