"""Responses that are sent together."""

from __future__ import annotations

import pytest

from ottla.broker.requests.held_responses import MAX_HELD, MAX_HELD_SECONDS, HeldResponses


class Sent(list[int]):
    def flush(self, number: int, held: HeldResponses, now: float = 0.0) -> None:
        held.add(lambda: self.append(number), now)


def test_they_are_sent_at_the_end_in_their_order() -> None:
    held, sent = HeldResponses(), Sent()
    held.is_open = True
    assert held.is_open
    for number in range(3):
        sent.flush(number, held)
    assert not sent
    held.end()
    assert sent == [0, 1, 2]
    assert not held.is_open
    held.end()
    assert sent == [0, 1, 2]


def test_so_many_are_due_before_the_end() -> None:
    held, sent = HeldResponses(), Sent()
    held.is_open = True
    for number in range(MAX_HELD):
        assert not held.is_due(0.0)
        sent.flush(number, held)
    assert held.is_due(0.0)
    held.flush()
    assert sent == list(range(MAX_HELD))
    assert not held.is_due(0.0)
    sent.flush(MAX_HELD, held)
    held.end()
    assert len(sent) == MAX_HELD + 1


def test_the_first_one_waits_for_a_bounded_time() -> None:
    held, sent = HeldResponses(), Sent()
    held.is_open = True
    assert not held.is_due(100.0)
    sent.flush(0, held, 1.0)
    assert not held.is_due(1.0 + MAX_HELD_SECONDS / 2)
    assert held.is_due(1.0 + 2 * MAX_HELD_SECONDS)
    sent.flush(1, held, 1.0 + MAX_HELD_SECONDS / 2)
    assert not sent
    held.flush()
    assert sent == [0, 1]
    assert not held.is_due(100.0)


def test_work_that_sends_several_responses_holds_them() -> None:
    held, sent = HeldResponses(), Sent()

    def work() -> None:
        assert held.is_open
        assert held.expects_more
        sent.flush(0, held)
        held.run(lambda: sent.flush(1, held))
        assert not sent  # the outer one sends

    held.run(work)
    assert sent == [0, 1]
    assert not held.is_open
    assert not held.expects_more


def test_work_that_fails_sends_what_it_held() -> None:
    held, sent = HeldResponses(), Sent()

    def work() -> None:
        sent.flush(0, held)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        held.run(work)
    assert sent == [0]
    assert not held.is_open
