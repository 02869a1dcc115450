"""The usual response to Produce, packed at once: one partition, no error, no throttle time.

Of two such responses for a topic only the correlation id, the partition and its three numbers
differ. All else is encoded once for each topic and version, by the encoder of all responses.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from ottla.protocol.codec import raw_encoder
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

# From this version on, a response has the append time and the log start offset.
SINCE_VERSION = 5
# Topics to which clients write, each in one version of Produce mostly. A template takes 400 bytes.
MAX_TEMPLATES = 4096

_FIRST_FLEXIBLE_VERSION = 9
_PARTITION = Struct(">ihqqq")
# Of a template, to find its place: no UTF-8 text has such bytes.
_PLACEHOLDER = _PARTITION.pack(-2, 0, -2, -2, -2)

# The packer, the size, and what stands before and behind the numbers.
_Template = tuple[Callable[..., bytes], int, bytes, bytes]
_templates: dict[tuple[int, str], _Template] = {}


def encode_produce_response(
    version: int, correlation_id: int, message: ProduceResponse
) -> bytes | None:
    """A whole response with its size and header; None if it is not one of the usual kind."""
    topics = message.responses
    if len(topics) != 1 or len(topics[0].partition_responses) != 1:
        return None
    topic = topics[0]
    row = topic.partition_responses[0]
    if (
        row.error_code
        or row.error_message is not None
        or row.record_errors
        or row.current_leader is not None
        or message.throttle_time_ms
        or message.node_endpoints
        or row.unknown_tagged_fields
        or topic.unknown_tagged_fields
        or message.unknown_tagged_fields
        or version < SINCE_VERSION
    ):
        return None
    pack, size, before, behind = _templates.get((version, topic.name)) or _template(
        version, topic.name
    )
    return pack(
        size,
        correlation_id,
        before,
        row.index,
        0,
        row.base_offset,
        row.log_append_time_ms,
        row.log_start_offset,
        behind,
    )


def _template(version: int, topic: str) -> _Template:
    row = PartitionProduceResponse(-2, 0, -2, -2, -2)
    pieces: list[bytes] = []
    if version >= _FIRST_FLEXIBLE_VERSION:
        pieces.append(b"\x00")  # the tagged fields of the header
    raw_encoder(ProduceResponse, version)(
        ProduceResponse([TopicProduceResponse(topic, [row])]), pieces, []
    )
    before, _, behind = b"".join(pieces).partition(_PLACEHOLDER)
    pack = Struct(f">ii{len(before)}s{_PARTITION.format[1:]}{len(behind)}s").pack
    size = 4 + len(before) + _PARTITION.size + len(behind)
    if len(_templates) >= MAX_TEMPLATES:
        _templates.clear()
    found = _templates[version, topic] = (pack, size, before, behind)
    return found
