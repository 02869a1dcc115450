"""The timers of members of consumer groups (KIP-848), one of each kind for a member."""

from collections.abc import Callable
from enum import Enum
from functools import partial

from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask


class TimerKind(Enum):
    SESSION = "session"  # until the next heartbeat
    REVOCATION = "revocation"  # until the member has revoked its partitions
    JOIN = "join"  # until a member that uses the classic protocol rejoins
    SYNC = "sync"  # until a member that uses the classic protocol sends SyncGroup


Key = tuple[str, str]


class MemberTimers:
    """By group id and member id."""

    def __init__(self, timer: DelayQueue) -> None:
        self._timer = timer
        self._tasks: dict[Key, dict[TimerKind, TimerTask]] = {}

    def start(
        self, kind: TimerKind, group_id: str, member_id: str, delay_ms: int, act: Callable[[], None]
    ) -> None:
        """Starts a timer; replaces the running one of this kind."""
        self.stop(kind, group_id, member_id)
        tasks = self._tasks.setdefault((group_id, member_id), {})
        tasks[kind] = self._timer.schedule(
            delay_ms, partial(self._expire, kind, group_id, member_id, act)
        )

    def is_running(self, kind: TimerKind, group_id: str, member_id: str) -> bool:
        return kind in self._tasks.get((group_id, member_id), ())

    def stop(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        tasks = self._tasks.get((group_id, member_id), {})
        task = tasks.pop(kind, None)
        if task is not None:
            task.cancel()
            if not tasks:
                del self._tasks[group_id, member_id]

    def stop_all(self, group_id: str, member_id: str) -> None:
        for task in self._tasks.pop((group_id, member_id), {}).values():
            task.cancel()

    def _expire(
        self, kind: TimerKind, group_id: str, member_id: str, act: Callable[[], None]
    ) -> None:
        tasks = self._tasks.get((group_id, member_id), {})
        tasks.pop(kind, None)
        if not tasks:
            self._tasks.pop((group_id, member_id), None)
        act()
