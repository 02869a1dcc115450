"""Uuids as the wire has them: 16 bytes, most significant first.

Kafka writes them in text as URL-safe base64 without padding (22 characters), not as hex groups;
`uuid_to_string` and `uuid_from_string` do the same as `org.apache.kafka.common.Uuid`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from os import urandom

#: "No id": what a field holds when a version does not carry it.
ZERO_UUID = bytes(16)

#: Reserved by Kafka for the topic id of its metadata log.
ONE_UUID = bytes(15) + b"\x01"

#: In a LeaderAndIsr response between brokers of Ottla: the logs of the topic have no id. The
#: reserved id, as no topic has it.
NO_TOPIC_ID = ONE_UUID


def random_uuid() -> bytes:
    """A new random (version 4) uuid that is not reserved and whose text does not start with a
    dash, so that it can be a command-line argument."""
    while True:
        raw = bytearray(urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = bytes(raw)
        if uuid not in (ZERO_UUID, ONE_UUID) and not uuid_to_string(uuid).startswith("-"):
            return uuid


def uuid_to_string(uuid: bytes) -> str:
    """22 characters of URL-safe base64."""
    return urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_string(text: str) -> bytes:
    """The 16 bytes that `text` stands for; ValueError when it is not such a text."""
    if len(text) > 24:
        raise ValueError(f"not a uuid in base64: it has {len(text)} characters, at most 24 fit")
    try:
        raw = urlsafe_b64decode(text.rstrip("=").encode("ascii") + b"==")
    except (ValueError, UnicodeEncodeError) as error:
        raise ValueError(f"not a uuid in base64: {text!r}") from error
    if len(raw) != 16:
        raise ValueError(f"not a uuid in base64: {text!r} holds {len(raw)} bytes, not 16")
    return raw
