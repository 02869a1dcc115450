"""Incremental fetch sessions (KIP-227), on the broker that is fetched from.

A request with epoch 0 (or with epoch -1, for no session) has all its partitions. Epoch 0 opens a
session if the cache has room: the response has its id, and the next requests, with epochs 1, 2,
..., have only the partitions that changed. The responses of a session have only partitions with
records or with changed offsets. Mirrors Kafka's `FetchManager` and `FetchSessionCache`.

The cache has `max.incremental.fetch.session.cache.slots` sessions. When it is full, a new session
evicts one that was not used for two minutes, or else a smaller one that is older than that (a
follower also evicts a consumer's session of any age). A client without a session sends full
requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.steps import Steps, run_at_once

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_LIMIT = 0x7FFFFFFF

# Of a new session; one takes 2 us.
_PARTITIONS_PER_STEP = 64

# A session that was not used for this long may be evicted; as in Kafka, not configurable.
EVICTION_MS = 120_000


def next_epoch(epoch: int) -> int:
    """The epoch of the next request of a session; wraps to 1, as 0 opens a new one."""
    return 1 if epoch >= _EPOCH_LIMIT else epoch + 1


class FetchPosition(Protocol):
    """The fetch position of a partition: a FetchPartition, or a cached SessionPartition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


# A partition to read: the topic's name (None when the id is unknown), its id, the position.
FetchItem = tuple[str | None, bytes, FetchPosition]
FetchResult = tuple[str | None, bytes, PartitionData]
NamesById = dict[bytes, str]


