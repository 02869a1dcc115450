"""What is done to logs while they are compacted.

A compaction runs in a worker thread, which is one piece of work elsewhere in the simulation. Here
it waits when it opens a segment, while its log is deleted and created again.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.broker.replication import log_cleaner
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.admin import PASSING_TOPIC, REQUEST_MS
from tests.simulation.cluster.clients import Producer
from tests.simulation.cluster.remote_threads import WaitingWorkerPool, is_in_thread, wait
from tests.simulation.cluster.waiting import POLL_SECONDS, of_client, until

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

WHERE = TopicPartition(PASSING_TOPIC, 0)
FIRST_SEGMENT = f"/{PASSING_TOPIC}-0/{0:020}.log"
# A new log has a segment of this name, too, which is empty.
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
# More than two segments.
BATCHES = 30
# The cleaner looks for work every 15 s.
COMPACTED_SECONDS = 30
DELETED_SECONDS = 20
CREATED_SECONDS = 10
ENDED_SECONDS = 1


class CompactionTroubles:
    """Played with `--later-kinds` or `--kinds`; compactions run in threads that can wait then."""

    def __init__(self, world: World, admin: Admin) -> None:
        self.world = world
        self.admin = admin
        self.random = Random(f"compaction troubles {world.seed}")
        self._waits = False
        WaitingWorkerPool.loop = world.loop
        log_cleaner.WorkerPool = WaitingWorkerPool  # type: ignore[misc,assignment]

    async def recreated_in_compaction(self, node: Node) -> None:
        """A broker compacts a log, which is deleted and created again. The compaction continues
        with the files of the new one."""
        await self.admin.delete()
        if not await until(lambda: not self._exists(), DELETED_SECONDS):
            return
        waiting: list[str] = []
        if not await self._create():
            return
        await self._write()
        node.disk.before_open = lambda path: self._before_open(path, waiting)
        self._waits = True
        await until(lambda: bool(waiting), COMPACTED_SECONDS)
        before = self._log(node)
        await self.admin.delete()
        await until(lambda: not self._exists(), DELETED_SECONDS)
        await self._create()
        await until(lambda: self._log(node) not in (before, None), CREATED_SECONDS)
        self.world.note(f"{len(waiting)} compactions of {WHERE} go on")
        self._waits = False
        await asyncio.sleep(ENDED_SECONDS)
        node.disk.before_open = None
        server: Any = node.server
        if node.ready and server is not None:
            uncleanable = server.parts.log_cleaner.cleaner.uncleanable
            for (topic, partition), reason in uncleanable.items():
                self.world.complain(
                    f"{node.host}: {topic}-{partition} is not compacted any more: {reason}"
                )

    def _before_open(self, path: str, waiting: list[str]) -> None:
        if is_in_thread() and path.endswith(FIRST_SEGMENT) and self._waits:
            waiting.append(path)
            while self._waits:
                wait(POLL_SECONDS)

    def _exists(self) -> bool:
        return self.world.ensemble.has_topic(PASSING_TOPIC)

    def _log(self, node: Node) -> Any:
        server: Any = node.server
        return None if server is None else server.parts.logs.get(*WHERE)

    async def _create(self) -> bool:
        rows = [CreatableTopicConfig(*each) for each in CONFIGS.items()]
        replicas = min(3, self.world.shape.brokers)
        topic = CreatableTopic(PASSING_TOPIC, 1, replicas, configs=rows)
        response = await self.admin.send(CreateTopicsRequest([topic], REQUEST_MS), Controller())
        return response is not None and response.topics[0].error_code == ErrorCode.NONE

    async def _write(self) -> None:
        world = self.world
        producer = world.clients.context.run(Producer, world, "compacted", PASSING_TOPIC, 1)
        for _ in range(BATCHES):
            await of_client(world, producer.produce(0, producer.values()))
        producer.close()
