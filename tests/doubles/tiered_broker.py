"""A RemoteLogManager with one partition: a log on a real disk, metadata and store in memory."""

from __future__ import annotations

from pathlib import Path

from ottla.broker.remote.remote_log_manager import RemoteLogManager
from ottla.broker.remote.settings import RemoteLogSettings
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.topics import TopicPartition
from ottla.storage.log.log import Log
from tests.doubles.tiered_partition import PARTITION, TieredPartition

KEY = TopicPartition("t", 0)
SETTINGS = RemoteLogSettings(task_interval_ms=1, retry_backoff_ms=1, retry_backoff_max_ms=1)


class OneReplica:
    """Satisfies `Replica`."""

    def __init__(self, log: Log) -> None:
        self.key = KEY
        self.log: Log | None = log
        self.is_leader = True
        self.leader_epoch = 0


class TieredBroker:
    """`scene` is the partition; its own copier is not used."""

    def __init__(self, path: Path, settings: RemoteLogSettings = SETTINGS) -> None:
        scene = self.scene = TieredPartition(path)
        scene.logs.assign_topic_id(scene.log, PARTITION.topic_id.bytes)
        self.replica = OneReplica(scene.log)
        self.manager = RemoteLogManager(
            settings,
            scene.metadata,
            scene.storage,
            1,
            lambda: scene.now_ms,
            WorkerPool(threads=1),
            lambda: 0.5,
        )
        scene.metadata.unavailable = None

    async def stop(self) -> None:
        await self.manager.shutdown()
        await self.scene.workers.close()
        self.scene.log.local.release()
