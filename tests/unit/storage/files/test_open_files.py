"""Descriptors that close themselves, and the bound on open ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.storage.files.fs import READ_ONLY, RealFileSystem
from ottla.storage.files.open_files import (
    FileSlice,
    OpenFile,
    OpenFiles,
    drop_cached,
    is_cached,
    knows_what_is_cached,
    read_if_cached,
)


class Holding:
    def __init__(self) -> None:
        self.recently_used = False
        self.released = False

    def release(self) -> None:
        self.released = True


def test_a_descriptor_lives_as_long_as_a_slice_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    file = OpenFile(RealFileSystem(), str(path), READ_ONLY)
    descriptor = file.descriptor
    piece = FileSlice(file, 2, 3)
    del file
    assert len(piece) == 3
    assert piece.read() == b"234"
    assert piece.fd == descriptor
    assert "position=2" in repr(piece)
    del piece
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_the_one_not_used_lately_is_let_go() -> None:
    files = OpenFiles(3)
    holders = [Holding() for _ in range(3)]
    for holder in holders:
        files.admit(holder)
    for holder in holders:
        holder.recently_used = False
    holders[0].recently_used = True
    files.admit(Holding())
    assert [holder.released for holder in holders] == [False, True, False]
    assert len(files) == 3


def test_when_all_are_in_use_one_has_to_go() -> None:
    files = OpenFiles(2)
    holders = [Holding(), Holding()]
    for holder in holders:
        files.admit(holder)
    files.admit(Holding())
    assert sum(holder.released for holder in holders) == 1
    assert len(files) == 2


def test_forgotten_holders_count_no_more() -> None:
    files = OpenFiles(2)
    holder = Holding()
    files.admit(holder)
    files.forget(holder)
    files.forget(holder)
    assert len(files) == 0
    assert not holder.released


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
