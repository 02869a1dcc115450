"""The steps of a rebalance and the timers that push it on.

A rebalance starts when somebody joins, leaves or fails. It waits until all members have joined
again (or the largest rebalance timeout of them has passed), counts the generation up, answers
the joins, and waits again until the leader has sent the assignment and everybody has asked for
it. The group's record is written between the assignment and the answers.

Three timers per group at most, all of them through the interface given: the join timer, the sync
timer, and one session timer per member. A session timer does not run out while its member waits
in a join or sync request: its client cannot heartbeat then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.classic.group import Group, GroupState, join_error, sync_error
from ottla.broker.groups.classic.member import JoinReply, Member
from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import AnyGroup

logger = logging.getLogger("ottla.groups")

# A new member has no id to heartbeat with before its first join is answered. If its client went
# away meanwhile, this is how long it can hold up the others.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

StoreGroup = Callable[[Group, dict[str, bytes], Callable[[int], None]], None]
"""Writes the group's record with these assignments; the callback gets the error code."""


class Rebalancer:
    """Drives the state machines of groups; every method is for the loop only."""

    def __init__(
        self,
        settings: GroupSettings,
        timer: DelayQueue,
        clock: WallClock,
        store_group: StoreGroup,
        events: GroupEvents,
    ) -> None:
        self._settings = settings
        self._timer = timer
        self._clock = clock
        self._store_group = store_group
        self._events = events
        self._join_timers: dict[Group, TimerTask] = {}
        self._sync_timers: dict[Group, TimerTask] = {}
        self._pending_timers: dict[tuple[Group, str], TimerTask] = {}
        # Groups whose first rebalance is being delayed for latecomers.
        self._delayed: set[Group] = set()
        self.rebalances_completed = 0

    # Starting a rebalance.

    def prepare(self, group: Group, reason: str) -> None:
        """Start over, whatever the group is doing: members have to join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.respond_to_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._stop_sync_timer(group)
        was_empty = group.state is GroupState.EMPTY
        self.note(group, "rebalancing", reason=reason)
        group.transition_to(GroupState.PREPARING_REBALANCE, self._clock())
        if not was_empty:
            self._start_join_timer(group, group.rebalance_timeout_ms)
            self.try_complete_join(group)
            return
        delay_ms = self._settings.group_initial_rebalance_delay_ms
        if delay_ms <= 0:
            self._complete_join(group)
        else:
            self._delay(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))

    def prepare_if_possible(self, group: Group, reason: str) -> None:
        """Start a rebalance unless one is waiting for joins already."""
        if group.can_rebalance:
            self.prepare(group, reason)

    def _delay(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        self._delayed.add(group)
        self._join_timers[group] = self._timer.schedule(
            delay_ms, partial(self._delay_over, group, delay_ms, remaining_ms)
        )

    def _delay_over(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        self._delayed.discard(group)
        if group.new_member_added and remaining_ms > 0:
            group.new_member_added = False
            next_delay_ms = min(self._settings.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay(group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            self._complete_join(group)

    # Waiting for joins.

    def try_complete_join(self, group: Group) -> None:
        """Go on as soon as nobody is missing, except while latecomers are being waited for."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group not in self._delayed
            and group.has_all_members_joined
        ):
            self._complete_join(group)

    def _start_join_timer(self, group: Group, delay_ms: int) -> None:
        self._stop_join_timer(group)
        self._join_timers[group] = self._timer.schedule(
            delay_ms, partial(self._complete_join, group)
        )

    def _complete_join(self, group: Group) -> None:
        self._stop_join_timer(group)
        for member in list(group.members.values()):
            if member.join_reply is None and member.instance_id is None:
                self.note(group, "removed", member, "did not join again in time")
                group.remove(member.member_id)
        if group.state is GroupState.DEAD:
            return
        if group.members and not group.ensure_joined_leader():
            # Only static members are left and none came back: their session timers decide.
            logger.warning(
                "group %s: nobody joined again, waiting on",
                group.group_id,
                extra={"group": group.group_id},
            )
            self._start_join_timer(group, group.rebalance_timeout_ms)
            return
        group.start_next_generation(self._clock())
        if group.state is GroupState.EMPTY:
            self.note(group, "empty", reason="the last member is gone")
            self._store_group(group, {}, partial(self._empty_stored, group))
            return
        logger.info(
            "group %s: generation %d has %d members, waiting for the leader's assignment",
            group.group_id,
            group.generation_id,
            len(group.members),
            extra={"group": group.group_id},
        )
        group.members_to_sync.update(group.members)
        self._start_sync_timer(group)
        for member in list(group.members.values()):
            member.is_new = False
            self.restart_session(group, member)
            group.respond_to_join(member, group.joined(member))

    @staticmethod
    def _empty_stored(group: Group, error_code: int) -> None:
        if error_code:
            # After a crash the generation before would be back, and time out like any other.
            logger.warning(
                "group %s: the empty generation was not stored (error %d)",
                group.group_id,
                error_code,
                extra={"group": group.group_id},
            )

    # Waiting for syncs.

    def _start_sync_timer(self, group: Group) -> None:
        self._stop_sync_timer(group, clear=False)
        self._sync_timers[group] = self._timer.schedule(
            group.rebalance_timeout_ms,
            partial(self._expire_sync, group, group.generation_id),
        )

    def sync_received(self, group: Group, member_id: str) -> None:
        group.members_to_sync.discard(member_id)
        if not group.members_to_sync:
            self._stop_sync_timer(group)

    def _expire_sync(self, group: Group, generation_id: int) -> None:
        self._sync_timers.pop(group, None)
        if (
            generation_id != group.generation_id
            or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
            or not group.members_to_sync
        ):
            return
        late = sorted(group.members_to_sync)
        for member_id in late:
            self.note(group, "removed", group.members[member_id], "did not sync in time")
            group.remove(member_id)
        self.prepare(group, f"{len(late)} members did not send SyncGroup in time")

    def store_assignment(self, group: Group, given: dict[str, bytes]) -> None:
        """Write what the leader assigned; members it forgot get nothing to do."""
        missing = [member_id for member_id in group.members if member_id not in given]
        if missing:
            logger.warning(
                "group %s: the leader assigned nothing to %s",
                group.group_id,
                ", ".join(missing),
                extra={"group": group.group_id},
            )
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation_id = group.generation_id

        def stored(error_code: int) -> None:
            # The group may have moved on while the record was being replicated.
            if (
                group.state is not GroupState.COMPLETING_REBALANCE
                or group.generation_id != generation_id
            ):
                return
            if error_code:
                self.respond_to_syncs(group, error_code)
                self.prepare_if_possible(
                    group, f"the assignment could not be stored (error {error_code})"
                )
            else:
                self._assignment_stored(group, assignments)

        self._store_group(group, assignments, stored)

    def _assignment_stored(self, group: Group, assignments: dict[str, bytes]) -> None:
        """The group's record is committed: take it over and hand everybody its share."""
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.transition_to(GroupState.STABLE, self._clock())
        self.rebalances_completed += 1
        self.note(group, "stable", reason=f"{len(group.members)} members have their assignment")
        for member in list(group.members.values()):
            if group.respond_to_sync(member, group.synced(member)):
                self.restart_session(group, member)

    def respond_to_syncs(self, group: Group, error_code: int) -> None:
        """The assignment will not come: whoever waits for it hears why."""
        for member in list(group.members.values()):
            member.assignment = b""
            if group.respond_to_sync(member, sync_error(error_code)):
                self.restart_session(group, member)

    # Members coming, going and failing.

    def restart_session(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """The member is alive: its session starts anew."""
        member.stop_session_timer()
        member.session_timer = self._timer.schedule(
            member.session_timeout_ms if timeout_ms is None else timeout_ms,
            partial(self._expire_session, group, member),
        )

    def _expire_session(self, group: Group, member: Member) -> None:
        member.session_timer = None
        if group.state is GroupState.DEAD or group.members.get(member.member_id) is not member:
            return
        waits = member.join_reply is not None or member.sync_reply is not None
        if waits and not member.is_new:
            return  # the answer it waits for starts a new session
        reason = "no heartbeat within its session timeout"
        logger.info(
            "group %s: member %s failed: %s",
            group.group_id,
            member.member_id,
            reason,
            extra={"group": group.group_id},
        )
        self.note(group, "expired", member, reason)
        self.remove_member(group, member, f"member {member.member_id} failed")

    def add_member(self, group: Group, member: Member, reply: JoinReply, reason: str) -> None:
        """Take in a new member that waits for the answer to its join."""
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        group.add(member, reply)
        self.forget_pending(group, member.member_id)
        self.note(group, "joined", member, reason)
        self.restart_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.prepare_if_possible(group, f"member {member.member_id} joined: {reason}")

    def remove_member(self, group: Group, member: Member, reason: str) -> None:
        group.respond_to_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.try_complete_join(group)
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_if_possible(group, reason)

    def add_pending(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Keep an id given out with MEMBER_ID_REQUIRED until its owner comes back or fails to."""
        group.pending_members.add(member_id)
        self._pending_timers[group, member_id] = self._timer.schedule(
            session_timeout_ms, partial(self.remove_pending, group, member_id)
        )

    def remove_pending(self, group: Group, member_id: str) -> None:
        self.forget_pending(group, member_id)
        group.remove(member_id)
        self.try_complete_join(group)

    def forget_pending(self, group: Group, member_id: str) -> None:
        task = self._pending_timers.pop((group, member_id), None)
        if task is not None:
            task.cancel()

    # The group as a whole.

    def loaded(self, group: Group) -> None:
        """A group read from the log: its members have one session to show up."""
        for member in group.members.values():
            self.restart_session(group, member)
        if len(group.members) > self._settings.group_max_size:
            self.prepare(group, "the loaded group has more members than group.max.size")

    def bury(self, group: Group, error_code: int) -> None:
        """The group is deleted or moved away: answer what is owed and stop every timer."""
        group.transition_to(GroupState.DEAD, self._clock())
        for member in group.members.values():
            group.respond_to_join(member, join_error(error_code, member.member_id))
            group.respond_to_sync(member, sync_error(error_code))
            member.stop_session_timer()
        for member_id in group.pending_members:
            self.forget_pending(group, member_id)
        self._delayed.discard(group)
        self._stop_join_timer(group)
        self._stop_sync_timer(group)

    def _stop_join_timer(self, group: Group) -> None:
        task = self._join_timers.pop(group, None)
        if task is not None:
            task.cancel()

    def _stop_sync_timer(self, group: Group, *, clear: bool = True) -> None:
        if clear:
            group.members_to_sync.clear()
        task = self._sync_timers.pop(group, None)
        if task is not None:
            task.cancel()

    def note(
        self, group: AnyGroup, kind: str, member: Member | None = None, reason: str = ""
    ) -> None:
        """Remember what happened for `ottla groups events`."""
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
