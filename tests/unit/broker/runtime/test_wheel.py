import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.runtime.wheel import TASKS_AT_ONCE, TimerTask, TimingWheel


def nothing() -> None:
    pass


def insert(wheel: TimingWheel, expiration_ms: int) -> TimerTask:
    task = TimerTask(expiration_ms, nothing)
    assert wheel.insert(task)
    return task


def expirations(tasks: list[TimerTask]) -> list[int]:
    return [task.expiration_ms for task in tasks]


class TestWorkedTable:
    """The example in the module's docstring, step by step."""

    @pytest.fixture
    def wheel(self) -> TimingWheel:
        wheel = TimingWheel(tick_ms=1, wheel_size=4)
        for expiration_ms in (2, 6, 21):
            insert(wheel, expiration_ms)
        return wheel

    def test_steps(self, wheel: TimingWheel) -> None:
        steps = []
        while (next_ms := wheel.next_expiration_ms()) is not None:
            steps.append((next_ms, expirations(wheel.advance(next_ms))))
        assert steps == [(2, [2]), (6, [6]), (21, [21])]

    def test_all_at_once(self, wheel: TimingWheel) -> None:
        assert expirations(wheel.advance(100)) == [2, 6, 21]
        assert wheel.now_ms == 100
        assert wheel.next_expiration_ms() is None


def test_a_task_that_is_due_is_not_taken() -> None:
    wheel = TimingWheel(start_ms=50)
    task = TimerTask(50, nothing)
    assert not wheel.insert(task)
    assert not task.is_pending
    assert wheel.insert(TimerTask(51, nothing))


def test_ticks_longer_than_a_millisecond_round_down_but_never_fire_before_their_tick() -> None:
    wheel = TimingWheel(tick_ms=10, wheel_size=4)
    insert(wheel, 19)
    assert wheel.advance(9) == []
    assert expirations(wheel.advance(10)) == [19]


def test_cancel_takes_a_task_out_and_lets_go_of_its_callback() -> None:
    wheel = TimingWheel()
    task = insert(wheel, 5)
    other = insert(wheel, 5)
    assert task.is_pending
    assert task.cancel()
    assert not task.is_pending
    assert task.callback is None
    assert not task.cancel()
    assert wheel.advance(10) == [other]


def test_buckets_whose_tasks_were_all_cancelled_are_not_waited_for() -> None:
    wheel = TimingWheel()
    first = insert(wheel, 5)
    insert(wheel, 900)
    first.cancel()
    assert wheel.next_expiration_ms() == 900
    assert insert(wheel, 5).is_pending  # the emptied bucket is of use again
    assert wheel.next_expiration_ms() == 5


def test_waits_that_follow_one_another_wake_up_once_each() -> None:
    wheel = TimingWheel()
    for number in range(39):
        insert(wheel, 2_000 + 51 * number)
    wakes = expired = 0
    while (next_ms := wheel.next_expiration_ms()) is not None and next_ms < 60_000:
        due = wheel.advance(next_ms)
        wakes += 1
        expired += len(due)
        for _ in due:
            insert(wheel, next_ms + 2_000)
    assert expired > 1_000
    assert wakes == expired


def test_a_bucket_of_postponed_tasks_is_not_waited_for() -> None:
    wheel = TimingWheel()
    for _ in range(30):
        assert insert(wheel, 10_000).postpone(100_000)
    assert wheel.next_expiration_ms() == 100_000


def test_a_bucket_with_very_many_tasks_is_emptied_when_it_begins() -> None:
    wheel = TimingWheel()
    for _ in range(1_000):
        insert(wheel, 900)
    assert wheel.next_expiration_ms() == 896  # a bucket of 64 ms


def test_a_task_cancelled_after_it_was_handed_out_says_so() -> None:
    wheel = TimingWheel()
    task = insert(wheel, 5)
    assert wheel.advance(5) == [task]
    assert task.cancel()
    assert task.callback is None


def test_a_postponed_task_expires_later_but_never_earlier() -> None:
    wheel = TimingWheel()
    task = insert(wheel, 5)
    assert task.postpone(900)
    assert wheel.advance(899) == []
    assert task.is_pending
    assert not task.postpone(899)
    assert wheel.advance(900) == [task]
    assert not task.postpone(2_000)  # it was handed out
    assert wheel.next_expiration_ms() is None


def test_many_postponed_tasks_of_a_bucket_move_in_several_calls() -> None:
    wheel = TimingWheel()
    tasks = [insert(wheel, 45_000 + number % 50) for number in range(2 * TASKS_AT_ONCE + 100)]
    for task in tasks:
        assert task.postpone(90_000)
    calls = 0
    while (next_ms := wheel.next_expiration_ms()) is not None and next_ms < 80_000:
        assert wheel.advance(60_000) == []
        calls += 1
        assert all(task.is_pending for task in tasks)
        if calls == 1:
            assert tasks.pop().cancel()
            tasks.insert(TASKS_AT_ONCE, insert(wheel, 90_000))  # before those that have not moved
    assert calls >= 3
    due: list[TimerTask] = []
    while wheel.next_expiration_ms() is not None:
        found = wheel.advance(95_000)
        assert len(found) <= TASKS_AT_ONCE
        due += found
    assert due == tasks


