"""The steps of a rebalance of a classic group, and their timers.

A rebalance starts when a member joins, leaves or fails. It waits until all members have rejoined
(or the largest rebalance timeout of them has expired), increments the generation, responds to the
JoinGroup requests, and waits until the leader has sent the assignment and every member SyncGroup.

As in Kafka, memory changes first while members join, and an empty generation is stored without
waiting for its record. The assignment is a record first: the group becomes Stable, and members get
their assignments, when the record is committed; when it cannot be stored the group rebalances.

A group has a join timer, a sync timer, and a session timer for each member. A session does not
expire while its member waits for a JoinGroup or SyncGroup response: its client cannot heartbeat.

Responding to all members may pause between two of them. The group is in its new state before the
first response, and each response is of that state. So the requests of members, timers and another
rebalance find the group as if all responses had been sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.classic.group import Group, GroupState, join_error, sync_error
from ottla.broker.groups.classic.member import JoinCallback, Member
from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.listed import listed
from ottla.protocol.steps import Steps, TurnQueue

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import AnyGroup

A = TypeVar("A")
R = TypeVar("R")

logger = logging.getLogger("ottla.groups")

# A new member cannot heartbeat before the response to its first JoinGroup. If its client
# disconnects meanwhile, the other members wait this long for it, as in Kafka.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

StoreGroup = Callable[[Group, dict[str, bytes], Callable[[int], None]], None]
"""Appends the group's record with these assignments; the callback gets the error code."""


