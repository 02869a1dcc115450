"""One member of a classic consumer group."""

from collections.abc import Callable

from ottla.broker.runtime.wheel import TimerTask
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

Protocols = tuple[tuple[str, bytes], ...]
"""What a member can be assigned by, in its order of preference: (name, metadata) pairs."""

JoinReply = Callable[[JoinGroupResponse], None]
SyncReply = Callable[[SyncGroupResponse], None]


class Member:
    """A member and what it is waiting for.

    `join_reply` and `sync_reply` hold the answer that is owed while the member waits in a
    JoinGroup or SyncGroup request. They are set and taken by `Group` only, which counts them.
    `is_new` is true from the first join to its answer: such a member does not heartbeat yet.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
        "sync_reply",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None
        self.session_timer: TimerTask | None = None

    def metadata(self, protocol_name: str) -> bytes:
        """What the member said for one of its protocols."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: frozenset[str]) -> str:
        """The candidate this member prefers; there is always one among its own protocols."""
        return next(name for name, _ in self.protocols if name in candidates)

    def stop_session_timer(self) -> None:
        if self.session_timer is not None:
            self.session_timer.cancel()
            self.session_timer = None
