"""Static members coming back under a new id (KIP-345).

A static member names its instance, and a restarted client may take its old place without a
rebalance. The broker gives it a new member id; the old one is fenced from then on.
"""

import logging
from typing import Protocol

from ottla.broker.groups.classic.group import Group, GroupState, join_error
from ottla.broker.groups.classic.member import JoinReply, Member, Protocols
from ottla.broker.groups.classic.rebalance import Rebalancer, StoreGroup
from ottla.protocol.messages.join_group import JoinGroupResponse

logger = logging.getLogger("ottla.groups")


class Rejoin(Protocol):
    """What is needed of a JoinGroup request here."""

    version: int
    protocols: Protocols
    rebalance_timeout_ms: int
    session_timeout_ms: int
    reason: str


class StaticMembers:
    """Lets known instances in again."""

    def __init__(self, rebalancer: Rebalancer, store_group: StoreGroup) -> None:
        self._rebalancer = rebalancer
        self._store_group = store_group

    def rejoin(
        self, group: Group, instance_id: str, new_member_id: str, join: Rejoin, reply: JoinReply
    ) -> None:
        """A client that has no member id joins as an instance that is in the group already."""
        old_leader_id = group.leader_id or ""
        old_member_id = group.static_members[instance_id]
        logger.info(
            "group %s: instance %s is back, its member id changes from %s to %s",
            group.group_id,
            instance_id,
            old_member_id,
            new_member_id,
            extra={"group": group.group_id},
        )
        self._rebalancer.note(
            group,
            "fenced",
            group.members[old_member_id],
            f"instance {instance_id} joined again as {new_member_id}",
        )
        member = group.replace_static_member(instance_id, new_member_id)
        before = _Before(member, old_member_id)
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        self._rebalancer.restart_session(group, member)
        self._rebalancer.note(group, "rejoined", member, join.reason)
        group.await_join(member, reply)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id at this moment; start over.
            self._rebalancer.prepare(group, f"static member {instance_id} joined again")
        elif group.state is GroupState.STABLE:
            if group.select_protocol() != group.protocol_name:
                self._rebalancer.prepare(
                    group, f"static member {instance_id} joined again with another protocol"
                )
            else:
                self._keep_assignment(group, member, before, old_leader_id, join.version)

    def _keep_assignment(
        self, group: Group, member: Member, before: "_Before", old_leader_id: str, version: int
    ) -> None:
        """Nothing changes for the group but an id: write that down, then answer."""

        new_member_id = member.member_id

        def stored(error_code: int) -> None:
            if (
                group.state is not GroupState.STABLE
                or member.join_reply is None
                or member.member_id != new_member_id
            ):
                return  # a rebalance, another restart or the end of the group answered already
            if error_code:
                logger.warning(
                    "group %s: the new id of a static member was not stored (error %d)",
                    group.group_id,
                    error_code,
                    extra={"group": group.group_id},
                )
                response = join_error(error_code)
                response.generation_id = group.generation_id
                response.protocol_type = group.protocol_type
                response.protocol_name = group.protocol_name
                response.leader = old_leader_id
                before.restore(group, member)
            else:
                response = _response(group, member, old_leader_id, version)
            self._rebalancer.restart_session(group, member)
            group.respond_to_join(member, response)

        assignments = {known.member_id: known.assignment for known in group.members.values()}
        self._store_group(group, assignments, stored)


def _response(group: Group, member: Member, old_leader_id: str, version: int) -> JoinGroupResponse:
    if version >= 9:
        # The leader learns that it leads (it watches the topics), and that the assignment stays.
        return group.joined(member, skip_assignment=group.leader_id == member.member_id)
    # Older clients that lead would assign, and a stable group ignores that; so they are shown
    # the leader's old id and take themselves for followers.
    response = group.joined(member)
    response.leader = old_leader_id
    response.members = []
    return response


class _Before:
    """What a static member was, in case the new id cannot be stored."""

    __slots__ = ("member_id", "protocols", "rebalance_timeout_ms", "session_timeout_ms")

    def __init__(self, member: Member, member_id: str) -> None:
        self.member_id = member_id
        self.protocols = member.protocols
        self.rebalance_timeout_ms = member.rebalance_timeout_ms
        self.session_timeout_ms = member.session_timeout_ms

    def restore(self, group: Group, member: Member) -> None:
        group.update(member, self.protocols, self.rebalance_timeout_ms, self.session_timeout_ms)
        group.rename(member, self.member_id)
