"""What happens to machines with several workers: `ottla start --workers` (broker/workers).

Played with `--workers N`. Brokers of one machine share its name as their rack, and a supervisor:
it ends the session of a worker that has died, and when it dies itself its workers stop. If all
brokers are workers of one machine there is no ZooKeeper: the znode tree is in the process of the
supervisor, so it stalls and dies with it.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from ottla.broker.workers.fork_server import ORPHANS_SECONDS
from ottla.broker.workers.supervisor import FIRST_PAUSE_SECONDS
from tests.simulation.cluster.settled import assignments, not_led
from tests.simulation.cluster.waiting import until
from tests.simulation.cluster.zookeeper import SESSION_TIMEOUT_SECONDS, Session

if TYPE_CHECKING:
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

READY_SECONDS = 60
# A crash loop ends before the supervisor gives the worker up.
MOST_ENDS = 5


class WorkerTroubles:
    """One method for each; all workers run when it returns."""

    KINDS = (
        *("worker_dies", "worker_crash_loop", "worker_replacement", "supervisor_dies"),
        *("supervisor_stalls", "machine_dies"),
    )

    def __init__(self, world: World, leaders: LeaderTroubles) -> None:
        self.world = world
        self.leaders = leaders
        self.random = Random(f"worker troubles {world.seed}")

    async def worker_dies(self, node: Node) -> None:
        """Maybe all of a machine, one after the other, so that the last one leads alone."""
        dying = [node]
        if self.random.random() < 0.3:
            dying = self.random.sample(self._machine(node), self.world.shape.workers)
        for each in dying:
            self._kill(each)
            await asyncio.sleep(self.random.uniform(0, 1))
        await asyncio.sleep(FIRST_PAUSE_SECONDS)
        await self._start(dying)

    async def worker_crash_loop(self, node: Node) -> None:
        """Each start dies, at any moment of it; the pauses double."""
        for number in range(self.random.randint(2, MOST_ENDS)):
            self._kill(node)
            await asyncio.sleep(FIRST_PAUSE_SECONDS * 2**number)
            if not node.is_up:
                node.start()
            await asyncio.sleep(self.random.uniform(0, 2))
        await self._start([node])

    async def worker_replacement(self, node: Node) -> None:
        """SIGHUP: each stops and starts, and the next one follows when its replicas are in sync."""
        for each in self._machine(node):
            if each.is_up:
                await each.stop()
            await self._start([each])
            if not await until(lambda each=each: self._is_in_sync(each), READY_SECONDS):  # type: ignore[misc]
                self.world.complain(f"{each.host} is not in sync after its replacement")

    async def supervisor_dies(self, node: Node) -> None:
        """Its workers stop, cleanly if they can. The next supervisor waits for their directories,
        and ends the sessions that the last one has left in the file of the tree."""
        machine = self._machine(node)
        sessions = self._sessions(machine)
        if self._has_tree:
            for session in sessions:
                session.cut(refuses=True, expires=False)
        stopping = [self.world.loop.create_task(each.stop()) for each in machine if each.is_up]
        if stopping and (await asyncio.wait(stopping, timeout=ORPHANS_SECONDS))[1]:
            self.world.complain(f"workers of {node.rack} do not stop without their supervisor")
        for each in machine:
            each.kill()
        await asyncio.sleep(self.random.uniform(0, SESSION_TIMEOUT_SECONDS * 2))
        if self._has_tree:
            for session in sessions:
                session.died(at_once=True)
        await self._start_all(machine)

    async def supervisor_stalls(self, node: Node) -> None:
        """Nothing of its process runs for a while. Without ZooKeeper no call of the tree returns,
        and no session expires; a worker that dies meanwhile is noticed later."""
        machine = self._machine(node)
        sessions = self._sessions(machine)
        if self._has_tree:
            for session in sessions:
                session.cut(expires=False)
        await asyncio.sleep(self.random.uniform(0, SESSION_TIMEOUT_SECONDS))
        if self.random.random() < 0.5:
            node.kill(ends_session=False)
        await asyncio.sleep(self.random.uniform(0, SESSION_TIMEOUT_SECONDS * 2))
        for session in sessions:
            session.heal()
            if session.process.dead:
                session.died(at_once=True)
        await asyncio.sleep(FIRST_PAUSE_SECONDS)
        await self._start([node])

    async def machine_dies(self, node: Node) -> None:
        """Power, or the kernel: supervisor, workers and the tree, if it is there, at one moment."""
        machine = self._machine(node)
        sessions = self._sessions(machine)
        for each in machine:
            each.kill(power=True, loses_unsynced=self.world.shape.power_loss)
        await asyncio.sleep(self.random.uniform(0, SESSION_TIMEOUT_SECONDS * 2))
        if self._has_tree:
            for session in sessions:
                session.died(at_once=True)
        await self._start_all(machine)

    # --- helpers ---------------------------------------------------------------------------

    @property
    def _has_tree(self) -> bool:
        """Whether the supervisor serves the tree."""
        return self.world.shape.workers >= self.world.shape.brokers

    def _machine(self, node: Node) -> list[Node]:
        return [each for each in self.world.nodes.values() if each.rack == node.rack]

    def _sessions(self, nodes: list[Node]) -> list[Session]:
        found = [self.leaders.session(each) for each in nodes]
        return [each for each in found if each is not None]

    def _kill(self, node: Node) -> None:
        """The supervisor notices the end, and ends the session if it has the tree."""
        session = self.leaders.session(node)
        node.kill(ends_session=not self._has_tree)
        if session is not None and self._has_tree:
            session.died(at_once=True)

    async def _start_all(self, machine: list[Node]) -> None:
        """A new supervisor starts the first worker alone."""
        first, *others = machine
        await self._start([first])
        await self._start(others)

    async def _start(self, nodes: list[Node]) -> None:
        for each in nodes:
            if not each.is_up:
                each.start()
        if not await until(lambda: all(each.ready for each in nodes), READY_SECONDS):
            # Another trouble may have killed it meanwhile.
            down = [each.host for each in nodes if each.is_up and not each.ready]
            if down:
                self.world.complain(f"{', '.join(down)} not ready after {READY_SECONDS} s")

    def _is_in_sync(self, node: Node) -> bool:
        return not any(
            node.broker_id in replicas and not_led(self.world, where, replicas)
            for where, replicas in assignments(self.world).items()
        )
