"""OffsetCommit, TxnOffsetCommit and OffsetFetch: the committed offsets of groups.

A commit is a record first: the response is sent, and OffsetFetch returns the offset, when the
record is below the high watermark of its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.log.appender import GroupAppender, offset_error
from ottla.broker.groups.log.partition import GroupPartition, GroupPartitions
from ottla.broker.groups.log.records import offset_key, offset_value
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.verification import Verification

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import AnyGroup

Offsets = Mapping[TopicPartition, CommittedOffset]
CommitCallback = Callable[[dict[TopicPartition, int]], None]
"""Sends the response; gets the error code of every partition of the request."""

NO_OFFSET = CommittedOffset(-1, -1, "", -1)

_GROUP_ID_NOT_FOUND_SINCE = 9  # version of OffsetCommit


class Committer(NamedTuple):
    """The sender of a commit: a member with its generation (or epoch), or, with a generation of -1
    and no member id, a consumer that manages its partitions itself."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation_id: int = -1
    version: int = 8  # version of OffsetCommit


class _ProducerTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    guard: Verification | None


class FetchedOffset(NamedTuple):
    error_code: int
    value: CommittedOffset


class GroupCommits:
    """The offset requests of the groups of this coordinator."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        rebalancer: Rebalancer,
        appender: GroupAppender,
    ) -> None:
        self._max_metadata = settings.offset_metadata_max_bytes
        self._partitions = partitions
        self._rebalancer = rebalancer
        self._appender = appender

    def commit(
        self, committer: Committer, offsets: Offsets, response_callback: CommitCallback
    ) -> None:
        """Commit outside of a transaction; respond with an error code for each partition."""
        group_id = committer.group_id
        group_partition = self._partitions.home_of(group_id)
        if group_partition is None or not self._partitions.is_running:
            error = self._partitions.check(group_id, allow_empty=True)
            response_callback(dict.fromkeys(offsets, error))
            return
        group = group_partition.groups.get(group_id)
        error = _share_group_error(group_partition, group_id)
        if not error and group is None and committer.generation_id >= 0:
            error = self._unknown_group(committer)
        if error:
            response_callback(dict.fromkeys(offsets, error))
            return
        if group is None:
            group = group_partition.find_or_create(group_id)
        error = _check_committer(group, committer, is_transactional=False)
        if error:
            response_callback(dict.fromkeys(offsets, error))
            return
        if group.kind == "classic":
            member = group.members.get(committer.member_id)
            if member is not None:
                self._rebalancer.restart_session_timer(group, member)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The generation is the new one, so the member has got its JoinGroup response; its
            # commit is retried after SyncGroup.
            response_callback(dict.fromkeys(offsets, ErrorCode.REBALANCE_IN_PROGRESS))
            return
        refused = _old_assignments(group, committer, offsets, is_transactional=False)
        self._store(group_partition, group, offsets, refused, response_callback, None)

    def _unknown_group(self, committer: Committer) -> int:
        """Members of both group protocols know GROUP_ID_NOT_FOUND from version 9 on."""
        if committer.version >= _GROUP_ID_NOT_FOUND_SINCE and self._partitions.has_consumer_groups:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def commit_transactional(
        self,
        committer: Committer,
        producer_id: int,
        producer_epoch: int,
        offsets: Offsets,
        response_callback: CommitCallback,
        guard: Verification | None = None,
    ) -> None:
        """Commit in a transaction: the offsets become visible when it is committed."""
        group_id = committer.group_id
        error = self._partitions.check(group_id)
        group_partition = self._partitions.home_of(group_id)
        if group_partition is not None:
            error = error or _share_group_error(group_partition, group_id)
        if error or group_partition is None:
            response_callback(dict.fromkeys(offsets, error))
            return
        group = group_partition.find_or_create(group_id)
        error = _check_committer(group, committer, is_transactional=True)
        if error:
            response_callback(dict.fromkeys(offsets, error))
            return
        self._store(
            group_partition,
            group,
            offsets,
            _old_assignments(group, committer, offsets, is_transactional=True),
            response_callback,
            _ProducerTransaction(producer_id, producer_epoch, guard),
        )

    def check(self, group_id: str) -> int:
        """Return the error code when this group is not served here now, else 0."""
        return self._partitions.check(group_id)

    def begin_verification(
        self, group_id: str, producer_id: int, producer_epoch: int
    ) -> Verification | None:
        """Return the guard to pass to the commit after the transaction coordinator has verified it.

        None when no verification is needed: the transaction is ongoing in the group's partition.
        """
        group_partition = self._partitions.home_of(group_id)
        if group_partition is None:
            return None
        return self._appender.begin_verification(group_partition, producer_id, producer_epoch)

    def is_valid(self, group_id: str, guard: Verification) -> bool:
        """Whether no marker has ended the verification: the append would fail. True as well when
        the group is not served here any more, which the commit finds."""
        group_partition = self._partitions.home_of(group_id)
        return group_partition is None or self._appender.is_valid(group_partition, guard)

    def _store(
        self,
        group_partition: GroupPartition,
        group: AnyGroup,
        offsets: Offsets,
        refused: dict[TopicPartition, int],
        response_callback: CommitCallback,
        transaction: _ProducerTransaction | None,
    ) -> None:
        """Append all but the `refused` offsets, which have their error codes."""
        accepted = offsets
        refused = self._with_large_metadata(offsets) | refused
        if refused:
            accepted = {key: value for key, value in offsets.items() if key not in refused}
        if not accepted:
            response_callback(refused)
            return
        group_id = group.group_id
        producer_id = None if transaction is None else transaction.producer_id
        group.offsets.begin(accepted, producer_id)
        opened = None
        if producer_id is not None:
            opened = group_partition.open_transaction(producer_id, group_id)

        def on_result(error_code: int, base_offset: int) -> None:
            group.offsets.finish(accepted, producer_id)
            if not error_code:
                if opened is None or opened.committed is None:
                    _replay(group_partition, group, accepted, base_offset, producer_id)
                elif opened.committed:
                    _replay(group_partition, group, accepted, base_offset, None)
                # Else the transaction was aborted while the commit was pending.
            elif producer_id is not None:
                group_partition.leave_transaction(producer_id, group)
            results = dict.fromkeys(offsets, offset_error(error_code) if error_code else 0)
            if refused:
                results.update(refused)
            response_callback(results)

        records = []
        for partition, value in accepted.items():
            records.append((offset_key(group_id, partition), offset_value(value)))
        if transaction is None:
            self._appender.append_together(group_partition, records, on_result)
            return
        self._appender.append(
            group_partition,
            records,
            on_result,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            guard=transaction.guard,
            base_sequence=0,  # as in the batches of offsets of Kafka
        )

    def _with_large_metadata(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """Return the partitions whose metadata are too large, with their error code."""
        refused: dict[TopicPartition, int] = {}
        for partition, value in offsets.items():
            if value.metadata and java_length(value.metadata) > self._max_metadata:
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        return refused

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> Steps[tuple[int, dict[TopicPartition, FetchedOffset]]]:
        """Return the error code of the group, and its committed offsets; all without `partitions`.

        A partition without a committed offset has offset -1 and no error. With `require_stable`, a
        partition with a pending commit has UNSTABLE_OFFSET_COMMIT. The member epoch of a member of
        a consumer group has to be current, if the request has one. Each offset is of one moment;
        in a pause offsets may be committed, and all may be deleted with the group.
        """
        error, group = self._partitions.look_up(group_id, allow_empty=True)
        if error:
            return error, {}
        if group is None or group.is_deleted:
            return ErrorCode.NONE, {
                partition: FetchedOffset(ErrorCode.NONE, NO_OFFSET)
                for partition in partitions or ()
            }
        if group.kind == "consumer":
            error = group.reader_error(member_id, member_epoch)
            if error:
                return error, {}
        committed = group.offsets.committed
        found = {}
        for partition in list(committed) if partitions is None else partitions:
            if require_stable and group.offsets.is_unstable(partition):
                found[partition] = FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT, NO_OFFSET)
            else:
                found[partition] = FetchedOffset(
                    ErrorCode.NONE, committed.get(partition, NO_OFFSET)
                )
            yield
        return ErrorCode.NONE, found


def _share_group_error(partition: GroupPartition, group_id: str) -> int:
    """A share group has no committed offsets; as in Kafka it is no group for a commit."""
    if partition.share_groups and group_id in partition.share_groups:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE


def _replay(
    group_partition: GroupPartition,
    committed_to: AnyGroup,
    offsets: Offsets,
    base_offset: int,
    producer_id: int | None,
) -> None:
    group_id = committed_to.group_id
    group = group_partition.groups.get(group_id)
    if group is not None and group.is_deleted:
        return  # deleted while the commit was pending: its tombstones follow
    is_other = group is None or group.offsets is not committed_to.offsets
    if is_other and committed_to.is_deleted:
        return  # its tombstones were replayed before
    for partition, value in offsets.items():
        offset, leader_epoch, metadata, commit_ms, expire_ms, _ = value
        appended = CommittedOffset(
            offset, leader_epoch, metadata, commit_ms, expire_ms, base_offset
        )
        if producer_id is None and group is not None:
            group.offsets.replay(partition, appended, base_offset)
        else:
            group_partition.replay_offset(group_id, partition, appended, base_offset, producer_id)


def _check_committer(group: AnyGroup, committer: Committer, *, is_transactional: bool) -> int:
    names_member = (
        committer.generation_id >= 0 or committer.member_id or committer.instance_id is not None
    )
    if group.kind == "consumer":
        if is_transactional and not names_member:
            return ErrorCode.NONE  # TxnOffsetCommit need not name a member
        return group.committer_error(
            committer.member_id,
            committer.generation_id,
            version=None if is_transactional else committer.version,
        )
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    generation_id = committer.generation_id
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # a consumer without group management, or an administrator
    if names_member:
        error = group.check_member(committer.member_id, committer.instance_id)
        if error:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE
    if is_transactional or group.state is GroupState.EMPTY:
        # Older producers send no member id.
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_MEMBER_ID


def _old_assignments(
    group: AnyGroup, committer: Committer, offsets: Offsets, *, is_transactional: bool
) -> dict[TopicPartition, int]:
    """Return the partitions that were assigned after the epoch of the commit, with their error.

    Only members of a consumer group may commit with an epoch that is not the present one.
    """
    if group.kind != "consumer":
        return {}
    member_id, epoch = committer.member_id, committer.generation_id
    error = group.stale_error(member_id, is_transactional=is_transactional)
    return {
        partition: error
        for partition in offsets
        if not group.may_commit(member_id, epoch, partition)
    }


def java_length(text: str) -> int:
    """`String.length` of Java, the unit of Kafka's limit: UTF-16 code units."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
