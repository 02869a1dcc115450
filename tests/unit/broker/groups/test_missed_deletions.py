"""Offsets of topics that were deleted while another broker coordinated the groups."""

import asyncio
from collections.abc import Collection

from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.store import StoreError
from tests.unit.broker.groups.helpers import T0, Setup
from tests.unit.broker.groups.test_admin import U0, end_transaction, tombstones


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
