"""Members that use the classic protocol in consumer groups (KIP-848).

During an online migration some members still send JoinGroup, SyncGroup, Heartbeat and LeaveGroup.
For them the member epoch is the generation, a new target assignment is a rebalance, and the
SyncGroup response has the assignment that the coordinator computed.
"""

from collections.abc import Callable, Sequence

from ottla.broker.groups.classic.group import join_error, sync_error
from ottla.broker.groups.classic.member import JoinCallback, JoinParameters, SyncCallback
from ottla.broker.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from ottla.broker.groups.consumer.checks import (
    RejectedRequest,
    check_instance,
    new_member_id,
    unknown_member,
)
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import ClassicProtocols, ConsumerMember, MemberState
from ottla.broker.groups.consumer.membership import ConsumerMembership, guarded
from ottla.broker.groups.consumer.migration import Migration
from ottla.broker.groups.consumer.sessions import ConsumerSessions
from ottla.broker.groups.log.group_writer import Drafting, GroupWriter
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.member_timers import TimerKind
from ottla.protocol.codec import read_stored_version
from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

LeaveCallback = Callable[[LeaveGroupResponse], None]


class ClassicMembers:
    """The classic requests for consumer groups, and for groups that are being converted."""

    def __init__(
        self,
        partitions: GroupPartitions,
        writer: GroupWriter,
        catalog: ClusterTopics,
        migration: Migration,
        sessions: ConsumerSessions,
        membership: ConsumerMembership,
    ) -> None:
        self._partitions = partitions
        self._writer = writer
        self._catalog = catalog
        self._migration = migration
        self._sessions = sessions
        self._membership = membership

    def serves(self, group_id: str) -> bool:
        """Return whether requests for this group are handled here."""
        return self._find(group_id) is not None or self._writer.is_busy(group_id)

    def _find(self, group_id: str) -> ConsumerGroup | None:
        group = self._partitions.find(group_id)
        return group if group is not None and group.kind == "consumer" else None

    # JoinGroup.

    def join(
        self,
        group_id: str,
        join: JoinParameters,
        response_callback: JoinCallback,
        as_classic: Callable[[], None],
    ) -> None:
        """`as_classic` handles the request if the group is a classic one by its turn."""

        def reject(error_code: int, _: str | None) -> None:
            response_callback(join_error(error_code))

        def emptied(error_code: int) -> None:
            if error_code:
                reject(error_code, None)
            else:
                as_classic()

        def handle() -> Drafting:
            group = self._find(group_id)
            if group is None:
                as_classic()
                return None
            if not group.is_empty:
                return (yield from self._join(group, join, response_callback))
            draft = GroupDraft(group, self._catalog)
            yield from draft.delete()
            return draft.change(emptied)

        self._writer.submit(group_id, guarded(handle, reject))

    def _join(
        self, group: ConsumerGroup, join: JoinParameters, response_callback: JoinCallback
    ) -> Drafting:
        is_unknown = not join.member_id
        member_id = join.member_id or new_member_id()
        self._membership.check_room(group, member_id)
        if join.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_protocols(
            {name for name, _ in join.protocols}
        ):
            raise RejectedRequest(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The member's protocols are not supported."
            )
        if is_unknown and join.instance_id is None and join.version >= 4:
            response_callback(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return None
        subscription = _subscription(join)
        draft = GroupDraft(group, self._catalog)
        member = _joining(draft, member_id, join.instance_id, is_unknown)
        wanted = member._replace(
            instance_id=join.instance_id or member.instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            client_id=join.client_id,
            client_host=join.client_host,
            classic=ClassicProtocols(join.session_timeout_ms, join.protocols),
        )
        owned = self._migration.by_topic_id(list(subscription.owned_partitions))
        is_new = member.member_id not in group.members
        after = yield from self._membership.draft_update(draft, member, wanted, owned)

        def done(error_code: int) -> None:
            if error_code:
                response_callback(join_error(error_code))
                return
            group_id = group.group_id
            self._sessions.cancel_timer(TimerKind.JOIN, group_id, after.member_id)
            self._sessions.start(group_id, after)
            self._sessions.start_timer(TimerKind.SYNC, group_id, after)
            self._sessions.record_event(
                group_id, "joined" if is_new else "rejoined", after, f"JoinGroup: {join.reason}"
            )
            response_callback(
                JoinGroupResponse(
                    generation_id=after.epoch,
                    protocol_type=CONSUMER_PROTOCOL_TYPE,
                    protocol_name=join.protocols[0][0],
                    leader="",  # the coordinator computes the assignment
                    member_id=after.member_id,
                    members=[],
                )
            )

        return self._membership.finish(draft, done)

    # SyncGroup.

    def sync(
        self,
        request: SyncGroupRequest,
        response_callback: SyncCallback,
        as_classic: Callable[[], None],
    ) -> None:
        """`as_classic` handles the request if the group is a classic one by its turn."""

        def handle() -> None:
            group = self._find(request.group_id)
            if group is None:
                as_classic()
            else:
                self._sync(group, request, response_callback)

        self._writer.submit(
            request.group_id, guarded(handle, lambda error, _: response_callback(sync_error(error)))
        )

    def _sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, response_callback: SyncCallback
    ) -> None:
        member, classic = _classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise RejectedRequest(
                ErrorCode.ILLEGAL_GENERATION, f"The generation of the member is {member.epoch}."
            )
        protocol_name, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
            request.protocol_name not in (None, protocol_name)
        ):
            raise RejectedRequest(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The protocol is not the one of the group."
            )
        group_id = group.group_id
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._sessions.expect_rejoin(group_id, member)
            raise RejectedRequest(
                ErrorCode.REBALANCE_IN_PROGRESS,
                "The group has a new epoch; the member has to rejoin.",
            )
        self._sessions.cancel_timer(TimerKind.SYNC, group_id, member.member_id)
        self._sessions.start(group_id, member)
        partitions = self._migration.by_name(member.assigned)
        response_callback(
            SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=encode_assignment(Assignment(partitions), read_stored_version(metadata)),
            )
        )

    # Heartbeat.

    def heartbeat(self, request: HeartbeatRequest) -> int:
        """Return the error code of the heartbeat; restart the session of the member."""
        group = self._find(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        try:
            member, _ = _classic_member(group, request.member_id, request.group_instance_id)
        except RejectedRequest as rejection:
            return rejection.error_code
        if request.generation_id != member.epoch:
            return ErrorCode.ILLEGAL_GENERATION
        self._sessions.start(group.group_id, member)
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (
                member.state is MemberState.UNRELEASED_PARTITIONS
                and not group.waits_for_others(member)
            )
        ):
            self._sessions.expect_rejoin(group.group_id, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # LeaveGroup.

    def leave(
        self,
        group_id: str,
        leaving: Sequence[MemberIdentity],
        response_callback: LeaveCallback,
        as_classic: Callable[[], None],
    ) -> None:
        """`as_classic` handles the request if the group is a classic one by its turn."""

        def handle() -> Drafting:
            group = self._find(group_id)
            if group is None:
                as_classic()
                return None
            return (yield from self._leave(group, leaving, response_callback))

        self._writer.submit(
            group_id,
            guarded(
                handle, lambda error, _: response_callback(LeaveGroupResponse(error_code=error))
            ),
        )

    def _leave(
        self,
        group: ConsumerGroup,
        leaving: Sequence[MemberIdentity],
        response_callback: LeaveCallback,
    ) -> Drafting:
        rows = []
        removed: dict[str, tuple[ConsumerMember, str]] = {}
        for identity in leaving:
            row = MemberResponse(identity.member_id, identity.group_instance_id)
            rows.append(row)
            try:
                member = _leaving_member(group, identity)
            except RejectedRequest as rejection:
                row.error_code = rejection.error_code
            else:
                row.member_id = member.member_id
                removed[member.member_id] = (member, identity.reason or "not provided")
        if not removed:
            response_callback(LeaveGroupResponse(members=rows))
            return None
        draft = GroupDraft(group, self._catalog)
        for member_id in removed:
            draft.remove_member(member_id)
        yield from draft.refresh_topics()
        draft.bump_epoch()

        def done(error_code: int) -> None:
            if error_code:
                response_callback(LeaveGroupResponse(error_code=error_code))
                return
            for member, reason in removed.values():
                self._sessions.on_member_removed(group.group_id, member, "left", reason)
            response_callback(LeaveGroupResponse(members=rows))

        return draft.change(done)


def _subscription(join: JoinParameters) -> Subscription:
    """Return the subscription in the metadata of the preferred protocol."""
    try:
        return decode_subscription(join.protocols[0][1])
    except ProtocolError:
        raise RejectedRequest(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The subscription cannot be decoded."
        ) from None


def _joining(
    draft: GroupDraft, member_id: str, instance_id: str | None, is_unknown: bool
) -> ConsumerMember:
    """Return the member that joins: a known one, a new one, or a static member that rejoins."""
    group = draft.group
    if instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id)
    known = group.static_member(instance_id)
    if not is_unknown:
        return check_instance(known, instance_id, member_id)
    if known is None:
        return ConsumerMember(member_id)
    return draft.replace_static_member(known, member_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicProtocols]:
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise unknown_member(member_id)
    else:
        member = check_instance(group.static_member(instance_id), instance_id, member_id)
    if member.classic is None:
        raise unknown_member(member_id)
    return member, member.classic


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is not None and not member_id:
        # An administrator sends the instance id only.
        known = group.static_member(instance_id)
        member_id = "" if known is None else known.member_id
    return _classic_member(group, member_id, instance_id)[0]
