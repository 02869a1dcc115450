"""The brokers as a reader or writer sees them: requests with retries, each under a deadline.

One instance is one `BlockingClient`, used by one thread at a time. Failed requests become
ConnectorErrors, and so do error codes in responses, except for those of fetches, whose retries are
in `fetch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.errors import ClientError, NoBrokersAvailableError
from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID, uuid_from_string, uuid_to_string
from pyspark_ottla.cluster.client_errors import advertised_hint, unreachable
from pyspark_ottla.cluster.fetch_source import LEADER, FetchSource
from pyspark_ottla.cluster.offset_lookup import look_up_offsets
from pyspark_ottla.cluster.topic_metadata import (
    PRESENT,
    TopicToWrite,
    partitions_of,
    subscribed_partitions,
    topic_to_write,
)
from pyspark_ottla.offsets import LATEST, Offsets
from pyspark_ottla.options.client_options import ClientOptions
from pyspark_ottla.options.options import Subscription

T = TypeVar("T")

# A wrong address should not cost a minute: a cluster that was never reached gets this long.
FIRST_CONTACT_SECONDS = 10.0
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MAX_SECONDS = 1.0

# A fetch is retried; no single lookup of a leader may take all of its time.
LEADER_TIMEOUT_MS = 5_000

# From version 13 on, Fetch names topics by id, which brokers before 2.8 do not have. With an id,
# versions up to 13 are used, so that such a broker gets the name.
FETCH_VERSIONS = Versions(4, 12)
FETCH_VERSIONS_BY_ID = Versions(4, 13)
# The first with the timestamp EARLIEST_LOCAL (KIP-405).
LOCAL_LOG_START_VERSIONS = Versions(8)
EARLIEST_LOCAL = -4
# Enough for some hundred records of common size; one batch at least comes in any case.
SAMPLE_BYTES = 128 << 10


class KafkaCluster:
    """`planning.Cluster`, `stream.StreamCluster` and `fetch.Brokers` over the wire."""

    def __init__(
        self,
        client: BlockingClient,
        options: ClientOptions,
        *,
        lookup_retries: int = 3,
        lookup_retry_interval_ms: int = 10,
    ) -> None:
        self.client = client
        self.options = options
        self.lookup_retries = lookup_retries
        self.lookup_retry_interval_ms = lookup_retry_interval_ms
        self._was_reached = False
        self._topics_without_id: set[str] = set()  # no more of them than topics that are read

    # --- calls with retries --------------------------------------------------------------------

    def deadline(self) -> float:
        """The time on the monotonic clock until which a call may be retried."""
        timeout_seconds = self.options.api_timeout_ms / 1000
        if not self._was_reached:
            timeout_seconds = min(timeout_seconds, FIRST_CONTACT_SECONDS)
        return time.monotonic() + timeout_seconds

    def expect_brokers(self) -> None:
        """Gives the first contact all of the time of a call: the brokers were there before, as a
        checkpoint shows, so the address is not wrong and an outage may pass."""
        self._was_reached = True

    @property
    def is_expected(self) -> bool:
        """Whether the brokers were reached, by this client or before."""
        return self._was_reached

    def reach(self) -> None:
        """Contacts any broker, unless this client has reached one. Later calls then have all of
        their time, also if a coordinator loads, or its broker is away, for longer than the first
        contact may take. Raises ConnectorError."""
        if not self._was_reached and not self.client.state.brokers:

            def call(timeout_ms: int) -> MetadataResponse:
                return self.client.metadata([], timeout_ms=timeout_ms)

            self.call_with_retries("Reaching a broker", call, self.deadline())
        self._was_reached = True

    def call_with_retries(self, what: str, call: Callable[[int], T], deadline: float) -> T:
        """`call(timeout in ms)`, retried until the deadline while brokers cannot be reached."""
        pause = PAUSE_FIRST_SECONDS
        while True:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            try:
                response = call(min(left_ms, self.options.request_timeout_ms))
            except (ClientError, KafkaError) as error:
                if not error.retriable or time.monotonic() + pause >= deadline:
                    raise unreachable(what, self.options.bootstrap, error) from None
                self.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX_SECONDS)
            else:
                self._was_reached = True
                return response

    def sleep(self, seconds: float) -> None:
        """A pause between two tries."""
        time.sleep(seconds)

    def wait(self, deadline: float) -> bool:
        """A pause between tries; false if the deadline does not leave time for another."""
        if time.monotonic() + PAUSE_FIRST_SECONDS >= deadline:
            return False
        self.sleep(PAUSE_FIRST_SECONDS)
        return True

    def metadata(
        self, topics: list[str] | None, deadline: float, *, create: bool = False
    ) -> MetadataResponse:
        """The metadata of these topics (None for all); `create` lets the brokers create them.

        A response without brokers, of one that has just started, is not believed, as in Kafka's
        clients: it knows no topic.
        """

        def call(timeout_ms: int) -> MetadataResponse:
            response = self.client.metadata(
                topics, allow_auto_topic_creation=create, timeout_ms=timeout_ms
            )
            if not response.brokers:
                raise NoBrokersAvailableError("the broker has no metadata of its cluster yet")
            return response

        what = f"Asking about the topic {topics[0]}" if topics else "Asking about topics"
        return self.call_with_retries(what, call, deadline)

    # --- topics and offsets --------------------------------------------------------------------

    def partitions(self, subscription: Subscription) -> frozenset[TopicPartition]:
        """All partitions subscribed to; fails for a topic or partition named but not there."""
        return subscribed_partitions(self, subscription)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic to write to has; the request may create it."""
        return self.topic_to_write(topic).partition_count

    def topic_to_write(self, topic: str) -> TopicToWrite:
        """The partitions and ids of a topic to write to; the request may create it."""
        return topic_to_write(self, topic)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of those topics that exist and have one, as of their last metadata.

        Requests the metadata of topics without a known id only.
        """
        known = self.client.state.topic_ids
        found = {topic: uuid_to_string(known[topic]) for topic in topics if topic in known}
        unknown = set(topics) - found.keys() - self._topics_without_id
        if unknown:
            for topic in self.metadata(sorted(unknown), self.deadline()).topics:
                if not topic.name or topic.error_code not in PRESENT:
                    continue
                if topic.topic_id == ZERO_UUID:  # a broker older than 2.8
                    self._topics_without_id.add(topic.name)
                else:
                    found[topic.name] = uuid_to_string(topic.topic_id)
        return found

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """For each partition the first offset with at least that timestamp, or -1 if none.

        Partitions that are not there any more are left out.
        """
        found = look_up_offsets(self, wanted, read_committed=self.options.read_committed)
        self._was_reached = True
        return found

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends of the logs, also behind open transactions."""
        return look_up_offsets(self, dict.fromkeys(partitions, LATEST), read_committed=False)

    def committed(self, group_id: str, partitions: Collection[TopicPartition]) -> Offsets:
        """The group's committed offsets; partitions without one are left out."""
        from pyspark_ottla.cluster.group_offsets import fetch_committed

        return fetch_committed(self, group_id, partitions)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Commits offsets of a group without members."""
        from pyspark_ottla.cluster.group_offsets import commit

        commit(self, group_id, offsets, timeout_ms=timeout_ms)

    # --- fetching ------------------------------------------------------------------------------

    def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        bytes_max: int,
        timeout_ms: int,
        source: FetchSource = LEADER,
    ) -> tuple[PartitionData, int]:
        """One fetch and its throttle time; raises ClientError and KafkaError.

        From the leader without the rack, unless `source` differs.
        """
        options = self.options
        timeout_ms = max(1, min(timeout_ms, options.request_timeout_ms))
        node_id = source.node_id
        if node_id is None:
            leader = self.client.leader(partition, timeout_ms=min(timeout_ms, LEADER_TIMEOUT_MS))
            node_id = leader.node_id
        topic_id = ZERO_UUID if source.topic_id is None else uuid_from_string(source.topic_id)
        wanted = FetchPartition(
            partition=partition.partition,
            fetch_offset=offset,
            partition_max_bytes=options.partition_fetch_bytes or bytes_max,
        )
        request = FetchRequest(
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=bytes_max,
            isolation_level=int(options.read_committed),
            topics=[
                FetchTopic(topic=partition.topic, topic_id=topic_id, partitions=[wanted]),
            ],
            rack_id=options.rack if source.names_rack else "",
        )
        response = self.client.send(
            node_id,
            request,
            timeout_ms=timeout_ms + options.fetch_max_wait_ms,
            versions=FETCH_VERSIONS if source.topic_id is None else FETCH_VERSIONS_BY_ID,
        )
        assert isinstance(response, FetchResponse)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code)
        for topic in response.responses:
            for row in topic.partitions:
                if row.partition_index == partition.partition:
                    return row, response.throttle_time_ms
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker left the partition out")

    def explain(self, error: Exception) -> str:
        """Why a fetch failed, with what to check where an advertised address is to blame."""
        hint = advertised_hint(self.options.bootstrap, error)
        return f"{error}; {hint}" if hint else str(error)

    def forget_leader(self, partition: TopicPartition) -> None:
        """Makes the next fetch look the leader up again."""
        self.client.forget_leader(partition)

    def has_partition(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Whether the metadata has it, of a topic with that id; raises ConnectorError."""
        deadline = time.monotonic() + LEADER_TIMEOUT_MS / 1000
        for topic in self.metadata([partition.topic], deadline).topics:
            if topic_id is None or topic.topic_id == uuid_from_string(topic_id):
                return partition in partitions_of([topic])
        return False

    def local_log_start(self, partition: TopicPartition) -> int | None:
        """The first offset on the leader's own disk (KIP-405); None if the leader does not say.

        Raises ClientError and KafkaError.
        """
        leader = self.client.leader(partition, timeout_ms=LEADER_TIMEOUT_MS)
        row = ListOffsetsPartition(partition_index=partition.partition, timestamp=EARLIEST_LOCAL)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=partition.topic, partitions=[row])]
        )
        response = self.client.send(
            leader.node_id,
            request,
            timeout_ms=self.options.request_timeout_ms,
            versions=LOCAL_LOG_START_VERSIONS,
        )
        assert isinstance(response, ListOffsetsResponse)
        for topic in response.topics:
            for found in topic.partitions:
                if found.error_code == ErrorCode.NONE and found.offset >= 0:
                    return found.offset
        return None

    def bytes_per_offset(self, partition: TopicPartition, offset: int) -> float | None:
        """From the batches at `offset`; None if there are none or the fetch fails."""
        from ottla.protocol.records.batch import BatchHeader
        from ottla.protocol.records.reader import iterate_entries

        try:
            data, _ = self.fetch(partition, offset, SAMPLE_BYTES, self.options.request_timeout_ms)
        except (ClientError, KafkaError):
            return None
        assert data.records is None or isinstance(data.records, (bytes, bytearray, memoryview))
        if data.error_code != ErrorCode.NONE or not data.records:
            return None
        size, first, last = 0, offset, offset
        for position, header in iterate_entries(data.records):
            if position == 0 and isinstance(header, BatchHeader):
                first = header.base_offset  # may be before the requested offset
            size, last = size + header.size_in_bytes, header.next_offset
        return size / max(1, last - first) if size else None
