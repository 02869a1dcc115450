"""ConsumerGroupHeartbeat: members join, reconcile and leave consumer groups (KIP-848).

The request has the subscription and the owned partitions of a member; the response has its
assignment. Requests are validated in Kafka's order, so that clients get the same error code. A
change is drafted as records; the response is sent when they are committed.
"""

import logging
from collections.abc import Callable, Generator

from ottla.broker.groups.consumer.checks import (
    RejectedRequest,
    check_epoch,
    check_instance,
    check_request,
    new_member_id,
    owned_partitions,
    unknown_member,
)
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import (
    AWAY,
    LEAVING,
    NEVER_JOINED,
    NOTHING,
    Assignment,
    ConsumerMember,
    MemberState,
    overlaps,
)
from ottla.broker.groups.consumer.migration import Migration
from ottla.broker.groups.consumer.sessions import ConsumerSessions
from ottla.broker.groups.consumer.topic_patterns import check_pattern
from ottla.broker.groups.log.group_writer import Change, Drafting, GroupWriter, Step
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment as AssignmentMessage,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from ottla.protocol.steps import run_at_once

logger = logging.getLogger("ottla.groups")

# A classic group that changes each time while it is upgraded is upgraded in one turn then.
_MAX_RETRIES = 3

HeartbeatCallback = Callable[[ConsumerGroupHeartbeatResponse], None]


