"""A hierarchical timing wheel: many timers, few of which ever fire.

Nearly every request that waits (a fetch, a produce with acks=all, a member's session) is done
before its time is up, so what counts is how cheap it is to insert and to cancel, not to fire. A
heap pays O(log n) for both; this wheel pays O(1). It mirrors what Kafka's `TimingWheel` promises.

A wheel is a ring of buckets, each for one tick. Level 0 has ticks of `tick_ms`; each further
level has ticks as long as the whole ring below it, and is made when a delay first needs it. A
task is put into the lowest level that reaches its time. When a bucket of a higher level is
reached, its tasks are put in again and fall into lower levels, so that each fires on its own
tick. An example with tick_ms = 1, wheel_size = 4 and the clock at 0:

    level  tick  reaches   buckets hold the expirations
    0      1 ms    3 ms    [0] [1] [2] [3]
    1      4 ms   15 ms    [0-3] [4-7] [8-11] [12-15]
    2     16 ms   63 ms    [0-15] [16-31] [32-47] [48-63]

    insert for 2   -> level 0, bucket 2, due at 2
    insert for 6   -> level 1, bucket 4-7, due at 4
    insert for 21  -> level 2, bucket 16-31, due at 16
    advance to 4   -> 2 fires; bucket 4-7 is emptied: 6 goes to level 0, bucket 6 (6 mod 4 = 2)
    advance to 6   -> 6 fires
    advance to 16  -> bucket 16-31 is emptied: 21 goes to level 1, bucket 20-23
    advance to 20  -> 21 goes to level 0, bucket 21
    advance to 21  -> 21 fires

Empty buckets cost nothing: a heap holds only the start times of buckets in use (at most levels x
wheel_size of them), so the wheel jumps from one to the next and an idle timer never runs.

This module is pure: no clock, no loop, no thread. Times are integers in milliseconds on whatever
clock the owner uses.
"""

from collections.abc import Callable
from heapq import heappop, heappush

# Tasks that leave their buckets in one call of `advance`: more than a millisecond of work. The
# sessions of a hundred thousand members, which heartbeats postpone, may be in one bucket.
TASKS_AT_ONCE = 4096
# Tasks of a bucket that `next_expiration_ms` looks at: a fraction of what a wake-up costs.
_TASKS_LOOKED_AT = 32


class TimerTask:
    """One pending callback. Also the link of the bucket's list, so that cancel is O(1)."""

    __slots__ = ("_next", "_previous", "callback", "expiration_ms")

    def __init__(self, expiration_ms: int, callback: Callable[[], object] | None) -> None:
        self.expiration_ms = expiration_ms
        self.callback = callback
        self._previous: TimerTask | None = None
        self._next: TimerTask | None = None

    @property
    def is_pending(self) -> bool:
        """False once the task was cancelled or handed out to be run."""
        return self._next is not None

    def postpone(self, expiration_ms: int) -> bool:
        """Have it expire later; False for one that is not pending, or for an earlier time.

        It stays where it is: when its bucket is emptied, `TimingWheel.advance` inserts it anew.
        """
        if self._next is None or expiration_ms < self.expiration_ms:
            return False
        self.expiration_ms = expiration_ms
        return True

    def cancel(self) -> bool:
        """Take the task out of the wheel. Returns whether it was still in there.

        The callback is let go at once, so that a cancelled task keeps nothing alive.
        """
        following = self._next
        if following is None:
            # Due and handed out, but perhaps not run yet: it must not run after this.
            cancelled = self.callback is not None
            self.callback = None
            return cancelled
        previous = self._previous
        assert previous is not None
        previous._next = following
        following._previous = previous
        self._next = self._previous = None
        self.callback = None
        return True


class Bucket(TimerTask):
    """A ring list of tasks that are due in the same tick; the bucket itself is its head."""

    __slots__ = ()

    def __init__(self) -> None:
        # expiration_ms is where the bucket's tick begins while it is in use, else -1.
        super().__init__(-1, None)
        self._next = self._previous = self

    @property
    def is_empty(self) -> bool:
        return self._next is self


# The length of a tick, how far the level reaches from its own clock, its buckets.
Level = tuple[int, int, list[Bucket]]


