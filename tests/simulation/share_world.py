"""Share groups (KIP-932) under every kind of trouble, by seed.

Two brokers; either leads the partition, and either is the share coordinator. Consumers fetch,
acknowledge and crash; leader and coordinator move at every step; requests between brokers and their
responses are lost; commits are held back, lost or time out. The parts are real: `SharePartitions`,
`RoutedPersister`, `ShareCoordinator`; in memory are the logs, the cluster and the time.

The rules: a record that the leader confirmed as accepted or rejected is not delivered again, and
not confirmed again; no record is delivered past the limit of its confirmed deliveries; no two
consumers have a record of one leader at a time; and in the end each record is delivered for good.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers.share.share_state import ShareStateHandlers
from ottla.broker.share.acquisition import AcquireRequest, FetchedBatch
from ottla.broker.share.coordinator.routed_persister import RoutedPersister
from ottla.broker.share.coordinator.share_coordinator import (
    ShareCoordinator,
    ShareCoordinatorSettings,
)
from ottla.broker.share.group_settings import BrokerShareSettings, ShareGroupSettings
from ottla.broker.share.persister import SharePartitionKey
from ottla.broker.share.share_partition import Acknowledgement, AcknowledgeType
from ottla.broker.share.share_partitions import SharePartitions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.manual_timer import ManualTimer
from tests.doubles.request_context import FakeContext

KEY = SharePartitionKey("group", bytes(16), 0)
TOPIC = "work"
BROKERS = (0, 1)
RECORDS = 40
BATCH = 4  # records in a batch of the log
LIMIT = 5  # deliveries
LOCK_MS = 30_000
MEMBERS = ("a", "b", "c", "d")
FINAL = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
# What a share coordinator returns to leaders, and Kafka's leaders do not return to members.
COORDINATOR_ERRORS = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)
TURNS = 8  # of the event loop, after each step


class Broker:
    """A leader and a share coordinator in one process."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.broker_id = broker_id
        self.coordinator = ShareCoordinator(
            ShareCoordinatorSettings(1, 5),
            world.log,
            world.timer,
            world.timer.clock,
            lambda callback: callback(),
        )

        async def send(target: int, request: Message) -> Message:
            return await world.send(target, request)

        async def ensure(topic: str) -> int:
            return 0

        self.persister = RoutedPersister(
            broker_id,
            self.coordinator,
            cast(Any, world),
            send,
            ensure,
            world.timer.clock.monotonic,
            world.pause,
        )
        self.partition = SimpleNamespace(key=(TOPIC, 0), leader_epoch=0, leader_log=self._log)
        self.is_leader = False
        manager = SimpleNamespace(
            partition=lambda topic, index: self.partition,
            fetch_purgatory=SimpleNamespace(check_and_complete=lambda key: None),
        )
        self.shares = SharePartitions(
            cast(Any, manager),
            self.persister,
            ShareGroupSettings(
                BrokerShareSettings(), lambda group: {"share.auto.offset.reset": "earliest"}
            ),
            world.timer.clock,
            cast(Any, world.timer),
            world.spawn,
        )

    def _log(self) -> Any:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return SimpleNamespace(
            log_start_offset=0, high_watermark=RECORDS, offset_for_timestamp=lambda ms: None
        )


