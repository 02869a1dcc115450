"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup requests of classic groups.

Each method validates the request against the state of the group in Kafka's order, so that clients
get the same error code, and calls the `Rebalancer`. As in Kafka, membership changes in memory
first; a SyncGroup response waits until the record of the assignment is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.broker.groups.classic.group import Group, GroupState, join_error, sync_error
from ottla.broker.groups.classic.member import JoinCallback, JoinParameters, Member, SyncCallback
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.classic.static_members import StaticMembers
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.classic_members import ClassicMembers
    from ottla.broker.groups.log.partition import AnyGroup

logger = logging.getLogger("ottla.groups")


class GroupMembership:
    """The membership requests of all groups this broker coordinates."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        rebalancer: Rebalancer,
        static_members: StaticMembers,
        consumer_group_members: ClassicMembers | None,
    ) -> None:
        """`consumer_group_members` is None where the consumer protocol (KIP-848) is disabled."""
        self._settings = settings
        self._partitions = partitions
        self._rebalancer = rebalancer
        self._static_members = static_members
        self._consumer_group_members = consumer_group_members

    # JoinGroup.

    def join(
        self,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        response_callback: JoinCallback,
    ) -> None:
        """Respond at once with an error, or when all members have joined."""
        member_id = request.member_id
        error, group = self._partitions.look_up(request.group_id)
        if error:
            response_callback(join_error(error, member_id))
            return
        settings = self._settings
        if not (
            settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.group_max_session_timeout_ms
        ):
            response_callback(join_error(ErrorCode.INVALID_SESSION_TIMEOUT, member_id))
            return
        join = JoinParameters(request, version, client_id, client_host)
        if self._consumer_group_members is not None and self._consumer_group_members.serves(
            request.group_id
        ):
            as_classic = partial(self._join_later, request.group_id, join, response_callback)
            self._consumer_group_members.join(request.group_id, join, response_callback, as_classic)
        else:
            self._join_classic(group, request.group_id, join, response_callback)

    def _join_later(
        self, group_id: str, join: JoinParameters, response_callback: JoinCallback
    ) -> None:
        """Join after requests that may have converted or deleted the group."""
        group = self._partitions.find(group_id)
        self._join_classic(group, group_id, join, response_callback)

    def _join_classic(
        self,
        group: AnyGroup | None,
        group_id: str,
        join: JoinParameters,
        response_callback: JoinCallback,
    ) -> None:
        if group is None:
            if join.member_id:
                response_callback(join_error(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id))
                return
            group = self._partitions.find_or_create(group_id)
        assert group.kind == "classic", "requests for consumer groups are handled above"
        if not self._has_room_for(group, join.member_id):
            group.remove(join.member_id)
            response_callback(join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
        else:
            self._join(group, join, response_callback)
        self._rebalancer.try_complete_join(group)

    def _has_room_for(self, group: Group, member_id: str) -> bool:
        max_size = self._settings.group_max_size
        if group.state is GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            # Counts the members that have rejoined: when the limit was lowered below the size of
            # the group, the last ones to rejoin are rejected.
            return (
                member is not None and member.awaiting_join_callback is not None
            ) or group.num_members_awaiting_join < max_size
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member_id in group.members or len(group.members) < max_size
        return True

    def _join(self, group: Group, join: JoinParameters, response_callback: JoinCallback) -> None:
        member_id = join.member_id
        if group.state is GroupState.DEAD:
            response_callback(join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))
        elif not group.supports_protocols(join.protocol_type, join.protocols):
            response_callback(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not member_id:
            self._join_unknown(group, join, response_callback)
        elif member_id in group.pending_members:
            if join.instance_id is not None:
                # A static member never has a pending member id.
                response_callback(join_error(ErrorCode.UNKNOWN_SERVER_ERROR))
            else:
                self._rebalancer.add_member(
                    group, join.new_member(member_id), response_callback, join.reason
                )
        else:
            error = self._check_member(group, member_id, join.instance_id, "JoinGroup")
            if error:
                response_callback(join_error(error, member_id))
            else:
                self._join_known(group, group.members[member_id], join, response_callback)

    def _join_unknown(
        self, group: Group, join: JoinParameters, response_callback: JoinCallback
    ) -> None:
        prefix = join.client_id if join.instance_id is None else join.instance_id
        new_member_id = f"{prefix}-{uuid4()}"
        if join.instance_id is not None and join.instance_id in group.static_members:
            self._static_members.rejoin(
                group, join.instance_id, new_member_id, join, response_callback
            )
        elif join.instance_id is None and join.version >= 4:
            self._rebalancer.add_pending_member(group, new_member_id, join.session_timeout_ms)
            response_callback(join_error(ErrorCode.MEMBER_ID_REQUIRED, new_member_id))
        else:
            self._rebalancer.add_member(
                group, join.new_member(new_member_id), response_callback, join.reason
            )

    def _join_known(
        self, group: Group, member: Member, join: JoinParameters, response_callback: JoinCallback
    ) -> None:
        state = group.state
        if state is GroupState.EMPTY:
            response_callback(join_error(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id))
            return
        is_unchanged = member.protocols == join.protocols
        # A member that rejoins unchanged has missed its response and gets it again. The leader of
        # a stable group rejoins when the metadata of its topics has changed: that rebalances.
        if (state is GroupState.COMPLETING_REBALANCE and is_unchanged) or (
            state is GroupState.STABLE and is_unchanged and group.leader_id != member.member_id
        ):
            response_callback(group.join_response(member))
            return
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        group.await_join(member, response_callback)
        self._rebalancer.record_event(group, "rejoined", member, join.reason)
        self._rebalancer.maybe_prepare_rebalance(
            group, f"Updating metadata for member {member.member_id}; client reason: {join.reason}"
        )

    def _check_member(
        self, group: Group, member_id: str, instance_id: str | None, operation: str
    ) -> int:
        """Return an error code unless this id is the current one of a member."""
        error = group.check_member(member_id, instance_id)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            logger.info(
                "Fencing %s request of member %s in group %s: groupInstanceId=%s is mapped to "
                "member %s",
                operation,
                member_id,
                group.group_id,
                instance_id,
                group.static_members[instance_id or ""],
                extra={"group": group.group_id},
            )
        return error

    # SyncGroup.

    def sync(self, request: SyncGroupRequest, response_callback: SyncCallback) -> None:
        """Respond at once, or when the assignment of the leader is committed."""
        error = self._partitions.check(request.group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance in progress was lost with the former coordinator. Older clients do not
            # know the loading error here; this one makes them rejoin.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error:
            response_callback(sync_error(error))
            return
        if self._consumer_group_members is not None and self._consumer_group_members.serves(
            request.group_id
        ):
            self._consumer_group_members.sync(
                request, response_callback, partial(self._sync_classic, request, response_callback)
            )
        else:
            self._sync_classic(request, response_callback)

    def _sync_classic(self, request: SyncGroupRequest, response_callback: SyncCallback) -> None:
        group = self._partitions.find(request.group_id)
        if group is None:
            response_callback(sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        assert group.kind == "classic", "requests for consumer groups are handled above"
        error = self._check_sync(group, request)
        if error:
            response_callback(sync_error(error))
            return
        member = group.members[request.member_id]
        self._rebalancer.remove_pending_sync_member(group, member.member_id)
        if group.state is GroupState.STABLE:
            self._rebalancer.restart_session_timer(group, member)
            response_callback(group.sync_response(member))
            return
        group.await_sync(member, response_callback)
        if group.leader_id == member.member_id:
            assignments = {given.member_id: given.assignment for given in request.assignments}
            self._rebalancer.store_assignment(group, assignments)

    def _check_sync(self, group: Group, request: SyncGroupRequest) -> int:
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(group, request.member_id, request.group_instance_id, "SyncGroup")
        if error:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != group.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # Heartbeat.

    def heartbeat(self, request: HeartbeatRequest) -> int:
        """Return the error code of the heartbeat; restart the session of the member."""
        error, group = self._partitions.look_up(request.group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # no session expires before the group is loaded
        if error:
            return error
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.kind != "classic":
            return (
                self._consumer_group_members.heartbeat(request)
                if self._consumer_group_members
                else ErrorCode.UNKNOWN_MEMBER_ID
            )
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(group, request.member_id, request.group_instance_id, "Heartbeat")
        if error:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancer.restart_session_timer(group, group.members[request.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # LeaveGroup.

    def leave(
        self,
        group_id: str,
        members: Sequence[MemberIdentity],
        response_callback: Callable[[LeaveGroupResponse], None],
    ) -> None:
        """Remove members; each has an error code of its own."""
        error = self._partitions.check(group_id)
        if error:
            response_callback(LeaveGroupResponse(error_code=error))
            return

        def as_classic() -> None:
            response_callback(self._leave_classic(group_id, members))

        if self._consumer_group_members is not None and self._consumer_group_members.serves(
            group_id
        ):
            self._consumer_group_members.leave(group_id, members, response_callback, as_classic)
        else:
            as_classic()

    def _leave_classic(
        self, group_id: str, members: Sequence[MemberIdentity]
    ) -> LeaveGroupResponse:
        group = self._partitions.find(group_id)
        assert group is None or group.kind == "classic", (
            "requests for consumer groups are handled above"
        )
        if group is not None and group.state is GroupState.DEAD:
            return LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        results = []
        for leaving in members:
            error = (
                ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave_one(group, leaving)
            )
            results.append(
                MemberResponse(
                    member_id=leaving.member_id,
                    group_instance_id=leaving.group_instance_id,
                    error_code=error,
                )
            )
        return LeaveGroupResponse(members=results)

    def _leave_one(self, group: Group, leaving: MemberIdentity) -> int:
        member_id = leaving.member_id
        if not member_id:
            # An administrator sends the instance id only.
            known_id = group.static_members.get(leaving.group_instance_id or "")
            if leaving.group_instance_id is None or known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = known_id
        elif member_id in group.pending_members:
            self._rebalancer.remove_pending_member(group, member_id)
            return ErrorCode.NONE
        else:
            error = self._check_member(group, member_id, leaving.group_instance_id, "LeaveGroup")
            if error:
                return error
        member = group.members[member_id]
        reason = leaving.reason or "not provided"
        logger.info(
            "Member %s in group %s has left the group through an explicit LeaveGroup; client "
            "reason: %s",
            member_id,
            group.group_id,
            reason,
            extra={"group": group.group_id},
        )
        self._rebalancer.record_event(group, "left", member, reason)
        self._rebalancer.remove_member(
            group, member, f"Removing member {member_id} on LeaveGroup; client reason: {reason}"
        )
        return ErrorCode.NONE
