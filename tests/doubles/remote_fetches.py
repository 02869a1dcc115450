"""A broker with one tiered partition and one that is not, and the fetches that it gets."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.remote_log_reader import RemoteLogReader
from ottla.broker.replication.delayed_remote_fetch import RemoteFetches
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from tests.doubles.eventually import eventually_async
from tests.doubles.fetched import FetchMessages
from tests.doubles.replicas import Replicas
from tests.doubles.tiered_history import RemoteLogsOf
from tests.doubles.tiered_partition import TieredPartition

WAIT_MS = 500


class RemoteFetchScene:
    """A broker that leads a tiered partition 0, and partition 1 with local records only."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredPartition(path)
        self.replicas = Replicas()
        self.manager = self.replicas.manager
        self.partition = self.replicas.lead(0, replicas=[1, 2])
        self.partition.log = self.log = self.tiered.log
        self.replicas.lead(1)
        self.quota = ReplicationQuota()
        self.pools: list[WorkerPool] = []
        self.set_limits(threads=2)

    def set_limits(self, **limits: int) -> None:
        workers = WorkerPool(threads=limits["threads"])
        self.pools.append(workers)
        logs = RemoteLogsOf(self.tiered)
        reader = RemoteLogReader(logs, workers, self.quota, lambda: 1_000, **limits)
        self.reader = reader
        self.manager.remote_fetches = self.fetches = RemoteFetches(
            reader, self.replicas.timer, lambda: WAIT_MS, self.manager.partitions.get
        )

    async def close(self) -> None:
        self.reader.close()
        for pool in self.pools:
            await pool.close()
        await self.tiered.stop()

    async def tier(self) -> None:
        await self.tiered.copy()
        assert self.tiered.expire_locally() > 0

    def block(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Reads of segments wait for the event that this returns."""
        go_on, fetch = threading.Event(), self.tiered.storage.fetch_log_segment

        def blocked(*arguments: object) -> bytes:
            assert go_on.wait(60)
            return fetch(*arguments)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(self.tiered.storage, "fetch_log_segment", blocked)
        return go_on


class Fetched(FetchMessages):
    """A fetch and its response."""

    def __init__(self, scene: RemoteFetchScene, *positions: FetchPartition, **fields: int) -> None:
        super().__init__(scene.manager, *positions, **fields)

    async def data(self, number: int = 0) -> PartitionData:
        await eventually_async(lambda: self.responses)
        assert len(self.responses) == 1
        return self.responses[0][number][1]


def at(offset: int, index: int = 0, max_bytes: int = 1 << 20, **fields: int) -> FetchPartition:
    return FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, **fields
    )


def content(data: PartitionData) -> bytes:
    records = data.records
    assert records is not None
    return records if isinstance(records, bytes) else records.read()  # type: ignore[union-attr]
