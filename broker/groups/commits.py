"""OffsetCommit, TxnOffsetCommit and OffsetFetch: how far a group has read.

A commit is a record first. It is answered, and visible to OffsetFetch, when the record is below
the high watermark of its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.log.appender import GroupAppender, offset_error
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.groups.log.partitions import GroupPartitions
from ottla.broker.groups.log.records import offset_key, offset_value
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.verification import Verification

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import AnyGroup

Offsets = Mapping[TopicPartition, CommittedOffset]
CommitReply = Callable[[dict[TopicPartition, int]], None]
"""Gets the error code of every partition of the request."""

MISSING = CommittedOffset(-1, -1, "", -1)

_BOTH_KINDS_VERSION = 9  # of OffsetCommit


class Committer(NamedTuple):
    """Who commits: a member with its generation (or epoch), or (-1 and no member id) a simple
    consumer."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation_id: int = -1
    version: int = 8  # of OffsetCommit


class _InTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    guard: Verification | None


class FetchedOffset(NamedTuple):
    error_code: int
    value: CommittedOffset


class GroupCommits:
    """The offset requests of all groups this broker coordinates."""

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

    def commit(self, committer: Committer, offsets: Offsets, reply: CommitReply) -> None:
        """Commit outside of a transaction; `reply` gets one error code per partition."""
        error = self._partitions.check(committer.group_id, allow_empty=True)
        if error:
            reply(dict.fromkeys(offsets, error))
            return
        group = self._partitions.find(committer.group_id)
        if group is None:
            if committer.generation_id >= 0:
                reply(dict.fromkeys(offsets, self._unknown_group(committer)))
                return
            group = self._partitions.find_or_create(committer.group_id)
        error = _check_committer(group, committer, is_transactional=False)
        if not error and group.state is GroupState.COMPLETING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error:
            reply(dict.fromkeys(offsets, error))
            return
        if group.kind == "classic":
            member = group.members.get(committer.member_id)
            if member is not None:
                self._rebalancer.restart_session(group, member)
        self._store(group, offsets, reply, None)

    def _unknown_group(self, committer: Committer) -> int:
        """Where there are two kinds of groups, an error that both kinds of members know."""
        if committer.version >= _BOTH_KINDS_VERSION and self._partitions.has_consumer_groups:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def commit_transactional(
        self,
        committer: Committer,
        producer_id: int,
        producer_epoch: int,
        offsets: Offsets,
        reply: CommitReply,
        guard: Verification | None = None,
    ) -> None:
        """Commit inside the producer's transaction: the offsets count when it commits."""
        error = self._partitions.check(committer.group_id)
        if error:
            reply(dict.fromkeys(offsets, error))
            return
        group = self._partitions.find_or_create(committer.group_id)
        error = _check_committer(group, committer, is_transactional=True)
        if error:
            reply(dict.fromkeys(offsets, error))
            return
        self._store(group, offsets, reply, _InTransaction(producer_id, producer_epoch, guard))

    def check(self, group_id: str) -> int:
        """The error code when this group is not served here now, else 0."""
        return self._partitions.check(group_id)

    def begin_verification(
        self, group_id: str, producer_id: int, producer_epoch: int
    ) -> Verification | None:
        """What has to come back with the commit, once the transaction's coordinator agreed.

        None when nobody has to be asked: the transaction is open in the group's partition.
        """
        home = self._partitions.home_of(group_id)
        if home is None:
            return None
        return self._appender.begin_verification(home, producer_id, producer_epoch)

    def _store(
        self,
        group: AnyGroup,
        offsets: Offsets,
        reply: CommitReply,
        within: _InTransaction | None,
    ) -> None:
        results = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        accepted = [
            (partition, value)
            for partition, value in offsets.items()
            if java_length(value.metadata) <= self._max_metadata
        ]
        if not accepted:
            reply(results)
            return
        home = self._partitions.home_of(group.group_id)
        assert home is not None, "checked by the caller, with no wait in between"
        partitions = [partition for partition, _ in accepted]
        producer_id = None if within is None else within.producer_id
        group.offsets.begin(partitions, producer_id)

        def on_result(error_code: int, base_offset: int) -> None:
            group.offsets.finish(partitions, producer_id)
            if not error_code:
                _replay(home, group.group_id, accepted, base_offset, producer_id)
            results.update(dict.fromkeys(partitions, offset_error(error_code)))
            reply(results)

        self._appender.append(
            home,
            [
                (offset_key(group.group_id, partition), offset_value(value))
                for partition, value in accepted
            ],
            on_result,
            producer_id=-1 if within is None else within.producer_id,
            producer_epoch=-1 if within is None else within.producer_epoch,
            guard=None if within is None else within.guard,
            base_sequence=0,  # in every batch of offsets, as Kafka writes them
        )

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[int, dict[TopicPartition, FetchedOffset]]:
        """The group's error code and what it committed; all it has when `partitions` is None.

        What was never committed is no error: its offset is -1. When stable offsets are asked
        for, a partition with a newer commit under way answers UNSTABLE_OFFSET_COMMIT. A member
        of a consumer group that says who it is has to be up to date.
        """
        error = self._partitions.check(group_id, allow_empty=True)
        if error:
            return error, {}
        group = self._partitions.find(group_id)
        if group is None or group.is_deleted:
            return ErrorCode.NONE, {
                partition: FetchedOffset(ErrorCode.NONE, MISSING) for partition in partitions or ()
            }
        if group.kind == "consumer":
            error = group.reader_error(member_id, member_epoch)
            if error:
                return error, {}
        committed = group.offsets.committed
        found = {}
        for partition in list(committed) if partitions is None else partitions:
            if require_stable and group.offsets.is_unstable(partition):
                found[partition] = FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT, MISSING)
            else:
                found[partition] = FetchedOffset(ErrorCode.NONE, committed.get(partition, MISSING))
        return ErrorCode.NONE, found


def _replay(
    home: GroupPartition,
    group_id: str,
    offsets: Iterable[tuple[TopicPartition, CommittedOffset]],
    base_offset: int,
    producer_id: int | None,
) -> None:
    group = home.groups.get(group_id)
    if group is not None and group.is_deleted:
        return  # deleted while the commit was under way: its tombstones come next
    for partition, value in offsets:
        home.replay_offset(
            group_id, partition, value._replace(appended_at=base_offset), base_offset, producer_id
        )


def _check_committer(group: AnyGroup, committer: Committer, *, is_transactional: bool) -> int:
    if group.kind == "consumer":
        return group.committer_error(
            committer.member_id,
            committer.generation_id,
            version=None if is_transactional else committer.version,
        )
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    generation_id = committer.generation_id
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # a simple consumer, or an administrator
    if generation_id >= 0 or committer.member_id or committer.instance_id is not None:
        error = group.check_member(committer.member_id, committer.instance_id)
        if error:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE
    if is_transactional or group.state is GroupState.EMPTY:
        # Older producers do not say for which member they commit.
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_MEMBER_ID


def java_length(text: str) -> int:
    """`String.length` of Java: UTF-16 code units, in which Kafka's limit is counted."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
