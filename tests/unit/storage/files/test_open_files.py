"""Descriptors that close themselves, and the bound on open ones."""

import os
from pathlib import Path

import pytest

from ottla.storage.files.fs import READ_ONLY, RealFileSystem
from ottla.storage.files.open_files import FileSlice, OpenFile, OpenFiles


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
