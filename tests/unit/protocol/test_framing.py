import pytest

from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import FrameSplitter


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
