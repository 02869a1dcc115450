from __future__ import annotations

import pytest

from ottla.storage.remote.custom_metadata import CustomMetadata
from ottla.storage.remote.remote_storage import RemoteObjectCorruptError


def test_the_bytes_of_kafkas_tagged_fields() -> None:
    fields = CustomMetadata(remote_size=100, object_key="foo")
    encoded = fields.encode()
    # Two fields: tag 0 with the zigzag varlong 200, tag 2 with a compact string.
    assert encoded == bytes([2, 0, 2, 0xC8, 1, 2, 4, 4]) + b"foo"
    assert len(encoded) == 11  # as the plugin's own test has it
    assert CustomMetadata.decode(encoded) == fields


def test_all_fields() -> None:
    fields = CustomMetadata(1 << 40, "prefix/", "k" * 200)
    assert CustomMetadata.decode(fields.encode()) == fields


def test_only_included_fields_are_written() -> None:
    fields = CustomMetadata(5, "prefix/", "key")
    assert CustomMetadata.decode(fields.encode(["REMOTE_SIZE"])) == CustomMetadata(5)
    assert fields.encode([]) is None
    assert CustomMetadata.decode(None) == CustomMetadata.decode(b"") == CustomMetadata()


def test_unknown_tags_are_skipped() -> None:
    assert CustomMetadata.decode(bytes([2, 0, 1, 10, 9, 3, 1, 2, 3])) == CustomMetadata(5)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",  # no tag
        bytes([1, 0, 9, 1]),  # longer than the rest
        bytes([1, 1, 3, 9, 65, 65]),  # a string longer than its field
        bytes([1, 1, 2, 2, 0xFF]),  # no UTF-8
        b"\xff" * 11,  # a number without an end
        bytes([127]) + bytes(100),  # too many fields
        bytes(5000),
    ],
)
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(RemoteObjectCorruptError, match="custom metadata"):
        CustomMetadata.decode(data)
