"""Serializes the changes of a consumer group: one starts when the one before is committed.

A change is computed from committed state only, so a group has one uncommitted change at most. Other
requests for the group are queued.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ottla.broker.coordination.ports import (
    IN_LOG_ERRORS,
    MOVED_ERRORS,
    TOO_LARGE_ERRORS,
    UNAVAILABLE_ERRORS,
    WallClock,
)
from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.partitions import GroupPartitions
from ottla.broker.groups.log.replay import replay_record
from ottla.broker.groups.offsets import AFTER_ALL
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger("ottla.groups")

# Queued requests of one group; each is of a connection of its own.
MAX_WAITING = 10_000


class Change(NamedTuple):
    """Records of one group, appended as one batch, and the callback for the result."""

    records: Sequence[tuple[bytes, bytes | None]]
    on_result: Callable[[int], None]
    """Gets an error code for members. The records have been replayed when it is 0, and also when
    they were appended but not replicated within the timeout."""


Step = Callable[[int], Change | None]
"""Gets an error code when this broker no longer coordinates the group, else 0. Returns the change
to append; None when there is none and the response has been sent."""


class GroupWriter:
    """Runs the steps of each group in order. Loop only."""

    def __init__(
        self,
        partitions: GroupPartitions,
        appender: GroupAppender,
        clock: WallClock,
        on_append_timed_out: Callable[[str], None],
    ) -> None:
        """`on_append_timed_out` is called with a group id after a change that was replayed although
        its append timed out: its requests got an error, and members of it may have no timers."""
        self._partitions = partitions
        self._appender = appender
        self._clock = clock
        self._on_append_timed_out = on_append_timed_out
        # Queued steps by group id; a group has an entry while a change of it is being appended.
        self._waiting: dict[str, deque[Step]] = {}

    def is_busy(self, group_id: str) -> bool:
        """Whether a change of this group is being appended."""
        return group_id in self._waiting

    def submit(self, group_id: str, step: Step) -> None:
        """Runs the step after those queued before it; at once, if the group is not busy."""
        waiting = self._waiting.get(group_id)
        if waiting is None:
            waiting = self._waiting[group_id] = deque((step,))
            self._run(group_id, waiting)
        elif len(waiting) >= MAX_WAITING:
            step(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            waiting.append(step)

    def _run(self, group_id: str, waiting: deque[Step]) -> None:
        while waiting:
            change = self._change_of(group_id, waiting.popleft())
            if change is not None and not self._write(group_id, change, waiting):
                return  # continues in the callback of the append
        del self._waiting[group_id]

    def _change_of(self, group_id: str, step: Step) -> Change | None:
        try:
            return step(self._partitions.check(group_id, allow_empty=True))
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
        """Appends the records; true when the append has completed already."""
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
                    for key, value in change.records:
                        replay_record(group_partition, key, value, at, None, self._clock)
                change.on_result(_error(error_code))
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


def _error(error_code: int) -> int:
    if error_code in UNAVAILABLE_ERRORS or error_code == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error_code in TOO_LARGE_ERRORS:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error_code
