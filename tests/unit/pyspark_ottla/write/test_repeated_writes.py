"""The digest of a planned batch: from checkpoints that this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ottla.write.repeated_writes import plan_digest


def test_the_digest_is_that_of_the_journal_entry(tmp_path: Path) -> None:
    checkpoint = tmp_path / "a checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    entry = checkpoint / "offsets" / "7"
    entry.write_text('v1\n{"batchTimestampMs":1}\n{"t":{"0":5}}')
    first = plan_digest(str(checkpoint), 7)
    assert len(first) == 16
    assert plan_digest(checkpoint.as_uri(), 7) == first
    assert plan_digest(f"file:{checkpoint}", 7) == first
    entry.write_text('v1\n{"batchTimestampMs":2}\n{"t":{"0":5}}')
    assert plan_digest(str(checkpoint), 7) not in ("", first)


@pytest.mark.parametrize("checkpoint", [None, "", "s3://bucket/c", "hdfs://host/c", "/no/such"])
def test_a_checkpoint_elsewhere_has_none(checkpoint: str | None) -> None:
    assert plan_digest(checkpoint, 7) == ""
