"""The longest blocked turn of the event loop in the last minute."""

from ottla.broker.metrics.loop_stalls import MAX_TURNS, WINDOW_SECONDS, LoopHealth


def test_the_longest_turn_until_the_window_is_over() -> None:
    now = 0.0
    health = LoopHealth(lambda: now)
    assert health.longest() is None
    health.blocked(2.0, 1.5, "produce")
    now = 1.0
    health.blocked(0.1, 0.1, "fetch")
    longest = health.longest()
    assert longest is not None
    assert (longest.name, longest.seconds, longest.computed_seconds) == ("produce", 2.0, 1.5)
    now = WINDOW_SECONDS + 0.5
    longest = health.longest()
    assert longest is not None
    assert longest.name == "fetch"
    now = WINDOW_SECONDS + 2
    assert health.longest() is None


def test_the_turns_are_bounded() -> None:
    health = LoopHealth(lambda: 0.0)
    for number in range(2 * MAX_TURNS):
        health.blocked(float(number), 0.0, "x")
    assert len(health._turns) == MAX_TURNS
