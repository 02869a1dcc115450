from __future__ import annotations

from uuid import UUID

import pytest

from ottla.storage.remote import kafka_uuid

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
