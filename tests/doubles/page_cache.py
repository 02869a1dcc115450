"""A file system that reports what is in its page cache, with all of it there."""

from __future__ import annotations

import pytest

from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote import object_files


def everything_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the folders of the tests are, and whatever the system drops from its cache."""
    monkeypatch.setattr(object_files, "knows_what_is_cached", lambda _: True)
    monkeypatch.setattr(object_files, "is_cached", lambda descriptor, position, length: True)
    monkeypatch.setattr(FileSlice, "read_if_cached", lambda part: bytearray(part.read()))
