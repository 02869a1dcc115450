"""What is done to a simulated cluster: to its processes, machines, network, disks and ZooKeeper."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from tests.simulation.cluster.admin import Admin
from tests.simulation.cluster.deletion_troubles import DeletionTroubles
from tests.simulation.cluster.disk_troubles import DiskTroubles
from tests.simulation.cluster.flush_troubles import FlushTroubles
from tests.simulation.cluster.leader_troubles import LeaderTroubles
from tests.simulation.cluster.leadership_troubles import LeadershipTroubles
from tests.simulation.cluster.node import Node
from tests.simulation.cluster.operator_troubles import OperatorTroubles
from tests.simulation.cluster.reassignment_troubles import ReassignmentTroubles
from tests.simulation.cluster.settings_troubles import SettingsTroubles
from tests.simulation.cluster.settled import settles
from tests.simulation.cluster.unfinished_troubles import UnfinishedTroubles

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World


# A kind that is listed twice is twice as frequent.
PROCESS = ("kill", "kill", "quick", "stop", "two", "pause", "rolling")
UNFINISHED = (
    *("ending", "loading", "unfinished_move", "assigned", "deleted", "refused"),
    *("refused_join", "calm"),
)
NETWORK = (
    *("cut", "isolate", "lag", "half_reassigned", "replaced_target", "lost_stop_replica"),
    *("leader_lost", "away", "short_return"),
)
ZOOKEEPER = ("zookeeper", "expire", "depose", "lossy", "stale_controller")
DISK = (
    *("no_space", "full", "no_inodes", "slow_sync"),
    *("input_output_errors", "failing_sync", "dies_within"),
)
ADMIN = (
    "reassign",
    "reassign",
    "elect",
    "delete_records",
    "recreate",
    "configure",
    "move",
    "quota",
)
# The newer ones, which are not in the mix of older seeds. They wait until all is well at times, and
# check at once what they have done.
LATER = (
    *("late_deletion", "deleted_offsets", "orphaned_offsets", "missed_deletion"),
    *("halted_deletion", "unconfirmed_start"),
    *("failed_target", "unwritten_epochs", "unheard_restart"),
    *("replaced_target_stopped", "half_reassigned_stopped", "recreated_in_compaction"),
    *("moved_in_flush", "flushes_without_end", "response_before_close", "led_again"),
    *("wide_writes", "short_stop", "woken_leader"),
)
# What may happen while something else happens. Not what may lose data then.
TOGETHER = frozenset(
    ("cut", "isolate", "zookeeper", "expire", "depose", "lossy", "no_space", "full", "no_inodes")
    + ("slow_sync", "no_descriptors", *ADMIN)
)
TOGETHER_SHARE = 0.3
# Between which versions the brokers are upgraded and downgraded.
PROTOCOL_VERSIONS = ("3.9-IV0", "3.4-IV0", "3.2-IV0")
READY_SECONDS = 60
# Part of the kinds that happen while a log is compacted.
IN_COMPACTION = "in_compaction"


class Troubles:
    """Picks one after the other by the seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(f"troubles {world.seed}")
        self.admin = Admin(world)
        self.disks = DiskTroubles(world, self.admin)
        self.leaders = LeaderTroubles(world, self.admin, self.disks)
        self.unfinished = UnfinishedTroubles(world, self.admin, self.leaders)
        self.deletions = DeletionTroubles(world, self.admin, self.leaders)
        self.flushes = FlushTroubles(world, self.admin, self.disks, self.leaders)
        self.leaderships = LeadershipTroubles(world, self.admin, self.leaders)
        self.operator = OperatorTroubles(world, self.admin, self.leaders)
        self.settings = SettingsTroubles(world, self.admin)
        self.reassignments = ReassignmentTroubles(world, self.leaders)
        self.tiered = None if world.tiered is None else world.tiered.troubles(self)
        self.workers = self._workers() if world.shape.workers > 1 else None
        in_compaction = world.shape.later_kinds or IN_COMPACTION in world.shape.kinds
        self.compactions = self._compactions() if in_compaction else None
        self.count = 0

    def _workers(self) -> Any:
        # Late: which modules are loaded decides what the seed draws.
        from tests.simulation.cluster.worker_troubles import WorkerTroubles

        return WorkerTroubles(self.world, self.leaders)

    def _compactions(self) -> Any:
        # Late: elsewhere a compaction is one piece of work.
        from tests.simulation.cluster.compaction_troubles import CompactionTroubles

        return CompactionTroubles(self.world, self.admin)

    async def one(self) -> None:
        """Does the next thing, sometimes two at a time, and undoes what can be undone."""
        kinds = [*PROCESS, *UNFINISHED, *NETWORK, *ZOOKEEPER, *DISK, *ADMIN]
        if self.world.shape.descriptor_faults:
            kinds += ["no_descriptors", "unopened"]
        if self.world.shape.power_loss:
            kinds += ["power", "power", "power"]
        if self.world.shape.brokers > 1:
            kinds += ["replaced_disk", "stale_member"]
        if self.world.shape.brokers > 3:
            kinds += ["offline"]
        if self.tiered is not None:
            kinds += self.tiered.kinds
            kinds += self.tiered.kinds
        if self.world.shape.later_kinds:
            kinds += LATER
            kinds += () if self.tiered is None else self.tiered.later_kinds
        if self.world.shape.operator:
            kinds += OperatorTroubles.KINDS
            kinds += SettingsTroubles.KINDS
        if self.workers is not None:
            # As often as all others of processes.
            kinds += [*self.workers.KINDS, *self.workers.KINDS]
        if self.world.shape.kinds:
            kinds = self.world.shape.kinds.split(",")
        others = [each for each in kinds if each in TOGETHER]
        if others and self.random.random() < TOGETHER_SHARE:
            first, second = self.random.choice(others), self.random.choice(others)
            await asyncio.gather(self._do(first), self._do(second))
        else:
            await self._do(self.random.choice(kinds))

    async def _do(self, kind: str) -> None:
        node = self.random.choice(list(self.world.nodes.values()))
        self.world.note(f"trouble: {kind} {node.host}")
        self.count += 1
        if kind in ADMIN:
            await getattr(self.admin, kind)()
        elif hasattr(self.disks, kind):
            await getattr(self.disks, kind)(node)
        elif hasattr(self.leaders, kind):
            await getattr(self.leaders, kind)(node)
        elif hasattr(self.unfinished, kind):
            await getattr(self.unfinished, kind)(node)
        elif hasattr(self.deletions, kind):
            await getattr(self.deletions, kind)(node)
        elif hasattr(self.flushes, kind):
            await getattr(self.flushes, kind)(node)
        elif hasattr(self.leaderships, kind):
            await getattr(self.leaderships, kind)(node)
        elif kind in OperatorTroubles.KINDS:
            await getattr(self.operator, kind)(node)
        elif kind in SettingsTroubles.KINDS:
            await getattr(self.settings, kind)(node)
        elif hasattr(self.reassignments, kind):
            await getattr(self.reassignments, kind)(node)
        elif hasattr(self.compactions, kind):
            await getattr(self.compactions, kind)(node)
        elif hasattr(self.workers, kind):
            await getattr(self.workers, kind)(node)
        elif hasattr(self.tiered, kind):
            await getattr(self.tiered, kind)(node)
        else:
            await getattr(self, f"_{kind}")(node)

    async def _calm(self, _node: Node) -> None:
        """Nothing, until all agree. What is wrong now, later troubles would repair by chance."""
        reason = await settles(self.world)
        if reason is not None:
            self.world.complain(f"the cluster does not settle: {reason}")

    async def _kill(self, node: Node) -> None:
        node.kill()
        await asyncio.sleep(self.random.uniform(0, 8))
        self._start(node)

    async def _quick(self, node: Node) -> None:
        node.kill()
        await asyncio.sleep(self.random.uniform(0, 0.5))
        self._start(node)

    async def _power(self, node: Node) -> None:
        node.kill(power=True)
        await asyncio.sleep(self.random.uniform(0, 8))
        self._start(node)

    async def _stop(self, node: Node) -> None:
        if node.is_up:
            await node.stop()
        await asyncio.sleep(self.random.uniform(0, 4))
        self._start(node)

    async def _two(self, node: Node) -> None:
        other = self.random.choice(list(self.world.nodes.values()))
        node.kill()
        await asyncio.sleep(self.random.uniform(0, 2))
        other.kill()
        await asyncio.sleep(self.random.uniform(0, 5))
        self._start(node)
        await asyncio.sleep(self.random.uniform(0, 3))
        self._start(other)

    async def _rolling(self, _node: Node) -> None:
        """Each broker in turn is stopped and started, maybe with another protocol version."""
        version = self.random.choice(PROTOCOL_VERSIONS)
        self.world.note(f"rolling restart with inter.broker.protocol.version={version}")
        for node in self.world.nodes.values():
            if node.is_up:
                await node.stop()
            node.settings = {**node.settings, "inter.broker.protocol.version": version}
            self._start(node)
            for _attempt in range(READY_SECONDS * 10):
                if node.ready:
                    break
                await asyncio.sleep(0.1)

    async def _cut(self, node: Node) -> None:
        other = self.random.choice(["clients", *(each.host for each in self.world.nodes.values())])
        self.world.network.cut(node.host, other)
        await asyncio.sleep(self.random.uniform(0, 10))
        self.world.network.heal()

    async def _isolate(self, node: Node) -> None:
        for other in self.world.nodes.values():
            self.world.network.cut(node.host, other.host)
        session = self._session(node)
        if session is not None and self.random.random() < 0.5:
            session.cut()
        await asyncio.sleep(self.random.uniform(0, 12))
        self.world.network.heal()
        if session is not None:
            session.heal()

    async def _short_return(self, node: Node) -> None:
        """A leader was away alone and was written to, and lacks something when it has to
        truncate."""
        node = self.leaders.leader(self.admin.any_partition()) or node
        back = self.leaders.cut_off(node)
        await asyncio.sleep(self.random.uniform(8, 12))
        writer = asyncio.get_running_loop().create_task(self.leaders.write_alone(node))
        await self.disks.short(node, back)
        writer.cancel()

    async def _zookeeper(self, node: Node) -> None:
        """Calls wait for the connection, or fail at once because none is accepted."""
        session = self._session(node)
        if session is not None:
            session.cut(refuses=self.random.random() < 0.5)
            await asyncio.sleep(self.random.uniform(0, 12))
            session.heal()

    async def _expire(self, node: Node) -> None:
        session = self._session(node)
        if session is not None:
            session.expire()

    async def _pause(self, node: Node) -> None:
        """As SIGSTOP and SIGCONT: nothing of the process runs for a while."""
        if node.is_up and node.running is not None:
            process, session = node.running.process, self._session(node)
            seconds = self.random.uniform(0.5, 12)
            process.pause()
            if session is not None:
                session.cut()
            await asyncio.sleep(seconds)
            process.resume()
            if session is not None:
                session.heal()

    async def _stale_controller(self, node: Node) -> None:
        """The controller cannot reach ZooKeeper while another is elected, and has work to do."""
        nodes = self.world.ensemble.tree.nodes
        found = nodes.get(znodes.CONTROLLER)
        controller = (
            None if found is None else self.world.nodes[znodes.decode_controller(found.data)]
        )
        session = None if controller is None else self._session(controller)
        if session is None:
            return
        session.cut()
        work = asyncio.get_running_loop().create_task(self.admin.reassign())
        if node is not controller and self.random.random() < 0.5:
            node.kill()
        await asyncio.sleep(self.random.uniform(0.05, 1))
        await self.leaders.depose(node)
        await asyncio.sleep(self.random.uniform(0.05, 4))
        session.heal()
        await work
        self._start(node)

    async def _lossy(self, node: Node) -> None:
        self.world.ensemble.lost_one_in = self.random.choice([40, 8, 3, 2])
        await asyncio.sleep(self.random.uniform(0, 3))
        if self.random.random() < 0.5:
            # Brokers read the configuration of a new topic before they take its partitions.
            await self.admin.recreate()
        await asyncio.sleep(self.random.uniform(0, 3))
        self.world.ensemble.lost_one_in = 0

    def _session(self, node: Node) -> Any:
        return (
            self.world.ensemble.session_of(node.running.process)
            if node.is_up and node.running
            else None
        )

    def _start(self, node: Node) -> None:
        if not node.is_up:
            node.start()
