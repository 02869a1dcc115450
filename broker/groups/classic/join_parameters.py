"""The parameters of a JoinGroup request, independent of its version."""

from ottla.broker.groups.classic.member import Member, Protocols
from ottla.protocol.messages.join_group import JoinGroupRequest


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
    """The protocols in order, without those named twice, which cannot be selected."""
    names = [protocol.name for protocol in request.protocols]
    return tuple(
        (protocol.name, protocol.metadata)
        for protocol in request.protocols
        if names.count(protocol.name) == 1
    )
