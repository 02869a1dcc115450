"""A cluster of controllers on one tree, where a seeded scheduler decides what happens next.

Nothing runs by itself: store calls, watch events and requests to brokers wait until the scheduler
lets one of them continue; between them it kills and starts brokers, ends sessions, loses responses,
fails log directories, and sends the requests of administrators. It alone advances the time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple

from ottla.controller.controller import Controller
from ottla.controller.errors import ControllerMoved, StateChangeFailed
from ottla.controller.model import BrokerInfo, Endpoint, LeaderAndIsr
from ottla.controller.registration import BrokerRegistration, create_persistent_paths
from ottla.controller.requests.broker_channels import Callback, Encoded
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.store import StoreError
from ottla.protocol.errors import KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_brokers import Hosted, SimulatedBroker
from tests.doubles.controller_runtime import ManualRuntime, ManualTimer
from tests.simulation.controller_rules import Rules
from tests.simulation.controller_store import SimulatedStore

CONTROLLER_LOGGER = logging.getLogger("ottla.controller")
# Another controller has been elected, or a call was lost.
EXPECTED = (ControllerMoved, StateChangeFailed, StoreError)
SETTINGS = ControllerSettings(leader_imbalance_check_interval_seconds=30)


class ProcessRuntime:
    """The shared clock as one process sees it: its timers and tasks die with it."""

    def __init__(self, clock: ManualRuntime) -> None:
        self.clock = clock
        self.dead = False
        self.tasks: list[asyncio.Task[None]] = []

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> ManualTimer:
        return self.clock.call_later(delay_ms, lambda: None if self.dead else callback())

    def spawn(self, coroutine: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        task = self.clock.spawn(coroutine, name=name)
        self.tasks.append(task)
        return task

    def kill(self) -> None:
        self.dead = True
        for task in self.tasks:
            task.cancel()


class Item(NamedTuple):
    request: Message
    version: int
    callback: Callback


class SimulatedChannels:
    """Requests of one controller, waiting in line for each broker."""

    def __init__(self) -> None:
        self.lines: dict[int, deque[Item]] = {}

    def add_broker(self, broker: BrokerInfo) -> None:
        self.lines.setdefault(broker.broker_id, deque())

    def update_broker(self, broker: BrokerInfo) -> None:
        """The line stays."""

    def remove_broker(self, broker_id: int) -> None:
        for item in self.lines.pop(broker_id, ()):
            item.callback(None)

    def send(
        self,
        broker_id: int,
        request: Message,
        version: int,
        callback: Callback,
        encoded: Encoded | None = None,
    ) -> None:
        line = self.lines.get(broker_id)
        if line is None:
            callback(None)
        else:
            line.append(Item(request, version, callback))


class Process:
    """One run of one broker."""

    def __init__(self, world: World, broker: SimulatedBroker) -> None:
        self.world = world
        self.broker = broker
        self.broker_id = broker.broker_id
        self.alive = True
        self.session_lost = False
        self.requests: list[asyncio.Task[object]] = []
        self.runtime = ProcessRuntime(world.clock)
        self.store = SimulatedStore(world.tree)
        self.channels = SimulatedChannels()
        port = 9092 + broker.broker_id
        rack = f"rack-{broker.broker_id % 2}"
        info = BrokerInfo(
            broker.broker_id, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", port),), rack
        )
        self.registration = BrokerRegistration(
            self.store, info, world.clock.now_ms, on_registered=self._registered
        )
        self.controller = Controller(
            broker.broker_id,
            self.store,
            self.registration,
            self.channels,
            SETTINGS,
            self.runtime,
        )
        self.controller._lifecycle.topic_admin.random = world.random

    def _registered(self, epoch: int) -> None:
        self.broker.broker_epoch = epoch

    async def run(self) -> None:
        """Start-up as a broker does it, again and again while the store fails."""
        await self.store.connect()
        while True:
            try:
                await create_persistent_paths(self.store)
                await self.registration.register()
                await self.controller.start(timeout_ms=0)
                return
            except StoreError:
                continue

    def kill(self) -> None:
        self.alive = False
        self.runtime.kill()
        for request in self.requests:
            request.cancel()


class UnexpectedErrors(logging.Handler):
    """Collects the exceptions that a controller logs: it continues, and fails again and again."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, EXPECTED):
            self.found.append(error)


