"""A fetch from a replica manager, and its response."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.replication.delayed_fetch import FetchParams
from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.protocol.steps import run_at_once
from tests.doubles.replicas import TOPIC, TOPIC_ID


class FetchMessages:
    """Waits for one byte, for a second, unless `fields` of the parameters say otherwise."""

    def __init__(self, manager: ReplicaManager, *positions: FetchPartition, **fields: int) -> None:
        params = FetchParams(fields.pop("replica_id", -1), fields.pop("replica_epoch", -1))
        params.max_bytes = 1 << 20
        params.min_bytes = 1
        params.max_wait_ms = 1_000
        for name, value in fields.items():
            setattr(params, name, value)
        items = [FetchItem(TOPIC, TOPIC_ID, position) for position in positions]
        self.responses: list[list[FetchResult]] = []
        fetch(manager, params, items, self.responses.append)


def fetch(
    manager: ReplicaManager,
    params: FetchParams,
    items: list[FetchItem],
    respond: Callable[[list[FetchResult]], object],
) -> None:
    """Fetch without a pause; `respond` gets the results, perhaps before this returns."""
    steps = manager.fetch(params, items, lambda reading: respond(run_at_once(reading)))
    results = run_at_once(steps)
    if results is not None:
        respond(results)


def read(manager: ReplicaManager, params: FetchParams, *items: FetchItem) -> list[PartitionData]:
    """Read as a fetch that does not wait."""
    now_ms = manager.context.now_ms() if params.is_follower else None
    results, *_ = run_at_once(manager.read(params, items, now_ms))
    return [data for _, data in results]
