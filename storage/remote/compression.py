"""Zstandard with the size of the content in each frame, as Aiven's plugin needs it to decompress.

The package `zstandard` comes with the extra `tiered`. It is imported with the first compressed
segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.remote.remote_storage import RemoteStorageError

if TYPE_CHECKING:
    from types import ModuleType


def compress(content: bytes | memoryview) -> bytes:
    """One frame. Raises RemoteStorageError if the package is not installed."""
    compressed: bytes = _zstandard().ZstdCompressor(write_content_size=True).compress(content)
    return compressed


def decompress(frame: bytes | memoryview, max_size: int) -> bytes:
    """The content of one frame.

    Raises ValueError if the frame is invalid, has no size in its header, or one above `max_size`
    bytes; no memory is allocated then. Raises RemoteStorageError if the package is not installed.
    """
    zstandard = _zstandard()
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= max_size:
            raise ValueError(f"a compressed chunk of {size} bytes, expected at most {max_size}")
        content: bytes = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed chunk is invalid: {error}") from None
    if len(content) != size:
        raise ValueError(f"a compressed chunk has {len(content)} bytes, expected {size}")
    return content


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise RemoteStorageError(
            "Compressed segments need the package zstandard: pip install 'ottla[tiered]'"
        ) from None
    return zstandard
