"""Changes of a group one after the other: the next begins when the one before is committed.

A change is computed from what is committed and nothing else. So a group never has two changes
under way that do not know of each other; who comes meanwhile waits for its turn.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.broker.coordination.ports import (
    MOVED_ERRORS,
    TOO_LARGE_ERRORS,
    UNAVAILABLE_ERRORS,
    WallClock,
)
from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.partitions import GroupPartitions
from ottla.broker.groups.log.replay import replay_record
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger("ottla.groups")

# Requests that wait for one group; each is of a connection of its own, and a group has members.
MAX_WAITING = 10_000

# The records were appended, but not replicated in time.
_IN_LOG_ERRORS = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
_AFTER_ALL = 2**63 - 1  # as log offset: behind every record that is known


class Change(NamedTuple):
    """Records of one group, written as one batch, and who waits for them."""

    records: Sequence[tuple[bytes, bytes | None]]
    on_result: Callable[[int], None]
    """Gets an error code fit for members; memory has changed when it is 0, and also when the
    records are in the log but were not replicated in time."""


Step = Callable[[int], Change | None]
"""Gets the error to answer with when the group is not served here any more, or 0. Returns what to
write; None when nothing is, and everybody is answered."""


class GroupWriter:
    """Runs the steps of every group in their order. Loop only."""

    def __init__(
        self, partitions: GroupPartitions, appender: GroupAppender, clock: WallClock
    ) -> None:
        self._partitions = partitions
        self._appender = appender
        self._clock = clock
        # Told of a group after a change that is in the log, but late: its members were answered
        # with an error, and are in memory all the same.
        self.on_uncertain: Callable[[str], None] = lambda group_id: None
        # By group id; a group is in here while one of its changes is under way.
        self._waiting: dict[str, deque[Step]] = {}

    def is_busy(self, group_id: str) -> bool:
        """Whether a change of this group is under way."""
        return group_id in self._waiting

    def submit(self, group_id: str, step: Step) -> None:
        """Run the step when its turn has come: at once, if the group is not busy."""
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
            step = waiting.popleft()
            change = step(self._partitions.check(group_id, allow_empty=True))
            if change is not None and not self._write(group_id, change, waiting):
                return  # goes on from the log's callback
        del self._waiting[group_id]

    def _write(self, group_id: str, change: Change, waiting: deque[Step]) -> bool:
        """Append the records; true when the result came at once."""
        home = self._partitions.home_of(group_id)
        assert home is not None, "checked before the step, with no wait in between"
        is_inside = True
        is_done = False

        def on_append(error_code: int, base_offset: int) -> None:
            nonlocal is_done
            is_done = True
            # What is in the log is what the next coordinator reads, however late it is committed.
            is_late = error_code in _IN_LOG_ERRORS
            if is_late or not error_code:
                at = _AFTER_ALL if is_late else base_offset
                for key, value in change.records:
                    replay_record(home, key, value, at, None, self._clock)
            try:
                change.on_result(_error(error_code))
                if is_late:
                    self.on_uncertain(group_id)
            finally:
                if not is_inside:
                    self._run(group_id, waiting)

        self._appender.append(home, change.records, on_append)
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
