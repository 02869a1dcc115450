"""Fetch requests of thousands of partitions, in slices.

A client sends all its partitions in the first fetch of a session, and in each one if it has no
sessions (librdkafka), and so does a follower: as many as the leader has.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.replication.delayed_fetch import DelayedFetch, FetchParams, PartitionKey
from ottla.broker.runtime.slices import run_in_slices
from ottla.broker.runtime.tasks import spawn

if TYPE_CHECKING:
    from ottla.broker.replication.delayed_remote_fetch import RemoteStorageFetch
    from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.steps import Steps

# Requests of more partitions are handled in slices: reading one takes 5 us.
MAX_PARTITIONS_PER_TURN = 2_000
# The same of a follower: with the fetch that joins the ISR of a partition it takes 150 us.
MAX_FOLLOWED_PER_TURN = 500
PARTITIONS_PER_STEP = 20
FOLLOWED_PER_STEP = 4

Respond = Callable[[list["FetchResult"]], Coroutine[Any, Any, None]]
Found = tuple[list["FetchResult"], int, bool, "RemoteStorageFetch | None"]


async def fetch_many(
    manager: ReplicaManager, params: FetchParams, items: list[FetchItem], respond: Respond
) -> None:
    """As `ReplicaManager.fetch_messages`; `respond` gets a result for each item.

    A fetch that waits is completed by any record: to count `min_bytes`, all of its partitions would
    be read in the turn in which it begins to wait.
    """
    params.min_bytes = min(params.min_bytes, 1)
    remote = manager.remote_fetches
    results, size, immediate, moved = await run_in_slices(_read(manager, params, items))
    if remote is not None and moved is not None:
        remote.start(moved, results, lambda results: _respond_later(respond(results)))
        return
    if immediate or params.max_wait_ms <= 0 or size >= params.min_bytes:
        await respond(results)
        return
    waiting = items if remote is None else remote.local_items(items)
    positions = {(topic, position.partition): position for topic, _, position in waiting}

    async def read_again() -> None:
        steps = _read(manager, params, items, records_progress=False)
        await respond((await run_in_slices(steps))[0])

    def complete(_: Iterable[PartitionKey] | None) -> None:
        _respond_later(read_again())

    operation = DelayedFetch(params, positions, manager.partitions.get, complete)
    if params.is_follower:
        operation.throttle = manager.leader_throttle
    manager.fetch_purgatory.try_complete_else_watch(operation, positions)


def _respond_later(coroutine: Coroutine[Any, Any, None]) -> None:
    spawn(coroutine, name="large-fetch")


def _read(
    manager: ReplicaManager,
    params: FetchParams,
    items: list[FetchItem],
    *,
    records_progress: bool = True,
) -> Steps[Found]:
    """`ReplicaManager.read` in steps."""
    results: list[FetchResult] = []
    size, is_immediate = 0, False
    moved: RemoteStorageFetch | None = None
    per_step = FOLLOWED_PER_STEP if params.is_follower else PARTITIONS_PER_STEP
    for start in range(0, len(items), per_step):
        found, size, immediate, moved = manager.read(
            params,
            items[start : start + per_step],
            records_progress=records_progress,
            size=size,
            moved=moved,
        )
        results += found
        is_immediate |= immediate
        yield
    return results, size, is_immediate, moved
