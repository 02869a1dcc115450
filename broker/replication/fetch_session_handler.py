"""An incremental fetch session on the follower (KIP-227): requests have only what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

_NO_SESSION = 0
_OPEN = 0

# After these the session is closed: the next request opens a new one.
_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


class PartitionFetchState(NamedTuple):
    """From where a follower fetches a partition, with the leader epochs for fencing."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchSessionHandler:
    """Fills Fetch requests to one leader; mirrors Kafka's `FetchSessionHandler`."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the limit of each partition (`replica.fetch.max.bytes`)."""
        self._max_bytes = max_bytes
        self._session_id = _NO_SESSION
        self._epoch = _OPEN
        self._known: dict[TopicPartition, PartitionFetchState] = {}
        self._uses_topic_ids = False
        #: The topics of the last request by their ids.
        self.names: dict[bytes, str] = {}

    def fill(
        self,
        request: FetchRequest,
        fetch_states: dict[TopicPartition, PartitionFetchState],
        ids: bool,
    ) -> Steps[None]:
        """Add to `request` what changed since the last one, with topic ids or names.

        Keeps `fetch_states`, which must not change any more. May pause between two partitions that
        changed; only the fetcher's own task changes the session.
        """
        if ids != self._uses_topic_ids:
            # A topic without id has come or gone, and a session has either ids or names.
            self._uses_topic_ids = ids
            self.renew()
        request.session_id = self._session_id
        request.session_epoch = self._epoch
        has_same_topics = False
        if self._epoch == _OPEN:
            changed = fetch_states
        elif fetch_states is self._known:
            changed, has_same_topics = {}, True
            request.forgotten_topics_data = []
        else:
            known = self._known
            changed = {
                key: each
                for key, each in fetch_states.items()
                if (last := known.get(key)) is not each and last != each
            }
            # Of a topic that was created again. By name it is the same partition, which the leader
            # would add and then remove, as it reads last what is forgotten.
            gone = [
                key
                for key in changed
                if ids and key in known and known[key].topic_id != changed[key].topic_id
            ]
            new = sum(1 for key in changed if key not in known)
            if len(fetch_states) - new != len(known):
                gone += [key for key in known if key not in fetch_states]
            request.forgotten_topics_data = self._forgotten(gone, ids)
            has_same_topics = not gone and len(known) == len(fetch_states)
        if not has_same_topics:
            self.names = {each.topic_id: key.topic for key, each in fetch_states.items()}
        topics: dict[str, FetchTopic] = {}
        for key, each in changed.items():
            topic = topics.get(key.topic)
            if topic is None:
                topic = topics[key.topic] = FetchTopic()
                if ids:
                    topic.topic_id = each.topic_id
                else:
                    topic.topic = key.topic
            topic.partitions.append(
                FetchPartition(
                    partition=key.partition,
                    current_leader_epoch=each.leader_epoch,
                    fetch_offset=each.fetch_offset,
                    last_fetched_epoch=each.last_fetched_epoch,
                    log_start_offset=each.log_start_offset,
                    partition_max_bytes=self._max_bytes,
                )
            )
            yield
        request.topics = list(topics.values())
        self._known = fetch_states

    @property
    def known(self) -> Mapping[TopicPartition, PartitionFetchState]:
        """What the leader knows of each partition."""
        return self._known

    def _forgotten(self, gone: list[TopicPartition], ids: bool) -> list[ForgottenTopic]:
        topics: dict[tuple[str, bytes], ForgottenTopic] = {}
        for key in gone:
            topic_id = self._known[key].topic_id
            topic = topics.get((key.topic, topic_id))
            if topic is None:
                topic = topics[key.topic, topic_id] = ForgottenTopic()
                if ids:
                    topic.topic_id = topic_id
                else:
                    topic.topic = key.topic
            topic.partitions.append(key.partition)
        return list(topics.values())

    def handle_response(self, error_code: int, session_id: int) -> bool:
        """Advances the session; returns False when the response has no partitions to process."""
        if error_code in _SESSION_ERRORS:
            self.reset()
            return False
        if error_code != ErrorCode.NONE:
            return False
        if session_id == _NO_SESSION:
            self.reset()
        elif self._epoch == _OPEN:
            self._session_id = session_id
            self._epoch = 1
        else:
            self._epoch = 1 if self._epoch >= 0x7FFFFFFF else self._epoch + 1
        return True

    def renew(self) -> None:
        """A part of a response was ignored: the next request is a full one, which closes the
        session and opens a new one. The leader takes the offsets of that part for known, and would
        not return them again before they change."""
        self._epoch = _OPEN
        self._known = {}

    def reset(self) -> None:
        """Drops the session: the next request is a full one and opens a new session."""
        self._session_id = _NO_SESSION
        self._epoch = _OPEN
        self._known = {}
