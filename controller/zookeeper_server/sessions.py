"""Sessions of ZooKeeper clients: ids, passwords, timeouts, and which ones have expired.

A session outlives its connection. It ends when the client closes it, or when no request has come
for its timeout.
"""

import base64
import hashlib
import secrets
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network

from ottla.controller.tree.store import Acl
from ottla.controller.tree.tree_file import StoredSession
from ottla.controller.zookeeper_server.codes import (
    ALL_PERMISSIONS,
    Code,
    Permission,
    RequestError,
)

PASSWORD_BYTES = 16


class Session:
    """`connection` is who may use it now, any object; None while the client is away. `process` is
    the id of the process that used it last, 0 if that is not known."""

    __slots__ = ("connection", "deadline", "identities", "process", "stored")

    def __init__(self, stored: StoredSession, deadline: float) -> None:
        self.stored = stored
        self.deadline = deadline
        self.connection: object | None = None
        self.process = 0
        self.identities: list[Identity] = []

    @property
    def session_id(self) -> int:
        return self.stored.session_id


class Sessions:
    """`now` is a monotonic clock in seconds. Timeouts are limited to 2 to 20 ticks, as in
    ZooKeeper."""

    def __init__(
        self, now: Callable[[], float], tick_time_ms: int, stored: Iterable[StoredSession] = ()
    ) -> None:
        self._now = now
        self.min_timeout_ms = 2 * tick_time_ms
        self.max_timeout_ms = 20 * tick_time_ms
        # Each gets its whole timeout after a restart: its client could not reach the server.
        self.by_id = {
            each.session_id: Session(each, now() + each.timeout_ms / 1000) for each in stored
        }

    def open(self, timeout_ms: int) -> Session:
        """A new session; the timeout is brought within the limits."""
        session_id = 0
        while not session_id or session_id in self.by_id:
            session_id = secrets.randbits(62)
        timeout_ms = min(max(timeout_ms, self.min_timeout_ms), self.max_timeout_ms)
        stored = StoredSession(session_id, secrets.token_bytes(PASSWORD_BYTES), timeout_ms)
        session = self.by_id[session_id] = Session(stored, self._now() + timeout_ms / 1000)
        return session

    def resume(self, session_id: int, password: bytes) -> Session | None:
        """The session, None if it has expired or the password is another one."""
        session = self.by_id.get(session_id)
        if session is None or not secrets.compare_digest(session.stored.password, password):
            return None
        self.touch(session)
        return session

    def touch(self, session: Session) -> None:
        session.deadline = self._now() + session.stored.timeout_ms / 1000

    def extend(self, seconds: float) -> None:
        """Give all sessions more time."""
        for session in self.by_id.values():
            session.deadline += seconds

    def expired(self) -> list[Session]:
        now = self._now()
        return [session for session in self.by_id.values() if session.deadline < now]

    def end(self, session: Session) -> None:
        self.by_id.pop(session.session_id, None)


OPEN = (Acl(ALL_PERMISSIONS, "world", "anyone"),)
MAX_ENTRIES = 1000
"""More would make each access to the znode slow; ZooKeeper's limit is the size of the request."""

Identity = tuple[str, str]
"""Scheme and name of what a client has proved, such as `("digest", "user:hash")`."""


def digest(user_and_password: bytes) -> str:
    """`user:password` -> `user:` and the Base64 of the SHA-1, as ZooKeeper has it."""
    user = user_and_password.partition(b":")[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(user_and_password).digest()).decode()}"


def effective_acl(requested: tuple[Acl, ...], identities: list[Identity]) -> tuple[Acl, ...] | None:
    """Return the ACL to keep for a new znode, None for the open ACL; raise INVALID_ACL.

    The scheme `auth` stands for the identities of the client.
    """
    if not requested or len(requested) > MAX_ENTRIES:
        raise RequestError(Code.INVALID_ACL)
    entries: list[Acl] = []
    for entry in requested:
        if entry.scheme == "auth":
            if not identities:
                raise RequestError(Code.INVALID_ACL)
            entries += [Acl(entry.permissions, *identity) for identity in identities]
        elif not _is_valid(entry):
            raise RequestError(Code.INVALID_ACL)
        else:
            entries.append(entry)
    unique = tuple(dict.fromkeys(entries))
    return None if unique == OPEN else unique


def _is_valid(entry: Acl) -> bool:
    if entry.scheme == "world":
        return entry.name == "anyone"
    if entry.scheme == "digest":
        return len(entry.name.split(":")) == 2
    if entry.scheme == "ip":
        try:
            ip_network(entry.name, strict=False)
        except ValueError:
            return False
        return True
    return False


def is_permitted(
    entries: tuple[Acl, ...] | None,
    permission: Permission | int,
    identities: list[Identity],
    address: str,
) -> bool:
    if entries is None:
        return True
    return any(
        entry.permissions & permission and _matches(entry, identities, address) for entry in entries
    )


def _matches(entry: Acl, identities: list[Identity], address: str) -> bool:
    if entry.scheme == "world":
        return True
    if entry.scheme == "ip":
        return ip_address(address) in ip_network(entry.name, strict=False)
    return (entry.scheme, entry.name) in identities
