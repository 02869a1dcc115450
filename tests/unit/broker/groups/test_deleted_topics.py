"""Offsets in topics that are deleted."""

import asyncio
from collections.abc import Collection

import pytest

from ottla.broker.groups.commits import Committer
from ottla.broker.groups.deleted_topics import OFFSETS_PER_BATCH, RETRY_MS
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.store import StoreError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.conftest import STEPS_PER_TURN
from tests.unit.broker.groups.helpers import GROUP, T0, T1, Setup
from tests.unit.broker.groups.test_admin import U0, end_transaction, tombstones


def test_deleted_topics_take_their_offsets_along() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 1, U0: 2}, member, 1)
    setup.commit({U0: 2}, group_id="other")
    setup.coordinator.admin.on_partitions_deleted([U0, T1])
    assert list(setup.fetch()) == [T0]
    assert setup.coordinator.partitions.find("other") is None


@pytest.mark.parametrize("commits_again", [False, True])
def test_offsets_of_a_deleted_topic_are_removed_also_if_that_fails(commits_again: bool) -> None:
    """A new topic of that name has nothing at these offsets, or other records."""
    setup = Setup()
    setup.commit({T0: 1, U0: 2})
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.coordinator.admin.on_partitions_deleted([U0])
    assert setup.offset(U0) == 2
    if commits_again:
        setup.commit({U0: 7})
    else:
        setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
        setup.timer.advance(RETRY_MS)
        assert setup.offset(U0) == 2
    setup.timer.advance(RETRY_MS)
    assert setup.offset(U0) == (7 if commits_again else -1)
    assert setup.offset(T0) == 1
    written = len(tombstones(setup))
    setup.timer.advance(RETRY_MS * 3)
    assert len(tombstones(setup)) == written, "all is removed"


def test_what_another_coordinator_removes_is_not_retried() -> None:
    setup = Setup()
    setup.commit({U0: 2})
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.coordinator.admin.on_partitions_deleted([U0])
    setup.coordinator.on_resigned(0, 1)
    setup.timer.advance(RETRY_MS)
    setup.run_deferred()
    assert tombstones(setup) == []


@pytest.mark.usefixtures("short_turns")
def test_the_offsets_of_many_groups_are_removed_in_turns() -> None:
    setup = Setup()
    groups = [f"group-{number}" for number in range(STEPS_PER_TURN * 3)]
    for group_id in groups:
        setup.commit({T0: 1, U0: 2}, group_id=group_id)
    setup.coordinator.admin.on_partitions_deleted([T0])
    assert len(setup.deferred) == 1
    assert len(tombstones(setup)) == STEPS_PER_TURN // 2  # a batch and a group are a step each
    # The topic was created again, and this group has read from it.
    setup.commit({T0: 7}, group_id=groups[-1])
    setup.run_deferred()
    assert [setup.offset(T0, group_id) for group_id in groups] == [-1] * (len(groups) - 1) + [7]
    assert {setup.offset(U0, group_id) for group_id in groups} == {2}


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("meanwhile", ["", "commits again", "resigns"])
def test_many_offsets_of_a_group_are_removed_in_turns(meanwhile: str) -> None:
    setup = Setup()
    deleted = [
        TopicPartition("many", index) for index in range(OFFSETS_PER_BATCH * (STEPS_PER_TURN + 1))
    ]
    for each in deleted:
        setup.commit({each: 1})
    setup.commit({U0: 2})
    setup.coordinator.admin.on_partitions_deleted(deleted)
    assert len(setup.deferred) == 1
    assert len(tombstones(setup)) == OFFSETS_PER_BATCH * STEPS_PER_TURN
    if meanwhile == "commits again":  # the topic was created again
        setup.commit({deleted[0]: 7, deleted[-1]: 7})
    elif meanwhile == "resigns":
        setup.coordinator.on_resigned(0, 1)
    setup.run_deferred()
    if meanwhile == "resigns":
        assert len(tombstones(setup)) == OFFSETS_PER_BATCH * STEPS_PER_TURN
        return
    left = {U0: 2}
    if meanwhile:
        left |= {deleted[0]: 7, deleted[-1]: 7}
    assert {each: setup.offset(each) for each in setup.fetch()} == left


@pytest.mark.parametrize("producer_id", [None, 7])
@pytest.mark.parametrize("commits_again", [False, True])
def test_a_commit_that_is_pending_when_its_topic_is_deleted(
    producer_id: int | None, commits_again: bool
) -> None:
    setup = Setup()
    setup.commit({T1: 1})
    setup.log.hold = True
    setup.commit({T0: 5}, producer_id=producer_id)
    setup.coordinator.admin.on_partitions_deleted([T0])
    setup.log.hold = False
    setup.log.commit_all()
    if producer_id is not None:
        end_transaction(setup)
    if commits_again:  # the topic is there again
        setup.commit({T0: 0})
    setup.timer.advance(RETRY_MS)
    left = {T1: 1} | ({T0: 0} if commits_again else {})
    assert {each: setup.offset(each) for each in setup.fetch()} == left
    again = Setup(setup.log)
    assert {each: again.offset(each) for each in again.fetch()} == left
    written = len(tombstones(setup))
    setup.timer.advance(RETRY_MS * 3)
    assert len(tombstones(setup)) == written, "all is removed"