class World:
    def __init__(self, seed: int, brokers: int) -> None:
        self.errors = UnexpectedErrors()
        CONTROLLER_LOGGER.addHandler(self.errors)
        self.random = random.Random(seed)
        self.clock = ManualRuntime()
        self.tree = EmbeddedTree(self.clock.now_ms)
        self.rules = Rules(self.tree)
        self.admin = self.tree.open_session()
        self.processes: dict[int, Process] = {}
        self.zombies: list[int] = []  # sessions of killed processes
        self.calls: list[tuple[str, asyncio.Task[object]]] = []
        self.trace: list[str] = []
        self.responses: list[str] = []
        self.producer_ids: list[int] = []
        self.faults = True
        #: Controllers between two turns of an event (`ottla.protocol.steps`).
        self.pauses: list[asyncio.Future[None]] = []
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)

    # Processes

    def start(self, broker_id: int) -> None:
        broker = SimulatedBroker(broker_id)
        process = self.processes[broker_id] = Process(self, broker)
        process.runtime.spawn(process.run(), name=f"start-{broker_id}")

    def kill(self, broker_id: int) -> None:
        process = self.processes[broker_id]
        process.kill()
        if process.store.session_id:
            self.zombies.append(process.store.session_id)

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def active(self) -> list[Process]:
        return [process for process in self.alive() if process.controller.is_active]

    # Calls of administrators and brokers

    def call(
        self, name: str, target: Controller, coroutine: Coroutine[object, object, object]
    ) -> None:
        """One request to a controller; with the death of its process the response is lost."""

        async def guarded() -> object:
            try:
                response = await coroutine
            except KafkaError as error:
                response = error
            self.responses.append(f"{name}: {response}")
            return response

        task = asyncio.Task(guarded(), loop=asyncio.get_running_loop())
        self.calls.append((name, task))
        self.processes[target.broker_id].requests.append(task)

    def topics(self) -> list[str]:
        node = self.tree.nodes.get(znodes.TOPICS)
        return [] if node is None else sorted(node.children)

    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, index)
            for topic in self.topics()
            for index in znodes.decode_topic(
                topic, self.tree.nodes[znodes.topic_path(topic)].data
            ).assignments
        ]

    def state(self, partition: TopicPartition) -> LeaderAndIsr | None:
        node = self.tree.nodes.get(znodes.state_path(partition))
        return None if node is None else znodes.decode_state(partition, node.data, node.version)

    def propose_isr(self, process: Process, partition: TopicPartition, isr: Iterable[int]) -> None:
        """The leader of a partition sends a request to the controller that it knows."""
        hosted = process.broker.hosted[partition]
        chosen = self.active()
        if not chosen:
            return
        controller = self.random.choice(chosen).controller
        request = AlterPartitionRequest(
            broker_id=process.broker_id,
            broker_epoch=process.broker.broker_epoch,
            topics=[
                AlterPartitionRequestTopicData(
                    topic_id=hosted.topic_id,
                    partitions=[
                        AlterPartitionRequestPartitionData(
                            partition_index=partition.partition,
                            leader_epoch=hosted.leader_epoch,
                            new_isr_with_epochs=[
                                BrokerState(
                                    broker_id=each,
                                    broker_epoch=self.processes[each].broker.broker_epoch,
                                )
                                for each in isr
                            ],
                            partition_epoch=hosted.partition_epoch,
                        )
                    ],
                )
            ],
        )

        async def send() -> object:
            response = await controller.alter_partition(request, 3)
            for topic in response.topics:
                for row in topic.partitions:
                    current = process.broker.hosted.get(partition)
                    if (
                        row.error_code == 0
                        and current is not None
                        and current.leader_epoch == row.leader_epoch
                        and current.partition_epoch < row.partition_epoch
                    ):
                        process.broker.hosted[partition] = current._replace(
                            isr=tuple(row.isr),
                            partition_epoch=row.partition_epoch,
                            recovery_state=row.leader_recovery_state,
                        )
            return [row.error_code for topic in response.topics for row in topic.partitions]

        self.call(f"isr of {partition}", controller, send())

    def led(self) -> list[tuple[Process, TopicPartition, Hosted]]:
        """Leaderships as the brokers themselves see them."""
        return [
            (process, partition, hosted)
            for process in self.alive()
            for partition, hosted in process.broker.hosted.items()
            if hosted.leader == process.broker_id
        ]

    # Going on

    def pending(self) -> list[tuple[str, Callable[[], None]]]:
        """Everything that waits to continue, as text and as what makes it."""
        steps: list[tuple[str, Callable[[], None]]] = []
        for process in self.alive():
            name = process.broker_id
            if process.store.calls:
                steps.append((f"call of {name}", lambda p=process: self.release(p)))
            if process.store.events and not process.session_lost:
                steps.append((f"event for {name}", lambda p=process: self.deliver_event(p)))
            for broker_id, line in process.channels.lines.items():
                target = self.processes[broker_id]
                if line and target.alive:
                    steps.append(
                        (
                            f"{line[0].request.NAME} from {name} to {broker_id}",
                            lambda p=process, t=broker_id: self.deliver_request(p, t),
                        )
                    )
        self.pauses = [each for each in self.pauses if not each.done()]
        steps += [("a turn", lambda p=each: self.end_pause(p)) for each in self.pauses]
        return steps

    async def pause(self) -> None:
        """In the place of `Turn.pause`: the scheduler chooses when it ends."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pauses.append(ended)
        await ended

    @staticmethod
    def end_pause(pause: asyncio.Future[None]) -> None:
        if not pause.done():  # the process was not killed
            pause.set_result(None)

    def release(self, process: Process) -> None:
        if not process.alive or not process.store.calls:
            return
        call = process.store.calls.popleft()
        fate = ""
        if self.faults and self.random.random() < 0.01:
            fate = self.random.choice(("lost request", "lost response")) if call.is_write else ""
            fate = fate or "lost request"
            self.trace.append(f"  {fate}")
        call.release(fate)

    def deliver_event(self, process: Process) -> None:
        if not process.alive or not process.store.events:
            return
        callback, event = process.store.events.popleft()
        callback(event)

    def deliver_request(self, process: Process, broker_id: int) -> None:
        line = process.channels.lines.get(broker_id)
        if not line:  # the step before took it
            return
        target = self.processes[broker_id]
        item = line[0]
        response = target.broker.handle(item.request, item.version)
        if self.faults and self.random.random() < 0.05:
            self.trace.append("  the response is lost; the request will be retried")
            return
        line.popleft()
        item.callback(response)

    async def settle(self) -> None:
        """Runs the loop until nothing can continue without the scheduler."""
        loop = asyncio.get_running_loop()
        ready = loop._ready  # type: ignore[attr-defined] # asyncio has no public way
        while ready:  # noqa: ASYNC110 - other turns of the loop are what is waited for
            await asyncio.sleep(0)
        if self.errors.found:
            error = self.errors.found[0]
            raise AssertionError(f"a controller failed: {error!r}") from error

    async def close(self) -> None:
        CONTROLLER_LOGGER.removeHandler(self.errors)
        self.errors.found.clear()
        for process in self.processes.values():
            process.runtime.kill()
        for _, task in self.calls:
            task.cancel()
        await self.clock.close()
        await self.settle()
