"""The timers of members of consumer groups (KIP-848), and the removal of members."""

import logging
from collections.abc import Callable
from functools import partial

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import ConsumerMember, MemberState
from ottla.broker.groups.consumer.migration import Migration
from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.groups.log.group_writer import Drafting, GroupWriter
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.member_timers import MemberTimers, TimerKind
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.timer import DelayQueue
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.steps import Steps, TurnQueue

logger = logging.getLogger("ottla.groups")


RETRY_MS = 500  # after a failed append, until the removal of an expired member is retried

_EVENTS = {
    TimerKind.SESSION: ("expired", "no heartbeat within the session timeout"),
    TimerKind.REVOCATION: (
        "removed",
        "failed to revoke partitions within the rebalance timeout",
    ),
    TimerKind.JOIN: ("removed", "failed to rejoin within the rebalance timeout"),
    TimerKind.SYNC: ("removed", "did not send SyncGroup within the rebalance timeout"),
}


class ConsumerSessions:
    """Starts, stops and handles the timers of members of this coordinator's consumer groups."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        writer: GroupWriter,
        timer: DelayQueue,
        catalog: ClusterTopics,
        migration: Migration,
        events: GroupEvents,
        clock: WallClock,
        jobs: TurnQueue,
    ) -> None:
        """`jobs` starts the timers of large groups."""
        self._settings = settings
        self._partitions = partitions
        self._writer = writer
        self.timers = MemberTimers(timer)
        self._catalog = catalog
        self._migration = migration
        self._events = events
        self._clock = clock
        self._jobs = jobs
        self.rebalances = 0

    def remove(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        kind: str,
        reason: str,
        done: Callable[[int], None],
    ) -> Drafting:
        """Return the change that removes a member, whose partitions go to the others.

        A group that has only classic members afterwards may be downgraded.
        """
        logger.info(
            "[GroupId %s] Member %s is removed from the group: %s",
            group.group_id,
            member.member_id,
            reason,
            extra={"group": group.group_id},
        )

        def removed(error_code: int) -> None:
            if not error_code:
                self.on_member_removed(group.group_id, member, kind, reason)
            done(error_code)

        change = yield from self._migration.downgrade(group, member.member_id, removed)
        if change is not None:
            return change
        draft = GroupDraft(group, self._catalog)
        draft.remove_member(member.member_id)
        yield from draft.refresh_topics()
        draft.bump_epoch()
        self.rebalances += 1
        return draft.change(removed)

    def on_member_removed(
        self, group_id: str, member: ConsumerMember, kind: str, reason: str
    ) -> None:
        """Stop the timers of a removed member."""
        self.timers.stop_all(group_id, member.member_id)
        self.record_event(group_id, kind, member, reason)

    def _fence(self, kind: TimerKind, group_id: str, member_id: str, epoch: int | None) -> None:
        """A timer expired: removes the member, unless its epoch is not `epoch` any more."""
        home = self._partitions.home_of(group_id)

        def step(error_code: int) -> Drafting | None:
            if error_code == ErrorCode.NOT_COORDINATOR:
                return None  # the next coordinator starts the timers of all members
            group = self._partitions.find(group_id)
            if group is None or group.kind != "consumer":
                return None
            if self._partitions.home_of(group_id) is not home:
                return None  # loaded again meanwhile: its session starts, or has started
            member = group.members.get(member_id)
            if member is None or (epoch is not None and member.epoch != epoch):
                return None
            if self.timers.is_running(kind, group_id, member_id):
                return None  # the expected request came meanwhile
            if error_code:  # too many requests wait: not a log line for each member
                retry_later()
                return None
            event, reason = _EVENTS[kind]
            return self.remove(group, member, event, reason, done)

        def done(error_code: int) -> None:
            if error_code:
                logger.warning(
                    "[GroupId %s] Failed to remove member %s: %s. Retrying",
                    group_id,
                    member_id,
                    error_name(error_code),
                    extra={"group": group_id},
                )
                retry_later()

        def retry_later() -> None:
            retry = partial(self._fence, kind, group_id, member_id, epoch)
            self.timers.start(kind, group_id, member_id, RETRY_MS, retry)

        self._writer.submit(group_id, step)

    # Timers.

    def start(self, group_id: str, member: ConsumerMember) -> None:
        """Restart the session of a member that sent a request."""
        timeout_ms = self._settings.consumer_session_timeout_ms(group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._start(TimerKind.SESSION, group_id, member.member_id, timeout_ms)

    def watch(self, group_id: str, before: ConsumerMember, after: ConsumerMember) -> None:
        """Start the revocation timer when a member has partitions to revoke, else stop it."""
        if after.state is not MemberState.UNREVOKED_PARTITIONS:
            self.timers.stop(TimerKind.REVOCATION, group_id, after.member_id)
        elif after != before:
            self._start_revocation(group_id, after)

    def _start_revocation(self, group_id: str, member: ConsumerMember) -> None:
        timeout_ms = member.rebalance_timeout_ms
        self._start(TimerKind.REVOCATION, group_id, member.member_id, timeout_ms, member.epoch)

    def start_timer(self, kind: TimerKind, group_id: str, member: ConsumerMember) -> None:
        """A classic member has to send JoinGroup or SyncGroup within its rebalance timeout."""
        self._start(kind, group_id, member.member_id, member.rebalance_timeout_ms)

    def expect_rejoin(self, group_id: str, member: ConsumerMember) -> None:
        """The same for JoinGroup, from the first REBALANCE_IN_PROGRESS response on."""
        if not self.timers.is_running(TimerKind.JOIN, group_id, member.member_id):
            self.start_timer(TimerKind.JOIN, group_id, member)

    def cancel_timer(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        """The expected request came."""
        self.timers.stop(kind, group_id, member_id)

    def _start(
        self,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        timeout_ms: int,
        epoch: int | None = None,
    ) -> None:
        act = partial(self._fence, kind, group_id, member_id, epoch)
        self.timers.start(kind, group_id, member_id, timeout_ms, act)

    def on_group_upgraded(self, group: ConsumerGroup) -> None:
        """It was a classic group until now: the sessions of its members start."""
        self.timers.end(group.group_id)  # of when it was a consumer group before
        self._jobs.start(self.timers.cancel_ended())
        self._jobs.start(self.start_sessions(group))

    def watch_unwatched_members(self, group_id: str) -> None:
        """A change was replayed after its append timed out: starts timers that do not run."""
        group = self._partitions.find(group_id)
        if group is None:
            return
        if group.kind == "classic":
            self._migration.on_late_downgrade(group)
        else:
            self._jobs.start(self.start_sessions(group))

    def start_sessions(self, group: ConsumerGroup) -> Steps[None]:
        """Start the timers of members that have none running.

        In a pause members may join and leave, and a request starts the timers of its member.
        """
        group_id = group.group_id
        for member_id in list(group.members):
            member = group.members.get(member_id)
            if member is not None:
                self._start_unless_running(group_id, member)
            yield
            if group.is_dead or self._partitions.find(group_id) is not group:
                return

    def _start_unless_running(self, group_id: str, member: ConsumerMember) -> None:
        if not self.timers.is_running(TimerKind.SESSION, group_id, member.member_id):
            self.start(group_id, member)
        if (
            member.state is MemberState.UNREVOKED_PARTITIONS
            and member.classic is None
            and not self.timers.is_running(TimerKind.REVOCATION, group_id, member.member_id)
        ):
            self._start_revocation(group_id, member)

    def on_group_unloaded(self, group: ConsumerGroup) -> None:
        """This broker no longer coordinates the group; the caller cancels its timers."""
        group.is_dead = True
        self.timers.end(group.group_id)

    def record_event(self, group_id: str, kind: str, member: ConsumerMember, reason: str) -> None:
        """Add to the history that `ottla groups events` shows."""
        self._events.add(
            group_id,
            GroupEvent(
                self._clock(),
                kind,
                member.epoch,
                member.member_id,
                member.client_id,
                member.client_host,
                reason,
            ),
        )
