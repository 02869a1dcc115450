"""The metadata cache as a broker has it after an UpdateMetadata request."""

from __future__ import annotations

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition


def publish(cache: MetadataCache, request: UpdateMetadataRequest) -> list[TopicPartition]:
    """Publish the next snapshot; return the partitions that the request deletes."""
    return run_at_once(cache.publish(request))
