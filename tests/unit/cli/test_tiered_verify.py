"""`ottla tiered verify` while retention deletes segments."""

from __future__ import annotations

import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from typer.testing import CliRunner

from ottla.cli import tiered
from ottla.cli.remote_segments import RemoteSegments
from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
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