def test_catch_up_moves_the_clock_only_while_nothing_is_due() -> None:
    wheel = TimingWheel()
    wheel.catch_up(1000)
    assert wheel.now_ms == 1000
    insert(wheel, 1010)
    wheel.catch_up(2000)
    assert wheel.now_ms == 1000
    assert expirations(wheel.advance(2000)) == [1010]
    wheel.catch_up(1500)
    assert wheel.now_ms == 2000


def test_of_the_same_tick_the_task_that_was_inserted_first_comes_first() -> None:
    wheel = TimingWheel(tick_ms=1, wheel_size=4)
    first = insert(wheel, 4)  # beyond level 0
    wheel.advance(1)
    second = insert(wheel, 4)  # now within level 0
    assert wheel.advance(4) == [first, second]


@pytest.mark.parametrize("arguments", [{"tick_ms": 0}, {"wheel_size": 1}])
def test_nonsense_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="tick_ms"):
        TimingWheel(**arguments)


Step = tuple[str, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 2_000)),
        st.tuples(st.just("insert"), st.integers(0, 10_000_000)),
        st.tuples(st.just("cancel"), st.integers(0, 1_000)),
        st.tuples(st.just("postpone"), st.integers(0, 100_000)),
        st.tuples(st.just("advance"), st.integers(0, 300)),
        st.tuples(st.just("advance"), st.integers(0, 1_000_000)),
        st.tuples(st.just("catch up"), st.integers(0, 5_000)),
        st.tuples(st.just("jump"), st.just(0)),
    ),
    max_size=60,
)


class Model:
    """A wheel beside a plain dictionary that must agree with it."""

    def __init__(self, tick_ms: int, wheel_size: int) -> None:
        self.tick_ms = tick_ms
        self.wheel = TimingWheel(tick_ms=tick_ms, wheel_size=wheel_size)
        self.now_ms = 0
        self.pending: dict[TimerTask, int] = {}

    def tick_of(self, expiration_ms: int) -> int:
        return expiration_ms - expiration_ms % self.tick_ms

    def step(self, kind: str, value: int) -> None:
        actions: dict[str, Callable[[int], None]] = {
            "insert": self.insert,
            "cancel": self.cancel,
            "postpone": self.postpone,
            "advance": self.advance,
            "catch up": self.catch_up,
            "jump": self.jump,
        }
        actions[kind](value)
        earliest = min(map(self.tick_of, self.pending.values()), default=None)
        next_ms = self.wheel.next_expiration_ms()
        assert (next_ms is None) == (earliest is None)
        if next_ms is not None and earliest is not None:
            assert next_ms <= earliest  # a bucket of a higher level may begin before its tasks

    def insert(self, delay_ms: int) -> None:
        task = TimerTask(self.now_ms + delay_ms, nothing)
        taken = self.wheel.insert(task)
        assert taken == task.is_pending
        if taken:
            self.pending[task] = task.expiration_ms
        else:
            assert task.expiration_ms < self.wheel.now_ms + self.tick_ms

    def cancel(self, index: int) -> None:
        if self.pending:
            task = list(self.pending)[index % len(self.pending)]
            assert task.cancel()
            del self.pending[task]

    def postpone(self, delay_ms: int) -> None:
        if self.pending:
            task = list(self.pending)[delay_ms % len(self.pending)]
            expiration_ms = self.now_ms + delay_ms
            assert task.postpone(expiration_ms) == (expiration_ms >= self.pending[task])
            self.pending[task] = max(self.pending[task], expiration_ms)
            assert task.is_pending

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        due = self.wheel.advance(self.now_ms)
        should = {t for t, at in self.pending.items() if self.tick_of(at) <= self.now_ms}
        assert set(due) == should
        assert len(due) == len(should)
        ticks = [self.tick_of(task.expiration_ms) for task in due]
        assert ticks == sorted(ticks)
        for task in due:
            assert not task.is_pending
            del self.pending[task]

    def catch_up(self, milliseconds: int) -> None:
        self.wheel.catch_up(self.now_ms + milliseconds)
        assert self.wheel.now_ms <= self.now_ms + milliseconds
        self.now_ms = max(self.now_ms, self.wheel.now_ms)

    def jump(self, _: int) -> None:
        next_ms = self.wheel.next_expiration_ms()
        if next_ms is not None:
            self.advance(max(next_ms - self.now_ms, 0))


@given(st.sampled_from([1, 7]), st.sampled_from([2, 4, 64]), steps)
def test_agrees_with_a_plain_dictionary(tick_ms: int, wheel_size: int, todo: list[Step]) -> None:
    model = Model(tick_ms, wheel_size)
    for kind, value in todo:
        model.step(kind, value)
    model.advance(20_000_000)
    assert not model.pending
    assert model.wheel.next_expiration_ms() is None


def test_a_long_random_life() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    model = Model(1, 64)
    for _ in range(5_000):
        kinds = ["insert", "cancel", "postpone", "advance", "jump"]
        kind = generator.choices(kinds, [10, 6, 4, 2, 1])[0]
        model.step(kind, generator.choice([1, 20, 500, 40_000, 20_000_000]))
