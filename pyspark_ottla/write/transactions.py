"""Exactly-once: one transaction for each task of each batch, with a marker of what is done.

In the same transaction as its records a task commits an offset of a group of its own: the number of
the next batch. A task that runs again for a batch that is done (Spark repeats whole batches after a
failure, and may run a task twice) finds the marker and writes nothing. Asking for the producer id
ends whatever an earlier attempt had open, and fences it.

The marker also holds what was written: rows and bytes. A repeated task that has something else
would mean lost and doubled records, and fails instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ottla.protocol.client.operations import ANY_VERSION, TRANSACTION, CoordinatorOf, Versions
from ottla.protocol.errors import RETRIABLE, ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.write.producing import INIT_PRODUCER_ID_VERSIONS, ProducerIdentity

T = TypeVar("T", bound=Message)

# Version 4 of AddPartitionsToTxn is for brokers among themselves.
ADD_PARTITIONS_VERSIONS = Versions(0, 3)
# Stable offsets only (KIP-447): a marker of a transaction that is still being ended is waited for.
STABLE_FETCH_VERSIONS = Versions(7, 7)

_FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class Written(NamedTuple):
    """What a task wrote, as far as it is the same in whatever order the rows come."""

    rows: int
    key_bytes: int
    value_bytes: int


class Marker(NamedTuple):
    """The committed marker: batches below `next_batch` are done; `written` in the last of them."""

    next_batch: int
    written: Written | None


class TaskTransaction:
    """The transactional producer of one task; used by one thread at a time."""

    def __init__(self, cluster: KafkaCluster, transactional_id: str, timeout_ms: int) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self.identity = ProducerIdentity()

    @property
    def group_id(self) -> str:
        """The group that holds the marker; used by nothing else."""
        return self._id

    def begin(self) -> None:
        """Gets the producer id: fences earlier attempts and ends what they left open."""
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=self._timeout_ms
        )
        response = self._call("Starting a transaction", request, InitProducerIdResponse)
        self._check("Starting a transaction", response.error_code)
        self.identity = ProducerIdentity(response.producer_id, response.producer_epoch, self._id)

    def marker(self, place: TopicPartition) -> Marker:
        """The marker as committed by the last successful attempt; zero if there was none."""
        what = f"Reading the marker of {self._id}"
        topic = OffsetFetchRequestTopic(name=place.topic, partition_indexes=[place.partition])
        request = OffsetFetchRequest(group_id=self.group_id, topics=[topic], require_stable=True)
        response = self._cluster.call_with_retries(
            what,
            lambda timeout_ms: self._cluster.client.call(
                request,
                CoordinatorOf(self.group_id),
                timeout_ms=timeout_ms,
                versions=STABLE_FETCH_VERSIONS,
            ),
            self._cluster.deadline(),
        )
        assert isinstance(response, OffsetFetchResponse)
        self._check(what, response.error_code)
        for row_topic in response.topics:
            for row in row_topic.partitions:
                self._check(what, row.error_code)
                if row.committed_offset >= 0:
                    return Marker(row.committed_offset, _parse_written(row.metadata))
        return Marker(0, None)

    def add_partitions(self, partitions: list[TopicPartition]) -> None:
        """Makes the partitions part of the transaction, before anything is written to them."""
        what = "Adding partitions to a transaction"
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for tp in partitions:
            topic = topics.setdefault(tp.topic, AddPartitionsToTxnTopic(name=tp.topic))
            topic.partitions.append(tp.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def codes(response: AddPartitionsToTxnResponse) -> list[int]:
            return [
                row.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ]

        self._call_until_done(what, request, AddPartitionsToTxnResponse, codes)

    def set_marker(self, place: TopicPartition, marker: Marker) -> None:
        """Commits the marker as part of the transaction."""
        what = "Adding the marker to a transaction"
        add = AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=self.group_id,
        )
        self._check(what, self._call(what, add, AddOffsetsToTxnResponse).error_code)
        row = TxnOffsetCommitRequestPartition(
            partition_index=place.partition,
            committed_offset=marker.next_batch,
            committed_metadata=json.dumps(marker.written),
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=self.group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=place.topic, partitions=[row])],
        )

        def codes(response: TxnOffsetCommitResponse) -> list[int]:
            return [row.error_code for topic in response.topics for row in topic.partitions]

        self._call_until_done(what, commit, TxnOffsetCommitResponse, codes, to_group=True)

    def end(self, *, committed: bool) -> None:
        """Commits or aborts; after a commit the records are visible to read_committed readers."""
        what = "Committing a transaction" if committed else "Aborting a transaction"
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
        )
        self._check(what, self._call(what, request, EndTxnResponse).error_code)

    # --- calls to the coordinator ----------------------------------------------------------------

    def _call(
        self,
        what: str,
        request: Message,
        kind: type[T],
        *,
        to_group: bool = False,
        versions: Versions = ANY_VERSION,
    ) -> T:
        """The coordinator's response; retried while the coordinator moves or loads."""
        route = CoordinatorOf(self.group_id) if to_group else CoordinatorOf(self._id, TRANSACTION)
        if isinstance(request, InitProducerIdRequest):
            versions = INIT_PRODUCER_ID_VERSIONS
        response = self._cluster.call_with_retries(
            what,
            lambda timeout_ms: self._cluster.client.call(
                request, route, timeout_ms=timeout_ms, versions=versions
            ),
            self._cluster.deadline(),
        )
        assert isinstance(response, kind)
        return response

    def _call_until_done(
        self,
        what: str,
        request: Message,
        kind: type[T],
        codes: Callable[[T], list[int]],
        *,
        to_group: bool = False,
    ) -> None:
        """As `_call`, for responses with an error code for each partition."""
        versions = ANY_VERSION if to_group else ADD_PARTITIONS_VERSIONS
        deadline = self._cluster.deadline()
        while True:
            found = codes(self._call(what, request, kind, to_group=to_group, versions=versions))
            failed = [
                code
                for code in found
                if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
            ]
            if not failed:
                return
            final = [code for code in failed if code not in RETRIABLE]
            if final or not self._cluster.wait(deadline):
                self._check(what, (final or failed)[0])

    def _check(self, what: str, code: int) -> None:
        if code in _FENCED:
            raise ConnectorError(
                errors.WRITE_FAILED,
                f"{what} failed: another attempt of the task {self._id} has taken over",
                "Harmless if Spark runs the task twice; else two queries use the same "
                "transactionalIdPrefix and checkpoint",
            )
        if code != ErrorCode.NONE:
            raise refused(f"{what} ({self._id})", code)


def _parse_written(metadata: str | None) -> Written | None:
    try:
        rows, key_bytes, value_bytes = json.loads(metadata or "")
        return Written(int(rows), int(key_bytes), int(value_bytes))
    except (ValueError, TypeError):
        return None
