from __future__ import annotations

from ottla.broker.groups.member_timers import MemberTimers, TimerKind
from ottla.protocol.steps import run_at_once
from tests.doubles.manual_timer import ManualTimer

SESSION, JOIN = TimerKind.SESSION, TimerKind.JOIN


class Scene:
    def __init__(self) -> None:
        self.timer = ManualTimer()
        self.timers = MemberTimers(self.timer)
        self.expired: list[str] = []

    def start(self, name: str, group_id: str = "g", kind: TimerKind = SESSION) -> None:
        self.timers.start(kind, group_id, name, 100, lambda: self.expired.append(name))


def test_a_timer_expires_once() -> None:
    scene = Scene()
    scene.start("a")
    assert scene.timers.is_running(SESSION, "g", "a")
    scene.timer.advance(100)
    assert scene.expired == ["a"]
    assert not scene.timers.is_running(SESSION, "g", "a")


def test_a_timer_replaces_the_one_of_its_kind() -> None:
    scene = Scene()
    scene.start("a")
    scene.start("a", kind=JOIN)
    scene.timer.advance(50)
    scene.start("a")
    scene.timer.advance(50)
    assert scene.expired == ["a"]
    assert not scene.timers.is_running(JOIN, "g", "a")
    assert scene.timers.is_running(SESSION, "g", "a")


def test_stopped_timers_do_not_expire() -> None:
    scene = Scene()
    scene.start("a")
    scene.start("a", kind=JOIN)
    scene.start("b")
    scene.timers.stop(SESSION, "g", "b")
    scene.timers.stop(SESSION, "g", "unknown")
    scene.timers.stop_all("g", "a")
    scene.timers.stop_all("unknown", "a")
    assert scene.timer.advance(100) == 0


def test_a_timer_can_be_started_when_it_expires() -> None:
    scene = Scene()
    scene.timers.start(SESSION, "g", "a", 100, lambda: scene.start("a"))
    scene.timer.advance(100)
    assert scene.timers.is_running(SESSION, "g", "a")
    scene.timer.advance(100)
    assert scene.expired == ["a"]


def test_ended_timers_do_nothing_and_are_cancelled_in_steps() -> None:
    scene = Scene()
    for number in range(200):
        scene.start(f"member-{number}")
    scene.start("other", "h")
    scene.timers.end("g")
    scene.timers.end("unknown")
    steps = scene.timers.cancel_ended()
    next(steps)
    assert not scene.timers.is_running(SESSION, "g", "member-0")
    scene.timer.advance(50)
    scene.start("member-0")  # of the group as it was loaded again
    scene.timer.advance(50)
    assert scene.expired == ["other"]
    run_at_once(steps)
    scene.timer.advance(50)
    assert scene.expired == ["other", "member-0"]


def test_groups_that_end_in_a_pause_are_cancelled_too() -> None:
    scene = Scene()
    for number in range(100):
        scene.start(f"member-{number}")
        scene.start(f"member-{number}", "h")
    scene.timers.end("g")
    steps = scene.timers.cancel_ended()
    next(steps)
    scene.timers.end("h")
    run_at_once(steps)
    assert scene.timer.advance(100) == 0
