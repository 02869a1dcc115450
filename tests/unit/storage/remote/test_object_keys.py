from __future__ import annotations

from dataclasses import replace

import pytest

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
