from __future__ import annotations

from pathlib import Path

import pytest

from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.store_settings import RemoteStorageSettingsError
from tests.doubles.remote_segments import segment_content, segment_files, segment_metadata

FILE_SYSTEM = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"


def settings(root: Path, **more: str) -> dict[str, str]:
    return {
        "storage.backend.class": FILE_SYSTEM,
        "storage.root": str(root),
        "chunk.size": "4096",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_a_folder_as_remote_storage(tmp_path: Path) -> None:
    root = tmp_path / "remote"
    root.mkdir()
    storage = open_remote_storage(settings(root, key_prefix="cluster/"))
    content = segment_content(10_000)
    metadata = segment_metadata(len(content))
    assert storage.copy_log_segment(metadata, segment_files(tmp_path / "log", content)) is None
    assert storage.fetch_log_segment(metadata, 0, len(content)) == content
    directory = root / "cluster" / "topic-MGJ6FHTfRYay7jzwZdeqSQ" / "7"
    assert sorted(path.suffix for path in directory.iterdir()) == [
        ".indexes",
        ".log",
        ".rsm-manifest",
    ]
    storage.delete_log_segment(metadata)
    assert list(directory.iterdir()) == []
    storage.close()


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(RemoteStorageSettingsError, match=r"does not exist\. Create it"):
        open_remote_storage(settings(tmp_path / "missing"))


def test_the_folder_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(RemoteStorageSettingsError, match=r"storage\.root is not set"):
        open_remote_storage({"storage.backend.class": "filesystem", "chunk.size": "4096"})


def test_a_rate_limit_needs_a_clock(tmp_path: Path) -> None:
    limited = {**settings(tmp_path), "upload.rate.limit.bytes.per.second": "1048576"}
    with pytest.raises(RemoteStorageSettingsError, match="there is no clock"):
        open_remote_storage(limited)
    slept: list[float] = []
    storage = open_remote_storage(limited, clock=lambda: 0.0, sleep=slept.append)
    content = segment_content(8192)
    metadata = segment_metadata(len(content))
    storage.copy_log_segment(metadata, segment_files(tmp_path / "log", content))
    assert slept == [4096 / 1048576]
