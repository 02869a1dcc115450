"""ACL entries: what is accepted, what is kept, who is permitted."""

from __future__ import annotations

import pytest

from ottla.controller.tree.store import Acl
from ottla.controller.zookeeper_server.acl import (
    MAX_ENTRIES,
    OPEN,
    digest,
    effective_acl,
    is_permitted,
)
from ottla.controller.zookeeper_server.codes import Code, Permission, RequestError

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
