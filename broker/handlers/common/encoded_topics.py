"""The topics of Metadata responses with all topics, encoded once for all clients.

A response with a hundred thousand partitions takes 160 ms to build and encode. Many clients (user
interfaces, consumers with a pattern) request all topics again and again, and all of them at once
after a change of the brokers. So the bytes of each topic are kept until its metadata change, and a
response is put together from them. Responses that access control leaves as they are share the bytes
of all topics.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ottla.protocol.codec import encoder, join_in_steps, sliced_encoder
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.primitives import encode_unsigned_varint
from ottla.protocol.steps import Steps, run_at_once

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, MetadataSnapshot, TopicMetadata

# Kinds of responses that are kept: a cluster with clients of a few versions on a few listeners. Of
# a hundred thousand partitions each takes 10 MB: each topic, and all of them as one.
MAX_KINDS = 4

_INT32 = struct.Struct(">i")
_FIRST_WITH_OPERATIONS = 8
_LAST_WITH_CLUSTER_OPERATIONS = 10
_FIRST_FLEXIBLE = MetadataResponse.FIRST_FLEXIBLE_VERSION

Source = TypeVar("Source")

BuildRow = Callable[["TopicMetadata"], Steps[MetadataResponseTopic]]


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


class _Encoding(Generic[Source]):
    """The bytes of a topic or of all topics of a snapshot, or the work on them, which any response
    that needs them continues."""

    __slots__ = ("_steps", "encoded", "source")

    def __init__(self, source: Source, steps: Steps[bytes]) -> None:
        self.source = source
        self.encoded: bytes | None = None
        self._steps = steps

    def advance(self) -> None:
        try:
            next(self._steps)
        except StopIteration as end:
            if end.value is None:  # after an error, which another response has raised
                raise RuntimeError("topics could not be encoded; see the error before") from None
            self.encoded = end.value


class EncodedTopics:
    """The encoded topics, by kind. Loop only."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        # By identity: responses that are being built may have snapshots with different topics of
        # a name. An entry keeps its topic, so that no other object gets its id.
        self._kept: OrderedDict[Kind, dict[int, _Encoding[TopicMetadata]]] = OrderedDict()
        # With the authorized operations of the topics.
        self._whole: OrderedDict[tuple[Kind, int], _Encoding[MetadataSnapshot]] = OrderedDict()

    def whole(
        self, snapshot: MetadataSnapshot, kind: Kind, build: BuildRow, operations: int
    ) -> Steps[bytes]:
        """Encode all topics of the snapshot as one, for responses that have the same topics.

        Between its pauses other responses do the same: they share all work, and the bytes.
        """
        key = kind, operations
        found = self._whole.get(key)
        if found is None or found.source is not snapshot:
            for old in [each for each, of in self._whole.items() if of.source is not snapshot]:
                del self._whole[old]
            rows = self.rows(snapshot, kind, build, operations)
            found = self._whole[key] = _Encoding(snapshot, _joined(rows, kind.version))
            while len(self._whole) > MAX_KINDS:
                self._whole.popitem(last=False)
        while found.encoded is None:
            try:
                found.advance()
            except Exception:
                if self._whole.get(key) is found:
                    del self._whole[key]  # the next response tries again
                raise
            yield
        return found.encoded

    def rows(
        self, snapshot: MetadataSnapshot, kind: Kind, build: BuildRow, operations: int
    ) -> Steps[list[EncodedTopic]]:
        """Encode all topics of the snapshot.

        Between its pauses other responses do the same: they share the work on each topic.
        """
        kept = self._kept.setdefault(kind, {})
        self._kept.move_to_end(kind)
        while len(self._kept) > MAX_KINDS:
            self._kept.popitem(last=False)
        rows: list[EncodedTopic] = []
        for name, topic in snapshot.topics.items():
            found = kept.get(id(topic))
            if found is None:
                found = kept[id(topic)] = _Encoding(topic, _encoded(build, topic, kind.version))
            while found.encoded is None:
                try:
                    found.advance()
                except Exception:
                    kept.pop(id(topic), None)  # the next response tries again
                    raise
                yield
            rows.append(EncodedTopic(name, found.encoded, operations))
            yield
        if len(kept) > len(self._metadata.snapshot.topics):
            yield from self._drop_old(kept)
        return rows

    def _drop_old(self, kept: dict[int, _Encoding[TopicMetadata]]) -> Steps[None]:
        """Forget topics that have changed or are deleted."""
        for key, found in list(kept.items()):
            if self._metadata.snapshot.topics.get(found.source.name) is not found.source:
                kept.pop(key, None)
            yield


def _joined(rows: Steps[list[EncodedTopic]], version: int) -> Steps[bytes]:
    """The number of the topics, and all of them with their operations."""
    topics = yield from rows
    pieces: list[Any] = [_count(len(topics), version)]
    steps = _add_rows(pieces, topics, version)
    parts: list[Any] = yield from join_in_steps(steps, pieces, [])
    return b"".join(parts)


def _add_rows(pieces: list[Any], topics: list[EncodedTopic], version: int) -> Steps[None]:
    for each in topics:
        pieces.extend(_row_pieces([each], version))
        yield


def _encoded(build: BuildRow, topic: TopicMetadata, version: int) -> Steps[bytes]:
    row = yield from build(topic)
    return (yield from encode_topic(row, version))


def encode_topic(row: MetadataResponseTopic, version: int) -> Steps[bytes]:
    """Encode a topic, up to its authorized operations."""
    pieces: list[Any] = []
    cuts: list[int] = []  # there are no records
    alone = MetadataResponse(topics=[row])
    steps = sliced_encoder(MetadataResponse, version)(alone, pieces, cuts)
    parts: list[Any] = yield from join_in_steps(steps, pieces, cuts)
    encoded = b"".join(parts)
    before, after = _bytes_around_topic(version)
    return encoded[before : len(encoded) - after]


@cache
def _bytes_around_topic(version: int) -> tuple[int, int]:
    """How many bytes stand before and after the topic of a response that is empty otherwise.

    They depend on the version only, of which there are few.
    """
    before, after = _without_topics(MetadataResponse(), version)
    return len(before) + len(_count(1, version)), len(after) + _operations_bytes(version)


class EncodedMetadata(MetadataResponse):
    """A response whose topics are EncodedTopic and, where access control added some,
    MetadataResponseTopic; or that has the bytes of all of them in `whole`."""

    __slots__ = ("whole",)

    def __init__(self, response: MetadataResponse) -> None:
        """All but the topics are those of `response`."""
        super().__init__(
            response.throttle_time_ms,
            response.brokers,
            response.cluster_id,
            response.controller_id,
            [],
            response.cluster_authorized_operations,
        )
        self.whole: bytes | None = None

    def encode_pieces(self, version: int, pieces: list[Any]) -> None:
        topics: list[Any] = self.topics
        before, after = _without_topics(self, version)
        if self.whole is not None:
            pieces += (before, memoryview(self.whole), after)  # a view is not copied
            return
        pieces += (before, _count(len(topics), version), *_row_pieces(topics, version), after)


def _row_pieces(topics: list[Any], version: int) -> Iterator[bytes]:
    end = b"\x00" if version >= _FIRST_FLEXIBLE else b""  # no tagged fields
    for topic in topics:
        if type(topic) is EncodedTopic:
            yield topic.encoded
        else:  # a refused topic, without partitions
            yield run_at_once(encode_topic(topic, version))
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
