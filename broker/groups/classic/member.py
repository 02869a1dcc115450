"""A member of a classic consumer group, and the JoinGroup parameters it is made from."""

from collections.abc import Callable

from ottla.broker.runtime.wheel import TimerTask
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) pairs of the protocols a member supports, in its order of preference."""

JoinCallback = Callable[[JoinGroupResponse], None]
SyncCallback = Callable[[SyncGroupResponse], None]


class Member:
    """A member and its pending requests. Mirrors Kafka's `MemberMetadata`.

    `awaiting_join_callback` and `awaiting_sync_callback` send the response to a JoinGroup or
    SyncGroup request that is delayed. Only `Group` sets and clears them, for it counts them.
    `is_new` is true until the response to the first JoinGroup: the member cannot heartbeat before.
    `restarts_session` is true while a response that restarts the session is to be sent.
    """

    __slots__ = (
        "assignment",
        "awaiting_join_callback",
        "awaiting_sync_callback",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "restarts_session",
        "session_timeout_ms",
        "session_timer",
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
        self.restarts_session = False
        self.awaiting_join_callback: JoinCallback | None = None
        self.awaiting_sync_callback: SyncCallback | None = None
        self.session_timer: TimerTask | None = None

    def metadata(self, protocol_name: str) -> bytes:
        """Return the metadata of the member for one of its protocols."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: frozenset[str]) -> str:
        """Return the first of its protocols among the candidates; there is always one."""
        return next(name for name, _ in self.protocols if name in candidates)

    def stop_session_timer(self) -> None:
        if self.session_timer is not None:
            self.session_timer.cancel()
            self.session_timer = None


class JoinParameters:
    """The member and client ids, timeouts and protocols of a request."""

    __slots__ = (
        "client_host",
        "client_id",
        "instance_id",
        "member_id",
        "protocol_type",
        "protocols",
        "reason",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "version",
    )

    def __init__(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.member_id = request.member_id
        self.instance_id = request.group_instance_id
        self.session_timeout_ms = request.session_timeout_ms
        # Version 0 has no rebalance timeout.
        self.rebalance_timeout_ms = (
            request.session_timeout_ms if version == 0 else request.rebalance_timeout_ms
        )
        self.protocol_type = request.protocol_type
        self.protocols: Protocols = _distinct(request)
        self.reason = request.reason or "not provided"

    def new_member(self, member_id: str) -> Member:
        return Member(
            member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocol_type,
            self.protocols,
        )


def _distinct(request: JoinGroupRequest) -> Protocols:
    """Return the protocols in order, without those named twice, which cannot be selected."""
    names = [protocol.name for protocol in request.protocols]
    return tuple(
        (protocol.name, protocol.metadata)
        for protocol in request.protocols
        if names.count(protocol.name) == 1
    )