class World:
    """One run. `await step()` does one random thing; `await finish()` ends all trouble first."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.timer = ManualTimer()
        self.log = MemoryLog()
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []
        self.has_trouble = True
        self.leader, self.leader_epoch = 0, 0
        self.coordinator_id, self.coordinator_epoch = 0, 0
        self.brokers = [Broker(self, each) for each in BROKERS]
        #: What each member has acquired in the present leader epoch: offset -> end of its lock.
        self.held: dict[str, dict[int, int]] = {member: {} for member in MEMBERS}
        self.final: dict[int, str] = {}
        self.unknown: set[int] = set()
        self.deliveries = dict.fromkeys(range(RECORDS), 0)
        self.counts: dict[int, int] = dict.fromkeys(range(RECORDS), 0)

    # The cluster.

    @property
    def snapshot(self) -> Any:
        found = SimpleNamespace(leader=self.coordinator_id)
        return SimpleNamespace(brokers=dict.fromkeys(BROKERS), partition=lambda topic, index: found)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(cast(BaseException, task.exception()))

    async def pause(self, seconds: float) -> None:
        """Of a retry: until the time has passed."""
        done = asyncio.Event()
        self.timer.schedule(round(seconds * 1000), done.set)
        await done.wait()

    async def send(self, target: int, request: Message) -> Message:
        if self.has_trouble and self.random.random() < 0.15:
            raise ConnectionError("the request is lost")
        handlers = ShareStateHandlers(self.brokers[target].coordinator)
        handle = {
            "InitializeShareGroupStateRequest": handlers.initialize,
            "ReadShareGroupStateRequest": handlers.read,
            "WriteShareGroupStateRequest": handlers.write,
        }[type(request).__name__]
        context = FakeContext(84, 0)
        handle(cast(Any, context), cast(Any, request))
        if self.has_trouble and self.random.random() < 0.15:
            # The request is handled, perhaps late.
            raise TimeoutError("the response is lost")
        while not context.responses:
            await asyncio.sleep(0)
            if target != self.coordinator_id:
                raise ConnectionError("the coordinator crashed")
        return context.responses[0]

    async def start(self) -> None:
        self.brokers[0].coordinator.partitions.elect(0, 0)
        self.brokers[0].is_leader = True
        await self.brokers[0].persister.initialize(KEY, 0, -1)
        self.log.hold = True

    async def turn(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self.failures:
            raise self.failures[0]

    # Steps.

    async def step(self) -> None:
        step = self.random.choices(
            (self.fetch, self.acknowledge, self.commit, self.pass_time, self.crash_consumer)
            + (self.move_leader, self.move_coordinator, self.time_out, self.do_nothing),
            (30, 30, 25, 6, 3, 3, 3, 2, 10),
        )[0]
        step()
        await self.turn()

    def do_nothing(self) -> None:
        """Only the loop turns."""

    def fetch(self) -> None:
        member = self.random.choice(MEMBERS)
        broker = self.brokers[self.leader]
        hosted = broker.shares.find(KEY, TOPIC) if self._can_find(broker) else None
        if hosted is None or hosted.state is None or not hosted.state.can_acquire():
            return
        offset = hosted.state.next_fetch_offset()
        if offset >= RECORDS:
            return
        first = offset - offset % BATCH
        batches = [
            FetchedBatch(base, base + BATCH - 1)
            for base in range(first, min(RECORDS, first + 3 * BATCH), BATCH)
        ]
        request = AcquireRequest(member, 6, 6, False, self.timer.clock.now_ms())
        for row in hosted.state.acquire(request, offset, batches):
            for each in range(row.first_offset, row.last_offset + 1):
                self._delivered(member, each, row.delivery_count)
        broker.shares.schedule_locks(hosted)

    @staticmethod
    def _can_find(broker: Broker) -> bool:
        try:
            broker.shares.find(KEY, TOPIC)
        except KafkaError:
            return False
        return True

    def _delivered(self, member: str, offset: int, count: int) -> None:
        assert offset not in self.final, f"{offset} is delivered after {self.final[offset]}"
        assert count <= LIMIT, f"{offset} is delivered {count} times"
        for held in self.held.values():
            held.pop(offset, None)  # its lock has ended: `SharePartition` checks the owner
        self.held[member][offset] = self.timer.clock.now_ms() + LOCK_MS
        self.counts[offset] = max(self.counts[offset], count)
        self.deliveries[offset] += 1

    def acknowledge(self) -> None:
        member = self.random.choice(MEMBERS)
        held = self.held[member]
        if not held:
            return
        offsets = sorted(held)[: self.random.randint(1, 6)]
        kinds = {
            each: self.random.choice((*FINAL, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE))
            for each in offsets
        }
        self.spawn(self._acknowledge(member, kinds), "acknowledge")

    async def _acknowledge(self, member: str, kinds: dict[int, int]) -> None:
        rows = [Acknowledgement(each, each, [kind]) for each, kind in kinds.items()]
        broker = self.brokers[self.leader]
        epoch = self.leader_epoch
        # As in Kafka, an acknowledgement after the end of the lock is accepted without effect if
        # the start offset is past the record.
        now_ms, held = self.timer.clock.now_ms(), self.held[member]
        in_time = {each for each in kinds if held.pop(each, now_ms) > now_ms}
        final = {each for each in in_time if kinds[each] in FINAL}
        self.unknown |= final
        try:
            await broker.shares.acknowledge(KEY, TOPIC, member, rows)
        except KafkaError as error:
            if error.code in COORDINATOR_ERRORS:
                raise AssertionError(f"a member gets {error.name} of the coordinator") from error
            return  # refused, or the outcome is not known
        if epoch != self.leader_epoch and not broker.is_leader:
            return  # the connection to the former leader is closed: the member has no response
        for each in final:
            assert each not in self.final, f"{each} is confirmed twice"
            self.final[each] = f"type {kinds[each]} of {member} in leader epoch {epoch}"

    def commit(self) -> None:
        if self.log.held and self.random.random() < 0.5:
            self.log.commit_one()
        else:
            self.log.commit_all()

    def time_out(self) -> None:
        self.log.time_out_all(ErrorCode.REQUEST_TIMED_OUT)

    def pass_time(self) -> None:
        self.timer.advance(self.random.choice((50, 500, 2_000, LOCK_MS)))

    def crash_consumer(self) -> None:
        member = self.random.choice(MEMBERS)
        self.held[member].clear()
        if self.random.random() < 0.5:  # the leader notices the closed connection
            self.spawn(self.brokers[self.leader].shares.release(member, KEY.group_id), "release")

    def move_leader(self) -> None:
        """To the other broker, or to the same one in a higher epoch."""
        self.leader_epoch += 1
        before = self.brokers[self.leader]
        self.leader = self.random.choice(BROKERS)
        after = self.brokers[self.leader]
        before.is_leader = False
        if after is not before:
            before.shares.drop_partitions([(TOPIC, 0)])
        after.is_leader = True
        after.partition.leader_epoch = self.leader_epoch
        for held in self.held.values():
            held.clear()

    def move_coordinator(self) -> None:
        """What was not committed is lost, or the next coordinator has it."""
        if self.random.random() < 0.5:
            self.log.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self.log.commit_all()
        self.coordinator_epoch += 1
        self.brokers[self.coordinator_id].coordinator.partitions.resign(0, self.coordinator_epoch)
        self.coordinator_id = self.random.choice(BROKERS)
        after = self.brokers[self.coordinator_id].coordinator
        after.partitions.elect(0, self.coordinator_epoch)

    # The end.

    async def finish(self) -> None:
        """No more trouble: each record is delivered for good within some rounds."""
        self.has_trouble = False
        self.log.commit_all()
        self.log.hold = False
        for _ in range(60 * LIMIT):
            self.timer.advance(LOCK_MS // 4)
            await self.turn()
            self.fetch()
            await self.turn()
            for member in MEMBERS:
                kinds = dict.fromkeys(self.held[member], AcknowledgeType.ACCEPT)
                if kinds:
                    await self._acknowledge(member, kinds)
            hosted = self.brokers[self.leader].shares._hosted.get(KEY)
            state = None if hosted is None else hosted.state
            if state is not None and state.window.start_offset == RECORDS:
                break
        else:
            raise AssertionError(f"not delivered for good: {self._state()}")
        for offset in range(RECORDS):
            is_past_limit = self.counts[offset] >= LIMIT
            is_done = offset in self.final or offset in self.unknown or is_past_limit
            assert is_done, f"{offset} is left out: {self._state()}"

    def _state(self) -> str:
        left = [offset for offset in range(RECORDS) if offset not in self.final]
        return f"without confirmation {left}"

    async def stop(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
