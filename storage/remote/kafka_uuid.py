"""UUIDs as Kafka writes them: URL-safe Base64 without padding, 22 characters."""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

_TEXT_LENGTH = 22


def to_text(value: UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def from_text(text: str) -> UUID:
    """Raises ValueError unless the text is what Kafka writes for a UUID."""
    if len(text) != _TEXT_LENGTH:
        raise ValueError(f"{text!r} is no UUID: it needs {_TEXT_LENGTH} characters")
    try:
        value = UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no UUID: {error}") from None
    if to_text(value) != text:
        raise ValueError(f"{text!r} is no UUID: bits are set after its end")
    return value
