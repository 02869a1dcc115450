from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.storage.files.page_cache import (
    drop_cached,
    is_cached,
    knows_what_is_cached,
    read_if_cached,
)


def opened(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return os.open(path, os.O_RDONLY)


def test_cached_bytes_are_read_or_it_is_not_known(tmp_path: Path) -> None:
    descriptor = opened(tmp_path)
    expected = b"234" if knows_what_is_cached(descriptor) else None
    assert read_if_cached(descriptor, 3, 2) == expected
    assert read_if_cached(descriptor, 3, 8) is None, "the file ends before"
    assert is_cached(descriptor, 2, 8) == (expected is not None)
    assert not is_cached(descriptor, 2, 9)
    drop_cached(descriptor, 0, 10)
    assert os.pread(descriptor, 10, 0) == b"0123456789"
    os.close(descriptor)


def test_bytes_that_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def would_block(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", would_block, raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    assert knows_what_is_cached(0)
    assert read_if_cached(0, 3, 2) is None
    assert not is_cached(0, 3, 2)


def test_a_system_without_such_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    drop_cached(0, 0, 10)
    assert not knows_what_is_cached(0)
    assert read_if_cached(0, 3, 2) is None
