"""OffsetDelete (47), version 0: deletes committed offsets of a group (KIP-496)."""

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.handlers.common.topic_rows import TopicRows, split_known
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.topics import TopicPartition


class OffsetDeleteHandler:
    """Checks that the partitions exist and builds the response."""

    def __init__(self, admin: GroupAdmin, topics: MetadataCache) -> None:
        self._admin = admin
        self._topics = topics

    def handle(self, context: RequestContext, request: OffsetDeleteRequest) -> Deferred:
        rows: TopicRows[int] = TopicRows()
        known = split_known(
            self._topics,
            (
                (TopicPartition(topic.name, partition.partition_index), None)
                for topic in request.topics
                for partition in topic.partitions
            ),
            rows,
        )

        def send_response(error_code: int, results: dict[TopicPartition, int]) -> None:
            if error_code:
                context.respond(OffsetDeleteResponse(error_code=error_code))
                return
            for partition, error in results.items():
                rows.add(partition, error)
            context.respond(OffsetDeleteResponse(topics=_topics(rows)))

        self._admin.delete_offsets(request.group_id, known, send_response)
        return DEFERRED


def _topics(rows: TopicRows[int]) -> list[OffsetDeleteResponseTopic]:
    return [
        OffsetDeleteResponseTopic(
            name=name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=index, error_code=error)
                for index, error in found
            ],
        )
        for name, found in rows.items()
    ]
