"""Sessions: limits of their timeout, passwords, expiry."""

from __future__ import annotations

from ottla.controller.tree.tree_file import StoredSession
from ottla.controller.zookeeper_server.sessions import Sessions


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_timeouts_are_limited_to_2_to_20_ticks() -> None:
    sessions = Sessions(Clock(), 100)
    assert sessions.open(1).stored.timeout_ms == 200
    assert sessions.open(1_000).stored.timeout_ms == 1_000
    assert sessions.open(60_000).stored.timeout_ms == 2_000


def test_a_session_expires_unless_it_is_used() -> None:
    clock = Clock()
    sessions = Sessions(clock, 100)
    used, idle = sessions.open(1_000), sessions.open(1_000)
    clock.now += 0.9
    sessions.touch(used)
    clock.now += 0.2
    assert sessions.expired() == [idle]
    sessions.end(idle)
    assert sessions.resume(idle.session_id, idle.stored.password) is None
    assert sessions.resume(used.session_id, used.stored.password) is used


def test_a_session_is_resumed_with_its_password_only() -> None:
    clock = Clock()
    sessions = Sessions(clock, 100)
    session = sessions.open(1_000)
    assert sessions.resume(session.session_id, b"guess") is None
    assert sessions.resume(session.session_id + 1, session.stored.password) is None
    clock.now += 0.9
    assert sessions.resume(session.session_id, session.stored.password) is session
    clock.now += 0.9
    assert sessions.expired() == []


def test_stored_sessions_get_their_whole_timeout_after_a_restart() -> None:
    clock = Clock()
    sessions = Sessions(clock, 100, [StoredSession(7, b"secret", 1_500)])
    clock.now += 1.4
    assert sessions.expired() == []
    assert sessions.resume(7, b"secret") is not None
