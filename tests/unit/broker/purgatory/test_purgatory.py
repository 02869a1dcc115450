import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.purgatory.purgatory import Purgatory
from tests.doubles.manual_timer import ManualTimer
from tests.doubles.pace import steps_per_turn


class Waiting(DelayedOperation):
    """Waits until `ready` is set; counts how often it completed and expired."""

    def __init__(self, delay_ms: int = 1000, *, ready: bool = False) -> None:
        super().__init__(delay_ms)
        self.ready = ready
        self.completed = 0
        self.expired = 0
        self.tries = 0
        self.and_then: Callable[[], object] = lambda: None

    def try_complete(self) -> bool:
        self.tries += 1
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.completed += 1
        self.and_then()

    def on_expiration(self) -> None:
        self.expired += 1


@pytest.fixture
def timer() -> ManualTimer:
    return ManualTimer()


@pytest.fixture
def purgatory(timer: ManualTimer) -> Purgatory[Waiting]:
    return Purgatory("test", timer, purge_interval=10)


def test_what_can_be_done_at_once_never_waits(purgatory: Purgatory[Waiting]) -> None:
    operation = Waiting(ready=True)
    assert purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.completed == 1
    assert (purgatory.delayed, purgatory.watched, purgatory.watched_keys) == (0, 0, 0)


def test_any_of_its_keys_completes_an_operation(
    purgatory: Purgatory[Waiting], timer: ManualTimer
) -> None:
    operation = Waiting()
    assert not purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert (purgatory.delayed, purgatory.watched, purgatory.watched_keys) == (1, 2, 2)
    assert purgatory.check_and_complete("b") == 0
    operation.ready = True
    assert purgatory.check_and_complete("c") == 0
    assert purgatory.check_and_complete("b") == 1
    assert purgatory.check_and_complete("a") == 0
    assert operation.completed == 1
    assert (purgatory.delayed, purgatory.watched, purgatory.watched_keys) == (0, 0, 0)
    timer.advance(5_000)
    assert (operation.completed, operation.expired) == (1, 0)


def test_time_completes_an_operation(purgatory: Purgatory[Waiting], timer: ManualTimer) -> None:
    operation = Waiting(delay_ms=500)
    purgatory.try_complete_else_watch(operation, ["a"])
    timer.advance(499)
    assert operation.completed == 0
    timer.advance(1)
    assert (operation.completed, operation.expired) == (1, 1)
    assert (purgatory.delayed, purgatory.expired_total) == (0, 1)
    operation.ready = True
    assert purgatory.check_and_complete("a") == 0


def test_what_is_complete_is_not_checked_again(purgatory: Purgatory[Waiting]) -> None:
    done, waiting = Waiting(), Waiting()
    for operation in (done, waiting):
        purgatory.try_complete_else_watch(operation, ["a", "b"])
    done.force_complete()
    assert purgatory.check_and_complete("a") == 0
    assert (done.tries, waiting.tries) == (1, 2)


def test_force_complete_from_outside_takes_it_out_of_the_purgatory(
    purgatory: Purgatory[Waiting], timer: ManualTimer
) -> None:
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.force_complete()
    assert purgatory.delayed == 0
    assert timer.advance(10_000) == 0
    assert operation.expired == 0


def test_an_operation_without_keys_waits_for_its_time(
    purgatory: Purgatory[Waiting], timer: ManualTimer
) -> None:
    operation = Waiting(delay_ms=5)
    assert not purgatory.try_complete_else_watch(operation, [])
    timer.advance(5)
    assert operation.expired == 1


def test_completing_may_check_the_same_key_again(purgatory: Purgatory[Waiting]) -> None:
    first, second, third = Waiting(), Waiting(), Waiting()
    for operation in (first, second, third):
        purgatory.try_complete_else_watch(operation, ["a", "b"])
    first.ready = third.ready = True

    def check_again() -> None:
        second.ready = True
        assert purgatory.check_and_complete("a") == 2  # the other two

    first.and_then = check_again
    assert purgatory.check_and_complete("a") == 1
    assert [operation.completed for operation in (first, second, third)] == [1, 1, 1]
    assert purgatory.delayed == 0
    purgatory.check_and_complete("b")
    assert purgatory.watched == 0


def test_completing_may_watch_a_new_operation_under_the_same_key(
    purgatory: Purgatory[Waiting],
) -> None:
    first, later = Waiting(), Waiting()
    purgatory.try_complete_else_watch(first, ["a"])
    first.ready = True
    first.and_then = lambda: purgatory.try_complete_else_watch(later, ["a"])
    assert purgatory.check_and_complete("a") == 1
    later.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert later.completed == 1


def test_a_failing_check_is_logged_and_others_are_checked(
    purgatory: Purgatory[Waiting], timer: ManualTimer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Waiting):
        def try_complete(self) -> bool:
            if self.tries:
                raise RuntimeError("as planned")
            return super().try_complete()

    broken, healthy = Broken(), Waiting()
    purgatory.try_complete_else_watch(broken, ["a"])
    purgatory.try_complete_else_watch(healthy, ["a"])
    healthy.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    timer.advance(1000)
    assert (broken.completed, broken.expired) == (1, 1)


def test_dead_entries_are_purged_beyond_the_threshold(purgatory: Purgatory[Waiting]) -> None:
    for number in range(200):
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, ["hot", f"cold-{number}"])
        operation.ready = True
        purgatory.check_and_complete("hot")
        # Each leaves one dead entry under its cold key.
        assert purgatory.watched <= 10
    assert purgatory.delayed == 0


