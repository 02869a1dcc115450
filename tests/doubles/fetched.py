"""A fetch from a replica manager, and its response."""

from __future__ import annotations

from ottla.broker.replication.delayed_fetch import FetchParams
from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.protocol.messages.fetch import FetchPartition
from tests.doubles.replicas import TOPIC, TOPIC_ID


class FetchMessages:
    """Waits for one byte, for a second, unless `fields` of the parameters say otherwise."""

    def __init__(self, manager: ReplicaManager, *positions: FetchPartition, **fields: int) -> None:
        params = FetchParams()
        params.max_bytes = 1 << 20
        params.min_bytes = 1
        params.max_wait_ms = 1_000
        for name, value in fields.items():
            setattr(params, name, value)
        self.responses: list[list[FetchResult]] = []
        items: list[FetchItem] = [(TOPIC, TOPIC_ID, position) for position in positions]
        manager.fetch_messages(params, items, self.responses.append)
