"""Chooses what happens next in a simulated cluster, and waits at the end until it is stable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.controller.admin.features import FeatureUpdate
from ottla.controller.admin.producer_ids import allocate_block
from ottla.controller.admin.topic_admin import NewPartitions, NewTopic
from ottla.controller.tree import znodes, znodes_admin
from ottla.controller.tree.store import CreateOp, DeleteOp, StoreError
from tests.simulation.controller_world import Process, World

TOPIC_NAMES = ("a", "b", "c")
MAX_REST_ROUNDS = 600
"""A cluster that is not at rest after so many rounds without faults never will be."""

Act = Callable[[], None]


class Scheduler:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random

    async def run(self, steps: int) -> None:
        world = self.world
        await world.settle()
        disturbances = self._disturbances()
        for _ in range(steps):
            pending = world.pending()
            if pending and self.random.random() < 0.93:
                name, act = self.random.choice(pending)
            else:
                name, act = self.random.choice(disturbances)
            world.trace.append(name)
            act()
            await world.settle()

    # What disturbs

    def _disturbances(self) -> list[tuple[str, Act]]:
        weighted: list[tuple[int, str, Act]] = [
            (6, "time passes", self._advance),
            (2, "kill a broker", self._kill),
            (4, "start a broker", self._start),
            (4, "a dead session ends", self._end_zombie),
            (1, "a session is lost", self._lose_session),
            (2, "a lost session is noticed", self._hear_of_loss),
            (4, "create a topic", self._create_topic),
            (2, "delete a topic", self._delete_topic),
            (1, "delete a topic by znode", self._delete_by_znode),
            (1, "add partitions", self._add_partitions),
            (3, "reassign", self._reassign),
            (1, "reassign by znode", self._reassign_by_znode),
            (2, "elect", self._elect),
            (1, "elect by znode", self._elect_by_znode),
            (1, "elect unclean", self._elect_unclean),
            (1, "controlled shutdown", self._controlled_shutdown),
            (8, "an ISR changes", self._change_isr),
            (1, "an ISR changes by notification", self._notify_isr),
            (1, "a log directory fails", self._lose_directory),
            (1, "deletion is refused", self._refuse_deletion),
            (1, "producer ids", self._producer_ids),
            (1, "producer ids from the tree", self._producer_ids_from_tree),
            (2, "/controller is deleted", self._depose),
            (1, "features", self._features),
        ]
        return [(name, act) for weight, name, act in weighted for _ in range(weight)]

    def _advance(self) -> None:
        self.world.clock.advance(self.random.choice((50, 500, 2000, 10_000)))

    def _kill(self) -> None:
        alive = self.world.alive()
        if len(alive) > 1:
            self.world.kill(self.random.choice(alive).broker_id)

    def _start(self) -> None:
        dead = [p for p in self.world.processes.values() if not p.alive]
        if dead:
            self.world.start(self.random.choice(dead).broker_id)

    def _end_zombie(self) -> None:
        if self.world.zombies:
            session = self.random.choice(self.world.zombies)
            self.world.zombies.remove(session)
            self.world.tree.end_session(session)

    def _lose_session(self) -> None:
        process = self.random.choice(self.world.alive())
        if process.store.session_id and not process.session_lost:
            process.session_lost = True
            process.store.inner.lose_session()

    def _hear_of_loss(self) -> None:
        for process in self.world.alive():
            if process.session_lost:
                self.hear(process)
                return

    @staticmethod
    def hear(process: Process) -> None:
        process.session_lost = False
        process.store.inner.expire_session()

    # What administrators want

    def _chosen_controller(self) -> Process:
        """Usually a controller, sometimes one that is none."""
        active = self.world.active()
        if active and self.random.random() < 0.95:
            return self.random.choice(active)
        return self.random.choice(self.world.alive())

    def _brokers(self, most: int) -> list[int]:
        ids = list(self.world.processes)
        return self.random.sample(ids, self.random.randint(1, min(most, len(ids))))

    def _create_topic(self) -> None:
        name = self.random.choice(TOPIC_NAMES)
        configs: dict[str, str | None] = {}
        if self.random.random() < 0.2:
            configs["unclean.leader.election.enable"] = "true"
            self.world.rules.unclean_topics.add(name)
        topic = NewTopic(
            name, self.random.randint(1, 3), self.random.randint(1, 3), configs=configs
        )
        controller = self._chosen_controller().controller
        self.world.call(
            f"create {name}", controller, controller.create_topics([topic], timeout_ms=5_000)
        )

    def _delete_topic(self) -> None:
        name = self.random.choice(TOPIC_NAMES)
        controller = self._chosen_controller().controller
        self.world.call(
            f"delete {name}", controller, controller.delete_topics([name], timeout_ms=5_000)
        )

    def _write(self, path: str, data: bytes = b"") -> None:
        try:
            self.world.tree.apply(self.world.admin, [CreateOp(path, data)])
        except StoreError:
            return

    def _delete_by_znode(self) -> None:
        self._write(znodes.delete_topic_path(self.random.choice(TOPIC_NAMES)))

    def _add_partitions(self) -> None:
        name = self.random.choice(TOPIC_NAMES)
        request = NewPartitions(name, self.random.randint(2, 5))
        controller = self._chosen_controller().controller
        self.world.call(
            f"grow {name}", controller, controller.create_partitions([request], timeout_ms=5_000)
        )

    def _reassign(self) -> None:
        partitions = self.world.partitions()
        if not partitions:
            return
        targets = {
            partition: None if self.random.random() < 0.2 else tuple(self._brokers(3))
            for partition in self.random.sample(partitions, min(2, len(partitions)))
        }
        controller = self._chosen_controller().controller
        self.world.call("reassign", controller, controller.alter_partition_reassignments(targets))

    def _reassign_by_znode(self) -> None:
        partitions = self.world.partitions()
        if partitions:
            partition = self.random.choice(partitions)
            targets = {partition: tuple(self._brokers(3))}
            self._write(znodes.REASSIGN_PARTITIONS, znodes_admin.encode_reassignment(targets))

    def _elect(self) -> None:
        wanted = None if self.random.random() < 0.5 else self.world.partitions()[:2]
        controller = self._chosen_controller().controller
        self.world.call("elect", controller, controller.elect_leaders(wanted, 0, timeout_ms=5_000))

    def _elect_unclean(self) -> None:
        if self.random.random() < 0.9:  # it loosens a rule for the rest of the history
            return
        self.world.rules.unclean_allowed = True
        controller = self._chosen_controller().controller
        self.world.call("elect", controller, controller.elect_leaders(None, 1, timeout_ms=5_000))

    def _elect_by_znode(self) -> None:
        partitions = self.world.partitions()[:2]
        payload = znodes_admin.encode_preferred_election(partitions)
        self._write(znodes.PREFERRED_REPLICA_ELECTION, payload)

    def _controlled_shutdown(self) -> None:
        process = self.random.choice(self.world.alive())
        controller = self._chosen_controller().controller
        self.world.call(
            "shutdown",
            controller,
            controller.controlled_shutdown(process.broker_id, process.broker.broker_epoch),
        )

    def _producer_ids(self) -> None:
        process = self.random.choice(self.world.alive())
        controller = self._chosen_controller().controller

        async def allocate() -> object:
            block = await controller.allocate_producer_ids(
                process.broker_id, process.broker.broker_epoch
            )
            self.world.producer_ids.append(block.first)
            return block

        self.world.call("producer ids", controller, allocate())

    def _producer_ids_from_tree(self) -> None:
        """As brokers of an old protocol version do it, two at the same time."""
        for process in self.random.sample(self.world.alive(), min(2, len(self.world.alive()))):

            async def allocate(process: Process = process) -> object:
                try:
                    block = await allocate_block(process.store, process.broker_id)
                except StoreError as error:
                    return error
                self.world.producer_ids.append(block.first)
                return block

            self.world.call("producer ids", process.controller, allocate())

    def _depose(self) -> None:
        """The old way to force an election: the controller learns of it later than others may."""
        if znodes.CONTROLLER in self.world.tree.nodes:
            self.world.tree.apply(self.world.admin, [DeleteOp(znodes.CONTROLLER)])

    def _features(self) -> None:
        controller = self._chosen_controller().controller
        self.world.call(
            "features", controller, controller.update_features([FeatureUpdate("nothing", 1)])
        )

    # What brokers do

    def _change_isr(self) -> None:
        led = self.world.led()
        if not led:
            return
        process, partition, hosted = self.random.choice(led)
        alive = {each.broker_id for each in self.world.alive()}
        isr = set(hosted.isr)
        candidate = self.random.choice(hosted.replicas)
        if candidate in isr and candidate != process.broker_id:
            isr.discard(candidate)
        elif candidate in alive:
            isr.add(candidate)
        if isr != set(hosted.isr):
            self.world.propose_isr(process, partition, sorted(isr))

    def _notify_isr(self) -> None:
        payload = znodes_admin.encode_isr_change(self.world.partitions()[:3])
        try:
            self.world.tree.apply(
                self.world.admin, [CreateOp(znodes.ISR_CHANGE_PREFIX, payload, sequential=True)]
            )
        except StoreError:
            return

    def _lose_directory(self) -> None:
        process = self.random.choice(self.world.alive())
        hosted = list(process.broker.hosted)
        if not hosted:
            return
        process.broker.lost_directory.add(self.random.choice(hosted))
        payload = znodes_admin.encode_log_dir_event(process.broker_id)
        try:
            self.world.tree.apply(
                self.world.admin, [CreateOp(znodes.LOG_DIR_EVENT_PREFIX, payload, sequential=True)]
            )
        except StoreError:
            return

    def _refuse_deletion(self) -> None:
        self.random.choice(self.world.alive()).broker.refuse_deletion = True

    # Rest

    async def rest(self) -> None:
        """No more faults, all brokers restarted: runs until nothing is left to do."""
        world = self.world
        world.faults = False
        world.trace.append("rest")
        await self._end_sessions()
        await self._restart()
        quiet = 0
        for _ in range(MAX_REST_ROUNDS):
            worked = await self._drain()
            worked = await self._restart() or worked
            worked = self._full_isrs() or worked
            await world.settle()
            quiet = 0 if worked else quiet + 1
            if quiet > 8:  # longer than any retry takes
                return
            world.clock.advance(1_000)
            await world.settle()
        raise AssertionError("the cluster does not become stable")

    async def _restart(self) -> bool:
        """Restarts failed brokers, damaged ones, and those in controlled shutdown."""
        world = self.world
        going = {
            broker_id
            for process in world.active()
            for broker_id in process.controller.context.shutting_down
        }
        again = [
            broker_id
            for broker_id, process in world.processes.items()
            if not process.alive
            or process.broker.lost_directory
            or process.broker.refuse_deletion
            or broker_id in going
        ]
        for broker_id in again:
            if world.processes[broker_id].alive:
                world.kill(broker_id)
        await self._end_sessions()
        for broker_id in again:
            world.start(broker_id)
        await world.settle()
        return bool(again)

    async def _end_sessions(self) -> None:
        while self.world.zombies:
            self._end_zombie()
        for process in self.world.alive():
            if process.session_lost:
                self.hear(process)
        await self.world.settle()

    async def _drain(self) -> bool:
        worked = False
        while pending := self.world.pending():
            worked = True
            for _, act in pending:
                act()
                await self.world.settle()
            await asyncio.sleep(0)
        return worked

    def _full_isrs(self) -> bool:
        """Every follower has caught up by now."""
        proposed = False
        for process, partition, hosted in self.world.led():
            current = self.world.state(partition)
            if current is None or current.leader_epoch != hosted.leader_epoch:
                continue
            if set(hosted.isr) != set(hosted.replicas):
                self.world.propose_isr(process, partition, hosted.replicas)
                proposed = True
        return proposed
