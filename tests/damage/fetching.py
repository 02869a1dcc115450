"""Which offsets of a partition a broker serves, offset by offset, as a consumer skips damage."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import read_records
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

_VERSION = 4
_NOT_LED = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
#: What a client makes of records that it cannot parse.
NOT_PARSED = -1


class Served(NamedTuple):
    """Record values by offset, and error codes by the offset that was asked for."""

    values: dict[int, bytes | None]
    errors: dict[int, int]


def _ask(wire: Wire, request: FetchRequest) -> PartitionData:
    """The response for the only partition, once its leader is known after a start."""
    answers: list[PartitionData] = []

    def is_led() -> bool:
        response = wire.ask(request, _VERSION)
        assert isinstance(response, FetchResponse)
        answers.append(response.responses[0].partitions[0])
        return answers[-1].error_code not in _NOT_LED

    eventually(is_led, "the partition has no leader", seconds=60)
    return answers[-1]


def fetch_offsets(bootstrap: str, topic: str, end: int, *, max_bytes: int = 1) -> Served:
    """Asks for each offset up to `end` that was not in an earlier response."""
    served = Served({}, {})
    with Wire(bootstrap) as wire:
        for offset in range(end):
            if offset in served.values:
                continue
            partition = FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
            )
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 20,
                topics=[FetchTopic(topic=topic, partitions=[partition])],
            )
            found = _ask(wire, request)
            if found.error_code:
                served.errors[offset] = found.error_code
                continue
            try:
                for record in read_records(bytes(found.records or b""), allow_partial=True):
                    served.values.setdefault(record.offset, record.value)
            except RecordsError:
                served.errors[offset] = NOT_PARSED
    return served
