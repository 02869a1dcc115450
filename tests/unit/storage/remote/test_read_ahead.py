from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.storage.remote import read_ahead
from ottla.storage.remote.read_ahead import ReadAhead
from ottla.storage.remote.remote_storage import RemoteStorageError


def has_none(_: tuple[str, int]) -> bool:
    return False


def reads(ahead: ReadAhead, *requests: range) -> list[bool]:
    return [ahead.continues("key", numbers) for numbers in requests]


def test_only_a_reader_that_continues_is_read_ahead() -> None:
    ahead = ReadAhead(lambda read: None)
    assert reads(ahead, range(3, 4), range(4, 5), range(7, 8), range(9, 12)) == [
        *(False, True, False, False)
    ]
    assert reads(ahead, range(11, 14), range(13, 15), range(15, 16)) == [True] * 3
    assert ahead.wanted("key", range(5, 7), has_none) == [5, 6]
    assert ahead.wanted("key", range(6, 8), lambda key: key == ("key", 7)) == []
    assert not ReadAhead(None).continues("key", range(1))


def test_a_reader_is_read_ahead_once_for_each_chunk() -> None:
    ahead = ReadAhead(lambda read: None)
    assert reads(ahead, range(1), range(1), range(1)) == [True, False, False], "from the begin"
    assert reads(ahead, range(2), range(1, 2), range(1, 2)) == [True, False, False]
    # A reader that begins anywhere continues with its second request.
    assert reads(ahead, range(8, 9), range(8, 9), range(8, 9)) == [False, True, False]
    # Another one comes through the same chunks.
    assert reads(ahead, range(7, 8), range(7, 8), range(8, 9)) == [False, True, True]


def test_two_readers_of_a_segment_are_both_read_ahead() -> None:
    ahead = ReadAhead(lambda read: None)
    reads(ahead, range(3, 4), range(20, 21))
    requests = [range(start, start + 1) for number in (4, 5, 6) for start in (number, number + 17)]
    assert reads(ahead, *requests) == [True] * 6


def test_few_readers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_MAX_READERS", 1)
    ahead = ReadAhead(lambda read: None)
    assert reads(ahead, range(3, 4), range(20, 21), range(4, 5)) == [False] * 3


def test_a_chunk_is_wanted_again_after_it_was_read() -> None:
    started: list[Callable[[], None]] = []
    ahead = ReadAhead(started.append)

    def fails() -> None:
        raise RemoteStorageError("the store is away")

    assert ahead.wanted("key", range(1, 2), has_none) == [1]
    ahead.start("key", 1, fails)
    assert ahead.wanted("key", range(1, 2), has_none) == []
    started[0]()
    assert ahead.wanted("key", range(1, 2), has_none) == [1]


def test_threads_that_shut_down() -> None:
    def refuses(_: Callable[[], None]) -> None:
        raise RuntimeError

    ahead = ReadAhead(refuses)
    assert ahead.wanted("key", range(1, 2), has_none) == [1]
    ahead.start("key", 1, lambda: None)
    assert ahead.wanted("key", range(1, 2), has_none) == [1]


def test_one_at_a_time_in_their_order() -> None:
    posted: list[Callable[[], None]] = []
    read: list[int] = []
    ahead = ReadAhead(posted.append, at_once=1)
    for number in ahead.wanted("key", range(1, 4), has_none):
        ahead.start("key", number, lambda number=number: read.append(number))  # type: ignore[misc]
    while posted:
        [first] = posted
        posted.clear()
        first()
    assert read == [1, 2, 3]
    assert ahead.wanted("key", range(1, 4), has_none) == [1, 2, 3]


def test_several_at_once_and_the_others_afterwards() -> None:
    posted: list[Callable[[], None]] = []
    read: list[int] = []
    ahead = ReadAhead(posted.append, at_once=2)
    for number in ahead.wanted("key", range(1, 6), has_none):
        ahead.start("key", number, lambda number=number: read.append(number))  # type: ignore[misc]
    assert len(posted) == 2
    while posted:
        posted.pop()()
        assert len(posted) <= 2
    assert sorted(read) == [1, 2, 3, 4, 5]


def test_what_waits_is_forgotten_when_threads_shut_down() -> None:
    posted: list[Callable[[], None]] = []

    def post(function: Callable[[], None]) -> None:
        if posted:
            raise RuntimeError
        posted.append(function)

    ahead = ReadAhead(post, at_once=1)
    for number in ahead.wanted("key", range(1, 4), has_none):
        ahead.start("key", number, lambda: None)
    posted[0]()
    assert ahead.wanted("key", range(1, 4), has_none) == [1, 2, 3]
