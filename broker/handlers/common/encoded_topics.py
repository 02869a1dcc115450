"""The topics of large Metadata responses, encoded once for all clients.

A response with a hundred thousand partitions takes 160 ms to build and encode, and many clients
(user interfaces, consumers with a pattern) request all topics again and again. So the bytes of each
topic are kept until its metadata change, and a response is put together from them in slices.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from ottla.broker.cluster.metadata_cache import MetadataSnapshot, TopicMetadata
from ottla.broker.runtime.slices import run_in_slices
from ottla.protocol.codec import encoder
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.primitives import encode_unsigned_varint
from ottla.protocol.steps import Steps

# One takes 1.6 us to build and encode, a kept topic 0.7 us.
PARTITIONS_PER_STEP = 64
# Kinds of responses that are kept: a cluster with clients of a few versions on a few listeners. Of
# a hundred thousand partitions each takes 5 MB.
MAX_KINDS = 4

_INT32 = struct.Struct(">i")
_FIRST_WITH_OPERATIONS = 8
_LAST_WITH_CLUSTER_OPERATIONS = 10
_FIRST_FLEXIBLE = MetadataResponse.FIRST_FLEXIBLE_VERSION

BuildRow = Callable[[TopicMetadata], Steps[MetadataResponseTopic]]


class EncodedTopic:
    """A topic of a response. `encoded` ends before the authorized operations, which differ between
    clients. Has what access control reads and sets of a MetadataResponseTopic."""

    __slots__ = ("encoded", "name", "topic_authorized_operations")

    def __init__(self, name: str, encoded: bytes, topic_authorized_operations: int) -> None:
        self.name = name
        self.encoded = encoded
        self.topic_authorized_operations = topic_authorized_operations


class Kind(NamedTuple):
    """What, besides the topic itself, its encoding depends on."""

    version: int
    reachable: frozenset[int]
    alive: frozenset[int]


class EncodedTopics:
    """The encoded topics of the last responses, by kind. Loop only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Kind, dict[str, tuple[TopicMetadata, bytes]]] = OrderedDict()

    async def rows(
        self, snapshot: MetadataSnapshot, kind: Kind, build: BuildRow, operations: int
    ) -> list[EncodedTopic]:
        """All topics of the snapshot, in slices."""
        return await run_in_slices(self._rows(snapshot, kind, build, operations))

    def _rows(
        self, snapshot: MetadataSnapshot, kind: Kind, build: BuildRow, operations: int
    ) -> Steps[list[EncodedTopic]]:
        before = self._kept.get(kind, {})
        # Only what the snapshot has: deleted topics are dropped here.
        encoded: dict[str, tuple[TopicMetadata, bytes]] = {}
        rows: list[EncodedTopic] = []
        partitions = 0
        for name, topic in snapshot.topics.items():
            found = before.get(name)
            if found is None or found[0] is not topic:
                row = yield from build(topic)
                found = (topic, (yield from _encode_in_steps(row, kind.version)))
                partitions += len(topic.partitions)
            encoded[name] = found
            rows.append(EncodedTopic(name, found[1], operations))
            partitions += 1
            if partitions >= PARTITIONS_PER_STEP:
                partitions = 0
                yield
        self._kept[kind] = encoded
        self._kept.move_to_end(kind)
        while len(self._kept) > MAX_KINDS:
            self._kept.popitem(last=False)
        return rows


def encode_topic(row: MetadataResponseTopic, version: int) -> bytes:
    """The bytes of a topic, up to its authorized operations."""
    alone = encoder(MetadataResponse, version)(MetadataResponse(topics=[row]))
    before, after = _bytes_around_topic(version)
    return alone[before : len(alone) - after]


def _encode_in_steps(row: MetadataResponseTopic, version: int) -> Steps[bytes]:
    """As `encode_topic`."""
    partitions = row.partitions
    if len(partitions) <= PARTITIONS_PER_STEP:
        return encode_topic(row, version)
    row.partitions = []
    before = encode_topic(row, version)[: -len(_count(0, version))]
    pieces = [before, _count(len(partitions), version)]
    for start in range(0, len(partitions), PARTITIONS_PER_STEP):
        yield
        row.partitions = partitions[start : start + PARTITIONS_PER_STEP]
        alone = encode_topic(row, version)
        pieces.append(alone[len(before) + len(_count(len(row.partitions), version)) :])
    row.partitions = partitions
    return b"".join(pieces)


@cache
def _bytes_around_topic(version: int) -> tuple[int, int]:
    """How many bytes stand before and after the topic of a response that is empty otherwise.

    They depend on the version only, of which there are few.
    """
    before, after = _without_topics(MetadataResponse(), version)
    return len(before) + len(_count(1, version)), len(after) + _operations_bytes(version)


class EncodedMetadata(MetadataResponse):
    """A response whose topics are EncodedTopic and, where access control added some,
    MetadataResponseTopic."""

    __slots__ = ()

    def encode_pieces(self, version: int, pieces: list[Any]) -> None:
        topics: list[Any] = self.topics
        before, after = _without_topics(self, version)
        pieces += (before, _count(len(topics), version), *_row_pieces(topics, version), after)


def _row_pieces(topics: list[Any], version: int) -> Iterator[bytes]:
    end = b"\x00" if version >= _FIRST_FLEXIBLE else b""  # no tagged fields
    for topic in topics:
        yield topic.encoded if type(topic) is EncodedTopic else encode_topic(topic, version)
        if version >= _FIRST_WITH_OPERATIONS:
            yield _INT32.pack(topic.topic_authorized_operations) + end


def _without_topics(response: MetadataResponse, version: int) -> tuple[bytes, bytes]:
    """What stands before the number of topics and after the topics."""
    empty = MetadataResponse(
        response.throttle_time_ms,
        response.brokers,
        response.cluster_id,
        response.controller_id,
        [],
        response.cluster_authorized_operations,
    )
    whole = encoder(MetadataResponse, version)(empty)
    after = 1 if version >= _FIRST_FLEXIBLE else 0  # tagged fields
    if _FIRST_WITH_OPERATIONS <= version <= _LAST_WITH_CLUSTER_OPERATIONS:
        after += _INT32.size
    end = len(whole) - after
    return whole[: end - len(_count(0, version))], whole[end:]


def _count(topics: int, version: int) -> bytes:
    if version >= _FIRST_FLEXIBLE:
        return encode_unsigned_varint(topics + 1)
    return _INT32.pack(topics)


def _operations_bytes(version: int) -> int:
    """What a topic ends with: its authorized operations, and no tagged fields."""
    if version < _FIRST_WITH_OPERATIONS:
        return 0
    return _INT32.size + (1 if version >= _FIRST_FLEXIBLE else 0)
