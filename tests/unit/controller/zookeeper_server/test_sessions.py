"""Sessions: limits of their timeout, passwords, expiry."""

from __future__ import annotations

import pytest

from ottla.controller.tree.store import Acl
from ottla.controller.tree.tree_file import StoredSession
from ottla.controller.zookeeper_server.codes import Code, Permission, RequestError
from ottla.controller.zookeeper_server.requests import check_path
from ottla.controller.zookeeper_server.sessions import (
    MAX_ENTRIES,
    OPEN,
    Sessions,
    digest,
    effective_acl,
    is_permitted,
)


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


# As `DigestAuthenticationProvider.generateDigest("user:pw")` prints it.
USER = ("digest", "user:2Om+GBbT2q/tS6pdvACZbbm7/1A=")


def test_digest_is_that_of_zookeeper() -> None:
    assert digest(b"user:pw") == USER[1]


def test_the_open_acl_is_kept_as_none() -> None:
    assert effective_acl(OPEN, []) is None
    assert effective_acl((*OPEN, *OPEN), []) is None
    read_only = (Acl(1, "world", "anyone"),)
    assert effective_acl(read_only, []) == read_only


def test_auth_stands_for_the_identities_of_the_client() -> None:
    assert effective_acl((Acl(31, "auth", ""),), [USER]) == (Acl(31, *USER),)
    with pytest.raises(RequestError) as refused:
        effective_acl((Acl(31, "auth", ""),), [])
    assert refused.value.code is Code.INVALID_ACL


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (Acl(31, "world", "other"),),
        (Acl(31, "digest", "x"),),
        (Acl(31, "ip", "1.2.3"),),
        (Acl(31, "sasl", "kafka"),),
        OPEN * (MAX_ENTRIES + 1),
    ],
)
def test_invalid_entries_are_refused(entries: tuple[Acl, ...]) -> None:
    with pytest.raises(RequestError) as refused:
        effective_acl(entries, [USER])
    assert refused.value.code is Code.INVALID_ACL


def test_permissions() -> None:
    entries = (Acl(1, "world", "anyone"), Acl(2, *USER), Acl(4, "ip", "10.0.0.0/8"))
    assert is_permitted(None, Permission.ADMIN, [], "127.0.0.1")
    assert is_permitted(entries, Permission.READ, [], "127.0.0.1")
    assert not is_permitted(entries, Permission.WRITE, [], "127.0.0.1")
    assert is_permitted(entries, Permission.WRITE, [USER], "127.0.0.1")
    assert not is_permitted(entries, Permission.CREATE, [USER], "127.0.0.1")
    assert is_permitted(entries, Permission.CREATE, [], "10.1.2.3")
    assert is_permitted(entries, Permission.READ | Permission.ADMIN, [], "127.0.0.1")


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/.a", "/a.b", "/...", "/ä/日本", "/a b"])
def test_valid(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a/./b", "/a\x00", "/\x1f", "/\uf000"]
)
def test_invalid(path: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_path(path)
    assert refused.value.code is Code.BAD_ARGUMENTS
