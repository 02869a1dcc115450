"""The records of a response, whatever they are, for a client that knows old formats only."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.handlers.common.down_conversion import _convert_slice
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.files.fs import READ_ONLY, RealFileSystem
from ottla.storage.files.open_files import FileSlice, OpenFile
from tests.doubles.storage_logs import batch_of


@pytest.mark.parametrize("kind", ["bytes", "view of a chunk", "part of a file"])
def test_records_of_each_kind(tmp_path: Path, kind: str) -> None:
    batch = bytes(batch_of(3))
    path = tmp_path / "segment"
    path.write_bytes(batch)
    records = {
        "bytes": batch,
        "view of a chunk": memoryview(batch),
        "part of a file": FileSlice(
            OpenFile(RealFileSystem(), str(path), READ_ONLY), 0, len(batch)
        ),
    }[kind]
    converted = _convert_slice(records, 1, 0, 1 << 20, False)
    assert [header.magic for _, header in iterate_entries(converted.records)] == [1, 1, 1]
    assert converted.messages == 3