class ConsumerMembership:
    """The heartbeats of members of consumer groups of this coordinator."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        writer: GroupWriter,
        catalog: ClusterTopics,
        migration: Migration,
        sessions: ConsumerSessions,
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._writer = writer
        self._catalog = catalog
        self._migration = migration
        self._sessions = sessions

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        client_host: str,
        response_callback: HeartbeatCallback,
    ) -> None:
        """Respond when the change, if there is one, is committed."""

        def reject(error_code: int, reason: str | None = None) -> None:
            response_callback(
                ConsumerGroupHeartbeatResponse(error_code=error_code, error_message=reason)
            )

        def handle() -> Drafting:
            check_request(request, version, self._settings.group_consumer_assignors)
            if request.member_epoch in (LEAVING, AWAY):
                return (yield from self._leave(request, response_callback))
            return (yield from self._heartbeat(request, client_id, client_host, response_callback))

        self._writer.submit(request.group_id, guarded(handle, reject))

    # Heartbeats.

    def _heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        response_callback: HeartbeatCallback,
    ) -> Drafting:
        is_join = request.member_epoch == NEVER_JOINED
        client = (client_id, client_host)
        draft, member, after, is_new = yield from self._draft(request, client, is_join)
        retries = 0
        while self._migration.is_outdated(draft):
            again = self._draft(request, client, is_join)
            retries += 1
            is_last = retries == _MAX_RETRIES
            draft, member, after, is_new = run_at_once(again) if is_last else (yield from again)
        is_full = is_join or (
            request.rebalance_timeout_ms != -1
            and request.subscribed_topic_names is not None
            and request.topic_partitions is not None
        )
        response = ConsumerGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms(request.group_id),
            assignment=_assignment_message(after.assigned)
            if is_full or after.assigned != member.assigned
            else None,
        )

        def done(error_code: int) -> None:
            if error_code:
                response_callback(ConsumerGroupHeartbeatResponse(error_code=error_code))
                return
            if is_new:
                self._sessions.record_event(request.group_id, "joined", after, "first heartbeat")
            self._sessions.start(request.group_id, after)
            self._sessions.watch(request.group_id, member, after)
            response_callback(response)

        return self.finish(draft, done)

    def _draft(
        self, request: ConsumerGroupHeartbeatRequest, client: tuple[str, str], is_join: bool
    ) -> Generator[None, None, tuple[GroupDraft, ConsumerMember, ConsumerMember, bool]]:
        """Return the change, the member before and after it, and whether it is new."""
        draft = yield from self._open_draft(request.group_id, is_join)
        self.check_room(draft.group, request.member_id)
        owned = owned_partitions(request)
        known_ids = draft.group.members.keys()
        member = self._known_member(draft, request, is_join, owned)
        is_new = member.member_id not in known_ids
        wanted = _updated_member(member, request)._replace(
            client_id=client[0], client_host=client[1]
        )
        after = yield from self.draft_update(draft, member, wanted, owned)
        return draft, member, after, is_new

    def finish(self, draft: GroupDraft, done: Callable[[int], None]) -> Change | None:
        """Return the change to append; call `done` at once when the draft has no records."""
        if not draft.records:
            done(ErrorCode.NONE)
            return None
        replaced = draft.replaces
        if replaced is None:
            return draft.change(done)
        self._migration.begin_upgrade(replaced)

        def upgraded(error_code: int) -> None:
            if error_code:
                self._migration.abort_upgrade(replaced)
            else:
                group = self._partitions.find(replaced.group_id)
                if group is not None and group.kind == "consumer":
                    self._sessions.on_group_upgraded(group)
            done(error_code)

        return draft.change(upgraded, converts=True)

    def _open_draft(self, group_id: str, is_join: bool) -> Generator[None, None, GroupDraft]:
        """Return a draft of the group. A join creates the group, or converts a classic one."""
        group = self._partitions.find(group_id)
        if group is not None and group.kind == "consumer":
            return GroupDraft(group, self._catalog)
        if not is_join:
            raise RejectedRequest(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found."
            )
        if group is not None and group.is_dead:
            raise RejectedRequest(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Group {group_id} is being deleted."
            )
        if group is None:
            return GroupDraft(ConsumerGroup(group_id), self._catalog)
        draft = yield from self._migration.upgrade(group)
        if draft is None:
            raise RejectedRequest(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a consumer group, and group.consumer.migration.policy "
                "does not allow to convert it.",
            )
        return draft

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED for a new member of a full group."""
        max_size = self._settings.group_consumer_max_size
        if len(group.members) >= max_size and member_id not in group.members:
            raise RejectedRequest(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {max_size} members.",
            )

    def _known_member(
        self,
        draft: GroupDraft,
        request: ConsumerGroupHeartbeatRequest,
        is_join: bool,
        owned: Assignment | None,
    ) -> ConsumerMember:
        """Return the sender: a known member, a new one, or a static member that rejoins."""
        member_id = request.member_id or new_member_id()
        instance_id = request.instance_id
        if instance_id is None:
            member = draft.group.members.get(member_id)
            if member is None:
                if not is_join:
                    raise unknown_member(member_id)
                member = ConsumerMember(member_id)
            check_epoch(member, request.member_epoch, owned)
            return member
        known = draft.group.static_member(instance_id)
        if not is_join:
            return check_instance(known, instance_id, member_id, request.member_epoch, owned)
        if known is None:
            return draft.group.members.get(member_id) or ConsumerMember(member_id)
        if known.member_id == member_id and known.epoch != AWAY:
            return known  # it was fenced, or its first response was lost
        if known.epoch != AWAY and known.classic is None:
            raise RejectedRequest(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by member {known.member_id}.",
            )
        return draft.replace_static_member(known, member_id)

    def draft_update(
        self,
        draft: GroupDraft,
        before: ConsumerMember,
        wanted: ConsumerMember,
        owned: Assignment | None,
    ) -> Generator[None, None, ConsumerMember]:
        """Draft the updated member, the target assignment, and the reconciled member."""
        yield from self._maybe_bump_epoch(draft, draft.put_subscription(before, wanted))
        if draft.group.epoch > draft.group.assignment_epoch:
            yield from draft.update_target(self._settings.group_consumer_assignors[0])
        group = draft.group
        member = group.members[wanted.member_id]
        try:
            after = reconcile(
                member,
                group.assignment_epoch,
                group.target_of(member.member_id),
                lambda topic_id, index: group.is_free(topic_id, index, member.member_id),
                owned,
            )
        except FencedMember as fenced:
            raise RejectedRequest(ErrorCode.FENCED_MEMBER_EPOCH, str(fenced)) from None
        if after != member:
            draft.put_current(after)
        return after

    def _maybe_bump_epoch(self, draft: GroupDraft, is_bumped: bool) -> Generator[None, None, None]:
        """Bump the group epoch when a subscription or the metadata of the topics changed."""
        group = self._partitions.find(draft.group.group_id)
        version = self._catalog.version
        is_bumped = is_bumped or draft.group.epoch == 0  # a new group, maybe without topics
        if (
            not is_bumped
            and group is not None
            and group.kind == "consumer"
            and group.seen_catalog is version
        ):
            return
        # The catalog may change in a pause: the next heartbeat finds that `version` is old.
        is_changed = yield from draft.refresh_topics()
        if is_changed or is_bumped:
            draft.bump_epoch()
            self._sessions.rebalances += 1
            logger.info(
                "[GroupId %s] Bumped group epoch to %d",
                draft.group.group_id,
                draft.group.epoch,
                extra={"group": draft.group.group_id},
            )
        elif group is not None and group.kind == "consumer":
            group.seen_catalog = version

    # Leaving.

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, response_callback: HeartbeatCallback
    ) -> Drafting:
        group = self._partitions.find(request.group_id)
        if group is None or group.kind != "consumer":
            raise RejectedRequest(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found."
            )
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is not None:
            member = check_instance(group.static_member(instance_id), instance_id, member_id)
        elif member_id in group.members:
            member = group.members[member_id]
        else:
            raise unknown_member(member_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )

        def done(error_code: int) -> None:
            response_callback(
                ConsumerGroupHeartbeatResponse(error_code=error_code) if error_code else response
            )

        if request.member_epoch == AWAY and instance_id is not None:
            # It keeps its partitions until its session expires.
            self._sessions.record_event(
                group.group_id, "away", member, f"static member {instance_id} left temporarily"
            )
            draft = GroupDraft(group, self._catalog)
            draft.put_current(member._replace(epoch=AWAY, revoking=NOTHING))
            return draft.change(done)
        return (
            yield from self._sessions.remove(
                group, member, "left", "left with a heartbeat of member epoch -1", done
            )
        )


