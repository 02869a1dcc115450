from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ottla.storage.remote.chunk_cache import ChunkCache


def content(size: int, calls: list[int]) -> Callable[[], bytes]:
    def load() -> bytes:
        calls.append(size)
        return bytes(size)

    return load


def test_a_chunk_is_loaded_once() -> None:
    cache = ChunkCache(100)
    calls: list[int] = []
    assert cache.get(("a", 0), content(10, calls)) == cache.get(("a", 0), content(10, calls))
    assert calls == [10]
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_chunk_that_is_not_in_memory_is_not_loaded() -> None:
    cache = ChunkCache(100)
    assert cache.get_if_cached(("a", 0)) is None
    found = cache.get(("a", 0), content(10, []))
    assert cache.get_if_cached(("a", 0)) is found


def test_the_least_recently_used_chunk_is_dropped() -> None:
    cache = ChunkCache(30)
    calls: list[int] = []
    for number in (0, 1, 2, 0, 3):
        cache.get(("a", number), content(10, calls))
    assert cache.size_bytes == 30
    assert [cache.has(("a", number)) for number in range(4)] == [True, False, True, True]


def test_a_chunk_larger_than_the_cache_is_not_kept() -> None:
    cache = ChunkCache(9)
    assert cache.get(("a", 0), content(10, [])) == bytes(10)
    assert cache.size_bytes == 0


def test_the_chunks_of_a_deleted_object_are_forgotten() -> None:
    cache = ChunkCache(100)
    for key in ("a", "b"):
        cache.get((key, 0), content(10, []))
    cache.drop("a")
    assert cache.size_bytes == 10
    assert not cache.has(("a", 0))


def test_an_error_is_raised_and_not_kept() -> None:
    cache = ChunkCache(100)

    def fail() -> bytes:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        cache.get(("a", 0), fail)
    assert cache.get(("a", 0), lambda: b"here") == b"here"


@pytest.mark.parametrize("fails", [False, True])
def test_threads_share_one_load(fails: bool) -> None:
    cache = ChunkCache(100)
    started = threading.Event()
    may_end = threading.Event()
    results: list[object] = []
    loads: list[int] = []

    def load() -> bytes:
        loads.append(1)
        started.set()
        may_end.wait(30)
        if fails:
            raise OSError("away")
        return b"content"

    def read() -> None:
        try:
            results.append(cache.get(("a", 0), load))
        except OSError as error:
            results.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    threads[0].start()
    started.wait(30)
    for thread in threads[1:]:
        thread.start()
    while cache.hits < 3:  # all of them wait
        threading.Event().wait(0.001)
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert results == ["away" if fails else b"content"] * 4
    assert loads == [1]
