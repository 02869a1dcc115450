"""Tiered storage in a simulated cluster (`--tiered`). Imported by such a simulation only.

Without it nothing of this is there, so that the other seeds have the histories that they had.
The product's remote log manager runs as it is; below it are the simulated store and threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ottla.broker.remote import remote_log_manager, segment_expiration
from ottla.broker.server import tiered_storage
from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from ottla.storage.remote import chunk_cache
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.object_store import StoreIdentity
from ottla.storage.remote.store_settings import parse_store_settings
from tests.simulation.cluster.clients import IdempotentProducer, Producer
from tests.simulation.cluster.consumers import TailReader
from tests.simulation.cluster.node import current_broker
from tests.simulation.cluster.remote_store import SimulatedObjectStore, StoreConnection
from tests.simulation.cluster.remote_threads import WaitingEvent, WaitingWorkerPool
from tests.simulation.cluster.tiered_checks import TieredChecks
from tests.simulation.cluster.tiered_metadata import CommittedMetadata

if TYPE_CHECKING:
    from tests.simulation.cluster.tiered_troubles import TieredTroubles
    from tests.simulation.cluster.troubles import Troubles
    from tests.simulation.cluster.world import World

# Remote retention deletes what is old of it.
BRIEF_TOPIC = "brief"
# Deleted and created again.
FLEETING_TOPIC = "fleeting"
# remote.storage.enable changes.
SWITCHED_TOPIC = "switched"
TOPICS = (BRIEF_TOPIC, FLEETING_TOPIC, SWITCHED_TOPIC)
PARTITIONS = 2
METADATA_PARTITIONS = 5
BRIEF_RETENTION_BYTES = 12_000
# Instead of an hour: a copy ends within a minute here, with all its deadlines and pauses.
ABANDONED_MS = 120_000
SETTINGS = {
    "storage.backend.class": "filesystem",
    "storage.root": "/store",
    "chunk.size": "1024",
}


def configs(random: Random, topic: str) -> dict[str, str]:
    """The settings of a tiered topic."""
    chosen = {
        "remote.storage.enable": "true",
        "local.retention.bytes": random.choice(["1", "3000", "9000"]),
        "segment.bytes": random.choice(["1024", "2048", "4096"]),
        "file.delete.delay.ms": random.choice(["0", "1000", "60000"]),
    }
    if topic == BRIEF_TOPIC:
        chosen["retention.bytes"] = str(BRIEF_RETENTION_BYTES)
    return chosen


class SwitchedProducer(Producer):
    """Continues whatever becomes of its topic; nothing of it need stay."""

    kind = "fleeting"

    async def run(self) -> None:
        while not self.world.stopping:
            await asyncio.sleep(self.random.uniform(0.0, self.world.pace_seconds))
            try:
                await self.produce(self.random.randrange(self.partitions), self.values())
            except (ClientError, KafkaError):
                await asyncio.sleep(0.5)
        self.finished = True


class BriefProducer(IdempotentProducer):
    """Its topic is kept for a while only."""

    kind = "brief"


class BriefReader(TailReader):
    """Reads from the start again and again, while retention deletes there."""

    kind = "brief reader"

    async def step(self) -> None:
        await super().step()
        if self.random.random() < 0.05:
            self.position = 0


class Tiered:
    """The store, the topics and the clients of tiered storage, and what is checked of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(f"tiered {world.seed}")
        self.store = SimulatedObjectStore(world)
        self.metadata = CommittedMetadata(world, METADATA_PARTITIONS)
        self.checks = TieredChecks(world, self)
        self.interval_ms = self.random.choice([300, 1000, 3000])
        self._store_settings = {
            **SETTINGS,
            "fetch.chunk.cache.size": self.random.choice(["0", "3000", "1000000"]),
            "fetch.chunk.cache.prefetch.max.size": self.random.choice(["0", "0", "2048"]),
            "fetch.manifest.cache.size": self.random.choice(["1", "1000"]),
        }
        WaitingWorkerPool.loop = world.loop
        tiered_storage.open_remote_storage = self._open  # type: ignore[assignment]
        tiered_storage.WorkerPool = WaitingWorkerPool  # type: ignore[misc,assignment]
        remote_log_manager.WorkerPool = WaitingWorkerPool  # type: ignore[misc,assignment]
        # Threads wait for each other's requests there: not for real.
        chunk_cache.threading = SimpleNamespace(  # type: ignore[assignment]
            Event=WaitingEvent, Lock=chunk_cache.threading.Lock
        )
        segment_expiration.ABANDONED_COPY_MS = ABANDONED_MS

    def _open(self, settings: Mapping[str, str], **named: Any) -> ObjectRemoteStorage:
        running = current_broker()
        connection = StoreConnection(self.store, running.process, running.node.broker_id)
        parsed = parse_store_settings(settings)
        identity = StoreIdentity(connection, parsed.key_prefix, named["cluster_id"], "The store")
        return ObjectRemoteStorage(
            connection, parsed, running.files, None, named["background"], identity=identity
        )

    def own_storage(self) -> ObjectRemoteStorage:
        """For checks, without troubles."""
        parsed = parse_store_settings(SETTINGS)
        fs: Any = None
        return ObjectRemoteStorage(StoreConnection(self.store, None, 0), parsed, fs)

    def settings(self) -> dict[str, str]:
        """Of each broker."""
        replicas = str(min(3, self.world.shape.brokers))
        return {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "aiven",
            "remote.log.manager.task.interval.ms": str(self.interval_ms),
            "remote.log.manager.task.retry.backoff.ms": "200",
            "remote.log.manager.task.retry.backoff.max.ms": "3000",
            "remote.log.manager.copier.thread.pool.size": self.random.choice(["1", "10"]),
            "remote.log.manager.expiration.thread.pool.size": self.random.choice(["1", "10"]),
            "remote.log.reader.threads": self.random.choice(["1", "3", "10"]),
            "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
            "rlmm.config.remote.log.metadata.topic.replication.factor": replicas,
            "rlmm.config.remote.log.metadata.consume.wait.ms": "20000",
            "log.retention.check.interval.ms": self.random.choice(["500", "2000"]),
            **{f"rsm.config.{name}": value for name, value in self._store_settings.items()},
        }

    def topic(self, name: str, partitions: int = PARTITIONS) -> CreatableTopic:
        """A tiered topic to be created."""
        rows = [CreatableTopicConfig(*each) for each in configs(self.random, name).items()]
        return CreatableTopic(name, partitions, min(3, self.world.shape.brokers), configs=rows)

    def tier(self, topics: list[CreatableTopic]) -> list[CreatableTopic]:
        """All topics of the simulation: of the usual ones some are tiered, too."""
        found = [each if each.name == "idle" else self._with_tier(each) for each in topics]
        return [*found, *(self.topic(name) for name in TOPICS)]

    def _with_tier(self, topic: CreatableTopic) -> CreatableTopic:
        rows = [CreatableTopicConfig(*each) for each in configs(self.random, topic.name).items()]
        topic.configs = [*topic.configs, *rows]
        return topic

    def clients(self) -> list[Any]:
        """In the context of the clients."""
        kinds = [
            (BriefProducer, "brief0", BRIEF_TOPIC),
            (SwitchedProducer, "fleeting0", FLEETING_TOPIC),
            (SwitchedProducer, "switched0", SWITCHED_TOPIC),
        ]
        made: list[Any] = [kind(self.world, name, topic, PARTITIONS) for kind, name, topic in kinds]
        made += [
            BriefReader(self.world, f"brief-reader{index}", BRIEF_TOPIC, index)
            for index in range(PARTITIONS)
        ]
        return made

    def troubles(self, troubles: Troubles) -> TieredTroubles:
        """What is done to it."""
        from tests.simulation.cluster.tiered_troubles import TieredTroubles

        return TieredTroubles(self.world, self, troubles)

    def heal(self) -> None:
        self.store.heal()
