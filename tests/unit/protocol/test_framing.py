import pytest

from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import LONG_BUFFER_BYTES, FrameSplitter


def test_nothing_comes_out_before_a_frame_is_whole() -> None:
    splitter = FrameSplitter(100)
    for byte in b"\x00\x00\x00\x03ab":
        splitter.feed(bytes([byte]))
        assert splitter.next_frame() is None
    splitter.feed(b"c")
    assert splitter.next_frame() == b"abc"
    assert splitter.next_frame() is None


def test_several_frames_at_once_and_empty_ones() -> None:
    splitter = FrameSplitter(100)
    splitter.feed(b"\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x02bc\x00")
    assert [splitter.next_frame() for _ in range(4)] == [b"a", b"", b"bc", None]
    assert splitter.buffered == 1


def test_frames_belong_to_the_caller() -> None:
    splitter = FrameSplitter(100)
    splitter.feed(b"\x00\x00\x00\x01a")
    first = splitter.next_frame()
    assert first is not None
    view = memoryview(first)
    splitter.feed(b"\x00\x00\x00\x01b")
    view[0] = 0
    assert splitter.next_frame() == b"b"


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\xff\xff\xff\xff", "cannot have -1 bytes"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes is larger than the 100 allowed"),
        (b"\x00\x00\x00\x65", "101 bytes is larger"),
        (b"GET ", "is larger than the 100 allowed"),
    ],
)
def test_bad_sizes_are_seen_as_soon_as_they_are_there(head: bytes, reason: str) -> None:
    splitter = FrameSplitter(100)
    splitter.feed(head)
    with pytest.raises(ProtocolError, match=reason) as caught:
        splitter.next_frame()
    assert caught.value.api == "frame"
    with pytest.raises(ProtocolError):
        _ = splitter.missing


def test_a_frame_of_the_largest_size_passes() -> None:
    splitter = FrameSplitter(3)
    splitter.feed(b"\x00\x00\x00\x03abc")
    assert splitter.next_frame() == b"abc"


def test_missing_is_how_much_to_read() -> None:
    splitter = FrameSplitter(100)
    assert splitter.missing == 4
    splitter.feed(b"\x00\x00")
    assert splitter.missing == 2
    splitter.feed(b"\x00\x05ab")
    assert splitter.missing == 3
    splitter.feed(b"cde")
    assert splitter.missing == 0


def test_peek_leaves_the_bytes() -> None:
    splitter = FrameSplitter(100)
    splitter.feed(b"GET / HTTP")
    assert splitter.peek(4) == b"GET "
    assert splitter.buffered == 10


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("piece", [1000, 65536, 65537, 300_000])
def test_long_frames_between_short_ones(piece: int) -> None:
    contents = [b"a" * 10, b"b" * 200_000, b"", b"c" * LONG_BUFFER_BYTES, b"d" * 70_000, b"e"]
    contents.append(b"f" * (LONG_BUFFER_BYTES + 1))
    stream = b"".join(framed(content) for content in contents)
    splitter = FrameSplitter(LONG_BUFFER_BYTES + 1)
    found, taken = [], 0
    for start in range(0, len(stream), piece):
        splitter.feed(memoryview(stream)[start : start + piece])
        assert splitter.buffered == min(start + piece, len(stream)) - taken
        while (frame := splitter.next_frame()) is not None:
            found.append(bytes(frame))
            taken += 4 + len(frame)
            assert splitter.buffered == min(start + piece, len(stream)) - taken
    assert found == contents


def test_a_long_frame_is_received_where_it_stays() -> None:
    splitter = FrameSplitter(1 << 20)
    content = bytes(range(250)) * 400
    assert splitter.room is None
    splitter.feed(framed(content)[:50])
    assert splitter.room is None  # the size was not read yet
    assert splitter.next_frame() is None
    while (room := splitter.room) is not None:
        count = min(len(room), 30_000)
        done = len(content) - len(room)
        assert splitter.missing == len(room)
        room[:count] = content[done : done + count]
        splitter.received(count)
    splitter.feed(framed(b"next"))
    frames = [splitter.next_frame() for _ in range(3)]
    assert frames == [content, b"next", None]


def test_the_memory_of_a_long_frame_is_used_again_when_no_view_of_it_exists() -> None:
    def next_long(content: bytes) -> bytearray | memoryview:
        splitter.feed(framed(content)[:-1])
        assert splitter.next_frame() is None
        splitter.feed(content[-1:])
        frame = splitter.next_frame()
        assert frame is not None
        assert frame == content
        return frame

    splitter = FrameSplitter(1 << 20)
    first = next_long(b"a" * 100_000)
    assert isinstance(first, memoryview)
    memory = first.obj
    part = first[10:20]
    del first
    second = next_long(b"b" * 100_000)  # the part of the first one is in use
    assert part == b"a" * 10
    assert isinstance(second, bytearray)
    del part
    third = next_long(b"c" * 90_000)
    assert isinstance(third, memoryview)
    assert third.obj is memory
    assert second == b"b" * 100_000
