"""The timers of members of consumer groups (KIP-848) and share groups: one of each kind.

When this broker ceases to coordinate a group, its timers are ended at once and cancelled one
after the other: the same group can be loaded again before that.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial

from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.protocol.steps import Steps


class TimerKind(Enum):
    SESSION = "session"  # until the next heartbeat
    REVOCATION = "revocation"  # until the member has revoked its partitions
    JOIN = "join"  # until a member that uses the classic protocol rejoins
    SYNC = "sync"  # until a member that uses the classic protocol sends SyncGroup


GroupTimers = dict[str, dict[TimerKind, TimerTask]]
"""By member id."""


class MemberTimers:
    """By group id and member id."""

    def __init__(self, timer: DelayQueue) -> None:
        self._timer = timer
        self._groups: dict[str, GroupTimers] = {}
        self._ended: deque[GroupTimers] = deque()

    def start(
        self, kind: TimerKind, group_id: str, member_id: str, delay_ms: int, act: Callable[[], None]
    ) -> None:
        """Start a timer; replace the running one of this kind."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = {}
        tasks = group.get(member_id)
        if tasks is None:
            tasks = group[member_id] = {}
        before = tasks.get(kind)
        if before is not None:
            before.cancel()
        expire = partial(self._expire, group, kind, group_id, member_id, act)
        tasks[kind] = self._timer.schedule(delay_ms, expire)

    def is_running(self, kind: TimerKind, group_id: str, member_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and kind in group.get(member_id, ())

    def stop(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        task = self._remove(kind, group_id, member_id)
        if task is not None:
            task.cancel()

    def stop_all(self, group_id: str, member_id: str) -> None:
        for kind in list(self._groups.get(group_id, {}).get(member_id, ())):
            self.stop(kind, group_id, member_id)

    def end(self, group_id: str) -> None:
        """Stop all timers of a group: those that expire from now on do nothing, and
        `cancel_ended` cancels them."""
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._ended.append(group)

    def cancel_ended(self) -> Steps[None]:
        """Cancel the timers of all groups that were ended before or are ended in a pause."""
        while self._ended:
            group = self._ended[0]
            if not group:
                self._ended.popleft()
                continue
            for task in group.popitem()[1].values():
                task.cancel()
            yield

    def _remove(self, kind: TimerKind, group_id: str, member_id: str) -> TimerTask | None:
        group = self._groups.get(group_id, {})
        tasks = group.get(member_id, {})
        task = tasks.pop(kind, None)
        if task is not None and not tasks:
            del group[member_id]
            if not group:
                del self._groups[group_id]
        return task

    def _expire(
        self,
        group: GroupTimers,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        act: Callable[[], None],
    ) -> None:
        if self._groups.get(group_id) is group:  # else it was ended
            self._remove(kind, group_id, member_id)
            act()