def test_a_commit_of_the_same_turn_is_before_the_deletion_of_its_topic() -> None:
    setup = Setup()
    setup.coordinator.commits.commit(
        Committer(GROUP), {T0: CommittedOffset(5, -1, "", 0)}, lambda results: None
    )
    setup.coordinator.admin.on_partitions_deleted([T0])
    setup.run_deferred()
    assert setup.offset() == -1


@pytest.mark.usefixtures("short_turns")
def test_groups_that_moved_away_in_a_pause_are_left_alone() -> None:
    setup = Setup()
    for number in range(STEPS_PER_TURN):
        setup.commit({T0: 1}, group_id=f"group-{number}")
    setup.coordinator.admin.on_partitions_deleted([T0])
    setup.coordinator.on_resigned(0, 1)
    setup.run_deferred()
    assert len(tombstones(setup)) == STEPS_PER_TURN // 2


class Topics:
    """Those that exist in ZooKeeper, and those of them that the broker's metadata have."""

    def __init__(self, *names: str, unknown: tuple[str, ...] = ()) -> None:
        self.names = set(names)
        self.unknown = unknown
        self.reads = 0
        self.error: StoreError | None = None
        self.is_read = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    def is_known(self, name: str) -> bool:
        return name in self.names and name not in self.unknown

    async def existing(self) -> Collection[str]:
        self.reads += 1
        self.is_read.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.names


async def look(setup: Setup, topics: Topics, times: int = 2) -> None:
    for _ in range(times):
        await setup.coordinator.missed_deletions.look(topics.is_known, topics.existing)
    setup.run_deferred()


def loaded_without_tombstones() -> Setup:
    """The topic of U0 was deleted, and the coordinator died before that was in its log."""
    earlier = Setup()
    earlier.commit({T0: 1, U0: 2})
    earlier.commit({U0: 3}, group_id="other")
    setup = Setup(earlier.log)
    assert (setup.offset(U0), setup.offset(U0, "other")) == (2, 3)
    return setup


async def test_they_are_removed_at_the_second_look() -> None:
    setup = loaded_without_tombstones()
    await look(setup, Topics("t"), times=1)
    assert setup.offset(U0) == 2, "the server of ZooKeeper may be behind"
    await look(setup, Topics("t"), times=1)
    assert (setup.offset(T0), setup.offset(U0)) == (1, -1)
    assert setup.coordinator.partitions.find("other") is None
    assert Setup(setup.log).offset(U0) == -1
    written = len(tombstones(setup))
    await look(setup, Topics("t"))
    assert len(tombstones(setup)) == written


async def test_a_topic_that_the_metadata_do_not_have_yet_keeps_its_offsets() -> None:
    setup = loaded_without_tombstones()
    topics = Topics("t", "u", unknown=("u",))
    await look(setup, topics)
    assert setup.offset(U0) == 2
    assert topics.reads == 1


async def test_nothing_is_read_from_zookeeper_when_all_topics_are_known() -> None:
    setup = loaded_without_tombstones()
    topics = Topics("t", "u")
    await look(setup, topics, times=3)
    assert topics.reads == 0


async def test_what_is_committed_after_the_load_stays() -> None:
    setup = loaded_without_tombstones()
    setup.commit({U0: 0})  # in a new topic of that name
    await look(setup, Topics("t"))
    assert (setup.offset(U0), setup.offset(U0, "other")) == (0, -1)


async def test_offsets_of_a_transaction_that_is_still_open_are_removed_too() -> None:
    earlier = Setup()
    earlier.commit({T0: 1})
    earlier.commit({U0: 5}, producer_id=7)
    setup = Setup(earlier.log)
    await look(setup, Topics("t"))
    end_transaction(setup)
    assert setup.offset(U0) == -1
    assert Setup(setup.log).offset(U0) == -1


async def test_it_is_repeated_when_zookeeper_cannot_be_read() -> None:
    setup = loaded_without_tombstones()
    topics = Topics("t")
    topics.error = StoreError("away")
    await look(setup, topics)
    assert setup.offset(U0) == 2
    topics.error = None
    await look(setup, topics, times=1)
    assert setup.offset(U0) == -1


async def test_a_coordinator_that_resigns_meanwhile_writes_nothing() -> None:
    setup = loaded_without_tombstones()
    topics = Topics("t")
    topics.gate.clear()
    looking = spawn(look(setup, topics), name="look")
    await topics.is_read.wait()
    setup.coordinator.on_resigned(0, 1)
    topics.gate.set()
    await looking
    assert tombstones(setup) == []


async def test_a_partition_that_is_loaded_again_meanwhile_is_compared_later() -> None:
    setup = loaded_without_tombstones()
    topics = Topics("t")
    await look(setup, topics, times=1)
    setup.coordinator.on_resigned(0, 1)
    setup.elect(2)
    await look(setup, topics, times=1)
    assert setup.offset(U0) == 2
    await look(setup, topics, times=1)
    assert setup.offset(U0) == -1
