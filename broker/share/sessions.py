"""Share sessions: which partitions a member fetches from this broker (KIP-932).

A session opens with epoch 0, each later request has the next epoch, and -1 closes it. It belongs to
the connection that opened it: when that is closed, the session ends.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestConnection
    from ottla.broker.share.share_partitions import SharePartitions

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
# Of one session, about 20 MB: a member adds some with each request, also those that do not exist.
MAX_PARTITIONS = 100_000
_MAX_EPOCH = (1 << 31) - 1


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class SharedPartition(NamedTuple):
    topic_id: bytes
    partition: int


class ShareSession:
    """The partitions are in the order in which they are fetched next."""

    __slots__ = ("connection", "epoch", "partitions")

    def __init__(
        self, connection: RequestConnection, partitions: Iterable[SharedPartition]
    ) -> None:
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[SharedPartition, None] = dict.fromkeys(partitions)

    def next_round(self) -> list[SharedPartition]:
        """Return the partitions to fetch; in the next round another one is first."""
        found = list(self.partitions)
        if len(found) > 1:
            del self.partitions[found[0]]
            self.partitions[found[0]] = None
        return found


class ShareSessions:
    """The share sessions of this broker, at most `group.share.max.share.sessions`."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: dict[SessionKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(
        self,
        key: SessionKey,
        epoch: int,
        connection: RequestConnection,
        added: Iterable[SharedPartition],
        forgotten: Iterable[SharedPartition],
    ) -> ShareSession | None:
        """Return the session of a ShareFetch; None if the request closes it.

        Raises SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED.
        """
        if epoch == INITIAL_EPOCH:
            self._sessions.pop(key, None)
            if len(self._sessions) >= self._max_sessions:
                raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            return self._checked(key, ShareSession(connection, added))
        session = self._known(key)
        if epoch == FINAL_EPOCH:
            del self._sessions[key]
            return None
        self._advance(session, epoch)
        session.partitions.update(dict.fromkeys(added))
        for each in forgotten:
            session.partitions.pop(each, None)
        return self._checked(key, session)

    def _checked(self, key: SessionKey, session: ShareSession) -> ShareSession:
        """End a session with too many partitions."""
        if len(session.partitions) > MAX_PARTITIONS:
            self._sessions.pop(key, None)
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A share session has at most {MAX_PARTITIONS} partitions.",
            )
        self._sessions[key] = session
        return session

    def acknowledge(self, key: SessionKey, epoch: int) -> None:
        """Return the session of a ShareAcknowledge, which can close but not open one.

        Raises as `fetch` does.
        """
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = self._known(key)
        if epoch == FINAL_EPOCH:
            del self._sessions[key]
        else:
            self._advance(session, epoch)

    def is_current(self, key: SessionKey, session: ShareSession) -> bool:
        """Return whether the member has this session still, not a later one."""
        return self._sessions.get(key) is session

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session with this broker."""
        return any(key.group_id == group_id for key in self._sessions)

    def remove_disconnected(self, on_removed: Callable[[SessionKey], None]) -> None:
        """End the sessions whose connection is closed."""
        gone = [key for key, session in self._sessions.items() if session.connection.closed]
        for key in gone:
            del self._sessions[key]
            on_removed(key)

    def _known(self, key: SessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    @staticmethod
    def _advance(session: ShareSession, epoch: int) -> None:
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = epoch + 1 if epoch < _MAX_EPOCH else 1


def end_session(
    sessions: ShareSessions, shares: SharePartitions, key: SessionKey
) -> Coroutine[Any, Any, None]:
    """Release what the member has acquired at this call, which comes with the end of its session:
    a session that it opens later is not affected. Durable when the coroutine returns.

    After the last session of the group here its share partitions are read again when a member comes
    back: the offsets of an empty group can be reset, by a coordinator that does not know who leads
    its partitions. Mirrors `onGroupEmpty` of Kafka's `SharePartitionManager`.
    """
    released = shares.release(key.member_id, key.group_id)

    async def finish() -> None:
        await released
        if not sessions.has_group(key.group_id):
            shares.drop_group(key.group_id)

    return finish()
