"""One classic consumer group as a pure state machine: no I/O, no timers, no clock.

    Empty ---------> PreparingRebalance <------+------+
      ^  a join          |        |            |      |
      |                  | all    | last       |      |
      |                  | joined | one left   |      |
      +------------------|--------+            |      |
                         v                     |      |
                CompletingRebalance -----------+      |
                         |        join, leave, expiry |
                         | leader's assignment        |
                         v                            |
                       Stable ------------------------+

Dead is final: the group was deleted, or this broker is no longer its coordinator.

What survives a restart is what the group's last record says: the members, their assignments and
the generation of the last completed rebalance. A rebalance under way is held in memory only, as
in Kafka: its members are told to join again by the next coordinator.
"""

from enum import Enum
from typing import Literal

from ottla.broker.groups.classic.member import JoinReply, Member, Protocols, SyncReply
from ottla.broker.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics_of
from ottla.broker.groups.offsets import GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.sync_group import SyncGroupResponse

NO_GENERATION = -1


class GroupState(Enum):
    """The states by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset((GroupState.PREPARING_REBALANCE,)),
    GroupState.PREPARING_REBALANCE: frozenset(
        (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
    ),
    GroupState.COMPLETING_REBALANCE: frozenset((GroupState.PREPARING_REBALANCE,)),
    GroupState.STABLE: frozenset((GroupState.COMPLETING_REBALANCE,)),
    GroupState.DEAD: frozenset(GroupState),
}


class Group:
    """Members, generation and offsets of one group, and which change may follow which."""

    kind: Literal["classic"] = "classic"

    def __init__(self, group_id: str, now_ms: int, state: GroupState = GroupState.EMPTY) -> None:
        self.group_id = group_id
        self.state = state
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        # Ids given out with MEMBER_ID_REQUIRED whose owners have not come back yet.
        self.pending_members: set[str] = set()
        self.members_to_sync: set[str] = set()
        # A member joined while the first rebalance of the group is being delayed for latecomers.
        self.new_member_added = False
        self.subscribed_topics: frozenset[str] | None = None
        self.offsets = GroupOffsets()
        # A group of the newer protocol is about to take its place, offsets and all.
        self.is_upgrading = False
        self.awaiting_join = 0
        self._protocol_counts: dict[str, int] = {}

    # State.

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    @property
    def is_deleted(self) -> bool:
        """Whether its tombstones are on their way: what is committed now is lost with it."""
        return self.state is GroupState.DEAD and not self.is_upgrading

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREDECESSORS[GroupState.PREPARING_REBALANCE]

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        if self.state not in VALID_PREDECESSORS[state]:
            raise AssertionError(f"group {self.group_id} cannot go from {self.state} to {state}")
        self.state = state
        self.state_timestamp_ms = now_ms

    def revived(self, now_ms: int) -> "Group":
        """The group again, empty, when its deletion could not be written down."""
        group = Group(self.group_id, now_ms)
        group.protocol_type = self.protocol_type
        group.generation_id = self.generation_id
        group.offsets = self.offsets
        group.update_subscribed_topics()
        return group

    def start_next_generation(self, now_ms: int) -> None:
        """All who wanted to be in are in: count the generation up and choose the protocol."""
        self.generation_id += 1
        self.members_to_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.update_subscribed_topics()

    # Members.

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_members_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_members

    def add(self, member: Member, reply: JoinReply | None) -> None:
        """Take in a member; it awaits its join when `reply` is given, not when it was loaded."""
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self.pending_members.discard(member.member_id)
        if reply is not None:
            self.await_join(member, reply)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending id; the oldest member left inherits the lead."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            member.stop_session_timer()
            self.respond_to_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
            self.respond_to_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            if (
                member.instance_id is not None
                and self.static_members.get(member.instance_id) == member_id
            ):
                del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.members_to_sync.discard(member_id)

    def update(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """A member joins again, maybe with other protocols or timeouts."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace_static_member(self, instance_id: str, new_member_id: str) -> Member:
        """Give the member of this instance a new id; whoever waits under the old one is fenced."""
        old_member_id = self.static_members[instance_id]
        member = self.members[old_member_id]
        self.respond_to_join(member, join_error(ErrorCode.FENCED_INSTANCE_ID, old_member_id))
        self.respond_to_sync(member, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self.rename(member, new_member_id)
        return member

    def rename(self, member: Member, new_member_id: str) -> None:
        old_member_id = member.member_id
        # The order of the members is kept: it decides who leads after the leader.
        self.members = {
            (new_member_id if known_id == old_member_id else known_id): known
            for known_id, known in self.members.items()
        }
        member.member_id = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = new_member_id
        if old_member_id in self.members_to_sync:
            self.members_to_sync.remove(old_member_id)
            self.members_to_sync.add(new_member_id)

    def check_member(self, member_id: str, instance_id: str | None) -> int:
        """An error code unless this id is a member and still the one its instance uses."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def ensure_joined_leader(self) -> bool:
        """Make sure that the leader is among those who joined; false when nobody did."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_reply is not None:
            return True
        for member in self.members.values():
            if member.join_reply is not None:
                self.leader_id = member.member_id
                return True
        return False

    # Responses that are owed. A member never holds two: the older request is told to try
    # again.

    def await_join(self, member: Member, reply: JoinReply) -> None:
        self.respond_to_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_reply = reply
        self.awaiting_join += 1

    def respond_to_join(self, member: Member, response: JoinGroupResponse) -> bool:
        reply = member.join_reply
        if reply is None:
            return False
        member.join_reply = None
        self.awaiting_join -= 1
        reply(response)
        return True

    def await_sync(self, member: Member, reply: SyncReply) -> None:
        self.respond_to_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply

    def respond_to_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        reply = member.sync_reply
        if reply is None:
            return False
        member.sync_reply = None
        reply(response)
        return True

    def joined(self, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """The answer to a member of the current generation; the leader also gets the members."""
        assert self.protocol_name is not None
        is_leader = self.leader_id == member.member_id
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=self.member_list() if is_leader else [],
        )

    def member_list(self) -> list[JoinGroupResponseMember]:
        assert self.protocol_name is not None
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]

    def synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    # Protocols.

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could be in one group with the others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self._protocol_counts.get(name, 0) == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Every member votes for its favourite among the protocols that all support."""
        member_count = len(self.members)
        candidates = frozenset(
            name for name, count in self._protocol_counts.items() if count == member_count
        )
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)

    def update_subscribed_topics(self) -> None:
        """What the members read, as far as their metadata is of the consumer protocol."""
        self.subscribed_topics = None
        if not self.is_consumer_group:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            self.subscribed_topics = subscribed_topics_of(
                member.metadata(self.protocol_name) for member in self.members.values()
            )

    def is_subscribed_to(self, topic: str) -> bool:
        """True also when the subscriptions cannot be read: better keep an offset too long."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def _count_protocols(self, member: Member, step: int) -> None:
        for name, _ in member.protocols:
            self._protocol_counts[name] = self._protocol_counts.get(name, 0) + step


def join_error(error_code: int, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=NO_GENERATION,
        protocol_type=None,
        protocol_name=None,
        leader="",
        member_id=member_id,
        members=[],
    )


def sync_error(error_code: int) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=error_code, protocol_type=None, protocol_name=None, assignment=b""
    )