def guarded(
    handle: Callable[[], Drafting | None], reject: Callable[[int, str | None], None]
) -> Step:
    """Return a step that responds with an error when `handle` raises an exception."""

    def step(error_code: int) -> Drafting | None:
        if error_code:
            reject(error_code, None)
            return None
        return handled()

    def handled() -> Drafting:
        try:
            drafting = handle()
            return None if drafting is None else (yield from drafting)
        except RejectedRequest as rejection:
            reject(rejection.error_code, str(rejection))
        except Exception:
            logger.exception("Unexpected error handling a request for a consumer group")
            reject(ErrorCode.UNKNOWN_SERVER_ERROR, None)
        return None

    return step


def _updated_member(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """Return the member with the fields that the request sets; others are unchanged."""
    changes: dict[str, object] = {"classic": None}
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        changes["assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        changes["topics"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        pattern = request.subscribed_topic_regex or None
        if pattern is not None and pattern != member.topic_regex:
            check_pattern(pattern)
        changes["topic_regex"] = pattern
    return member._replace(**changes)  # type: ignore[arg-type]  # the values fit their names


def _assignment_message(assignment: Assignment) -> AssignmentMessage:
    return AssignmentMessage(
        [
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id, sorted(indexes))
            for topic_id, indexes in assignment.items()
        ]
    )


IsFree = Callable[[bytes, int], bool]
"""Whether no other member owns a partition or has still to revoke it."""


class FencedMember(Exception):
    """The member has to abandon all its partitions and rejoin."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    is_free: IsFree,
    owned: Assignment | None,
) -> ConsumerMember:
    """Return the member after one step towards its target; the same object if nothing changes.

    A member first revokes partitions that are not in its target. Then it moves to the target epoch
    and gets the partitions that no other member owns. So a partition never has two owners. Mirrors
    `CurrentAssignmentBuilder`.

    `owned` are the partitions in the request; None when the request does not list them.
    """
    if member.state is MemberState.STABLE:
        if member.epoch == target_epoch:
            return member
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(owned, member.revoking):
            return member
        # The target may have changed, so more partitions may have to be revoked.
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if owned is None or owned:
        raise FencedMember("The state of the member was written by a later version.")
    return _advance(member, target_epoch, target_epoch, target, is_free, owned)


def _advance(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    is_free: IsFree,
    owned: Assignment | None,
) -> ConsumerMember:
    kept: Assignment = {}
    revoked: Assignment = {}
    added: Assignment = {}
    waits = False
    for topic_id in dict.fromkeys((*target, *member.assigned)):
        wanted = target.get(topic_id, frozenset())
        has = member.assigned.get(topic_id, frozenset())
        missing = wanted - has
        free = frozenset(index for index in missing if is_free(topic_id, index))
        waits = waits or free != missing
        for part, indexes in ((kept, has & wanted), (revoked, has - wanted), (added, free)):
            if indexes:
                part[topic_id] = indexes
    if revoked and _still_has(owned, revoked):
        return member.with_epoch(epoch)._replace(
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoked,
            assigned_at=member.epochs_of(kept, revoked),
        )
    assigned = _union(kept, added)
    after = member._replace(assigned_at=member.epochs_of(kept)).with_epoch(target_epoch)
    return after._replace(
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        assigned=assigned,
        revoking=NOTHING,
        assigned_at=after.epochs_of(assigned),
    )


def _still_has(owned: Assignment | None, partitions: Assignment) -> bool:
    """A member that does not list its partitions may own all of them."""
    return owned is None or overlaps(owned, partitions)


def _union(one: Assignment, other: Assignment) -> Assignment:
    return {
        topic_id: one.get(topic_id, frozenset()) | other.get(topic_id, frozenset())
        for topic_id in dict.fromkeys((*one, *other))
    }
