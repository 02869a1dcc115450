"""Whether ZooKeeper's tree and the view of every broker agree, also while clients continue."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.controller.model import LeaderAndIsr
    from tests.simulation.cluster.world import World

TOPICS_PATH = "/brokers/topics/"
DELETIONS_PATH = "/admin/delete_topics"
# A cluster in calm agrees after this long: session timeout, log directories, retries.
SETTLED_SECONDS = 60


async def settles(world: World) -> str | None:
    """Waits until all agree; returns what is wrong when they do not."""
    reason: str | None = ""
    for _ in range(SETTLED_SECONDS * 2):
        reason = unsettled(world)
        if reason is None:
            break
        await asyncio.sleep(0.5)
    return reason


def unsettled(world: World) -> str | None:
    """Where the brokers and the tree differ, None when they agree and every ISR is complete."""
    for node in world.nodes.values():
        if not node.ready or node.server is None:
            return f"{node.host} is not ready"
        coordinators = node.server.parts.coordinators
        for each in (coordinators.groups, coordinators.transactions):
            if each.partitions.is_loading:
                return f"{node.host} loads partitions of {each.partitions.topic}"
    assigned = assignments(world)
    for node in world.nodes.values():
        logs = [log for path in node.log_directories for log in node.disk.directories_in(path)]
        doubled = [log for log in logs if logs.count(log) > 1]
        if doubled:
            return f"{node.host} has two logs of {doubled[0]}"
    for where, replicas in assigned.items():
        reason = (
            not_led(world, where, replicas)
            or not_known(world, where)
            or not_deleted(world, where, replicas)
        )
        if reason:
            return reason
    return _deleted(world, {where.topic for where in assigned})


def assignments(world: World) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas of all partitions in the tree, without topics that are being deleted."""
    found = {}
    nodes = world.ensemble.tree.nodes
    for path, node in nodes.items():
        name = path.removeprefix(TOPICS_PATH)
        if name != path and "/" not in name and f"{DELETIONS_PATH}/{name}" not in nodes:
            for index, each in decoded_topic(name, node.data).assignments.items():
                found[TopicPartition(name, index)] = tuple(each.replicas)
    return found


def not_led(world: World, where: TopicPartition, replicas: tuple[int, ...]) -> str | None:
    """Why a partition has not one leader with all replicas in sync, of which the tree knows."""
    hosted = {
        each: world.nodes[each].server.parts.replica_manager.partitions.get(where)  # type: ignore[union-attr]
        for each in replicas
    }
    leaders = [each for each, found in hosted.items() if found is not None and found.is_leader]
    if len(leaders) != 1:
        return f"{where} has leaders {leaders} of {replicas}"
    leader: Any = hosted[leaders[0]]
    if set(leader.isr) != set(replicas):
        return f"{where} has ISR {sorted(leader.isr)} of {replicas}"
    state = state_of(world, where)
    own = (leader.context.broker_id, leader.leader_epoch, set(leader.isr))
    if state is None or (state.leader, state.leader_epoch, set(state.isr)) != own:
        return f"{where} is {own} to its leader and {state} in ZooKeeper"
    return None


def not_known(world: World, where: TopicPartition) -> str | None:
    """Which broker has another leader in its metadata cache than the tree."""
    state = state_of(world, where)
    for node in world.nodes.values():
        snapshot = node.server.parts.metadata.snapshot  # type: ignore[union-attr]
        found = snapshot.partition(*where)
        known = None if found is None else (found.leader, found.leader_epoch, sorted(found.isr))
        if state is None or known != (state.leader, state.leader_epoch, sorted(state.isr)):
            return f"{where} is {known} in the metadata cache of {node.host}, {state} in ZooKeeper"
    return None


def not_deleted(world: World, where: TopicPartition, replicas: tuple[int, ...]) -> str | None:
    """Why a follower has records that its leader has deleted.

    The other way round is no error: a leader that was killed, or has lost power, may have lost the
    checkpoint of its log start offset.
    """
    hosted = [world.nodes[each].server.parts.replica_manager.partitions[where] for each in replicas]  # type: ignore[union-attr]
    starts = {each.context.broker_id: each.log.log_start_offset for each in hosted}
    leader = next(each for each in hosted if each.is_leader)
    if min(starts.values()) < leader.log.log_start_offset:
        return f"{where} has log start offsets {starts}, {leader.context.broker_id} leads"
    return None


def state_of(world: World, where: TopicPartition) -> Any:
    """The state of a partition in the tree, None without one."""
    node = world.ensemble.tree.nodes.get(znodes.state_path(where))
    return None if node is None else _decoded_state(where, node.data)


@lru_cache(maxsize=64)
def decoded_topic(name: str, data: bytes) -> znodes.TopicState:
    """A topic's znode, which is read for each log of each broker."""
    return znodes.decode_topic(name, data)


@lru_cache(maxsize=1024)
def _decoded_state(where: TopicPartition, data: bytes) -> LeaderAndIsr:
    return znodes.decode_state(where, data, 0)


def _deleted(world: World, topics: set[str]) -> str | None:
    for path in world.ensemble.tree.nodes:
        if path.startswith(f"{DELETIONS_PATH}/"):
            return f"the deletion of {path.rpartition('/')[2]} has not ended"
    for node in world.nodes.values():
        snapshot = node.server.parts.metadata.snapshot  # type: ignore[union-attr]
        for name in snapshot.topics:
            if name not in topics:
                return f"{node.host} has topic {name} in its metadata cache, which was deleted"
    return None
