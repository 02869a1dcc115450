"""A segment in a plan finds the objects of the segment that it stands for."""

from __future__ import annotations

import pickle
from dataclasses import replace

from ottla.storage.remote.object_keys import ObjectKeys
from pyspark_ottla.remote.segment import metadata_of, planned
from tests.doubles.remote_segments import segment_metadata


def test_the_objects_are_the_same() -> None:
    metadata = replace(segment_metadata(1000), custom_metadata=b"\x00")
    segment = pickle.loads(pickle.dumps(planned(metadata)))
    found = metadata_of(segment)
    assert ObjectKeys("p/").of(found) == ObjectKeys("p/").of(metadata)
    assert (segment.start, segment.end, segment.size_bytes) == (1234, 1334, 1000)
    assert found.custom_metadata == b"\x00"
