"""`ottla tiered verify` while retention deletes segments, and `gc` while one is copied."""

from __future__ import annotations

import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from typer.testing import CliRunner

from ottla.cli import tiered
from ottla.cli.remote_segments import RemoteSegments
from ottla.storage.remote.inventory import Inventory
from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
from ottla.storage.remote.object_store import StoredObject
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.remote_segments import segment_metadata

SEGMENTS = [segment_metadata(5000, start_offset=n, segment_id=UUID(int=n)) for n in (1, 2)]


def test_a_segment_that_is_deleted_meanwhile_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = RemoteSegments()

    def change(number: int, state: RemoteLogSegmentState) -> None:
        segment = SEGMENTS[number].segment_id
        known.apply(RemoteLogSegmentMetadataUpdate(segment, 3000, None, state, 1))

    for number, metadata in enumerate(SEGMENTS):
        known.apply(metadata)
        change(number, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)

    def verify(*_: object, **__: object) -> list[str]:
        change(0, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        return ["an object is missing"]

    session = SimpleNamespace(json=True, close=lambda: None)
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: session)
    monkeypatch.setattr(tiered, "_open", lambda _: session)
    monkeypatch.setattr(tiered, "read_remote_segments", lambda _: known)
    monkeypatch.setattr(tiered, "verify_segment", verify)
    done = CliRunner().invoke(tiered.app, ["verify", "--config", "server.properties"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [row["segment"] for row in found["problems"]] == [str(UUID(int=2))]


def test_a_segment_whose_copy_begins_meanwhile_is_no_orphan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its objects are written while the records are read, which have none of it."""
    clock_s, written_ms = [1000.0], 1_050_000

    def read(_: object) -> RemoteSegments:
        clock_s[0] = 1100.0
        return RemoteSegments()

    def inventory(_storage: object, _live: object, now_ms: int, min_age_ms: int) -> Inventory:
        is_orphan = now_ms - written_ms >= min_age_ms
        found = [StoredObject("of/the/copy.log", 1, written_ms)]
        return Inventory(0, 0, found if is_orphan else [], [], 0)

    session = SimpleNamespace(json=True, close=lambda: None)
    session.client = SimpleNamespace(metadata=lambda _: SimpleNamespace(topics=[]))
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: session)
    monkeypatch.setattr(tiered, "_open", lambda _: session)
    monkeypatch.setattr(tiered, "read_remote_segments", read)
    monkeypatch.setattr(tiered, "take_inventory", inventory)
    monkeypatch.setattr("ottla.cli.tiered.time.time", lambda: clock_s[0])
    options = ["--config", "server.properties", "--min-age", "0s", "--unknown-topics"]
    done = CliRunner().invoke(tiered.app, ["gc", *options])
    assert json.loads(done.stdout)["orphans"] == []
