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
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.replication.session_watch import SessionWatch

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_LIMIT = 0x7FFFFFFF

# A session that was not used for this long may be evicted; as in Kafka, not configurable.
EVICTION_MS = 120_000


def next_epoch(epoch: int) -> int:
    """The epoch of the next request of a session; wraps to 1, as 0 opens a new one."""
    return 1 if epoch >= _EPOCH_LIMIT else epoch + 1


#: A topic's name (None if no topic has the id) and the index of a partition.
PartitionKey = tuple[str | None, int]
# The key in a session: with the topic's id where requests have ids.
SessionKey = tuple[str | bytes | None, int]
FetchResult = tuple["FetchItem", PartitionData]
#: (error code, session id, results) of a response.
Finished = tuple[int, int, list[FetchResult]]
NamesById = dict[bytes, str]


class FetchItem:
    """A partition of a fetch: where it is read, and the last response of its session for it.

    Mirrors Kafka's `CachedPartition`; a request without a session has items as well.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "is_settled",
        "key",
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

    def __init__(self, topic: str | None, topic_id: bytes, position: FetchPartition) -> None:
        """`topic` is None if the request has an id that no topic has."""
        self.topic = topic
        self.topic_id = topic_id
        self.partition = position.partition
        #: Of the partition in the replica manager.
        self.key: PartitionKey = (topic, position.partition)
        self.partition_max_bytes = position.partition_max_bytes
        self.fetch_offset = position.fetch_offset
        self.log_start_offset = position.log_start_offset
        self.current_leader_epoch = position.current_leader_epoch
        self.last_fetched_epoch = position.last_fetched_epoch
        #: Whether the last response for this position had no records and no error.
        self.is_settled = False
        self.returned_high_watermark = -1
        self.returned_last_stable_offset = -1
        self.returned_log_start_offset = -1

    def name(self, topic: str) -> None:
        """Set the name of a topic that was created after the first request for it."""
        self.topic = topic
        self.key = (topic, self.partition)

    def update(self, position: FetchPartition | FetchItem) -> None:
        """Set the fetch position of the newest request."""
        self.is_settled = False
        if position.current_leader_epoch != self.current_leader_epoch:
            # A follower that learns of a leader epoch ignores the response to its fetch of before.
            self.returned_high_watermark = -1
            self.returned_last_stable_offset = -1
            self.returned_log_start_offset = -1
        self.partition_max_bytes = position.partition_max_bytes
        self.fetch_offset = position.fetch_offset
        self.log_start_offset = position.log_start_offset
        self.current_leader_epoch = position.current_leader_epoch
        self.last_fetched_epoch = position.last_fetched_epoch

    def update_returned(self, data: PartitionData) -> bool:
        """Store the offsets of a response; return whether it has to include the partition."""
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
        "changes",
        "created_ms",
        "epoch",
        "items",
        "known_in",
        "partitions",
        "privileged",
        "session_id",
        "unnamed",
        "used_ms",
        "uses_topic_ids",
        "watch",
    )

    def __init__(self, session_id: int, privileged: bool, uses_topic_ids: bool, now: int) -> None:
        self.session_id = session_id
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now
        self.used_ms = now
        self.epoch = 1
        self.partitions: dict[SessionKey, FetchItem] = {}
        #: The values of `partitions`, as long as these stay as they are.
        self.items: list[FetchItem] | None = None
        #: Those with the id of an unknown topic, which may be created later.
        self.unnamed: dict[SessionKey, FetchItem] = {}
        #: The topics of the metadata cache that have all of them.
        self.known_in: object = None
        #: Of a follower's session.
        self.watch: SessionWatch | None = None
        #: How often the partitions have changed.
        self.changes = 0

    def close_watch(self) -> None:
        """The partitions change, or the session ends."""
        self.changes += 1
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.close()


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
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close_watch()

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
        self.remove(victim.session_id)
        self.evictions_total += 1
        return True


class FetchContext:
    """A request without a session (Kafka's `SessionlessFetchContext`), base of the others."""

    error_code = ErrorCode.NONE

    #: Whether the response has each partition, also those without news.
    sends_all = True

    #: The topics of the metadata cache, which never change, that have all partitions; if known.
    known_in: object = None

    #: Of an incremental request.
    session: FetchSession | None = None

    def __init__(self, items: list[FetchItem]) -> None:
        #: The partitions to read, in the order in which they get their share of the bytes.
        self.items = items

    def set_known_in(self, topics: object) -> None:
        """These topics have all partitions."""

    def finish(self, results: list[FetchResult]) -> Steps[Finished]:
        """Return what is sent. May pause between two results."""
        yield from ()
        return ErrorCode.NONE, NO_SESSION, results

    def throttled(self) -> tuple[int, int]:
        """(error code, session id) of the empty response to a throttled client."""
        return ErrorCode.NONE, NO_SESSION


class SessionErrorContext(FetchContext):
    """A request with an unknown session id or a wrong epoch: nothing is read."""

    def __init__(self, error_code: int) -> None:
        super().__init__([])
        self.error_code = error_code

    def finish(self, results: list[FetchResult]) -> Steps[Finished]:
        yield from ()
        return self.error_code, NO_SESSION, []

    def throttled(self) -> tuple[int, int]:
        return self.error_code, NO_SESSION


class FullFetchContext(FetchContext):
    """A full request; the response opens a session if the cache has room then."""

    def __init__(
        self, items: list[FetchItem], open_session: Callable[[int], FetchSession | None]
    ) -> None:
        super().__init__(items)
        self._open_session = open_session

    def finish(self, results: list[FetchResult]) -> Steps[Finished]:
        session = self._open_session(len(results))
        if session is None:
            return ErrorCode.NONE, NO_SESSION, results
        # No other request can name the session before its id is sent.
        for item, data in results:
            item.update_returned(data)
            _add(session, item)
            yield
        return ErrorCode.NONE, session.session_id, results


class IncrementalFetchContext(FetchContext):
    """An incremental request of a session."""

    sends_all = False

    def __init__(self, session: FetchSession, expected_epoch: int, names: NamesById) -> None:
        for key, item in list(session.unnamed.items()):
            name = names.get(item.topic_id)
            if name is not None:
                item.name(name)
                del session.unnamed[key]
                session.close_watch()
        if session.items is None:
            session.items = list(session.partitions.values())
        super().__init__(session.items)
        self.known_in = session.known_in
        self.session: FetchSession = session
        self._expected_epoch = expected_epoch

    def set_known_in(self, topics: object) -> None:
        self.session.known_in = topics

    def finish(self, results: list[FetchResult]) -> Steps[Finished]:
        session = self.session
        partitions = session.partitions
        watch = session.watch
        changed: list[FetchResult] = []
        for number, result in enumerate(results):
            if number:
                yield
            if session.epoch != self._expected_epoch:
                break
            item, data = result
            key = _key(session.uses_topic_ids, item)
            if partitions.get(key) is item and item.update_returned(data):
                changed.append(result)
                if data.records:
                    # A partition with records is read last next time, so that none starves.
                    del partitions[key]
                    partitions[key] = item
                    session.items = None
                    if watch is not None and item.key in watch.news:
                        del watch.news[item.key]
                        watch.news[item.key] = None
        if session.epoch != self._expected_epoch:
            # Another request of this session arrived while this one was handled.
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, []
        return ErrorCode.NONE, session.session_id, changed

    def throttled(self) -> tuple[int, int]:
        # The session stays open: its epoch has advanced, and the client sends the next one.
        if self.session.epoch != self._expected_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, self.session.session_id
        return ErrorCode.NONE, self.session.session_id


class FetchSessions:
    """Creates the context of each Fetch request; mirrors Kafka's `FetchManager`."""

    def __init__(self, slots: int, now_ms: Callable[[], int]) -> None:
        self.cache = FetchSessionCache(slots)
        self._now_ms = now_ms

    def context(
        self, request: FetchRequest, version: int, names: NamesById, is_follower: bool
    ) -> Steps[FetchContext]:
        """Return the context of a request; `names` resolves topic ids (version 13 and up).

        May pause between two partitions of the request. Its session has the next epoch by then, so
        that a second request with the same epoch is refused.
        """
        cache = self.cache
        uses_topic_ids = version >= 13
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                cache.remove(request.session_id)
            items = yield from _requested(request, uses_topic_ids, names)
            if epoch == FINAL_EPOCH:
                return FetchContext(list(items.values()))
            now_ms = self._now_ms
            return FullFetchContext(
                list(items.values()),
                lambda size: cache.create(is_follower, size, uses_topic_ids, now_ms()),
            )
        session = cache.get(request.session_id)
        if session is None:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return SessionErrorContext(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = next_epoch(epoch)
        cache.touch(session, self._now_ms())
        items = yield from _requested(request, uses_topic_ids, names)
        for key, item in items.items():
            known = session.partitions.get(key)
            if known is None:
                _add(session, item)
            else:
                known.update(item)
                if session.watch is not None:
                    session.watch.changed(known.key)
            yield
        for forgotten in request.forgotten_topics_data:
            topic = forgotten.topic_id if uses_topic_ids else forgotten.topic
            for index in forgotten.partitions:
                session.partitions.pop((topic, index), None)
                session.unnamed.pop((topic, index), None)
                session.items = None
                session.close_watch()
                yield
        if not session.partitions:
            cache.remove(session.session_id)
            return FetchContext(list(items.values()))
        return IncrementalFetchContext(session, next_epoch(epoch), names)


def _key(by_id: bool, item: FetchItem) -> SessionKey:
    return (item.topic_id, item.partition) if by_id else item.key


def _add(session: FetchSession, item: FetchItem) -> None:
    key = _key(session.uses_topic_ids, item)
    session.partitions[key] = item
    if item.topic is None:
        session.unnamed[key] = item
    session.items = session.known_in = None
    session.close_watch()


def _requested(
    request: FetchRequest, by_id: bool, names: NamesById
) -> Steps[dict[SessionKey, FetchItem]]:
    """The partitions of a request; if one is listed twice the last one counts, as in Kafka."""
    items: dict[SessionKey, FetchItem] = {}
    for topic in request.topics:
        topic_id = topic.topic_id
        name = names.get(topic_id) if by_id else topic.topic
        for position in topic.partitions:
            if items:
                yield
            item = FetchItem(name, topic_id, position)
            items[(topic_id, item.partition) if by_id else item.key] = item
    return items
