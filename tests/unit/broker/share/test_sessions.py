from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.share.sessions import (
    SessionKey,
    SharedPartition,
    ShareSession,
    ShareSessions,
    end_session,
)
from ottla.protocol.errors import ErrorCode, KafkaError

KEY = SessionKey("group", "member")
A, B = SharedPartition(bytes(16), 0), SharedPartition(bytes(16), 1)
OPEN = SimpleNamespace(closed=False)


def code_of(call: object, *arguments: object) -> int:
    with pytest.raises(KafkaError) as refused:
        call(*arguments)  # type: ignore[operator]
    return refused.value.code


def opened(sessions: ShareSessions, key: SessionKey = KEY) -> ShareSession:
    session = sessions.fetch(key, 0, OPEN, [A, B], [])
    assert session is not None
    return session


def test_epochs() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    assert sessions.fetch(KEY, 1, OPEN, [], []) is session
    sessions.acknowledge(KEY, 2)
    wrong = code_of(sessions.fetch, KEY, 2, OPEN, [], [])
    assert wrong == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert code_of(sessions.acknowledge, KEY, 0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.is_current(KEY, session)
    assert sessions.fetch(KEY, -1, OPEN, [], []) is None
    assert not sessions.is_current(KEY, session)
    assert code_of(sessions.fetch, KEY, 3, OPEN, [], []) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_the_epoch_after_the_highest_is_one() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    session.epoch = (1 << 31) - 1
    sessions.acknowledge(KEY, session.epoch)
    assert session.epoch == 1


def test_partitions_change_and_take_turns() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    assert session.next_round() == [A, B]
    assert session.next_round() == [B, A]
    sessions.fetch(KEY, 1, OPEN, [], [A])
    assert session.next_round() == [B]


def test_the_limit() -> None:
    sessions = ShareSessions(1)
    opened(sessions)
    opened(sessions)  # the same member once more
    other = SessionKey("group", "other")
    full = code_of(sessions.fetch, other, 0, OPEN, [], [])
    assert full == ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_a_session_ends_with_its_connection() -> None:
    sessions = ShareSessions(2)
    connection = SimpleNamespace(closed=False)
    sessions.fetch(KEY, 0, connection, [A], [])
    removed: list[SessionKey] = []
    sessions.remove_disconnected(removed.append)
    assert not removed
    connection.closed = True
    sessions.remove_disconnected(removed.append)
    assert (removed, len(sessions)) == ([KEY], 0)


async def test_the_last_session_of_a_group_drops_its_share_partitions() -> None:
    calls: list[object] = []

    async def release(member_id: str, group_id: str) -> None:
        calls.append(("release", member_id))

    shares = cast(Any, SimpleNamespace(release=release, drop_group=calls.append))
    sessions = ShareSessions(10)
    other = SessionKey("group", "other")
    opened(sessions)
    opened(sessions, other)
    sessions.acknowledge(other, -1)
    await end_session(sessions, shares, other)
    sessions.acknowledge(KEY, -1)
    await end_session(sessions, shares, KEY)
    assert calls == [("release", "other"), ("release", "member"), "group"]
