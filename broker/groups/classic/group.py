"""The state machine of one classic group: no I/O, no timers, no clock. Mirrors `GroupMetadata`.

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

As in Kafka, joins, leaves, expired sessions and the generation of a rebalance in progress change
memory only; they are not replayed from records. Durable is what the last record of the group says:
the members, their assignments and the generation of the last completed rebalance. The next
coordinator replays that record; members of a rebalance that was in progress have to rejoin.
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Literal

from ottla.broker.groups.classic.member import JoinCallback, Member, Protocols, SyncCallback
from ottla.broker.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics_of
from ottla.broker.groups.offsets import GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.sync_group import SyncGroupResponse

NO_GENERATION = -1


class GroupState(Enum):
    """The states, by the names in responses to clients."""

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
    """Members, generation and offsets of one group, and the valid transitions of its state."""

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
        # Ids sent with MEMBER_ID_REQUIRED whose members have not rejoined with them yet.
        self.pending_members: set[str] = set()
        self.pending_sync_members: set[str] = set()
        # A member joined during the initial rebalance delay, which is extended then.
        self.new_member_added = False
        self.subscribed_topics: frozenset[str] | None = None
        self.offsets = GroupOffsets()
        # Being converted to a consumer group (KIP-848), which takes over the offsets.
        self.is_upgrading = False
        self.num_members_awaiting_join = 0
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
        """Whether its tombstones are being appended: offsets committed now are deleted with it."""
        return self.state is GroupState.DEAD and not self.is_upgrading

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREDECESSORS[GroupState.PREPARING_REBALANCE]

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        if self.state not in VALID_PREDECESSORS[state]:
            raise AssertionError(
                f"Group {self.group_id} should be in one of "
                f"{sorted(each.value for each in VALID_PREDECESSORS[state])} states before moving "
                f"to {state.value} state. Instead it is in {self.state.value} state"
            )
        self.state = state
        self.state_timestamp_ms = now_ms

    def recreated_empty(self, now_ms: int) -> "Group":
        """Return an empty group with these offsets, for when tombstones cannot be appended."""
        group = Group(self.group_id, now_ms)
        group.protocol_type = self.protocol_type
        group.generation_id = self.generation_id
        group.offsets = self.offsets
        group.update_subscribed_topics()
        return group

    def init_next_generation(self, now_ms: int) -> None:
        """Complete the joins: increment the generation and select the protocol."""
        self.generation_id += 1
        self.pending_sync_members.clear()
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
        return self.num_members_awaiting_join == len(self.members) and not self.pending_members

    def add(self, member: Member, response_callback: JoinCallback | None) -> None:
        """Add a member, which awaits its JoinGroup response unless it was loaded."""
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self.pending_members.discard(member.member_id)
        if response_callback is not None:
            self.await_join(member, response_callback)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id; the oldest remaining member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            member.stop_session_timer()
            # Most members wait for neither: no response is made for them.
            if member.awaiting_join_callback is not None:
                self.invoke_join_callback(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
            if member.awaiting_sync_callback is not None:
                self.invoke_sync_callback(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            if (
                member.instance_id is not None
                and self.static_members.get(member.instance_id) == member_id
            ):
                del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_sync_members.discard(member_id)

    def update(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """A member rejoined: takes over its protocols and timeouts."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace_static_member(self, instance_id: str, new_member_id: str) -> Member:
        """Replace the id of a static member; requests that wait under the old id are fenced."""
        old_member_id = self.static_members[instance_id]
        member = self.members[old_member_id]
        self.invoke_join_callback(member, join_error(ErrorCode.FENCED_INSTANCE_ID, old_member_id))
        self.invoke_sync_callback(member, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self.change_member_id(member, new_member_id)
        return member

    def change_member_id(self, member: Member, new_member_id: str) -> None:
        old_member_id = member.member_id
        # The order of the members is kept: it determines the next leader.
        self.members = {
            (new_member_id if known_id == old_member_id else known_id): known
            for known_id, known in self.members.items()
        }
        member.member_id = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = new_member_id
        if old_member_id in self.pending_sync_members:
            self.pending_sync_members.remove(old_member_id)
            self.pending_sync_members.add(new_member_id)

    def check_member(self, member_id: str, instance_id: str | None) -> int:
        """Return an error code unless this id is the current one of a member."""
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
        """Elect a leader among the rejoined members; return whether there is one."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join_callback is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join_callback is not None:
                self.leader_id = member.member_id
                return True
        return False

    # Pending responses. A member has one of each at most: a second request completes the first with
    # REBALANCE_IN_PROGRESS.

    def await_join(self, member: Member, response_callback: JoinCallback) -> None:
        if member.awaiting_join_callback is not None:
            error = join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            self.invoke_join_callback(member, error)
        member.awaiting_join_callback = response_callback
        self.num_members_awaiting_join += 1

    def invoke_join_callback(self, member: Member, response: JoinGroupResponse) -> bool:
        response_callback = member.awaiting_join_callback
        if response_callback is None:
            return False
        member.awaiting_join_callback = None
        self.num_members_awaiting_join -= 1
        response_callback(response)
        return True

    def await_sync(self, member: Member, response_callback: SyncCallback) -> None:
        if member.awaiting_sync_callback is not None:
            self.invoke_sync_callback(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync_callback = response_callback

    def invoke_sync_callback(self, member: Member, response: SyncGroupResponse) -> bool:
        response_callback = member.awaiting_sync_callback
        if response_callback is None:
            return False
        member.awaiting_sync_callback = None
        response_callback(response)
        return True

    def take_join_callbacks(self) -> list[tuple[Member, JoinCallback | None, str]]:
        """Take the JoinGroup requests of all members; the caller responds.

        Returns the members in order, each with its callback (None if it does not wait) and its id.
        """
        taken = [
            (member, member.awaiting_join_callback, member.member_id)
            for member in self.members.values()
        ]
        for member in self.members.values():
            member.awaiting_join_callback = None
        self.num_members_awaiting_join = 0
        return taken

    def take_sync_callbacks(self) -> list[tuple[Member, SyncCallback | None, bytes]]:
        """Take the SyncGroup requests of the members that wait; the caller responds.

        Returns these members, each with its callback and its assignment.
        """
        taken: list[tuple[Member, SyncCallback | None, bytes]] = []
        for member in self.members.values():
            if member.awaiting_sync_callback is not None:
                taken.append((member, member.awaiting_sync_callback, member.assignment))
                member.awaiting_sync_callback = None
        return taken

    def join_response(self, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """Return the response of the current generation; the leader also gets the members."""
        is_leader = self.leader_id == member.member_id
        response = self._join_responses(self.member_list() if is_leader else [])(member.member_id)
        response.skip_assignment = skip_assignment
        return response

    def join_responses(self) -> Callable[[str], JoinGroupResponse]:
        """Return a function that builds the response of this generation to a member id."""
        return self._join_responses(self.member_list())

    def _join_responses(
        self, members: list[JoinGroupResponseMember]
    ) -> Callable[[str], JoinGroupResponse]:
        generation_id, protocol_type = self.generation_id, self.protocol_type
        protocol_name, leader = self.protocol_name, self.leader_id or ""
        assert protocol_name is not None

        def response_to(member_id: str) -> JoinGroupResponse:
            return JoinGroupResponse(
                generation_id=generation_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                leader=leader,
                member_id=member_id,
                members=members if member_id == leader else [],
            )

        return response_to

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

    def sync_response(self, member: Member) -> SyncGroupResponse:
        return self.sync_responses()(member.assignment)

    def sync_responses(self) -> Callable[[bytes], SyncGroupResponse]:
        """Return a function that builds the response of this generation with an assignment."""
        protocol_type, protocol_name = self.protocol_type, self.protocol_name

        def response_with(assignment: bytes) -> SyncGroupResponse:
            return SyncGroupResponse(
                protocol_type=protocol_type, protocol_name=protocol_name, assignment=assignment
            )

        return response_with

    # Protocols.

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols can be in a group with the others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self._protocol_counts.get(name, 0) == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes. Members vote for their first common one."""
        member_count = len(self.members)
        candidates = frozenset(
            name for name, count in self._protocol_counts.items() if count == member_count
        )
        if len(candidates) == 1:
            return next(iter(candidates))
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def update_subscribed_topics(self) -> None:
        """Compute the topics of the members whose metadata is of the consumer protocol."""
        self.subscribed_topics = None
        if not self.is_consumer_group:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            # Most members of a group have the same: each one is decoded once.
            protocol_name = self.protocol_name
            self.subscribed_topics = subscribed_topics_of(
                {member.metadata(protocol_name) for member in self.members.values()}
            )

    def is_subscribed_to(self, topic: str) -> bool:
        """True also when a subscription cannot be decoded, so that no offset is removed early."""
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
