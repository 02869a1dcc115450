from __future__ import annotations

import sys

import pytest
import zstandard

from ottla.storage.remote.compression import compress, decompress
from ottla.storage.remote.remote_storage import RemoteStorageError


def test_a_frame_says_the_size_of_its_content() -> None:
    frame = compress(b"content" * 1000)
    assert zstandard.frame_content_size(frame) == 7000
    assert decompress(frame, 7000) == b"content" * 1000


def test_a_larger_content_is_not_decompressed() -> None:
    with pytest.raises(ValueError, match="expected at most 6999"):
        decompress(compress(bytes(7000)), 6999)


def test_a_frame_without_a_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"content")
    with pytest.raises(ValueError, match="expected at most"):
        decompress(frame, 100)


@pytest.mark.parametrize("frame", [b"", b"no frame", compress(b"content" * 9)[:-3]])
def test_other_bytes_are_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="compressed chunk"):
        decompress(frame, 100)


def test_without_the_package_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RemoteStorageError, match=r"pip install 'ottla\[tiered\]'"):
        compress(b"")
