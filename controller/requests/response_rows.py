"""Which topic a part of a LeaderAndIsr response is about."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.protocol.messages.leader_and_isr import (
        LeaderAndIsrPartitionError,
        LeaderAndIsrRequest,
        LeaderAndIsrResponse,
    )

Rows = tuple[str, bytes, "Sequence[LeaderAndIsrPartitionError]"]


def rows_by_topic(
    request: "LeaderAndIsrRequest",
    response: "LeaderAndIsrResponse",
    names: Mapping[bytes, str],
) -> list[Rows]:
    """(topic, topic id in the response, rows) of a response of version 5 or higher.

    The response has ids alone. A topic that was sent without one is known by its place: brokers of
    Ottla respond in the order of the request. ``names`` has the topics by id. A part that cannot be
    related to a topic is left out.
    """
    found: list[Rows] = []
    sent = request.topic_states
    has_same_topics = len(sent) == len(response.topics) and all(
        each.topic_id in (ZERO_UUID, answered.topic_id)
        and len(each.partition_states) == len(answered.partition_errors)
        for each, answered in zip(sent, response.topics, strict=True)
    )
    for place, topic in enumerate(response.topics):
        name = sent[place].topic_name if has_same_topics else names.get(topic.topic_id)
        if name is not None:
            found.append((name, topic.topic_id, topic.partition_errors))
    return found