def test_a_purge_is_not_repeated_while_many_live(timer: ManualTimer) -> None:
    """With many living entries the threshold is their number: a purge is paid for by then."""
    purgatory: Purgatory[Waiting] = Purgatory("test", timer, purge_interval=1)
    for number in range(100):
        purgatory.try_complete_else_watch(Waiting(), [number])
    done = [Waiting() for _ in range(101)]
    for number, operation in enumerate(done):
        purgatory.try_complete_else_watch(operation, [("own", number)])
        operation.force_complete()
        expected = 100 + number + 1 if number < 100 else 100
        assert purgatory.watched == expected


IN_A_TURN = 10


class TestVeryManyUnderOneKey:
    """They are checked in several turns, so that they do not hold up the loop."""

    @pytest.fixture
    def operations(self, purgatory: Purgatory[Waiting]) -> Iterator[list[Waiting]]:
        operations = [Waiting() for _ in range(IN_A_TURN * 3)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["hot"])
        with steps_per_turn(IN_A_TURN):
            yield operations

    def test_the_first_at_once_and_the_others_soon(
        self, purgatory: Purgatory[Waiting], timer: ManualTimer, operations: list[Waiting]
    ) -> None:
        for operation in operations:
            operation.ready = True
        assert purgatory.check_and_complete("hot") == IN_A_TURN
        assert [operation.completed for operation in operations[IN_A_TURN:]] == [0] * IN_A_TURN * 2
        timer.advance(10)
        assert {operation.completed for operation in operations} == {1}
        assert {operation.tries for operation in operations} == {2}
        assert (purgatory.watched, purgatory.watched_keys) == (0, 0)

    def test_what_changes_meanwhile_is_not_missed_and_not_checked_endlessly(
        self, purgatory: Purgatory[Waiting], timer: ManualTimer, operations: list[Waiting]
    ) -> None:
        assert purgatory.check_and_complete("hot") == 0
        operations[0].ready = True  # it was checked already
        for _ in range(50):
            assert purgatory.check_and_complete("hot") == 0
        timer.advance(10)
        assert operations[0].completed == 1
        assert {operation.tries for operation in operations} == {3}
        assert purgatory.delayed == len(operations) - 1

    def test_one_may_join_meanwhile(
        self, purgatory: Purgatory[Waiting], timer: ManualTimer, operations: list[Waiting]
    ) -> None:
        purgatory.check_and_complete("hot")
        late = Waiting()
        purgatory.try_complete_else_watch(late, ["hot"])
        late.ready = True
        purgatory.check_and_complete("hot")
        timer.advance(10)
        assert late.completed == 1
        assert not purgatory._unfinished


KEYS = ("a", "b", "c", "d")


class PurgatoryModel(RuleBasedStateMachine):
    """Whatever happens in whatever order, an operation completes exactly once: when its condition
    is met and checked, when it is forced, or when its time is up."""

    operations = Bundle("operations")

    def __init__(self) -> None:
        super().__init__()
        self.timer = ManualTimer()
        self.purgatory: Purgatory[Waiting] = Purgatory("model", self.timer, purge_interval=3)
        self.waiting: dict[Waiting, tuple[set[str], int]] = {}  # keys, deadline
        self.all: list[Waiting] = []

    def now_ms(self) -> int:
        return round(self.timer.clock.monotonic() * 1000)

    @rule(
        target=operations,
        keys=st.sets(st.sampled_from(KEYS)),
        delay_ms=st.integers(1, 200),
        ready=st.booleans(),
        rechecks=st.sampled_from((None, *KEYS)),
    )
    def offer(self, keys: set[str], delay_ms: int, ready: bool, rechecks: str | None) -> Waiting:
        operation = Waiting(delay_ms, ready=ready)
        self.all.append(operation)
        if rechecks is not None:
            operation.and_then = lambda: self.purgatory.check_and_complete(rechecks)
        assert self.purgatory.try_complete_else_watch(operation, sorted(keys)) == ready
        if not ready:
            self.waiting[operation] = (keys, self.now_ms() + delay_ms)
        return operation

    @rule(operation=operations)
    def becomes_ready(self, operation: Waiting) -> None:
        operation.ready = True

    @rule(key=st.sampled_from(KEYS))
    def check(self, key: str) -> None:
        self.purgatory.check_and_complete(key)
        for operation, (keys, _) in self.waiting.items():
            if key in keys and operation.ready:
                assert operation.completed == 1

    @rule(operation=operations)
    def force(self, operation: Waiting) -> None:
        is_first = operation.completed == 0
        assert operation.force_complete() == is_first

    @rule(milliseconds=st.integers(0, 150))
    def time_passes(self, milliseconds: int) -> None:
        self.timer.advance(milliseconds)

    @invariant()
    def completed_once(self) -> None:
        now_ms = self.now_ms()
        for operation in self.all:
            assert operation.completed == operation.is_completed <= 1
            assert operation.expired <= operation.completed
        for operation, (_, deadline_ms) in list(self.waiting.items()):
            if deadline_ms <= now_ms:
                assert operation.completed == 1
            if operation.completed:
                del self.waiting[operation]
        assert self.purgatory.delayed == len(self.waiting)

    @invariant()
    def counts_agree(self) -> None:
        living = sum(len(keys) for operation, (keys, _) in self.waiting.items())
        assert self.purgatory.watched >= living
        assert self.purgatory.watched - living <= max(3, living)


TestPurgatoryModel = PurgatoryModel.TestCase


@given(st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
def test_a_key_given_twice_does_no_harm(keys: list[str]) -> None:
    purgatory: Purgatory[Waiting] = Purgatory("test", ManualTimer())
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, keys)
    operation.ready = True
    assert purgatory.check_and_complete(keys[0]) == 1
    for key in KEYS:
        purgatory.check_and_complete(key)
    assert (operation.completed, purgatory.watched, purgatory.delayed) == (1, 0, 0)
