"""The state of a follower on the leader; mirrors Kafka's `Replica`."""

from __future__ import annotations

UNKNOWN_OFFSET = -1

# Before any allowed lag, also right after boot, when the monotonic clock is near 0.
NEVER = -(1 << 62)


class FollowerReplica:
    """A follower's progress, from its fetch requests.

    `last_caught_up_ms` is the last time at which the follower had all records of the leader. A
    fetch at the leader's log end offset sets it to now; a fetch at the log end offset of the
    previous fetch sets it to the time of that fetch.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "refused_until_ms",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = NEVER
        self.last_fetch_ms = NEVER
        self.last_fetch_leader_end_offset = 0
        #: The controller refused it as a member of the ISR: it is not proposed before.
        self.refused_until_ms = NEVER

    def reset(self, now_ms: int, leader_end_offset: int, new_leader: bool, in_sync: bool) -> None:
        """A leader epoch starts. A follower in the ISR counts as caught up for the allowed lag."""
        self.last_caught_up_ms = now_ms if in_sync else NEVER
        self.refused_until_ms = NEVER
        if new_leader:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.last_fetch_ms = NEVER
            self.last_fetch_leader_end_offset = 0
            self.broker_epoch = -1
        else:
            self.last_fetch_ms = now_ms if in_sync else NEVER
            self.last_fetch_leader_end_offset = leader_end_offset

    def record_fetch(self, fetch_offset: int, start_offset: int, end: int, now_ms: int) -> None:
        """The follower fetches from `fetch_offset`, so it has all records below it.

        `end` is the leader's log end offset before the read of this fetch.
        """
        if fetch_offset >= end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = start_offset
        self.last_fetch_leader_end_offset = end
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has all records of the leader, or had within `lag_time_max_ms`."""
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.last_caught_up_ms <= lag_time_max_ms
        )