class TimingWheel:
    """The wheels of all levels and the heap of buckets in use."""

    __slots__ = ("_heap", "_levels", "_now_ms", "_wheel_size", "tick_ms")

    def __init__(self, *, tick_ms: int = 1, wheel_size: int = 64, start_ms: int = 0) -> None:
        """Levels of 64 reach 64 ms, 4 s, 4 min, 4.6 h: a usual delay falls at most twice."""
        if tick_ms < 1 or wheel_size < 2:
            raise ValueError("tick_ms must be at least 1 and wheel_size at least 2")
        self.tick_ms = tick_ms
        self._wheel_size = wheel_size
        self._now_ms = start_ms - start_ms % tick_ms
        self._levels: list[Level] = []  # the lowest first
        self._heap: list[tuple[int, int, Bucket]] = []
        self._add_level()

    @property
    def now_ms(self) -> int:
        """The tick up to which everything due was handed out."""
        return self._now_ms

    def insert(self, task: TimerTask) -> bool:
        """Put a task in. Returns False, and leaves it out, when its tick is not in the future."""
        expiration_ms = task.expiration_ms
        now_ms = self._now_ms
        if expiration_ms < now_ms + self.tick_ms:
            return False
        for level in self._levels:
            # The level's own clock is `now` rounded down to its tick.
            if expiration_ms < now_ms - now_ms % level[0] + level[1]:
                break
        else:
            level = self._level_for(expiration_ms)
        tick_ms, _, buckets = level
        index = expiration_ms // tick_ms
        bucket = buckets[index % self._wheel_size]
        if bucket.expiration_ms < 0:
            due_ms = bucket.expiration_ms = index * tick_ms
            # Two buckets with the same start are of two levels: the higher goes first.
            heappush(self._heap, (due_ms, -tick_ms, bucket))
        last = bucket._previous
        assert last is not None
        task._previous = last
        task._next = bucket
        last._next = task
        bucket._previous = task
        return True

    def next_expiration_ms(self) -> int | None:
        """When to call `advance` next: not after the first task is due. None: nothing is pending.

        A bucket of a higher level need not be emptied when it begins. Unless it has very many
        tasks, the time is that of its first task, or of the next bucket if that is earlier.
        """
        heap = self._heap
        while heap:
            due_ms, order, bucket = heap[0]
            if bucket._next is not bucket:
                return due_ms if -order == self.tick_ms else self._next_of_higher_level()
            # All of its tasks were cancelled: forget it instead of waking up for nothing.
            heappop(heap)
            bucket.expiration_ms = -1
        return None

    def _next_of_higher_level(self) -> int:
        heap = self._heap
        due_ms, _, bucket = heap[0]
        # One of these two is the second of the heap.
        first_ms = min((each[0] for each in heap[1:3]), default=-1)
        task = bucket._next
        for _ in range(_TASKS_LOOKED_AT):
            assert task is not None
            if task is bucket:
                return first_ms
            expiration_ms = task.expiration_ms - task.expiration_ms % self.tick_ms
            if first_ms < 0 or expiration_ms < first_ms:
                first_ms = expiration_ms
            task = task._next
        return due_ms

    def catch_up(self, now_ms: int) -> None:
        """Move the clock to `now_ms` if nothing is due until then; else leave it to `advance`.

        After an idle time this keeps short delays out of the coarse levels.
        """
        heap = self._heap
        if now_ms > self._now_ms and (not heap or heap[0][0] > now_ms):
            self._now_ms = now_ms - now_ms % self.tick_ms

    def advance(self, now_ms: int) -> list[TimerTask]:
        """Move the clock to `now_ms` and hand out what is due, in order of ticks.

        After `TASKS_AT_ONCE` it stops: if another one is due, `next_expiration_ms` is not later
        than `now_ms`. A task handed out is no longer pending; the owner runs its callback. Tasks of
        the same tick come out in the order of insertion, unless they fell from different levels.
        """
        due: list[TimerTask] = []
        heap = self._heap
        left = TASKS_AT_ONCE
        while heap and heap[0][0] <= now_ms:
            due_ms, order, bucket = heappop(heap)
            self._now_ms = max(self._now_ms, due_ms)
            task = bucket._next
            while task is not None and task is not bucket:
                following = task._next
                if not left or following is None:
                    heappush(heap, (due_ms, order, bucket))
                    return due
                left -= 1
                bucket._next = following
                following._previous = bucket
                if not self.insert(task):
                    task._next = task._previous = None
                    due.append(task)
                task = following
            bucket.expiration_ms = -1
        now_ms -= now_ms % self.tick_ms
        self._now_ms = max(self._now_ms, now_ms)
        return due

    def _add_level(self) -> Level:
        tick_ms = self._levels[-1][1] if self._levels else self.tick_ms
        buckets = [Bucket() for _ in range(self._wheel_size)]
        level = (tick_ms, tick_ms * self._wheel_size, buckets)
        self._levels.append(level)
        return level

    def _level_for(self, expiration_ms: int) -> Level:
        while True:
            level = self._add_level()
            if expiration_ms < self._now_ms - self._now_ms % level[0] + level[1]:
                return level
