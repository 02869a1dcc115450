"""TxnOffsetCommit (28), versions 0 to 4: commits offsets in the transaction of a producer."""

from collections.abc import Callable

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.groups.commits import Committer, GroupCommits
from ottla.broker.groups.log.appender import offset_error
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.topic_rows import TopicRows, split_known
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.transactions.state import Producer
from ottla.broker.transactions.verification import TransactionVerifier
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

LOADING_KNOWN_SINCE = 2  # producers before that version crash on COORDINATOR_LOAD_IN_PROGRESS
ABORTABLE_KNOWN_SINCE = 4


class TxnOffsetCommitHandler:
    """Verifies the transaction, then hands the offsets to the group coordinator."""

    def __init__(
        self,
        commits: GroupCommits,
        verifier: TransactionVerifier,
        topics: MetadataCache,
        group_partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        request_errors: GroupRequestErrorLog,
    ) -> None:
        self._commits = commits
        self._request_errors = request_errors
        self._verifier = verifier
        self._topics = topics
        self._group_partition_for = group_partition_for
        self._now_ms = now_ms

    def handle(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Deferred | TxnOffsetCommitResponse:
        version = context.header.api_version
        rows: TopicRows[int] = TopicRows()
        now_ms = self._now_ms()
        known = split_known(
            self._topics,
            (
                (
                    TopicPartition(topic.name, partition.partition_index),
                    CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata or "",
                        now_ms,
                    ),
                )
                for topic in request.topics
                for partition in topic.partitions
            ),
            rows,
        )
        if not known:
            return _response(rows)
        producer = Producer(request.producer_id, request.producer_epoch)
        committer = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )

        def send_response(results: dict[TopicPartition, int]) -> None:
            for partition, error in results.items():
                self._request_errors.log(
                    *(context, "TxnOffsetCommit", request.group_id, request.member_id),
                    *(request.generation_id, error),
                )
                is_loading = error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if is_loading and version < LOADING_KNOWN_SINCE:
                    rows.add(partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                else:
                    rows.add(partition, error)
            context.respond(_response(rows))

        def verified(errors: dict[TopicPartition, int]) -> None:
            if errors:
                send_response(dict.fromkeys(known, offset_error(next(iter(errors.values())))))
            else:
                self._commits.commit_transactional(
                    committer, *producer, known, send_response, guard
                )

        error = self._commits.check(request.group_id)
        guard = None if error else self._commits.begin_verification(request.group_id, *producer)
        if error:
            send_response(dict.fromkeys(known, error))
        elif guard is None:
            verified({})  # verified when the transaction started in the partition
        else:
            where = TopicPartition(
                GROUP_METADATA_TOPIC, self._group_partition_for(request.group_id)
            )
            self._verifier.verify(
                request.transactional_id,
                producer,
                frozenset((where,)),
                verified,
                knows_abortable=version >= ABORTABLE_KNOWN_SINCE,
            )
        return DEFERRED


def _response(rows: TopicRows[int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=error)
                    for index, error in partitions
                ],
            )
            for name, partitions in rows.items()
        ]
    )