class Rebalancer:
    """Moves classic groups from state to state. Loop only."""

    def __init__(
        self,
        settings: GroupSettings,
        timer: DelayQueue,
        clock: WallClock,
        store_group: StoreGroup,
        events: GroupEvents,
        jobs: TurnQueue,
    ) -> None:
        """`jobs` runs work on all members of a group."""
        self._settings = settings
        self._timer = timer
        self._clock = clock
        self._store_group = store_group
        self._events = events
        self._jobs = jobs
        self._join_timers: dict[Group, TimerTask] = {}
        self._sync_timers: dict[Group, TimerTask] = {}
        self._pending_timers: dict[tuple[Group, str], TimerTask] = {}
        # Groups in group.initial.rebalance.delay.ms.
        self._in_initial_delay: set[Group] = set()
        self.rebalances_completed = 0

    # Starting a rebalance.

    def prepare_rebalance(self, group: Group, reason: str) -> None:
        """Move the group to PreparingRebalance: its members have to rejoin."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.propagate_assignment_error(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._stop_sync_timer(group)
        was_empty = group.state is GroupState.EMPTY
        logger.info(
            "Preparing to rebalance group %s in state %s with old generation %d (reason: %s)",
            group.group_id,
            group.state.value,
            group.generation_id,
            reason,
            extra={"group": group.group_id},
        )
        self.record_event(group, "rebalancing", reason=reason)
        group.transition_to(GroupState.PREPARING_REBALANCE, self._clock())
        if not was_empty:
            if group.has_all_members_joined:
                self._on_complete_join(group)
            else:
                self._start_join_timer(group, group.rebalance_timeout_ms)
            return
        delay_ms = self._settings.group_initial_rebalance_delay_ms
        if delay_ms <= 0:
            self._on_complete_join(group)
        else:
            self._delay_initial_rebalance(
                group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0)
            )

    def maybe_prepare_rebalance(self, group: Group, reason: str) -> None:
        """Start a rebalance unless the group is in PreparingRebalance already, or dead."""
        if group.can_rebalance:
            self.prepare_rebalance(group, reason)

    def _delay_initial_rebalance(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        self._in_initial_delay.add(group)
        self._join_timers[group] = self._timer.schedule(
            delay_ms, partial(self._on_initial_delay_expired, group, delay_ms, remaining_ms)
        )

    def _on_initial_delay_expired(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        self._in_initial_delay.discard(group)
        if group.is_dead:
            return
        if group.new_member_added and remaining_ms > 0:
            group.new_member_added = False
            next_delay_ms = min(self._settings.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay_initial_rebalance(group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            self._on_complete_join(group)

    # PreparingRebalance.

    def try_complete_join(self, group: Group) -> None:
        """Complete the joins when all members have rejoined, unless in the initial delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group not in self._in_initial_delay
            and group.has_all_members_joined
        ):
            self._on_complete_join(group)

    def _start_join_timer(self, group: Group, delay_ms: int) -> None:
        self._join_timers[group] = self._timer.schedule(
            delay_ms, partial(self._on_complete_join, group)
        )

    def _on_complete_join(self, group: Group) -> None:
        self._stop_join_timer(group)
        if group.is_dead:
            return
        for member in list(group.members.values()):
            if member.awaiting_join_callback is None and member.instance_id is None:
                self.record_event(
                    group, "removed", member, "failed to rejoin within the rebalance timeout"
                )
                group.remove(member.member_id)
        if group.members and not group.ensure_joined_leader():
            # Only static members are left and none has rejoined: their sessions decide.
            logger.warning(
                "Group %s could not complete rebalance because no members rejoined",
                group.group_id,
                extra={"group": group.group_id},
            )
            self._start_join_timer(group, group.rebalance_timeout_ms)
            return
        group.init_next_generation(self._clock())
        if group.state is GroupState.EMPTY:
            self.record_event(group, "empty", reason="the group has no members")
            self._store_group(group, {}, partial(self._on_empty_group_stored, group))
            return
        logger.info(
            "Stabilized group %s generation %d with %d members",
            group.group_id,
            group.generation_id,
            len(group.members),
            extra={"group": group.group_id},
        )
        group.pending_sync_members.update(group.members)
        self._start_sync_timer(group)
        for member in group.members.values():
            member.is_new = False
        response_to = group.join_responses()
        self._respond(group, group.take_join_callbacks(), response_to)

    @staticmethod
    def _on_empty_group_stored(group: Group, error_code: int) -> None:
        if error_code:
            # The next coordinator would replay the generation before, whose sessions expire.
            logger.warning(
                "Failed to write empty metadata for group %s: %s",
                group.group_id,
                error_name(error_code),
                extra={"group": group.group_id},
            )

    # CompletingRebalance.

    def _start_sync_timer(self, group: Group) -> None:
        self._sync_timers[group] = self._timer.schedule(
            group.rebalance_timeout_ms, partial(self._on_pending_sync_expired, group)
        )

    def remove_pending_sync_member(self, group: Group, member_id: str) -> None:
        group.pending_sync_members.discard(member_id)
        if not group.pending_sync_members:
            self._stop_sync_timer(group)

    def _on_pending_sync_expired(self, group: Group) -> None:
        # The timer stops with its generation, and when the last member has sent SyncGroup.
        if group.is_dead:
            return
        late = sorted(group.pending_sync_members)
        for member_id in late:
            self.record_event(
                group,
                "removed",
                group.members[member_id],
                "did not send SyncGroup within the rebalance timeout",
            )
            group.remove(member_id)
        self.prepare_rebalance(
            group, f"Removing {len(late)} members on pending sync request expiration"
        )

    def store_assignment(self, group: Group, given: dict[str, bytes]) -> None:
        """Append the assignment of the leader; members that it left out get an empty one."""
        logger.info(
            "Assignment received from leader %s for group %s for generation %d. The group has %d "
            "members",
            group.leader_id,
            group.group_id,
            group.generation_id,
            len(group.members),
            extra={"group": group.group_id},
        )
        missing = [member_id for member_id in group.members if member_id not in given]
        if missing:
            logger.warning(
                "Setting empty assignments for members %s of group %s for generation %d",
                listed(missing),
                group.group_id,
                group.generation_id,
                extra={"group": group.group_id},
            )
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation_id = group.generation_id

        def stored(error_code: int) -> None:
            # The group may have changed while the record was being replicated.
            if (
                group.state is not GroupState.COMPLETING_REBALANCE
                or group.generation_id != generation_id
            ):
                return
            if error_code:
                self.propagate_assignment_error(group, error_code)
                self.maybe_prepare_rebalance(
                    group,
                    f"Error {error_name(error_code)} when storing the assignment during SyncGroup",
                )
            else:
                self._set_and_propagate_assignment(group, assignments)

        self._store_group(group, assignments, stored)

    def _set_and_propagate_assignment(self, group: Group, assignments: dict[str, bytes]) -> None:
        """The record is committed: the group is Stable, and members get their assignments."""
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.transition_to(GroupState.STABLE, self._clock())
        self.rebalances_completed += 1
        self.record_event(group, "stable", reason=f"Stabilized with {len(group.members)} members")
        self._respond(group, group.take_sync_callbacks(), group.sync_responses())

    def propagate_assignment_error(self, group: Group, error_code: int) -> None:
        """Complete pending SyncGroup requests with an error."""
        for member in group.members.values():
            member.assignment = b""
        self._respond(group, group.take_sync_callbacks(), lambda _: sync_error(error_code))

    # Responses to all members.

    def _respond(
        self,
        group: Group,
        waiting: list[tuple[Member, Callable[[R], None] | None, A]],
        response_with: Callable[[A], R],
    ) -> None:
        """Restart the sessions of these members; respond to those with a callback."""
        for member, _, _ in waiting:
            member.restarts_session = True
        self._jobs.start(self._responses(group, waiting, response_with))

    def _responses(
        self,
        group: Group,
        waiting: list[tuple[Member, Callable[[R], None] | None, A]],
        response_with: Callable[[A], R],
    ) -> Steps[None]:
        """Respond to one member after the other, whatever the group has become in a pause."""
        waiting.reverse()  # taken from the end, so that each is released when it is sent
        while waiting:
            member, callback, given = waiting.pop()
            member.restarts_session = False
            if not group.is_dead and group.members.get(member.member_id) is member:
                self.restart_session_timer(group, member)
            if callback is not None:
                try:
                    callback(response_with(given))
                except Exception:
                    self._response_failed(group)
            yield

    def _response_failed(self, group: Group) -> None:
        """Log a defect: the other members still need their responses."""
        logger.exception(
            "Unexpected error responding to a member of group %s",
            group.group_id,
            extra={"group": group.group_id},
        )

    # Members that join, leave and fail.

    def restart_session_timer(
        self, group: Group, member: Member, timeout_ms: int | None = None
    ) -> None:
        """Restart the session of a member that sent a request."""
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        timer = member.session_timer
        # A heartbeat only moves the end of the session: nearly every one.
        if timer is None or not self._timer.postpone(timer, timeout_ms):
            member.stop_session_timer()
            member.session_timer = self._timer.schedule(
                timeout_ms, partial(self._on_session_expired, group, member)
            )

    def _on_session_expired(self, group: Group, member: Member) -> None:
        member.session_timer = None
        if group.state is GroupState.DEAD or group.members.get(member.member_id) is not member:
            return
        is_waiting = (
            member.awaiting_join_callback is not None or member.awaiting_sync_callback is not None
        )
        if member.restarts_session or (is_waiting and not member.is_new):
            return  # the response restarts its session
        reason = "no heartbeat within the session timeout"
        logger.info(
            "Member %s in group %s has failed, removing it from the group: %s",
            member.member_id,
            group.group_id,
            reason,
            extra={"group": group.group_id},
        )
        self.record_event(group, "expired", member, reason)
        self.remove_member(
            group, member, f"Removing member {member.member_id} on heartbeat expiration"
        )

    def add_member(
        self, group: Group, member: Member, response_callback: JoinCallback, reason: str
    ) -> None:
        """Add a member, whose JoinGroup response is sent when the rebalance completes."""
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        group.add(member, response_callback)
        self.cancel_pending_member_timer(group, member.member_id)
        self.record_event(group, "joined", member, reason)
        self.restart_session_timer(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.maybe_prepare_rebalance(
            group,
            f"Adding new member {member.member_id} with group instance id "
            f"{member.instance_id}; client reason: {reason}",
        )

    def remove_member(self, group: Group, member: Member, reason: str) -> None:
        group.remove(member.member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.try_complete_join(group)
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.maybe_prepare_rebalance(group, reason)

    def add_pending_member(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Keep an id sent with MEMBER_ID_REQUIRED for one session timeout."""
        group.pending_members.add(member_id)
        self._pending_timers[group, member_id] = self._timer.schedule(
            session_timeout_ms, partial(self.remove_pending_member, group, member_id)
        )

    def remove_pending_member(self, group: Group, member_id: str) -> None:
        self.cancel_pending_member_timer(group, member_id)
        group.remove(member_id)
        self.try_complete_join(group)

    def cancel_pending_member_timer(self, group: Group, member_id: str) -> None:
        task = self._pending_timers.pop((group, member_id), None)
        if task is not None:
            task.cancel()

    # The group as a whole.

    def on_group_loaded(self, group: Group) -> None:
        """Start the sessions of the members of a group that was loaded."""
        self._jobs.start(self.start_sessions(group))

    def start_sessions(self, group: Group) -> Steps[None]:
        """As `on_group_loaded`. In a pause, members may join, leave and restart their sessions."""
        for member in list(group.members.values()):
            if member.session_timer is None and group.members.get(member.member_id) is member:
                self.restart_session_timer(group, member)
            yield
            if group.is_dead:
                return
        if len(group.members) > self._settings.group_max_size:
            self.maybe_prepare_rebalance(
                group, "Freshly-loaded group is over capacity (group.max.size)"
            )

    def mark_dead(self, group: Group, error_code: int) -> None:
        """Complete pending requests and stop all timers: the group is deleted or unloaded."""
        group.transition_to(GroupState.DEAD, self._clock())
        self._jobs.start(self.close(group, error_code))

    def close(self, group: Group, error_code: int) -> Steps[None]:
        """Complete the pending requests of a dead group and stop all timers.

        Timers that expire in a pause have no effect on a dead group.
        """
        for member in list(group.members.values()):
            try:
                if member.awaiting_join_callback is not None:
                    group.invoke_join_callback(member, join_error(error_code, member.member_id))
                if member.awaiting_sync_callback is not None:
                    group.invoke_sync_callback(member, sync_error(error_code))
            except Exception:
                self._response_failed(group)
            member.stop_session_timer()
            yield
        for member_id in list(group.pending_members):
            self.cancel_pending_member_timer(group, member_id)
            yield
        self._in_initial_delay.discard(group)
        self._stop_join_timer(group)
        self._stop_sync_timer(group)

    def _stop_join_timer(self, group: Group) -> None:
        task = self._join_timers.pop(group, None)
        if task is not None:
            task.cancel()

    def _stop_sync_timer(self, group: Group) -> None:
        task = self._sync_timers.pop(group, None)
        if task is not None:
            task.cancel()

    def record_event(
        self, group: AnyGroup, kind: str, member: Member | None = None, reason: str = ""
    ) -> None:
        """Add to the history that `ottla groups events` shows."""
        self._events.add(
            group.group_id,
            GroupEvent(
                self._clock(),
                kind,
                group.generation_id,
                member.member_id if member else "",
                member.client_id if member else "",
                member.client_host if member else "",
                reason,
            ),
        )
