from __future__ import annotations

import asyncio

from ottla.broker.cluster.metadata_cache import BrokerEndpoint, MetadataCache
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from tests.doubles.published_metadata import publish

ID = b"1" * 16
OTHER_ID = b"2" * 16


def state(
    index: int = 0, leader: int = 1, epoch: int = 0, version: int = 0
) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=index,
        leader=leader,
        leader_epoch=epoch,
        isr=[1],
        zk_version=version,
        replicas=[1],
    )


def update(
    *topics: tuple[str, bytes, list[UpdateMetadataPartitionState]],
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=3,
        topic_states=[UpdateMetadataTopicState(*topic) for topic in topics],
        live_brokers=[
            UpdateMetadataBroker(
                id=1, endpoints=[UpdateMetadataEndpoint(9092, "host", "PLAINTEXT", 0)], rack="r"
            )
        ],
    )


def test_a_request_is_published_as_a_whole() -> None:
    cache = MetadataCache()
    before = cache.snapshot
    assert publish(cache, update(("t", ID, [state(0), state(1)]))) == []
    snapshot = cache.snapshot
    assert before.topics == {}, "who holds the old snapshot sees no change"
    assert (snapshot.controller_id, snapshot.controller_epoch) == (1, 3)
    assert sorted(snapshot.topics["t"].partitions) == [0, 1]
    assert snapshot.topic_names == {ID: "t"}
    assert snapshot.topic_id("t") == ID
    assert snapshot.topic_id("other") == ZERO_UUID
    assert snapshot.alive(1, "PLAINTEXT") == BrokerEndpoint("host", 9092, 0)
    assert snapshot.alive(1, "SSL") is None
    assert snapshot.alive(2, "PLAINTEXT") is None
    assert snapshot.brokers[1].rack == "r"


def test_differences_leave_the_rest_as_it_is() -> None:
    cache = MetadataCache()
    publish(cache, update(("t", ID, [state(0), state(1)]), ("u", OTHER_ID, [state(0)])))
    publish(cache, update(("t", ID, [state(1, leader=2, epoch=5)])))
    partition = cache.snapshot.partition("t", 1)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch) == (2, 5)
    assert cache.snapshot.partition("t", 0) is not None
    assert cache.snapshot.partition("u", 0) is not None
    assert cache.snapshot.partition("u", 1) is None


def test_a_request_that_arrives_after_its_successor_changes_nothing_back() -> None:
    """The controller timed out, sent it again over a new connection, and then the next one."""
    cache = MetadataCache()
    publish(cache, update(("t", ID, [state(0, leader=2, version=9), state(1)])))
    late = update(("t", ID, [state(0, leader=1, version=8), state(1, leader=3)]))
    late.live_brokers = []
    publish(cache, late)
    leaders = [each.leader for each in cache.snapshot.topics["t"].partitions.values()]
    assert leaders == [2, 3], "an equal version has other offline replicas, perhaps"
    assert 1 in cache.snapshot.brokers
    # A new controller may know another tree: a restored one.
    late.controller_epoch += 1
    publish(cache, late)
    assert cache.snapshot.topics["t"].partitions[0].leader == 1
    # A topic that was created again has other versions.
    publish(cache, update(("t", OTHER_ID, [state(0, leader=4)])))
    assert cache.snapshot.topics["t"].partitions[0].leader == 4


def test_a_deleted_partition_goes_and_with_the_last_one_the_topic() -> None:
    cache = MetadataCache()
    publish(cache, update(("t", ID, [state(0), state(1)])))
    gone = publish(cache, update(("t", ID, [state(0, leader=-2)])))
    assert gone == [TopicPartition("t", 0)]
    assert "t" in cache.snapshot.topics
    publish(cache, update(("t", ID, [state(1, leader=-2)])))
    assert cache.snapshot.topics == {}
    assert cache.snapshot.topic_names == {}


def test_a_topic_that_is_created_again_forgets_its_old_partitions_and_id() -> None:
    cache = MetadataCache()
    publish(cache, update(("t", ID, [state(0), state(1)])))
    publish(cache, update(("t", OTHER_ID, [state(0)])))
    assert sorted(cache.snapshot.topics["t"].partitions) == [0]
    assert cache.snapshot.topic_names == {OTHER_ID: "t"}


def test_the_layouts_of_old_controllers() -> None:
    cache = MetadataCache()
    old = state(0)
    old.topic_name = "t"
    publish(
        cache,
        UpdateMetadataRequest(
            ungrouped_partition_states=[old],
            live_brokers=[
                UpdateMetadataBroker(id=1, v0_host="h", v0_port=1),
                UpdateMetadataBroker(id=2, endpoints=[UpdateMetadataEndpoint(2, "g", "", 1)]),
            ],
        ),
    )
    assert cache.snapshot.partition("t", 0) is not None
    assert cache.snapshot.alive(1, "PLAINTEXT") == BrokerEndpoint("h", 1, 0)
    assert cache.snapshot.alive(2, "SSL") == BrokerEndpoint("g", 2, 1)


async def test_waiting_for_a_condition() -> None:
    cache = MetadataCache()

    async def wait() -> bool:
        return await cache.wait_until(lambda snapshot: "t" in snapshot.topics, 60_000)

    waiting = asyncio.gather(wait(), wait())
    await asyncio.sleep(0)
    publish(cache, update(("u", ID, [state()])))
    assert not waiting.done()
    publish(cache, update(("t", OTHER_ID, [state()])))
    assert await waiting == [True, True]
    assert await wait(), "what holds already is not waited for"


async def test_waiting_ends_in_time() -> None:
    cache = MetadataCache()
    assert not await cache.wait_until(lambda _: False, 0)
    assert not await cache.wait_until(lambda _: False, 1)
