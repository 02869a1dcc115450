"""How members of consumer groups (KIP-848) go: on their own, or when a timer is over."""

import logging
from collections.abc import Callable
from functools import partial

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import ConsumerMember, MemberState
from ottla.broker.groups.consumer.member_timers import MemberTimers, TimerKind
from ottla.broker.groups.consumer.migration import Migration
from ottla.broker.groups.consumer.topic_catalog import TopicCatalog
from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.groups.log.group_writer import Change, GroupWriter
from ottla.broker.groups.log.partitions import GroupPartitions
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.timer import DelayQueue

logger = logging.getLogger("ottla.groups")

RETRY_MS = 500  # until a member whose time is over is taken out, when that could not be written

_WHY = {
    TimerKind.SESSION: ("expired", "no heartbeat within its session timeout"),
    TimerKind.REVOCATION: (
        "removed",
        "it did not give its partitions back within its rebalance timeout",
    ),
    TimerKind.JOIN: ("removed", "it did not join again within its rebalance timeout"),
    TimerKind.SYNC: ("removed", "it did not ask for its assignment within its rebalance timeout"),
}


class ConsumerSessions:
    """Watches the members of all consumer groups that this broker coordinates."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        writer: GroupWriter,
        timer: DelayQueue,
        catalog: TopicCatalog,
        migration: Migration,
        events: GroupEvents,
        clock: WallClock,
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._writer = writer
        self._timers = MemberTimers(timer)
        self._catalog = catalog
        self._migration = migration
        self._events = events
        self._clock = clock
        self.rebalances = 0

    def remove(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        kind: str,
        reason: str,
        done: Callable[[int], None],
    ) -> Change:
        """Take a member out; the others share what it had. A group whose members all speak the
        classic protocol then may become a classic group."""
        logger.info(
            "group %s: member %s is out: %s",
            group.group_id,
            member.member_id,
            reason,
            extra={"group": group.group_id},
        )

        def removed(error_code: int) -> None:
            if not error_code:
                self.on_member_removed(group.group_id, member, kind, reason)
            done(error_code)

        change = self._migration.downgrade(group, member.member_id, removed)
        if change is not None:
            return change
        draft = GroupDraft(group, self._catalog)
        draft.remove_member(member.member_id)
        draft.refresh_topics()
        draft.bump_epoch()
        self.rebalances += 1
        return Change(draft.records, removed)

    def on_member_removed(
        self, group_id: str, member: ConsumerMember, kind: str, reason: str
    ) -> None:
        """A member is out, and its timers with it."""
        self._timers.stop_all(group_id, member.member_id)
        self.record_event(group_id, kind, member, reason)

    def _fence(self, kind: TimerKind, group_id: str, member_id: str, epoch: int | None) -> None:
        """A timer is over: take the member out, unless it moved on (from `epoch`) meanwhile."""

        def step(error_code: int) -> Change | None:
            group = None if error_code else self._partitions.find(group_id)
            if group is None or group.kind != "consumer":
                return None
            member = group.members.get(member_id)
            if member is None or (epoch is not None and member.epoch != epoch):
                return None
            if self._timers.is_running(kind, group_id, member_id):
                return None  # what it was waited for came just now
            event, reason = _WHY[kind]
            return self.remove(group, member, event, reason, done)

        def done(error_code: int) -> None:
            if error_code:
                logger.warning(
                    "group %s: member %s could not be taken out (error %d), trying again",
                    *(group_id, member_id, error_code),
                    extra={"group": group_id},
                )
                again = partial(self._fence, kind, group_id, member_id, epoch)
                self._timers.start(kind, group_id, member_id, RETRY_MS, again)

        self._writer.submit(group_id, step)

    # Timers.

    def start(self, group_id: str, member: ConsumerMember) -> None:
        """The member is alive: its session starts anew."""
        timeout_ms = self._settings.group_consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._start(TimerKind.SESSION, group_id, member.member_id, timeout_ms)

    def watch(self, group_id: str, before: ConsumerMember, after: ConsumerMember) -> None:
        """A member has its rebalance timeout to give partitions back."""
        if after.state is not MemberState.UNREVOKED_PARTITIONS:
            self._timers.stop(TimerKind.REVOCATION, group_id, after.member_id)
        elif after != before:
            self._start_revocation(group_id, after)

    def _start_revocation(self, group_id: str, member: ConsumerMember) -> None:
        timeout_ms = member.rebalance_timeout_ms
        self._start(TimerKind.REVOCATION, group_id, member.member_id, timeout_ms, member.epoch)

    def start_timer(self, kind: TimerKind, group_id: str, member: ConsumerMember) -> None:
        """A member of the classic protocol has its rebalance timeout to join, or to sync."""
        self._start(kind, group_id, member.member_id, member.rebalance_timeout_ms)

    def expect_rejoin(self, group_id: str, member: ConsumerMember) -> None:
        """The same for the join, counted from when it was told first."""
        if not self._timers.is_running(TimerKind.JOIN, group_id, member.member_id):
            self.start_timer(TimerKind.JOIN, group_id, member)

    def cancel_timer(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        """What was expected is here."""
        self._timers.stop(kind, group_id, member_id)

    def _start(
        self,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        timeout_ms: int,
        epoch: int | None = None,
    ) -> None:
        act = partial(self._fence, kind, group_id, member_id, epoch)
        self._timers.start(kind, group_id, member_id, timeout_ms, act)

    def on_group_loaded(self, group: ConsumerGroup) -> None:
        """A group read from the log: its members have one session to show up."""
        for member in group.members.values():
            self.start(group.group_id, member)
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
                self._start_revocation(group.group_id, member)

    def watch_unwatched_members(self, group_id: str) -> None:
        """A change came through late: watch the members that nobody watches yet."""
        group = self._partitions.find(group_id)
        if group is None:
            return
        if group.kind == "classic":
            self._migration.on_late_downgrade(group)
            return
        for member in group.members.values():
            if not self._timers.is_running(TimerKind.SESSION, group_id, member.member_id):
                self.start(group_id, member)
            if (
                member.state is MemberState.UNREVOKED_PARTITIONS
                and member.classic is None
                and not self._timers.is_running(TimerKind.REVOCATION, group_id, member.member_id)
            ):
                self._start_revocation(group_id, member)

    def on_group_unloaded(self, group: ConsumerGroup) -> None:
        """Another broker coordinates the group from now on."""
        group.is_dead = True
        for member_id in group.members:
            self._timers.stop_all(group.group_id, member_id)

    def record_event(self, group_id: str, kind: str, member: ConsumerMember, reason: str) -> None:
        """Remember what happened for `ottla groups events`."""
        self._events.add(
            group_id,
            GroupEvent(
                *(self._clock(), kind, member.epoch, member.member_id, member.client_id),
                *(member.client_host, reason),
            ),
        )
