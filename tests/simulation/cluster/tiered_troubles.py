"""What is done to tiered storage: to the store, at the steps of copies and deletions, to topics."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.topics import TopicPartition
from ottla.storage.files.layout import LEADER_EPOCH_CHECKPOINT
from ottla.storage.remote.object_keys import main_path
from ottla.storage.remote.object_store import NAME
from tests.simulation.cluster.admin import REQUEST_MS, TOPIC_RESOURCE
from tests.simulation.cluster.consumers import CONTROL, TRANSACTIONAL, TailReader
from tests.simulation.cluster.remote_store import Step, StoreFaults, Trap
from tests.simulation.cluster.tiered import (
    BRIEF_RETENTION_BYTES,
    BRIEF_TOPIC,
    FLEETING_TOPIC,
    SWITCHED_TOPIC,
)

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.tiered import Tiered
    from tests.simulation.cluster.troubles import Troubles
    from tests.simulation.cluster.world import World

COPY_STEPS = tuple(
    Step("put", suffix, done)
    for suffix in (".log", ".indexes", ".rsm-manifest")
    for done in (False, True)
)
DELETION_STEPS = tuple(step._replace(kind="delete") for step in COPY_STEPS)
READ_STEPS = tuple(step._replace(kind="get") for step in COPY_STEPS)
# What happens to the broker whose request is there, or to what the request is about.
AT_STEP = (
    *("kill", "kill", "killed_later", "stop", "pause", "expire", "lead_elsewhere"),
    *("reassign", "delete_records", "recreated", "switch", "refuses"),
)
# How long a step is awaited: retention and rolls take their time.
STEP_SECONDS = 15.0
CREATE_ATTEMPTS = 20
BROKER_RESOURCE = 4
ABORTED_SECONDS = 3
CONFIGURED_SECONDS = 0.5
# A deletion by DeleteRecords takes so long, and a client waits for its response for 4 s.
HELD_SECONDS = 3.0
READ_SECONDS = 5


class TieredTroubles:
    """One method for each; the store is well again when it returns."""

    kinds = (
        *("store_refuses", "store_away", "store_slow", "store_damages", "store_loses"),
        *("at_copy", "at_copy", "at_copy", "at_copy", "at_deletion", "at_deletion", "at_read"),
        *("recreated", "recreated", "switch", "local_retention", "remote_retention"),
    )
    # The newer ones, which are not in the mix of older seeds.
    later_kinds = (
        *("lost_epochs", "producers_moved", "deleted_while_read"),
        *("store_unmounted", "disabled"),
    )

    def __init__(self, world: World, tiered: Tiered, troubles: Troubles) -> None:
        self.world = world
        self.tiered = tiered
        self.store = tiered.store
        self.troubles = troubles
        self.admin = troubles.admin
        self.random = Random(f"tiered troubles {world.seed}")
        self.keys = tiered.own_storage().keys

    async def _with(self, faults: StoreFaults) -> None:
        self.store.faults = faults
        await asyncio.sleep(self.random.uniform(0, 8))
        self.store.faults = StoreFaults()

    async def store_refuses(self, _node: Node) -> None:
        """Some requests get 503, some also lose their response or are slow."""
        share = self.random.choice([0.05, 0.2, 0.5])
        lost = self.random.choice([0.0, 0.1])
        await self._with(StoreFaults(share, lost, seconds=self.random.choice([0.01, 0.3])))

    async def store_loses(self, _node: Node) -> None:
        """Requests are done and reported as failed."""
        await self._with(StoreFaults(lost_replies=self.random.choice([0.1, 0.3, 0.7])))

    async def store_damages(self, _node: Node) -> None:
        """Bodies end early or have other bytes."""
        await self._with(StoreFaults(damaged=self.random.choice([0.1, 0.5, 1.0])))

    async def store_slow(self, _node: Node) -> None:
        await self._with(StoreFaults(seconds=self.random.choice([0.1, 0.5, 2.0])))

    async def store_away(self, _node: Node) -> None:
        await self._with(StoreFaults(is_away=True))

    async def store_unmounted(self, node: Node) -> None:
        """The file system of the store is not there: all brokers see an empty store. A topic is
        deleted meanwhile, and retention has work. What counts as deleted has to be."""
        if not any(NAME in key for key in self.store.objects):
            return  # it has not been used: another one is as good
        known = {each.segment_id for each in self.tiered.metadata.listed.segments()}
        mounted, self.store.objects = self.store.objects, {}
        await self.remote_retention(node)
        await self.recreate()
        if self.random.random() < 0.3:
            node.kill()
            node.start()
        await asyncio.sleep(self.random.uniform(2, 12))
        # What stays there is on the disk below the mount point, and was not copied.
        self.store.objects = mounted
        known -= {each.segment_id for each in self.tiered.metadata.listed.segments()}
        for key in mounted:
            parsed = self.keys.parse(key)
            if parsed is not None and any(each.id == parsed.segment_id for each in known):
                self.world.complain(f"{key} is in the store, and counts as deleted")

    async def disabled(self, node: Node) -> None:
        """Tiered storage of a topic is disabled for a while, and brokers start meanwhile."""
        await self._set("t", "local.retention.bytes", ("1",))
        await self._until_local_start(node, self.random.randrange(self.world.shape.partitions), 1)
        await self._set("t", "remote.storage.enable", ("false",))
        await asyncio.sleep(self.random.uniform(0, 3))
        for each in list(self.world.nodes.values()):
            if each.is_up and self.random.random() < 0.5:
                each.kill()
                each.start()
                await asyncio.sleep(self.random.uniform(0, 3))
        await asyncio.sleep(self.random.uniform(0, 3))
        await self._enable("t")

    async def at_copy(self, _node: Node) -> None:
        """Something happens at a step of a copy."""
        await self._at_step(self.random.choice(COPY_STEPS))

    async def at_deletion(self, node: Node) -> None:
        """Something happens at a step of a deletion: of retention, of DeleteRecords, of a topic."""
        work = self.random.choice([self.admin.delete_records, self.recreate, None])
        if work is None:
            await self.remote_retention(node)
        step = self.random.choice(DELETION_STEPS)
        running = None if work is None else asyncio.get_running_loop().create_task(work())
        await self._at_step(step)
        if running is not None:
            await running

    async def at_read(self, _node: Node) -> None:
        """Something happens at a step of a consumer's read, or of a follower's."""
        await self._at_step(self.random.choice(READ_STEPS))

    async def _at_step(self, step: Step) -> None:
        held = self.random.choice([0.001, 0.001, 0.2, 3.0])
        trap = self.store.trap = Trap(step, self.random.randrange(4), held)
        kinds = [*AT_STEP, *(("power", "power") if self.world.shape.power_loss else ())]
        kind = self.random.choice(kinds)
        try:
            async with asyncio.timeout(STEP_SECONDS):
                broker_id = await trap.caught
        except TimeoutError:
            self.store.trap = None
            return
        node = self.world.nodes[broker_id]
        self.world.note(f"then: {kind} {node.host}")
        if kind == "killed_later":
            await asyncio.sleep(self.random.uniform(0, 0.1))
            kind = "kill"
        await self._do(kind, node)

    async def _do(self, kind: str, node: Node) -> None:
        troubles: Any = self.troubles
        if kind in ("recreated", "switch"):
            await getattr(self, kind)(node)
        elif kind == "refuses":
            self.store.faults = StoreFaults(refused=1.0)
            await asyncio.sleep(self.random.uniform(0, 4))
            self.store.faults = StoreFaults()
        elif kind == "lead_elsewhere":
            await self.admin.elect_preferred()
        elif kind == "reassign":
            await self.admin.reassign_from(node)
        elif kind == "delete_records":
            await self.admin.delete_records()
        else:
            await getattr(troubles, f"_{kind}")(node)

    async def recreated(self, _node: Node) -> None:
        """A tiered topic is deleted, and created again, maybe while the store fails."""
        if self.random.random() < 0.4:
            self.store.faults = StoreFaults(refused=self.random.choice([0.3, 1.0]))
        await self.recreate()
        await asyncio.sleep(self.random.uniform(0, 3))  # the last leader deletes meanwhile
        self.store.faults = StoreFaults()

    async def recreate(self) -> None:
        await self.admin.delete(FLEETING_TOPIC)
        self.world.note(f"{FLEETING_TOPIC} is deleted")
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.uniform(0, 3))
        topic = self.tiered.topic(FLEETING_TOPIC)
        for _ in range(CREATE_ATTEMPTS):
            response = await self.admin.send(CreateTopicsRequest([topic], REQUEST_MS), Controller())
            code = None if response is None else response.topics[0].error_code
            if code != ErrorCode.TOPIC_ALREADY_EXISTS:
                break
            await asyncio.sleep(0.3)

    async def switch(self, _node: Node) -> None:
        """A topic has tiered storage from now on, or has not."""
        await self._set(SWITCHED_TOPIC, "remote.storage.enable", ("true", "false"))

    async def local_retention(self, _node: Node) -> None:
        topic = self.random.choice(["t", BRIEF_TOPIC, FLEETING_TOPIC, "unclean"])
        await self._set(topic, "local.retention.bytes", ("1", "2000", "8000"))

    async def lost_epochs(self, node: Node) -> None:
        """A broker comes back with an empty file of leader epochs, as after a failed sync, and
        leads partitions of which most segments are in remote storage only."""
        index = self.random.randrange(self.world.shape.partitions)
        others = [each for each in self.world.nodes if each != node.broker_id]
        await self.admin.reassign_to(index, [node.broker_id, *others[:1]])
        await self._until_local_start(node, index, 1)
        if not node.is_up:
            return
        node.kill()
        node.disk.empty(f"/t-{index}/{LEADER_EPOCH_CHECKPOINT}")
        node.start()
        leaders = self.troubles.leaders
        await leaders.until(lambda: node.ready and leaders.in_isr(index, node), STEP_SECONDS)
        await self.admin.elect_preferred()
        await asyncio.sleep(self.random.uniform(0, 5))

    async def producers_moved(self, node: Node) -> None:
        """A replica moves to another log directory when producers ended so long ago that their
        batches are not on its disk any more. It has to know them, or repeats are appended."""
        index, leaders = self.random.randrange(self.world.shape.partitions), self.troubles.leaders
        await leaders.abort_for(1)
        log = leaders.log(node, index)
        if log is None:
            return
        producers = dict(log.producer_state.producers)
        await self._set("t", "local.retention.bytes", ("1",))
        await self._until_local_start(node, index, log.log_end_offset)
        if leaders.log(node, index) is not log:
            return
        await self.admin.move_away(node, index)
        await leaders.until(lambda: leaders.log(node, index) is not log, STEP_SECONDS)
        moved = leaders.log(node, index)
        known = None if moved is None else moved.producer_state.producers
        if known is not None and not producers.keys() <= known.keys():
            missing = sorted(producers.keys() - known.keys())
            self.world.complain(f"{node.host} forgot producers {missing} of t-{index} by a move")

    async def deleted_while_read(self, _node: Node) -> None:
        """A consumer of committed records reads a segment that ends within a transaction; when it
        looks for the aborted ones, that segment is deleted, or later ones are, too."""
        leaders, where = self.troubles.leaders, TopicPartition("t", 0)
        await leaders.abort_for(ABORTED_SECONDS)
        await self._set("t", "local.retention.bytes", ("1",))
        node = leaders.leader(0)
        log = None if node is None else leaders.log(node, 0)
        if node is None or log is None:
            return
        await self._until_local_start(node, 0, log.log_end_offset)
        segment = self._interrupted(node, log)
        if segment is None or leaders.log(node, 0) is not log:
            return
        # A fetch waits for a deletion.
        await self._set("", "remote.fetch.max.wait.ms", (str(REQUEST_MS),), BROKER_RESOURCE)
        await asyncio.sleep(CONFIGURED_SECONDS)
        end = self.random.choice([segment.end_offset + 1, log.high_watermark])
        step = Step("get", f"{main_path(segment)}.indexes", self.random.random() < 0.5)
        # Not the offset index, which is the first: without records there is nothing to hide.
        trap = self.store.trap = Trap(step, self.random.randrange(1, 3), HELD_SECONDS)
        context = self.world.clients.context
        reader = context.run(TailReader, self.world, "deleted", *where)
        reader.position = segment.start_offset
        reading = self.world.loop.create_task(self._read_once(reader), context=context)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await trap.caught
            self.world.note(f"a reader of {segment.start_offset} to {segment.end_offset} waits")
            await self.admin.delete_records_before(0, end)
            await reading
        except TimeoutError:
            reading.cancel()
        self.store.trap = None
        await self._set("", "remote.fetch.max.wait.ms", ("500",), BROKER_RESOURCE)

    async def _read_once(self, reader: TailReader) -> None:
        with contextlib.suppress(ClientError, KafkaError):
            await reader.step()
        reader.client.close()

    def _interrupted(self, node: Node, log: Log) -> RemoteLogSegmentMetadata | None:
        """The last segment of a log in remote storage only that ends with an open transaction."""
        open_ends = {
            base + struct.unpack_from(">i", data, 23)[0]
            for base, data in self.world.watch.batches(log.topic, log.partition)
            if data[22] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
        }
        server: Any = node.server
        remote = server.parts.remote_logs
        found = [
            each
            for each in remote.metadata.cache(remote.partition(log)).segments()
            if each.end_offset in open_ends
            and log.log_start_offset <= each.start_offset
            and each.end_offset < log.local_log_start_offset
        ]
        return found[-1] if found else None

    async def _until_local_start(self, node: Node, index: int, offset: int) -> None:
        """Until a replica has nothing below an offset on its disk, or it takes too long."""
        leaders = self.troubles.leaders

        def is_above() -> bool:
            log = leaders.log(node, index)
            return log is not None and log.local_log_start_offset >= offset

        await leaders.until(is_above, STEP_SECONDS)

    async def remote_retention(self, _node: Node) -> None:
        values = (str(BRIEF_RETENTION_BYTES), str(2 * BRIEF_RETENTION_BYTES))
        await self._set(BRIEF_TOPIC, "retention.bytes", values)

    async def end(self) -> None:
        """All topics have tiered storage, so that what is left in the store is theirs."""
        await self._enable(SWITCHED_TOPIC)

    async def _enable(self, topic: str) -> None:
        for _ in range(CREATE_ATTEMPTS):
            if await self._set(topic, "remote.storage.enable", ("true",)):
                return
            await asyncio.sleep(1)
        self.world.complain(f"the settings of {topic} cannot be changed")

    async def _set(
        self, topic: str, name: str, values: tuple[str, ...], resource: int = TOPIC_RESOURCE
    ) -> bool:
        value = self.random.choice(values)
        row = AlterConfigsResource(resource, topic, [AlterableConfig(name, 0, value)])
        self.world.note(f"set {name}={value} of {topic}")
        response = await self.admin.send(IncrementalAlterConfigsRequest([row]), Controller())
        return response is not None and response.responses[0].error_code == ErrorCode.NONE
