"""Segments that Aiven's tiered storage plugin (of May 2026) copied to a folder, read by Ottla.

`tiered_storage/` has what the plugin's own classes wrote, with chunks of 1024 bytes: a segment as
it is and a compressed one. The same classes have read the segments that Ottla writes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.storage.remote.custom_metadata import CustomMetadata
from ottla.storage.remote.object_keys import main_path
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import RemoteIndexType
from tests.doubles.remote_segments import segment_content, segment_files, segment_metadata

GOLDEN = Path(__file__).parent / "tiered_storage"
CONTENT = segment_content(3000)
METADATA = segment_metadata(len(CONTENT))
KINDS = ("plain", "compressed")
# From the plugin's SegmentCustomMetadataSerde, with all three fields.
CUSTOM_METADATA = (
    "030005eaf0e0fd5b010303702f024b4b746f7069632d4d474a364648546652596179376a7a775a64657153512f372f"
    "30303030303030303030303030303030313233342d7471696d4b5a357753744f454f77527a54334c356f51"
)


def storage(root: Path, kind: str = "plain") -> ObjectRemoteStorage:
    return open_remote_storage({
        "storage.backend.class": "filesystem",
        "storage.root": str(root),
        "key.prefix": "p/",
        "chunk.size": "1024",
        "compression.enabled": "true" if kind == "compressed" else "false",
    })  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_the_plugin_are_read(kind: str) -> None:
    remote = storage(GOLDEN / kind)
    assert remote.fetch_log_segment(METADATA, 0, 5000) == CONTENT
    assert remote.fetch_log_segment(METADATA, 1000, 2100) == CONTENT[1000:2100]
    for index_type in RemoteIndexType:
        expected = f"the index {index_type.name}".encode()
        assert remote.fetch_index(METADATA, index_type) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_ottla_writes_the_same_objects(tmp_path: Path, kind: str) -> None:
    (tmp_path / "remote").mkdir()
    remote = storage(tmp_path / "remote", kind)
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    [written] = (tmp_path / "remote").rglob("*.rsm-manifest")
    [golden] = (GOLDEN / kind).rglob("*.rsm-manifest")
    assert written.relative_to(tmp_path / "remote") == golden.relative_to(GOLDEN / kind)
    mine, plugins = json.loads(written.read_bytes()), json.loads(golden.read_bytes())
    assert list(mine) == list(plugins)
    assert list(mine["chunkIndex"]) == list(plugins["chunkIndex"])
    assert list(mine["segmentIndexes"]) == list(plugins["segmentIndexes"])
    del mine["remoteLogSegmentMetadata"]["checksums"]  # the plugin skips them
    assert mine["remoteLogSegmentMetadata"] == plugins["remoteLogSegmentMetadata"]
    if kind == "plain":  # compressed sizes depend on the version of Zstandard
        assert mine["chunkIndex"] == plugins["chunkIndex"]
        assert written.with_suffix(".log").read_bytes() == golden.with_suffix(".log").read_bytes()


def test_custom_metadata_of_the_plugin() -> None:
    fields = CustomMetadata(12345678901, "p/", main_path(METADATA))
    encoded = fields.encode()
    assert encoded is not None
    assert encoded.hex() == CUSTOM_METADATA
    assert CustomMetadata.decode(bytes.fromhex(CUSTOM_METADATA)) == fields
