"""Serializes the changes of a consumer group: one starts when the one before is committed.

A change is computed from committed state only, so a group has one uncommitted change at most. Other
requests for the group are queued, also in the pauses of computing a change of a large group.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.coordination.ports import (
    IN_LOG_ERRORS,
    MOVED_ERRORS,
    TOO_LARGE_ERRORS,
    UNAVAILABLE_ERRORS,
    WallClock,
)
from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.loader import replay_record
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.offsets import AFTER_ALL
from ottla.protocol.errors import ErrorCode
from ottla.protocol.steps import Steps, Turn, TurnQueue

if TYPE_CHECKING:
    from ottla.broker.groups.classic.group import Group
    from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
    from ottla.broker.groups.consumer.records import GroupRecord
    from ottla.broker.groups.log.partition import GroupPartition

logger = logging.getLogger("ottla.groups")

# Queued requests of one group; each is of a connection of its own.
MAX_WAITING = 10_000


class Change(NamedTuple):
    """Records of one group, appended as one batch, and the callback for the result."""

    records: Sequence[tuple[bytes, bytes | None]]
    on_result: Callable[[int], None]
    """Gets an error code for members. The records have been replayed when it is 0, and also when
    they were appended but not replicated within the timeout."""
    decoded: Sequence[GroupRecord | None] = ()
    """The decoded records, where known: decoding is the longest part of a replay."""
    converted: ConsumerGroup | None = None
    """The consumer group after the replay of all decoded records, for a change to or from the
    classic protocol. Replaying them one by one has the same result."""
    classic: Group | None = None
    """The classic group of the only record that is not decoded, for a change to that protocol."""
    then: Step | None = None
    """The next part of a change that is too large for one batch. It runs when this part is
    committed, before other requests of the group, and instead of `on_result`."""


Drafting = Steps[Change | None]
"""Computes a change. In a pause only other groups may change."""

Step = Callable[[int], Change | Drafting | None]
"""Gets 0, or an error code when this broker no longer coordinates the group. Returns the change to
append, or None when there is nothing to append and the response has been sent. It is called again,
with an error code, when this broker ceases to coordinate the group in a pause."""


class GroupWriter:
    """Runs the steps of each group in order. Loop only."""

    def __init__(
        self,
        partitions: GroupPartitions,
        appender: GroupAppender,
        clock: WallClock,
        on_append_timed_out: Callable[[str], None],
        jobs: TurnQueue,
    ) -> None:
        """`on_append_timed_out` is called with a group id after a change that was replayed although
        its append timed out: its requests got an error, and members of it may have no timers.
        `jobs` continues changes that take longer than a turn."""
        self._partitions = partitions
        self._appender = appender
        self._clock = clock
        self._on_append_timed_out = on_append_timed_out
        self._jobs = jobs
        # Queued steps by group id; a group has an entry while a change of it is being computed or
        # appended.
        self._waiting: dict[str, deque[Step]] = {}

    def is_busy(self, group_id: str) -> bool:
        """Return whether a change of this group is being computed or appended."""
        return group_id in self._waiting

    def submit(self, group_id: str, step: Step) -> None:
        """Run the step after those queued before it; at once, if the group is not busy."""
        waiting = self._waiting.get(group_id)
        if waiting is None:
            waiting = self._waiting[group_id] = deque((step,))
            self._run(group_id, waiting)
        elif len(waiting) >= MAX_WAITING:
            step(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            waiting.append(step)

    def _run(self, group_id: str, waiting: deque[Step]) -> None:
        """Run the queued steps: a turn at once, whatever other groups do."""
        work, turn = self._run_waiting(group_id, waiting), Turn()
        for _ in work:
            if turn.is_over:
                self._jobs.start(work)
                return

    def _run_waiting(self, group_id: str, waiting: deque[Step]) -> Steps[None]:
        while waiting:
            change = yield from self._change_of(group_id, waiting.popleft())
            if change is not None and not self._write(group_id, change, waiting):
                return  # continues in the callback of the append
            if waiting:
                yield
        del self._waiting[group_id]

    def _change_of(self, group_id: str, step: Step) -> Drafting:
        """No pause between the last check that the partition is active and the end."""
        try:
            change = step(self._partitions.check(group_id, allow_empty=True))
            if not isinstance(change, Generator):
                return change
            partition = self._partitions.home_of(group_id)
            while partition is not None and self._partitions.is_active(partition):
                try:
                    next(change)
                except StopIteration as end:
                    result: Change | None = end.value
                    return result
                yield
            change.close()
            step(ErrorCode.NOT_COORDINATOR)
            return None
        except Exception:
            # A defect. Without this, no later request of the group would get a response.
            self._log_defect(group_id)
            with suppress(Exception):
                step(ErrorCode.UNKNOWN_SERVER_ERROR)
            return None

    @staticmethod
    def _log_defect(group_id: str) -> None:
        logger.exception(
            "Unexpected error in a change of group %s", group_id, extra={"group": group_id}
        )

    def _write(self, group_id: str, change: Change, waiting: deque[Step]) -> bool:
        """Append the records; return whether the append has completed already."""
        group_partition = self._partitions.home_of(group_id)
        assert group_partition is not None, "checked before the step, without an await since"
        is_inside = True
        is_done = False

        def on_append(error_code: int, base_offset: int) -> None:
            nonlocal is_done
            is_done = True
            is_late = error_code in IN_LOG_ERRORS
            try:
                if is_late or not error_code:
                    at = AFTER_ALL if is_late else base_offset
                    self._replay(group_partition, change, at)
                if change.then is not None and not error_code:
                    waiting.appendleft(change.then)
                else:
                    change.on_result(member_error(error_code))
                if is_late:
                    self._on_append_timed_out(group_id)
            except Exception:
                self._log_defect(group_id)
            finally:
                if not is_inside:
                    self._run(group_id, waiting)

        self._appender.append(group_partition, change.records, on_append)
        is_inside = False
        return is_done

    def _replay(self, partition: GroupPartition, change: Change, at: int) -> None:
        converted = change.converted
        for (key, value), decoded in zip_longest(change.records, change.decoded):
            if decoded is None and change.classic is not None:
                partition.replay_group(change.classic.group_id, change.classic)
            elif decoded is None:
                replay_record(partition, key, value, at, None, self._clock)
            elif change.converted is None:
                partition.replay_consumer_group(decoded)
            elif converted is not None:
                partition.replay_converted(converted)
                converted = None


def member_error(error_code: int) -> int:
    """Map the error of an append to one for members, after which they retry here, find the
    coordinator again or fail."""
    if error_code in UNAVAILABLE_ERRORS or error_code == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error_code in TOO_LARGE_ERRORS:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error_code
