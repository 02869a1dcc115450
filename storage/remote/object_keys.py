"""The names of the objects of a segment, as Aiven's tiered storage plugin has them.

    {prefix}{topic}-{topic id}/{partition}/{start offset}-{segment id}.{log|indexes|rsm-manifest}

The start offset has 20 digits, so that a listing is in order of offsets. Each copy of a segment has
an id of its own, so no two copies share an object.

Ids are UUIDs as Kafka writes them: URL-safe Base64 without padding, 22 characters.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from ottla.storage.remote import object_keys as kafka_uuid
from ottla.storage.remote.custom_metadata import CustomMetadata
from ottla.storage.remote.segments import RemoteLogSegmentMetadata

#: A file that an interrupted upload to a local folder left. It is never read.
TEMPORARY_SUFFIX = ".tmp"
#: Segments whose keys are in memory, at about 1,000 bytes.
_MAX_KNOWN = 500


class ObjectKind(Enum):
    LOG = "log"
    INDEXES = "indexes"
    MANIFEST = "rsm-manifest"


class SegmentKeys(NamedTuple):
    """The keys of all objects of a segment, the manifest first: what has none is not complete."""

    manifest: str
    indexes: str
    log: str


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """Parse the name of an object. `prefix` precedes the name of the topic."""

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    segment_id: UUID
    kind: ObjectKind
    is_temporary: bool


_UUID = r"[A-Za-z0-9_-]{22}"
_KEY = re.compile(
    rf"(?P<topic>[A-Za-z0-9._-]{{1,249}})-(?P<topic_id>{_UUID})/(?P<partition>0|[1-9][0-9]{{0,9}})"
    rf"/(?P<start_offset>[0-9]{{20}})-(?P<segment_id>{_UUID})"
    r"\.(?P<kind>log|indexes|rsm-manifest)(?P<temporary>\.tmp)?"
)


def main_path(metadata: RemoteLogSegmentMetadata) -> str:
    """The key without prefix and suffix."""
    partition = metadata.segment_id.topic_id_partition
    return (
        f"{partition.topic}-{kafka_uuid.to_text(partition.topic_id)}/{partition.partition}"
        f"/{metadata.start_offset:020d}-{kafka_uuid.to_text(metadata.segment_id.id)}"
    )


class ObjectKeys:
    """Makes the keys of segments below one prefix, which is taken as it is: no `/` is added."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        # By the number of the UUID: its hash needs no call of a Python function.
        self._known: dict[tuple[int, bytes | None], SegmentKeys] = {}

    def of(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        """The keys of the objects. If the custom metadata of the segment has a prefix or a key,
        from the time of the copy, these are used: the prefix may have been changed since."""
        known_as = (metadata.segment_id.id.int, metadata.custom_metadata)
        keys = self._known.get(known_as)
        if keys is None:
            keys = self._make(metadata)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[known_as] = keys
        return keys

    def _make(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        fields = CustomMetadata.decode(metadata.custom_metadata)
        prefix = self.prefix if fields.object_prefix is None else fields.object_prefix
        path = main_path(metadata) if fields.object_key is None else fields.object_key
        kinds = (ObjectKind.MANIFEST, ObjectKind.INDEXES, ObjectKind.LOG)
        return SegmentKeys(*(f"{prefix}{path}.{kind.value}" for kind in kinds))

    def parse(self, key: str) -> ParsedKey | None:
        """None if the object is not below the prefix, or no object of a segment."""
        if not key.startswith(self.prefix):
            return None
        match = _KEY.fullmatch(key, len(self.prefix))
        if match is None:
            return None
        try:
            topic_id = kafka_uuid.from_text(match["topic_id"])
            segment_id = kafka_uuid.from_text(match["segment_id"])
        except ValueError:
            return None
        return ParsedKey(
            topic=match["topic"],
            topic_id=topic_id,
            partition=int(match["partition"]),
            start_offset=int(match["start_offset"]),
            segment_id=segment_id,
            kind=ObjectKind(match["kind"]),
            is_temporary=match["temporary"] is not None,
        )


_TEXT_LENGTH = 22


def to_text(value: UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def from_text(text: str) -> UUID:
    """Raise ValueError unless the text is what Kafka writes for a UUID."""
    if len(text) != _TEXT_LENGTH:
        raise ValueError(f"{text!r} is no UUID: it needs {_TEXT_LENGTH} characters")
    try:
        value = UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no UUID: {error}") from None
    if to_text(value) != text:
        raise ValueError(f"{text!r} is no UUID: bits are set after its end")
    return value
