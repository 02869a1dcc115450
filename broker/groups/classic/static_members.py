"""Static members that rejoin with a new member id (KIP-345).

A static member has a `group.instance.id`; after a restart it takes over its assignment without a
rebalance. The coordinator generates a new member id for it and fences the old one.

As in Kafka (`updateStaticMemberAndRebalance`), memory has the new id first. In a stable group the
JoinGroup response waits for the record; when that cannot be stored, the old id is restored.
"""

import logging

from ottla.broker.groups.classic.group import Group, GroupState, join_error
from ottla.broker.groups.classic.member import JoinCallback, JoinParameters, Member
from ottla.broker.groups.classic.rebalance import Rebalancer, StoreGroup
from ottla.protocol.errors import error_name
from ottla.protocol.messages.join_group import JoinGroupResponse

logger = logging.getLogger("ottla.groups")


class StaticMembers:
    """Handles JoinGroup requests of known instance ids."""

    def __init__(self, rebalancer: Rebalancer, store_group: StoreGroup) -> None:
        self._rebalancer = rebalancer
        self._store_group = store_group

    def rejoin(
        self,
        group: Group,
        instance_id: str,
        new_member_id: str,
        join: JoinParameters,
        response_callback: JoinCallback,
    ) -> None:
        """A client without a member id joins with an instance id that is in the group."""
        old_leader_id = group.leader_id or ""
        old_member_id = group.static_members[instance_id]
        logger.info(
            "Static member with groupInstanceId=%s and unknown member id joins group %s in %s "
            "state. Replacing previously mapped member %s with this groupInstanceId by member %s",
            instance_id,
            group.group_id,
            group.state.value,
            old_member_id,
            new_member_id,
            extra={"group": group.group_id},
        )
        self._rebalancer.record_event(
            group,
            "fenced",
            group.members[old_member_id],
            f"group.instance.id {instance_id} rejoined as member {new_member_id}",
        )
        member = group.replace_static_member(instance_id, new_member_id)
        before = _PreviousMember(member, old_member_id)
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        self._rebalancer.restart_session_timer(group, member)
        self._rebalancer.record_event(group, "rejoined", member, join.reason)
        group.await_join(member, response_callback)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be computing an assignment for the old id: rebalance again.
            self._rebalancer.prepare_rebalance(
                group, f"Updating metadata for static member {instance_id}"
            )
        elif group.state is GroupState.STABLE:
            if group.select_protocol() != group.protocol_name:
                self._rebalancer.prepare_rebalance(
                    group,
                    f"Group's selectedProtocol will change because static member {instance_id} "
                    "joined with change of protocol",
                )
            else:
                self._keep_assignment(group, member, before, old_leader_id, join.version)

    def _keep_assignment(
        self,
        group: Group,
        member: Member,
        before: "_PreviousMember",
        old_leader_id: str,
        version: int,
    ) -> None:
        """Store the group with the new id, then respond with the current generation."""

        new_member_id = member.member_id

        def stored(error_code: int) -> None:
            if (
                group.state is not GroupState.STABLE
                or member.awaiting_join_callback is None
                or member.member_id != new_member_id
            ):
                return  # completed by a rebalance, another rejoin or the end of the group
            if error_code:
                logger.warning(
                    "Failed to persist metadata for group %s: %s. Restoring the old member id",
                    group.group_id,
                    error_name(error_code),
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
            self._rebalancer.restart_session_timer(group, member)
            group.invoke_join_callback(member, response)

        assignments = {known.member_id: known.assignment for known in group.members.values()}
        self._store_group(group, assignments, stored)


def _response(group: Group, member: Member, old_leader_id: str, version: int) -> JoinGroupResponse:
    if version >= 9:
        # The leader keeps watching its topics, and does not compute an assignment (KIP-814).
        return group.join_response(member, skip_assignment=group.leader_id == member.member_id)
    # An older client would compute an assignment as leader, which a stable group ignores. With the
    # old id of the leader in the response it acts as a follower.
    response = group.join_response(member)
    response.leader = old_leader_id
    response.members = []
    return response


class _PreviousMember:
    """The old id and metadata of a static member, restored when the new ones are not stored."""

    __slots__ = ("member_id", "protocols", "rebalance_timeout_ms", "session_timeout_ms")

    def __init__(self, member: Member, member_id: str) -> None:
        self.member_id = member_id
        self.protocols = member.protocols
        self.rebalance_timeout_ms = member.rebalance_timeout_ms
        self.session_timeout_ms = member.session_timeout_ms

    def restore(self, group: Group, member: Member) -> None:
        group.update(member, self.protocols, self.rebalance_timeout_ms, self.session_timeout_ms)
        group.change_member_id(member, self.member_id)
