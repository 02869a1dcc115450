"""A clock and a timer that are moved by hand."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.runtime.wheel import TimerTask, TimingWheel


class ManualClock:
    """A clock that stands still until it is advanced."""

    __slots__ = ("_elapsed_ms", "_wall_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, milliseconds: int) -> None:
        """Move both clocks forward."""
        if milliseconds < 0:
            raise ValueError("a clock only goes forward; set_wall_ms moves the wall clock back")
        self._wall_ms += milliseconds
        self._elapsed_ms += milliseconds

    def set_wall_ms(self, now_ms: int) -> None:
        """Jump the wall clock, as an operator or NTP may; the monotonic clock stays."""
        self._wall_ms = now_ms


class ManualTimer:
    """A timer that stands still until `advance` is called.

    Callbacks run inside `advance`, each at its own moment of the clock, and what they raise
    comes out of it.
    """

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock if clock is not None else ManualClock()
        self._wheel = TimingWheel(start_ms=self._now_ms())
        self._due: list[TimerTask] = []

    def _now_ms(self) -> int:
        return round(self.clock.monotonic() * 1000)

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerTask:
        """As `Timer.schedule`; a delay of 0 or less runs in the next `advance`, even by 0 ms."""
        task = TimerTask(self._now_ms() + max(delay_ms, 0), callback)
        self._wheel.catch_up(self._now_ms())
        if not self._wheel.insert(task):
            self._due.append(task)
        return task

    def postpone(self, task: TimerTask, delay_ms: int) -> bool:
        """As `Timer.postpone`."""
        return task.postpone(self._now_ms() + max(delay_ms, 0))

    def advance(self, milliseconds: int) -> int:
        """Move the clock on and run what falls due on the way. Returns how many callbacks ran."""
        target_ms = self._now_ms() + milliseconds
        ran = 0
        while True:
            ran += self._run_due()
            next_ms = self._wheel.next_expiration_ms()
            if self._due:  # scheduled without delay by what just ran: due in the next moment
                next_ms = self._now_ms() + 1
            if next_ms is None or next_ms > target_ms:
                break
            self.clock.advance(max(next_ms - self._now_ms(), 0))
            self._due += self._wheel.advance(self._now_ms())
        self.clock.advance(target_ms - self._now_ms())
        return ran

    def _run_due(self) -> int:
        # Only what was due at the start: a callback that schedules itself with no delay runs
        # again in the next millisecond, as on a loop.
        due, self._due = self._due, []
        ran = 0
        for task in due:
            callback, task.callback = task.callback, None
            if callback is not None:
                callback()
                ran += 1
        return ran