class SessionPartition:
    """A partition in a session: the last request and the last response for it.

    Mirrors Kafka's `CachedPartition`.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "is_settled",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "partition_max_bytes",
        "returned_high_watermark",
        "returned_last_stable_offset",
        "returned_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str | None, topic_id: bytes, position: FetchPosition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = position.partition
        self.current_leader_epoch = position.current_leader_epoch
        self._forget_returned()
        self.update(position)

    def update(self, position: FetchPosition) -> None:
        """Sets the fetch position of the newest request."""
        #: The last response for this position had no records and no error.
        self.is_settled = False
        if position.current_leader_epoch != self.current_leader_epoch:
            # A follower that learns of a leader epoch ignores the response to its fetch of before.
            self._forget_returned()
        self.partition_max_bytes = position.partition_max_bytes
        self.fetch_offset = position.fetch_offset
        self.log_start_offset = position.log_start_offset
        self.current_leader_epoch = position.current_leader_epoch
        self.last_fetched_epoch = position.last_fetched_epoch

    def _forget_returned(self) -> None:
        self.returned_high_watermark = -1
        self.returned_last_stable_offset = -1
        self.returned_log_start_offset = -1

    def update_returned(self, data: PartitionData) -> bool:
        """Stores the offsets of a response; returns whether it has to include the partition."""
        changed = (
            bool(data.records)
            or data.error_code != ErrorCode.NONE
            or data.high_watermark != self.returned_high_watermark
            or data.log_start_offset != self.returned_log_start_offset
            or data.last_stable_offset != self.returned_last_stable_offset
            or data.preferred_read_replica >= 0
            or data.diverging_epoch is not None
        )
        self.returned_log_start_offset = data.log_start_offset
        self.returned_last_stable_offset = data.last_stable_offset
        # The next response has to have the partition even if no offset changed: after an error it
        # shows the client that the error is gone, and of a response with a diverging epoch a
        # follower takes only that, not the offsets.
        failed = data.error_code != ErrorCode.NONE or data.diverging_epoch is not None
        self.is_settled = not (failed or data.records)
        self.returned_high_watermark = -1 if failed else data.high_watermark
        return changed


class FetchSession:
    """The partitions of one client, in the order in which they are read."""

    __slots__ = (
        "created_ms",
        "epoch",
        "items",
        "known_in",
        "partitions",
        "privileged",
        "session_id",
        "used_ms",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, privileged: bool, uses_topic_ids: bool, now: int) -> None:
        self.session_id = session_id
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now
        self.used_ms = now
        self.epoch = 1
        self.partitions: dict[tuple[str | bytes | None, int], SessionPartition] = {}
        #: What the requests read, as long as `partitions` stays as it is.
        self.items: list[FetchItem] | None = None
        #: The topics of the metadata cache that have all of them.
        self.known_in: object = None


class FetchSessionCache:
    """All sessions, least recently used first. Loop only."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}
        self.evictions_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """The number of partitions in all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def remove(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Marks `session` as the most recently used."""
        self._sessions.pop(session.session_id, None)
        self._sessions[session.session_id] = session
        session.used_ms = now_ms

    def create(
        self, privileged: bool, size: int, uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        """A new session for `size` partitions, or None when the cache is full."""
        if len(self._sessions) >= self._slots and not self._evict(privileged, size, now_ms):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = random.randint(1, _EPOCH_LIMIT)
        session = FetchSession(session_id, privileged, uses_topic_ids, now_ms)
        self._sessions[session_id] = session
        return session

    def _evict(self, privileged: bool, size: int, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > EVICTION_MS:
            victim = oldest
        else:
            evictable = [
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms > EVICTION_MS
                or (privileged and not session.privileged)
            ]
            if not evictable:
                return False
            victim = min(evictable, key=lambda each: (each.privileged, len(each.partitions)))
            if (privileged, size) < (victim.privileged, len(victim.partitions)):
                return False
        del self._sessions[victim.session_id]
        self.evictions_total += 1
        return True


class FetchContext:
    """A request without a session (Kafka's `SessionlessFetchContext`), base of the others."""

    error_code = ErrorCode.NONE

    #: Whether the response has each partition, also those without news.
    sends_all = True

    def __init__(self, items: Iterable[FetchItem]) -> None:
        self._items = list(items)

    def items(self) -> list[FetchItem]:
        """The partitions to read, in the order in which they get their share of the bytes."""
        return self._items

    def is_known_in(self, topics: object) -> bool:
        """Whether these topics of a metadata cache, which never change, have all partitions."""
        return False

    def set_known_in(self, topics: object) -> None:
        """They have all partitions."""

    def finish(self, results: list[FetchResult]) -> tuple[int, int, list[FetchResult]]:
        """(error code, session id, results) for the response."""
        return ErrorCode.NONE, NO_SESSION, results

    def finish_in_steps(
        self, results: list[FetchResult]
    ) -> Steps[tuple[int, int, list[FetchResult]]]:
        """As `finish`."""
        yield
        return self.finish(results)

    def throttled(self) -> tuple[int, int]:
        """(error code, session id) of the empty response to a throttled client."""
        return ErrorCode.NONE, NO_SESSION


class SessionErrorContext(FetchContext):
    """A request with an unknown session id or a wrong epoch: nothing is read."""

    def __init__(self, error_code: int) -> None:
        super().__init__(())
        self.error_code = error_code

    def finish(self, results: list[FetchResult]) -> tuple[int, int, list[FetchResult]]:
        return self.error_code, NO_SESSION, []

    def throttled(self) -> tuple[int, int]:
        return self.error_code, NO_SESSION


class FullFetchContext(FetchContext):
    """A full request; the response opens a session if the cache has room then."""

    def __init__(
        self, items: Iterable[FetchItem], open_session: Callable[[int], FetchSession | None]
    ) -> None:
        super().__init__(items)
        self._open_session = open_session

    def finish(self, results: list[FetchResult]) -> tuple[int, int, list[FetchResult]]:
        return run_at_once(self.finish_in_steps(results))

    def finish_in_steps(
        self, results: list[FetchResult]
    ) -> Steps[tuple[int, int, list[FetchResult]]]:
        session = self._open_session(len(results))
        if session is None:
            return ErrorCode.NONE, NO_SESSION, results
        requested = {
            _key(session.uses_topic_ids, topic, topic_id, position.partition): position
            for topic, topic_id, position in self._items
        }
        for number, (topic, topic_id, data) in enumerate(results, 1):
            if number % _PARTITIONS_PER_STEP == 0:
                yield
            key = _key(session.uses_topic_ids, topic, topic_id, data.partition_index)
            partition = SessionPartition(topic, topic_id, requested[key])
            partition.update_returned(data)
            session.partitions[key] = partition
        return ErrorCode.NONE, session.session_id, results


class IncrementalFetchContext(FetchContext):
    """An incremental request of a session."""

    sends_all = False

    def __init__(self, session: FetchSession, expected_epoch: int, names: NamesById) -> None:
        super().__init__(())
        self._session = session
        self._expected_epoch = expected_epoch
        self._names = names

    def items(self) -> list[FetchItem]:
        session = self._session
        if session.items is not None:
            return session.items
        found: list[FetchItem] = []
        all_named = True
        for partition in session.partitions.values():
            if partition.topic is None:
                # The topic may have been created since the first request for it.
                partition.topic = self._names.get(partition.topic_id)
                all_named &= partition.topic is not None
            found.append((partition.topic, partition.topic_id, partition))
        if all_named:
            session.items = found
        return found

    def is_known_in(self, topics: object) -> bool:
        return self._session.known_in is topics

    def set_known_in(self, topics: object) -> None:
        self._session.known_in = topics

    def finish(self, results: list[FetchResult]) -> tuple[int, int, list[FetchResult]]:
        session = self._session
        if session.epoch != self._expected_epoch:
            # Another request of this session arrived while this one was handled.
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, []
        partitions = session.partitions
        changed: list[FetchResult] = []
        for result in results:
            topic, topic_id, data = result
            key = _key(session.uses_topic_ids, topic, topic_id, data.partition_index)
            partition = partitions.get(key)
            if partition is None or not partition.update_returned(data):
                continue
            changed.append(result)
            if data.records:
                # A partition with records is read last next time, so that none starves.
                del partitions[key]
                partitions[key] = partition
                session.items = None
        return ErrorCode.NONE, session.session_id, changed

    def throttled(self) -> tuple[int, int]:
        # The session stays open: its epoch has advanced, and the client sends the next one.
        if self._session.epoch != self._expected_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._session.session_id
        return ErrorCode.NONE, self._session.session_id


class FetchSessions:
    """Creates the context of each Fetch request; mirrors Kafka's `FetchManager`."""

    def __init__(self, slots: int, now_ms: Callable[[], int]) -> None:
        self.cache = FetchSessionCache(slots)
        self._now_ms = now_ms

    def context(
        self, request: FetchRequest, version: int, names: NamesById, is_follower: bool
    ) -> FetchContext:
        """The context of a request; `names` resolves topic ids (version 13 and up)."""
        cache = self.cache
        uses_topic_ids = version >= 13
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                cache.remove(request.session_id)
            items = _requested(request, uses_topic_ids, names)
            if epoch == FINAL_EPOCH:
                return FetchContext(items)
            now_ms = self._now_ms
            return FullFetchContext(
                items, lambda size: cache.create(is_follower, size, uses_topic_ids, now_ms())
            )
        session = cache.get(request.session_id)
        if session is None:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return SessionErrorContext(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        _apply_changes(session, request, names)
        if not session.partitions:
            cache.remove(session.session_id)
            return FetchContext(_requested(request, uses_topic_ids, names))
        cache.touch(session, self._now_ms())
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetchContext(session, session.epoch, names)


def _apply_changes(session: FetchSession, request: FetchRequest, names: NamesById) -> None:
    by_id = session.uses_topic_ids
    partitions = session.partitions
    for topic, topic_id, position in _requested(request, by_id, names):
        key = _key(by_id, topic, topic_id, position.partition)
        known = partitions.get(key)
        if known is None:
            partitions[key] = SessionPartition(topic, topic_id, position)
            session.items = session.known_in = None
        else:
            known.update(position)
    for forgotten in request.forgotten_topics_data:
        name = names.get(forgotten.topic_id) if by_id else forgotten.topic
        for index in forgotten.partitions:
            partitions.pop(_key(by_id, name, forgotten.topic_id, index), None)
            session.items = None


def _key(
    by_id: bool, topic: str | None, topic_id: bytes, partition: int
) -> tuple[str | bytes | None, int]:
    return (topic_id if by_id else topic, partition)


def _requested(request: FetchRequest, by_id: bool, names: NamesById) -> Iterator[FetchItem]:
    """The partitions of a request; if one is listed twice the last one counts, as in Kafka."""
    positions: dict[tuple[str | bytes | None, int], FetchItem] = {}
    for topic in request.topics:
        name = names.get(topic.topic_id) if by_id else topic.topic
        position: FetchPartition
        for position in topic.partitions:
            key = _key(by_id, name, topic.topic_id, position.partition)
            positions[key] = (name, topic.topic_id, position)
    return iter(positions.values())
