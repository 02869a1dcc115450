from __future__ import annotations

import pytest

from ottla.broker.net import large_frames as module
from ottla.broker.net.large_frames import (
    BUFFER_BYTES,
    LONG_BYTES,
    MAX_BUFFERS,
    FrameBuffers,
    LargeFrames,
)
from ottla.broker.net.services import ListenerFacts
from ottla.broker.requests.request_channel import ANONYMOUS, Principal

PRODUCE, FETCH, METADATA, UPDATE_METADATA = 0, 1, 3, 6


class Client:
    is_broker = False
    authenticated = True
    listener = ListenerFacts("PLAINTEXT")

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


def test_a_fetch_is_of_a_broker_only_if_its_client_is_known_as_one() -> None:
    frames, client = LargeFrames(), Client()
    assert not frames.is_of_broker(client, FETCH)
    assert frames.is_of_broker(client, UPDATE_METADATA), "without an authorizer everybody may"
    assert not frames.is_of_broker(client, PRODUCE)
    client.is_broker = True
    assert frames.is_of_broker(client, FETCH)
    client.authenticated = False
    assert not frames.is_of_broker(client, FETCH), "before it is who it says"


@pytest.mark.parametrize("may", [True, False])
def test_with_an_authorizer_those_are_brokers_that_may_act_on_the_cluster(may: bool) -> None:
    frames, client = LargeFrames(may_send=lambda client, api_key: may), Client()
    client.is_broker = True
    assert frames.is_of_broker(client, FETCH) == may
    assert frames.is_of_broker(client, UPDATE_METADATA) == may


def test_all_that_comes_to_the_listener_of_brokers_is_of_one() -> None:
    client = Client()
    client.listener = ListenerFacts("INTERNAL", of_brokers=True)
    assert LargeFrames().is_of_broker(client, PRODUCE)


LONG = LONG_BYTES + 1


def place_of(view: memoryview) -> int:
    return id(view.obj)


def test_a_buffer_is_used_again_when_it_has_no_view() -> None:
    buffers = FrameBuffers()
    first = buffers.take(LONG)
    assert first is not None
    assert len(first) == LONG
    assert not first.readonly
    place = place_of(first)
    records = first[100:200]
    records[:] = b"r" * 100
    del first
    second = buffers.take(BUFFER_BYTES)
    assert second is not None
    assert place_of(second) != place
    second[:] = bytes(BUFFER_BYTES)
    assert bytes(records) == b"r" * 100
    del records
    third = buffers.take(LONG)
    assert third is not None
    assert place_of(third) == place


def test_there_are_so_many() -> None:
    buffers = FrameBuffers()
    taken = [buffers.take(LONG) for _ in range(MAX_BUFFERS)]
    assert None not in taken
    assert buffers.take(LONG) is None
    taken.pop()
    assert buffers.take(LONG) is not None
    assert buffers.take(BUFFER_BYTES + 1) is None


@pytest.mark.parametrize("size", [5, LONG])
@pytest.mark.parametrize("behind", [b"", b"next"])
def test_a_frame_that_is_complete_needs_no_buffer(size: int, behind: bytes) -> None:
    frame = FrameBuffers().begin(bytearray(b"size" + b"x" * size + behind), 4, size)
    assert frame == b"x" * size
    assert isinstance(frame, bytearray)


def test_what_is_received_of_a_long_frame_is_copied() -> None:
    frame = FrameBuffers().begin(bytearray(b"size" + b"x" * 10), 4, LONG)
    assert isinstance(frame, memoryview)
    assert len(frame) == LONG
    assert frame[:10] == b"x" * 10


def test_the_beginning_of_a_short_frame_and_of_one_without_a_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffers = FrameBuffers()
    assert buffers.begin(bytearray(b"size" + b"x" * 10), 4, LONG_BYTES) == b"x" * 10
    monkeypatch.setattr(module, "MAX_BUFFERS", 0)
    assert buffers.begin(bytearray(b"size" + b"x" * 10), 4, LONG) == b"x" * 10
