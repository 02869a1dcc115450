"""Random histories of a cluster: whatever happens, the rules hold, and it comes to a good end.

The normal run plays some hundreds of seeds; ``OTTLA_SIMULATION_SEEDS=5000`` plays more,
``OTTLA_SIMULATION_FIRST_SEED`` starts elsewhere. A failure names its seed and what happened last.
"""

from __future__ import annotations

import os

import pytest

from ottla.controller.lifecycle import Lifecycle
from ottla.controller.model import LeaderAndIsr
from ottla.controller.tree import znodes
from ottla.protocol.steps import PACE, Turn
from ottla.protocol.topics import TopicPartition
from tests.simulation.controller_scheduler import Scheduler
from tests.simulation.controller_world import World

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("OTTLA_SIMULATION_FIRST_SEED", "0"))
SEEDS_A_TEST = 20
SEEDS_WITH_TURNS = SEEDS // 8
STEPS = 350


async def play(seed: int, patch: pytest.MonkeyPatch | None = None) -> World:
    """With `patch`, the scheduler also chooses when a turn of an event continues."""
    world = World(seed, brokers=3 + seed % 2)
    if patch is not None:
        patch.setattr(PACE, "turn_seconds", 0.0)
        patch.setattr(PACE, "steps_per_reading", 1)
        patch.setattr(Turn, "pause", lambda _: world.pause())
    scheduler = Scheduler(world)
    try:
        await scheduler.run(STEPS)
        await scheduler.rest()
        assert_good_end(world)
    except AssertionError as error:
        story = "\n".join(world.trace[-60:])
        raise AssertionError(f"seed {seed}: {error}\nlast steps:\n{story}") from error
    finally:
        await world.close()
    return world


def assert_good_end(world: World) -> None:
    assert world.rules.violations == [], world.rules.violations
    for process in world.processes.values():
        assert process.broker.violations == [], process.broker.violations
    assert world.clock.failures == []
    without_response = [name for name, task in world.calls if not task.done()]
    assert without_response == [], "calls without a response"
    ended = [(name, task) for name, task in world.calls if not task.cancelled()]
    broken = [f"{name}: {task.exception()}" for name, task in ended if task.exception()]
    assert broken == [], "calls that failed in an unknown way"
    assert len(set(world.producer_ids)) == len(world.producer_ids)
    active = world.active()
    assert len(active) == 1, f"{len(active)} active controllers"
    data = world.tree.nodes[znodes.CONTROLLER].data
    assert znodes.decode_controller(data) == active[0].broker_id
    assert_tree_at_rest(world)
    context = active[0].controller.context
    assert not context.partitions_being_reassigned
    assert not context.topics_to_delete
    assert sorted(context.brokers) == sorted(world.processes)
    assert sorted(context.assignments) == world.topics()
    for partition in world.partitions():
        assert_partition_at_rest(world, partition, context.leadership[partition])


def assert_tree_at_rest(world: World) -> None:
    nodes = world.tree.nodes
    assert nodes[znodes.DELETE_TOPICS].children == set()
    assert nodes[znodes.ISR_CHANGE_NOTIFICATION].children == set()
    assert nodes[znodes.LOG_DIR_EVENT_NOTIFICATION].children == set()
    assert znodes.REASSIGN_PARTITIONS not in nodes
    assert znodes.PREFERRED_REPLICA_ELECTION not in nodes
    for topic in world.topics():
        state = znodes.decode_topic(topic, nodes[znodes.topic_path(topic)].data)
        assert state.topic_id is not None
        moving = [each for each in state.assignments.values() if each.is_being_reassigned]
        assert moving == []


def assert_partition_at_rest(world: World, partition: TopicPartition, known: LeaderAndIsr) -> None:
    node = world.tree.nodes[znodes.state_path(partition)]
    state = znodes.decode_state(partition, node.data, node.version)
    topic_node = world.tree.nodes[znodes.topic_path(partition.topic)]
    topic = znodes.decode_topic(partition.topic, topic_node.data)
    replicas = topic.assignments[partition.partition].replicas
    assert known == state, f"the controller's idea of {partition} is old"
    assert state.leader != -1, f"{partition} has no leader: {state}"
    assert set(state.isr) == set(replicas), f"the ISR of {partition} is not full: {state}"
    for process in world.processes.values():
        seen = process.broker.metadata.get(partition)
        assert seen is not None, f"broker {process.broker_id} does not know {partition}"
        assert seen.topic_id == topic.topic_id
        assert (seen.leader, seen.leader_epoch) == (state.leader, state.leader_epoch)
        assert set(seen.isr) == set(state.isr)
        hosted = process.broker.hosted.get(partition)
        if process.broker_id in replicas:
            assert hosted is not None, f"broker {process.broker_id} does not host {partition}"
            assert (hosted.leader, hosted.leader_epoch) == (state.leader, state.leader_epoch)
            assert hosted.topic_id == topic.topic_id


def final_states(world: World) -> list[tuple[TopicPartition, LeaderAndIsr | None]]:
    return [(partition, world.state(partition)) for partition in world.partitions()]


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, SEEDS_A_TEST))
async def test_random_histories(first: int) -> None:
    written = 0
    for seed in range(first, first + SEEDS_A_TEST):
        written += (await play(seed)).rules.states_written
    assert written > 0, "these histories decide nothing and so prove nothing"


async def test_random_histories_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_WITH_TURNS):
        world = await play(seed, monkeypatch)
        paused += world.trace.count("a turn")
    assert paused > 0


async def test_one_seed_is_one_history() -> None:
    first, second = await play(7), await play(7)
    assert first.trace == second.trace
    assert final_states(first) == final_states(second)  # all but the random topic ids


async def test_a_failover_that_always_fails_ends_the_history_with_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failovers = 0

    async def fail(*_: object) -> None:
        nonlocal failovers
        failovers += 1
        raise RuntimeError("the cause")

    monkeypatch.setattr(Lifecycle, "on_controller_failover", fail)
    with pytest.raises(AssertionError, match=r"a controller failed: RuntimeError\('the cause'\)"):
        await play(7)
    assert failovers == 1
