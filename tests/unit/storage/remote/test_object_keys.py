from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from ottla.storage.remote import object_keys as kafka_uuid
from ottla.storage.remote.custom_metadata import CustomMetadata
from ottla.storage.remote.object_keys import ObjectKeys, ObjectKind, ParsedKey, main_path
from tests.doubles.remote_segments import SEGMENT_ID, TOPIC_ID, segment_metadata

# The example in the documentation of the plugin's ObjectKeyFactory has this form.
PATH = "topic-MGJ6FHTfRYay7jzwZdeqSQ/7/00000000000000001234-tqimKZ5wStOEOwRzT3L5oQ"


def test_the_layout_of_the_plugin() -> None:
    metadata = segment_metadata(100)
    assert main_path(metadata) == PATH
    keys = ObjectKeys("someprefix/")
    assert keys.of(metadata).log == f"someprefix/{PATH}.log"
    assert keys.of(metadata) == (
        f"someprefix/{PATH}.rsm-manifest",
        f"someprefix/{PATH}.indexes",
        f"someprefix/{PATH}.log",
    )


def test_custom_metadata_has_the_prefix_and_key_of_the_copy() -> None:
    custom = CustomMetadata(object_prefix="before/", object_key="a/key").encode()
    metadata = replace(segment_metadata(100), custom_metadata=custom)
    assert ObjectKeys("now/").of(metadata).log == "before/a/key.log"


def test_a_key_is_parsed() -> None:
    expected = ParsedKey("topic", TOPIC_ID, 7, 1234, SEGMENT_ID, ObjectKind.INDEXES, False)
    assert ObjectKeys("x/").parse(f"x/{PATH}.indexes") == expected
    assert ObjectKeys("").parse(f"{PATH}.indexes") == expected


def test_a_file_of_an_interrupted_upload_is_recognised() -> None:
    parsed = ObjectKeys("").parse(f"{PATH}.log.tmp")
    assert parsed is not None
    assert parsed.is_temporary


@pytest.mark.parametrize(
    "key",
    [
        f"{PATH}.log",  # not below the prefix
        "x/other",
        f"x/{PATH}.checksum",
        f"x/{PATH}.log.bak",
        f"x/y/{PATH}.log",
        f"x/{PATH}.log".replace("/7/", "/07/"),
        f"x/{PATH}.log".replace("oQ.", "oR."),
    ],
)
def test_other_objects_are_not_parsed(key: str) -> None:
    assert ObjectKeys("x/").parse(key) is None


# Written by Kafka's Uuid.toString.
KNOWN = {
    "lZ6vvmajTWKDBUTV6SQAtQ": UUID("959eafbe-66a3-4d62-8305-44d5e92400b5"),
    "adh9f8BMS4anaUnD8KWfWg": UUID("69d87d7f-c04c-4b86-a769-49c3f0a59f5a"),
}


@pytest.mark.parametrize("text", KNOWN)
def test_as_kafka_writes_it(text: str) -> None:
    assert kafka_uuid.from_text(text) == KNOWN[text]
    assert kafka_uuid.to_text(KNOWN[text]) == text


@pytest.mark.parametrize(
    "text",
    ["", "short", "lZ6vvmajTWKDBUTV6SQAtQ==", "lZ6vvmajTWKDBUTV6SQAt+", "lZ6vvmajTWKDBUTV6SQAtR"],
)
def test_other_texts_are_no_uuids(text: str) -> None:
    with pytest.raises(ValueError, match="is no UUID"):
        kafka_uuid.from_text(text)
