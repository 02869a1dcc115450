import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.net import output as output_module
from ottla.broker.net.output import (
    BLOCKED,
    COLD,
    DONE,
    SMALL_BYTES,
    TOGETHER_BYTES,
    FileTruncated,
    Output,
    TurnLimit,
    is_cached,
    join_if_small,
    read_if_cached,
    warm,
)


class Slice:
    """A part of a file, as the log hands it out."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd = fd
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length


CONTENT = random.Random(1).randbytes(3_000_000)


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("output") / "segment.log"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def drain(theirs: socket.socket) -> bytes:
    received = bytearray()
    while True:
        try:
            data = theirs.recv(1 << 16)
        except BlockingIOError:
            return bytes(received)
        if not data:
            return bytes(received)
        received += data


def send_all(output: Output, theirs: socket.socket) -> bytes:
    received = b""
    while (state := output.flush()) != DONE:
        assert state == BLOCKED
        received += drain(theirs)
    return received + drain(theirs)


parts_strategy = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map(bytearray),
        st.binary(max_size=300).map(memoryview),
        st.tuples(st.integers(0, 1_000_000), st.integers(0, 400_000)),
    ),
    max_size=12,
)


@given(st.lists(parts_strategy, min_size=1, max_size=4))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_everything_arrives_in_order(fd: int, responses: list[list[Any]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        statistics = NetworkStatistics()
        output = Output(ours, statistics)
        expected = received = b""
        large = small = 0  # bytes of file parts
        for response in responses:
            parts = []
            for part in response:
                if isinstance(part, tuple):
                    position, length = part
                    parts.append(Slice(fd, position, length))
                    expected += CONTENT[position : position + length]
                    if length > TOGETHER_BYTES:
                        large += length
                    else:
                        small += length
                else:
                    parts.append(part)
                    expected += bytes(part)
            output.add(parts)
            output.flush()
            received += drain(theirs)
        received += send_all(output, theirs)
        assert received == expected
        assert statistics.bytes_out == len(expected)
        # Small parts are read, except on file systems that cannot tell whether that would block.
        assert large <= statistics.sendfile_bytes <= large + small
        assert all(part is None for part in output._parts)  # nothing is kept open


def test_more_buffers_than_one_call_takes(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    output = Output(ours, NetworkStatistics())
    parts = [bytes([n % 256]) * 7 for n in range(2_000)]
    output.add(parts)
    assert send_all(output, theirs) == b"".join(parts)


def test_a_turn_has_a_share(
    pair: tuple[socket.socket, socket.socket], fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "MAX_TURN_BYTES", 10_000)
    ours, theirs = pair
    statistics = NetworkStatistics()
    output = Output(ours, statistics)
    output.add([Slice(fd, 0, 25_000)])
    sent = []
    while output.flush() != DONE:
        sent.append(statistics.bytes_out)
    assert sent == [10_000, 20_000]
    assert drain(theirs) == CONTENT[:25_000]


def turns(output: Output, statistics: NetworkStatistics, theirs: socket.socket) -> list[int]:
    """What each turn sent, while the client takes all of it."""
    sent = []
    while True:
        before = statistics.bytes_out
        state = output.flush()
        sent.append(statistics.bytes_out - before)
        drain(theirs)
        if state == DONE:
            return sent


@pytest.mark.parametrize("of_file", [True, False])
def test_turns_are_short_while_small_responses_are_sent(
    pair: tuple[socket.socket, socket.socket],
    fd: int,
    monkeypatch: pytest.MonkeyPatch,
    of_file: bool,
) -> None:
    monkeypatch.setattr(output_module, "MAX_TURN_BYTES", 40_000)
    monkeypatch.setattr(output_module, "SHARED_TURN_BYTES", 10_000)
    monkeypatch.setattr(output_module, "BULK_BYTES", 1_000)
    monkeypatch.setattr(output_module, "SHARED_TURNS", 4)
    ours, theirs = pair
    statistics, limit = NetworkStatistics(), TurnLimit()
    part: object = Slice(fd, 0, 80_000) if of_file else memoryview(CONTENT)[:80_000]

    def large() -> list[int]:
        output = Output(ours, statistics, limit)
        output.add([b"head", part])
        return turns(output, statistics, theirs)

    assert large() == [40_000, 40_000, 4]
    statistics.bytes_out += 60  # a small response, by the other path
    assert large() == [10_000, 10_000, 10_000, 10_000, 40_000, 4]
    small = Output(ours, statistics, limit)
    small.add([b"x" * 900])
    assert turns(small, statistics, theirs) == [900]
    assert large()[:2] == [10_000, 10_000]


def test_buffers_are_cut_to_the_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    output = Output(ours, NetworkStatistics())
    parts = [b"a" * 300, memoryview(b"b" * 700), b"c" * 10]
    for limit, expected in ((1_010, 1_010), (1_000, 1_000), (300, 300), (299, 299), (301, 301)):
        output = Output(ours, NetworkStatistics())
        output.add(parts)
        assert output._send_buffers(limit) == expected
        assert drain(theirs) == b"".join(map(bytes, parts))[:expected]


def test_a_file_that_is_too_short_is_an_error(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    path = tmp_path / "short.log"
    path.write_bytes(b"x" * 100)
    with path.open("rb") as file:
        output = Output(pair[0], NetworkStatistics())
        output.add([b"head", Slice(file.fileno(), 50, 100)])
        assert output.flush() == BLOCKED  # less than it requested: it looks like a full socket
        with pytest.raises(FileTruncated, match="50 bytes are missing"):
            output.flush()
        assert drain(pair[1]) == b"head" + b"x" * 50


def test_a_broken_connection_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    output = Output(ours, NetworkStatistics())
    output.add([b"x"])
    with pytest.raises(OSError, match="pipe"):
        output.flush()


def test_cold_parts_are_left_to_a_thread_that_may_wait(
    pair: tuple[socket.socket, socket.socket], fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "MAX_TURN_BYTES", 40_000)
    asked: list[tuple[int, int, int]] = []

    def nothing_is_cached(*where: int) -> bool:
        asked.append(where)
        return False

    monkeypatch.setattr(output_module, "is_cached", nothing_is_cached)
    ours, theirs = pair
    output = Output(ours, NetworkStatistics())
    part = Slice(fd, 500, 100_000)
    output.add([b"head", part, b"tail"])
    warmed = []
    received = b""
    while (state := output.flush()) != DONE:
        received += drain(theirs)
        if state == COLD:
            found, position, length = output.cold_part()
            assert found is part
            warmed.append((position, length))
            warm(part.fd, position, length)
            output.warmed()
    received += drain(theirs)
    assert received == b"head" + CONTENT[500:100_500] + b"tail"
    assert warmed == [(500, 40_000), (40_500, 40_000), (80_500, 20_000)]
    assert asked == [(fd, position, length) for position, length in warmed]


def test_what_was_just_written_is_cached(fd: int) -> None:
    assert is_cached(fd, 0, len(CONTENT))
    assert is_cached(fd, 5, 1)


@pytest.mark.parametrize("missing", ["preadv", "RWF_NOWAIT"])
def test_where_it_cannot_be_known_everything_counts_as_cached(
    fd: int, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, missing)
    assert is_cached(fd, 0, 10)


def test_cached_is_checked_for_both_ends_of_long_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def probe(_: int, buffers: object, position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        asked.append(position)
        if position == 0:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", probe)
    assert is_cached(3, 0, 100_000)
    assert asked == [99_999]
    assert not is_cached(3, 0, 200_000)
    assert asked[1:] == [199_999, 0]


def test_a_disk_error_is_not_taken_for_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output"):
        is_cached(3, 0, 10)


class TestSmallParts:
    """Copying a little is cheaper than the system calls that would avoid it."""

    @pytest.fixture(autouse=True)
    def everything_is_cached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # On a file system that can tell; the real call is in the other tests.
        preadv = os.preadv
        monkeypatch.setattr(
            os, "preadv", lambda fd, buffers, position, flags=0: preadv(fd, buffers, position)
        )

    def test_a_small_response_is_joined(self, fd: int) -> None:
        parts = [b"head", Slice(fd, 10, 100), bytearray(b"middle"), Slice(fd, 500, 7), b""]
        expected = b"head" + CONTENT[10:110] + b"middle" + CONTENT[500:507]
        assert join_if_small(parts) == expected
        assert join_if_small([b"x" * SMALL_BYTES]) == b"x" * SMALL_BYTES

    def test_a_large_one_is_not(self, fd: int) -> None:
        assert join_if_small([b"head", Slice(fd, 0, SMALL_BYTES)]) is None

    def test_small_parts_of_a_large_response_need_no_sendfile(
        self, pair: tuple[socket.socket, socket.socket], fd: int
    ) -> None:
        ours, theirs = pair
        statistics = NetworkStatistics()
        output = Output(ours, statistics)
        output.add([Slice(fd, n * 100, 100) for n in range(200)])
        assert send_all(output, theirs) == CONTENT[:20_000]
        assert statistics.sendfile_bytes == 0

    def test_small_parts_count_as_memory_until_they_are_sent(
        self, pair: tuple[socket.socket, socket.socket], fd: int
    ) -> None:
        """They are copies. A client that does not read would hold them uncounted."""
        output = Output(Calls(pair[0], most=10_000), NetworkStatistics())  # type: ignore[arg-type]
        output.add([b"head", *(Slice(fd, n * 8_000, 8_000) for n in range(3)), Slice(fd, 0, 9_000)])
        assert output.memory_bytes == 24_004
        left = []
        while output.flush() != DONE:
            left.append(output.memory_bytes)
        assert left == sorted(left, reverse=True)
        assert left[-1] == output.memory_bytes == 0
        assert drain(pair[1]) == b"head" + CONTENT[:24_000] + CONTENT[:9_000]

    def test_what_is_not_cached_or_too_short_is_left_to_sendfile(
        self, fd: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert read_if_cached(Slice(fd, len(CONTENT) - 5, 10)) is None

        def cold(*_: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr(os, "preadv", cold)
        assert read_if_cached(Slice(fd, 0, 10)) is None
        assert join_if_small([b"head", Slice(fd, 0, 10)]) is None


class Calls:
    """A socket that counts its calls."""

    def __init__(self, sock: socket.socket, most: int = 1 << 30) -> None:
        self.sent: list[int] = []
        self._sock = sock
        self._most = most

    def send(self, data: memoryview) -> int:
        self.sent.append(self._sock.send(data[: self._most]))
        return self.sent[-1]

    def sendmsg(self, buffers: list[Any], *more: Any) -> int:
        self.sent.append(self._sock.sendmsg(buffers, *more))
        return self.sent[-1]

    def fileno(self) -> int:
        return self._sock.fileno()


class TestTogether:
    """Parts of some kilobytes are copied: one send takes less time than five."""

    PARTS = (b"head", (100, 16_000), b"middle", (40_000, 16_000), b"tail")
    BYTES = b"head" + CONTENT[100:16_100] + b"middle" + CONTENT[40_000:56_000] + b"tail"

    def output(self, sock: Any, statistics: NetworkStatistics, fd: int) -> Output:
        output = Output(sock, statistics)
        output.add([Slice(fd, *each) if isinstance(each, tuple) else each for each in self.PARTS])
        return output

    @pytest.fixture
    def everything_is_cached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        preadv = os.preadv
        monkeypatch.setattr(
            os, "preadv", lambda fd, buffers, position, flags=0: preadv(fd, buffers, position)
        )

    def test_short_parts_of_files_take_one_send(
        self,
        pair: tuple[socket.socket, socket.socket],
        fd: int,
        everything_is_cached: None,
    ) -> None:
        statistics, calls = NetworkStatistics(), Calls(pair[0])
        output = self.output(calls, statistics, fd)
        assert output.flush() == DONE
        assert calls.sent == [len(self.BYTES)]
        assert drain(pair[1]) == self.BYTES
        assert (statistics.bytes_out, statistics.sendfile_bytes) == (len(self.BYTES), 0)
        assert all(part is None for part in output._parts)

    def test_what_the_socket_does_not_take_is_sent_later(
        self,
        pair: tuple[socket.socket, socket.socket],
        fd: int,
        everything_is_cached: None,
    ) -> None:
        calls = Calls(pair[0], most=10_000)
        output = self.output(calls, NetworkStatistics(), fd)
        states = [output.flush()]
        assert output._parts[0] is None
        while states[-1] != DONE:
            states.append(output.flush())
        assert states == [BLOCKED] * 3 + [DONE]
        assert drain(pair[1]) == self.BYTES

    def test_more_than_fits_goes_in_several(
        self,
        pair: tuple[socket.socket, socket.socket],
        fd: int,
        everything_is_cached: None,
    ) -> None:
        calls = Calls(pair[0])
        output = Output(calls, NetworkStatistics())  # type: ignore[arg-type]
        output.add([Slice(fd, n * 10_000, 10_000) for n in range(15)])
        assert send_all(output, pair[1]) == CONTENT[:150_000]
        assert calls.sent == [60_000, 60_000, 30_000]

    def test_a_cold_part_is_not_waited_for(
        self,
        pair: tuple[socket.socket, socket.socket],
        fd: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        preadv = os.preadv

        def second_is_cold(fd: int, buffers: list[Any], position: int, flags: int = 0) -> int:
            if position >= 40_000 and flags:
                raise BlockingIOError
            return preadv(fd, buffers, position)

        monkeypatch.setattr(os, "preadv", second_is_cold)
        calls = Calls(pair[0])
        output = self.output(calls, NetworkStatistics(), fd)
        assert output.flush() == COLD
        assert calls.sent == [4 + 16_000 + 6]
        assert output.cold_part()[1:] == (40_000, 16_000)
        output.warmed()
        assert output.flush() == DONE
        assert drain(pair[1]) == self.BYTES


def test_warm_requests_all_of_it_before_it_reads(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read = os.preadv
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(os, "preadv", lambda *arguments: calls.append("read") or read(*arguments))
    warm(fd, 500, 40_000)
    assert calls[:2] == [(fd, 500, 40_000, os.POSIX_FADV_WILLNEED), "read"]


def test_warm_stops_at_the_end_of_the_file(fd: int) -> None:
    warm(fd, len(CONTENT) - 10, 1_000_000)
