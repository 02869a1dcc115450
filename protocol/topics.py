"""The names of partitions and of the internal topics."""

from __future__ import annotations

from typing import NamedTuple

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"

INTERNAL_TOPICS = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC))
"""Clients can read them, and only the coordinators write to them."""


class TopicPartition(NamedTuple):
    """A partition of a topic; its text is `topic-partition`, as in log directories and logs."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
