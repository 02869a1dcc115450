from __future__ import annotations

from ottla.broker.net.large_frames import LargeFrames
from ottla.broker.requests.request_channel import ANONYMOUS, Principal

PRODUCE, METADATA, UPDATE_METADATA = 0, 3, 6


class Client:
    def __init__(self, host: str = "10.0.0.1") -> None:
        self.client_host = host
        self.principal: Principal = ANONYMOUS
        self.calls = 0

    def room_available(self) -> None:
        self.calls += 1


def test_only_records_and_states_of_controllers_may_be_long() -> None:
    frames = LargeFrames(1000)
    assert frames.may_receive(Client(), METADATA, 1000)
    assert not frames.may_receive(Client(), METADATA, 1001)
    assert frames.may_receive(Client(), PRODUCE, 1001)
    assert frames.may_receive(Client(), UPDATE_METADATA, 1001)


def test_without_the_right_nothing_may_be_long() -> None:
    asked: list[int] = []

    def may_send(client: object, api_key: int) -> bool:
        asked.append(api_key)
        return False

    frames = LargeFrames(1000, may_send=may_send)
    assert frames.may_receive(Client(), PRODUCE, 1000)
    assert asked == []  # only where it decides
    assert not frames.may_receive(Client(), PRODUCE, 1001)
    assert not frames.may_receive(Client(), UPDATE_METADATA, 1001)
    assert asked == [PRODUCE, UPDATE_METADATA]


def test_an_address_has_its_share_and_always_one() -> None:
    frames = LargeFrames(max_address_bytes=100)
    assert frames.has_room("a", 1000)
    frames.reserve("a", 1000)
    assert not frames.has_room("a", 1)
    assert frames.has_room("b", 1)
    frames.release("a", 1000)
    frames.reserve("a", 60)
    assert frames.has_room("a", 40)
    assert not frames.has_room("a", 41)
    frames.release("a", 60)
    assert frames.in_progress("a") == 0


def test_those_that_wait_look_again_when_something_is_released() -> None:
    frames = LargeFrames(max_address_bytes=100)
    waiting, other = Client(), Client("10.0.0.2")
    frames.reserve(waiting.client_host, 100)
    frames.reserve(other.client_host, 100)
    frames.wait(waiting)
    assert frames.has_waiters
    frames.release(other.client_host, 100)
    assert waiting.calls == 0
    frames.release(waiting.client_host, 100)
    assert waiting.calls == 1
    assert not frames.has_waiters
