"""Remote log metadata over a real broker: the topic, its records, and a manager that restarts."""

from __future__ import annotations

import time
from uuid import UUID

from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
from ottla.broker.remote.metadata_topic import RemoteLogMetadataTopic
from ottla.broker.remote.settings import RemoteLogMetadataSettings
from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from ottla.testing import Broker
from tests.doubles.eventually import eventually_async

SETTINGS = RemoteLogMetadataSettings(topic_replication_factor=1, topic_num_partitions=3)
PARTITION = TopicIdPartition(UUID(int=7), "orders", 1)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


async def test_what_one_manager_stores_another_one_replays() -> None:
    async with Broker() as broker:
        parts = broker.server.parts
        metadata = parts.metadata

        def manager() -> RemoteLogMetadataManager:
            topic = RemoteLogMetadataTopic(
                metadata,
                parts.inter_broker_client,
                parts.controller_channel.create_topics,
                SETTINGS,
                lambda: time.time_ns() // 1_000_000,
            )
            return RemoteLogMetadataManager(topic, SETTINGS)

        first = manager()
        first.assign([PARTITION])
        first.startup()
        await eventually_async(lambda: first.unavailable is None)
        segment_id = RemoteLogSegmentId(PARTITION, UUID(int=9))
        await first.store(RemoteLogSegmentMetadata(segment_id, 0, 9, 1, 0, 2, 3, {0: 0}))
        await first.store(RemoteLogSegmentMetadataUpdate(segment_id, 4, b"x", FINISHED, 0))
        copied = first.cache(PARTITION).segment_at(0, 5)
        await first.shutdown()

        second = manager()
        second.assign([PARTITION])
        second.startup()
        await eventually_async(lambda: second.unavailable is None)
        await eventually_async(lambda: second.is_initialized(PARTITION))
        assert second.cache(PARTITION).segment_at(0, 5) == copied
        assert copied is not None
        assert copied.custom_metadata == b"x"
        await second.shutdown()
