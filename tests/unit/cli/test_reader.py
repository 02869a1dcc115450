"""How `ottla consume` reads to an end: damaged records, and ends without a record."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest

from ottla.cli.output import Failure
from ottla.cli.reader import TopicReader
from ottla.cli.session import Session
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import list_offsets
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition

T0 = TopicPartition("t", 0)
FETCHES_MAX = 5


class Leader(NamedTuple):
    node_id: int


class Cluster:
    """A session whose leader returns the same response to each fetch."""

    def __init__(
        self, data: PartitionData, local_start: int | None = 0, throttle_ms: int = 0
    ) -> None:
        self.client = self
        self.fetches = self.forgotten = 0
        self.timeout_ms = 150
        self._data, self._local_start, self._throttle_ms = data, local_start, throttle_ms

    def leader(self, _partition: object) -> Leader:
        return Leader(1)

    def forget_leader(self, _partition: object) -> None:
        self.forgotten += 1

    def call(self, kind: type, request: Any, _to: object, versions: object = None) -> Any:
        if kind is FetchResponse:
            self.fetches += 1
            assert self.fetches <= FETCHES_MAX, "it reads without end"
            topic = FetchableTopicResponse(topic="t", partitions=[self._data])
            return FetchResponse(throttle_time_ms=self._throttle_ms, responses=[topic])
        assert request.topics[0].partitions[0].timestamp == -4
        if self._local_start is None:
            raise UnsupportedApiError("too old")
        row = list_offsets.ListOffsetsPartitionResponse(0, offset=self._local_start)
        return kind(topics=[list_offsets.ListOffsetsTopicResponse("t", [row])])


def read(cluster: Cluster, stop: int, *, read_committed: bool = False) -> dict[TopicPartition, int]:
    """The positions at the end."""
    reader = TopicReader(cast(Session, cluster), {T0: 7}, {T0: stop}, read_committed=read_committed)
    assert list(reader.records()) == []
    return reader.positions


def test_a_damaged_batch_is_a_sentence() -> None:
    batch = bytearray(build_batch([(0, None, b"value", None)]))
    batch[-1] ^= 1
    cluster = Cluster(PartitionData(partition_index=0, high_watermark=9, records=bytes(batch)))
    with pytest.raises(Failure, match=r"t-0 at offset 7 or after it cannot be read: .*CRC"):
        read(cluster, 9)


def test_a_log_without_its_last_records_has_an_end() -> None:
    empty = PartitionData(partition_index=0, high_watermark=9, last_stable_offset=9, records=b"")
    assert read(Cluster(empty), 9) == {T0: 9}
    assert read(Cluster(empty), 9, read_committed=True) == {T0: 9}


@pytest.mark.parametrize(
    ("stable", "local_start", "throttle_ms"), [(8, 0, 0), (9, 8, 0), (9, None, 0), (9, 0, 50)]
)
def test_other_empty_responses_are_waited_out(
    stable: int, local_start: int | None, throttle_ms: int
) -> None:
    """An open transaction, a slow read of tiered storage, an old broker, a throttled reader."""
    empty = PartitionData(
        partition_index=0, high_watermark=9, last_stable_offset=stable, records=b""
    )
    with pytest.raises(AssertionError, match="without end"):
        read(Cluster(empty, local_start, throttle_ms), 9, read_committed=True)


def test_a_leader_that_does_not_have_the_partition_is_reported_after_the_timeout() -> None:
    """It may have just started, so that it is not reported at once."""
    unknown = PartitionData(
        partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, records=b""
    )
    cluster = Cluster(unknown)
    with pytest.raises(Failure, match="t-0 at offset 7: UNKNOWN_TOPIC_OR_PARTITION"):
        read(cluster, 9)
    assert cluster.forgotten == cluster.fetches - 1 > 0
