"""Sending the batches of one task: in order, acknowledged, bounded in memory and in time.

A sender thread compresses, sends and waits while the task encodes the next rows. It works in
rounds: one batch for each partition at most, and one request for each leader. Up to five rounds of
an idempotent producer are in flight, as many batches of a partition as brokers recognise when they
come again. If one fails, the thread waits for the others and then sends what was not acknowledged
once more, round by round. So the batches of a partition keep their order, and none is written
twice.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.protocol.client.blocking import Begun
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import RETRIABLE, ErrorCode, error_name
from ottla.protocol.message import Message
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.batch import TRANSACTIONAL_MASK
from ottla.protocol.records.builder import assemble_batch
from ottla.protocol.records.compression import compress
from ottla.protocol.records.errors import CodecUnavailableError
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import condition_of, unreachable
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.missing_packages import missing_codec
from pyspark_ottla.offsets import describe
from pyspark_ottla.options.client_options import CODECS, ClientOptions
from pyspark_ottla.write.encode import Section

# From 12 on, Produce adds partitions to transactions by itself (KIP-890), which needs Kafka 4.
PRODUCE_VERSIONS = Versions(3, 11)

# Sections that wait for the sender: at most this many, and each is at most a batch of rows.
WAITING_MAX = 16
# As max.in.flight.requests.per.connection of Java's idempotent producer: brokers recognise the
# last five batches of a producer in a partition. Each round has at most max.request.size bytes.
IN_FLIGHT_MAX = 5
PAUSE_FIRST_SECONDS = 0.05
PAUSE_MAX_SECONDS = 1.0
# Sequence numbers are 31 bits and start again at zero.
SEQUENCE_MASK = (1 << 31) - 1

FENCED_HINT = (
    "The transaction was open for longer than kafka.transaction.timeout.ms: raise it, and the "
    "brokers' transaction.max.timeout.ms, or make batches smaller. If Spark runs a task twice, or "
    "the batch again, this is the end of the attempt that is not needed any more"
)
_HINTS = {
    ErrorCode.MESSAGE_TOO_LARGE: "Lower kafka.batch.size, or raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Lower kafka.batch.size, or raise the topic's segment.bytes",
    ErrorCode.INVALID_RECORD: "A compacted topic takes no record without a key",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Too few replicas are in sync for min.insync.replicas",
    ErrorCode.INVALID_PRODUCER_EPOCH: FENCED_HINT,
    ErrorCode.PRODUCER_FENCED: FENCED_HINT,
    ErrorCode.INVALID_TXN_STATE: FENCED_HINT,
    ErrorCode.INVALID_TIMESTAMP: "Leave writeTimestamp out, correct the column timestamp, or raise "
    "the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for WRITE on the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for IDEMPOTENT_WRITE, or set "
    "kafka.enable.idempotence to false",
}


class ProducerIdentity(NamedTuple):
    """What makes repeated batches recognisable; -1 for a producer that is not idempotent."""

    producer_id: int = -1
    epoch: int = -1
    transactional_id: str | None = None


class _Batch(NamedTuple):
    partition: TopicPartition
    data: bytes
    section: Section


class _Round:
    """Batches that were sent together: those not acknowledged yet, and their requests in flight."""

    def __init__(self, batches: dict[TopicPartition, _Batch], deadline: float) -> None:
        self.left = batches
        self.deadline = deadline
        self.requests: list[tuple[Begun, list[_Batch]]] = []
        self.reason = ""


class TaskProducer:
    """Sends sections to partitions; `add` blocks while too much waits, `finish` until all is done.

    Both raise the ConnectorError that ended the sending. Close it in any case.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        options: ClientOptions,
        identity: ProducerIdentity,
        on_new_partitions: Callable[[list[TopicPartition]], None] | None = None,
        sequences: dict[TopicPartition, int] | None = None,
    ) -> None:
        """`on_new_partitions` is called in the sender thread before a partition's first batch.
        `sequences` has the next sequence number of each partition that the producer id has
        written to before; the producer keeps it up to date."""
        self._cluster = cluster
        self._options = options
        self._identity = identity
        self._on_new_partitions = on_new_partitions
        self._known: set[TopicPartition] = set()
        self._codec = CODECS.index(options.codec)
        self._sequences = {} if sequences is None else sequences
        # Without sequence numbers, a batch that is sent again could pass the next one.
        self._in_flight_max = IN_FLIGHT_MAX if identity.producer_id >= 0 else 1
        self._in_flight: deque[_Round] = deque()
        self._waiting: queue.Queue[tuple[TopicPartition, Section] | None] = queue.Queue(WAITING_MAX)
        self._failure: BaseException | None = None
        self._closed = False
        self.last_offsets: dict[TopicPartition, int] = {}
        self.bytes_sent = 0
        self._thread = threading.Thread(target=self._run, name="ottla sink", daemon=True)
        self._thread.start()

    def add(self, partition: TopicPartition, section: Section) -> None:
        while True:
            self._raise_failure()
            try:
                self._waiting.put((partition, section), timeout=0.2)
            except queue.Full:
                continue
            return

    def finish(self) -> None:
        """Returns when every record is acknowledged."""
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.2)
                break
            except queue.Full:
                continue
        self._thread.join()
        self._raise_failure()

    def close(self) -> None:
        """Gives up what is not sent yet; safe at any time."""
        self._closed = True
        while self._thread.is_alive():
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                self._drain()
            self._thread.join(0.05)

    def _drain(self) -> None:
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the sender thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # raised in the task's own thread
            self._failure = error
            self._drain()

    def _send_all(self) -> None:
        round_: dict[TopicPartition, Section] = {}
        size = 0
        while True:
            try:
                idle = not round_ and not self._in_flight
                item = self._waiting.get() if idle else self._waiting.get_nowait()
            except queue.Empty:
                # Nothing else to do: send what there is, or wait for what was sent.
                if round_:
                    self._begin_round(round_)
                    round_, size = {}, 0
                else:
                    self._complete_first()
                continue
            if self._closed or item is None:
                if not self._closed:
                    if round_:
                        self._begin_round(round_)
                    while self._in_flight:
                        self._complete_first()
                return
            partition, section = item
            too_much = size + len(section.payload) > self._options.request_bytes_max
            if partition in round_ or (round_ and too_much):
                self._begin_round(round_)
                round_, size = {}, 0
            round_[partition] = section
            size += len(section.payload)

    def _build(self, partition: TopicPartition, section: Section) -> _Batch:
        payload: bytes | memoryview = section.payload
        attributes = self._codec
        if self._codec:
            try:
                payload = compress(self._codec, payload, self._options.codec_level)
            except CodecUnavailableError as error:
                raise missing_codec(f"Records for {describe(partition)}", error) from None
        if self._identity.transactional_id is not None:
            attributes |= TRANSACTIONAL_MASK
        sequence = -1
        if self._identity.producer_id >= 0:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = (sequence + section.record_count) & SEQUENCE_MASK
        data = assemble_batch(
            bytes(payload),
            base_offset=0,
            last_offset_delta=section.record_count - 1,
            base_timestamp=section.base_timestamp,
            max_timestamp=section.max_timestamp,
            record_count=section.record_count,
            attributes=attributes,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
        )
        self.bytes_sent += len(data)
        return _Batch(partition, data, section)

    def _begin_round(self, sections: Mapping[TopicPartition, Section]) -> None:
        """Sends one batch a partition; waits only if too many rounds are in flight."""
        while len(self._in_flight) >= self._in_flight_max:
            self._complete_first()
        new = sorted(sections.keys() - self._known)
        if new and self._on_new_partitions is not None:
            self._on_new_partitions(new)
        self._known.update(new)
        batches = {
            partition: self._build(partition, section) for partition, section in sections.items()
        }
        deadline = time.monotonic() + self._options.delivery_timeout_ms / 1000
        started = _Round(batches, deadline)
        self._in_flight.append(started)
        started.reason = self._begin_requests(started)
        if started.reason:
            self._recover()

    def _begin_requests(self, started: _Round) -> str:
        """One request to each leader; why some were not sent, or nothing."""
        client = self._cluster.client
        by_leader, reason = self._by_leader(started.left, started.deadline)
        timeout_ms = self._timeout_ms(started.deadline)
        for node_id, batches in by_leader.items():
            try:
                begun = client.begin(
                    node_id,
                    self._request(batches, timeout_ms),
                    timeout_ms=timeout_ms,
                    versions=PRODUCE_VERSIONS,
                )
            except ClientError as error:
                reason = self._not_sent(error, batches)
            else:
                started.requests.append((begun, batches))
        return reason

    def _complete_first(self) -> None:
        """Waits until the oldest round is acknowledged; raises what is final."""
        first = self._in_flight[0]
        first.reason = self._complete_requests(first) or first.reason
        if first.left:
            self._recover()
        else:
            self._in_flight.popleft()

    def _complete_requests(self, round_: _Round, *, is_recovery: bool = False) -> str:
        """Waits for the responses; removes what is acknowledged, returns why the rest is not."""
        reason = ""
        while round_.requests:
            begun, batches = round_.requests.pop(0)
            try:
                response = self._cluster.client.complete(begun)
            except ClientError as error:
                reason = self._not_sent(error, batches)
                continue
            reason = self._take(round_.left, batches, response, is_recovery) or reason
        return reason

    def _recover(self) -> None:
        """Waits for everything in flight, then sends what was not acknowledged, in order.

        The rounds after one that failed fail, too, for the gap in their sequence numbers.
        """
        for round_ in self._in_flight:
            later = round_ is not self._in_flight[0]
            round_.reason = self._complete_requests(round_, is_recovery=later) or round_.reason
        while self._in_flight:
            self._send_again(self._in_flight[0])
            self._in_flight.popleft()

    def _send_again(self, round_: _Round) -> None:
        """Sends the batches of a round until all are acknowledged; raises what is final."""
        pause, reason = PAUSE_FIRST_SECONDS, round_.reason
        while round_.left:
            if self._closed or time.monotonic() + pause >= round_.deadline:
                first = min(round_.left)
                raise ConnectorError(
                    errors.WRITE_FAILED,
                    f"Records for {describe(first)} were not acknowledged within "
                    f"{self._options.delivery_timeout_ms} ms; the last reason was: {reason}",
                    "Look at the broker's log, or raise kafka.delivery.timeout.ms",
                )
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)
            reason = self._begin_requests(round_)
            reason = self._complete_requests(round_) or reason

    def _timeout_ms(self, deadline: float) -> int:
        left_ms = max(1, int((deadline - time.monotonic()) * 1000))
        return min(left_ms, self._options.request_timeout_ms)

    def _by_leader(
        self, left: Mapping[TopicPartition, _Batch], deadline: float
    ) -> tuple[dict[int, list[_Batch]], str]:
        """The batches for each leader, and why some leaders are not known."""
        client = self._cluster.client
        by_leader: dict[int, list[_Batch]] = {}
        reason = ""
        waited_for: set[str] = set()  # topics: one look-up waits for all partitions of one
        for partition, batch in left.items():
            if partition.topic in waited_for and client.state.leader(partition) is None:
                continue
            try:
                leader = client.leader(partition, timeout_ms=self._timeout_ms(deadline))
            except Exception as error:  # ClientError or KafkaError; some are final
                reason = self._check_retriable(error)
                waited_for.add(partition.topic)
                continue
            by_leader.setdefault(leader.node_id, []).append(batch)
        return by_leader, reason

    def _not_sent(self, error: ClientError, batches: list[_Batch]) -> str:
        reason = self._check_retriable(error)
        for batch in batches:
            self._cluster.client.forget_leader(batch.partition)
        return reason

    def _take(
        self,
        left: dict[TopicPartition, _Batch],
        batches: list[_Batch],
        response: Message,
        is_recovery: bool,
    ) -> str:
        reason = ""
        if self._options.acks == 0:
            for batch in batches:
                del left[batch.partition]
            return reason
        assert isinstance(response, ProduceResponse)
        for topic in response.responses:
            for row in topic.partition_responses:
                partition = TopicPartition(topic.name, row.index)
                reason = self._take_response(left, partition, row, is_recovery) or reason
        return reason

    def _request(self, batches: list[_Batch], timeout_ms: int) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            topic = topics.setdefault(
                batch.partition.topic, TopicProduceData(name=batch.partition.topic)
            )
            topic.partition_data.append(
                PartitionProduceData(index=batch.partition.partition, records=batch.data)
            )
        return ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=self._options.acks,
            timeout_ms=timeout_ms,
            topic_data=list(topics.values()),
        )

    def _take_response(
        self,
        left: dict[TopicPartition, _Batch],
        partition: TopicPartition,
        row: PartitionProduceResponse,
        is_recovery: bool,
    ) -> str:
        code = row.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            batch = left.pop(partition)
            if code == ErrorCode.NONE and row.base_offset >= 0:
                self.last_offsets[partition] = row.base_offset + batch.section.record_count - 1
            return ""
        if code in RETRIABLE:
            self._cluster.client.forget_leader(partition)
            return error_name(code)
        if is_recovery and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error_name(code)
        raise self._refused(left[partition], row)

    def _check_retriable(self, error: Exception) -> str:
        if not getattr(error, "retriable", False):
            raise unreachable("Writing", self._options.bootstrap, error) from None
        return str(error)

    def _refused(self, batch: _Batch, row: PartitionProduceResponse) -> ConnectorError:
        rows = batch.section.rows
        where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
        if row.record_errors:
            entry = row.record_errors[0]
            if 0 <= entry.batch_index < len(rows):
                where = f"row {rows[entry.batch_index]}"
            what = entry.batch_index_error_message or row.error_message
        else:
            what = row.error_message
        detail = f": {what.rstrip('.')}" if what else ""
        return ConnectorError(
            condition_of(row.error_code, errors.WRITE_FAILED),
            f"The broker refused {where} of this task for {describe(batch.partition)} "
            f"({error_name(row.error_code)}{detail})",
            _HINTS.get(row.error_code, ""),
        )
