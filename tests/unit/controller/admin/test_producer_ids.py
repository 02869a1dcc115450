"""Blocks of producer ids."""

from __future__ import annotations

import pytest

from ottla.controller.admin.producer_ids import (
    MAX_PRODUCER_ID,
    SKIPPED_IDS,
    ProducerIdBlock,
    allocate_block,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import BadVersion
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_producer_id_block, encode_producer_id_block
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.controller_cluster import Cluster


@pytest.fixture
async def store() -> EmbeddedStore:
    made = EmbeddedStore()
    await made.connect()
    return made


async def test_blocks_follow_each_other(store: EmbeddedStore) -> None:
    assert await allocate_block(store, 1) == ProducerIdBlock(0, 1000)
    assert await allocate_block(store, 2) == ProducerIdBlock(1000, 1000)
    data, _ = await store.get(znodes.PRODUCER_ID_BLOCK)
    assert decode_producer_id_block(data) == (2, 1000, 1999)


async def test_ids_are_left_out_behind_an_older_copy_of_the_tree(store: EmbeddedStore) -> None:
    assert await allocate_block(store, 1, skipped=SKIPPED_IDS) == (SKIPPED_IDS, 1000)
    assert await allocate_block(store, 1) == (SKIPPED_IDS + 1000, 1000)
    assert await allocate_block(store, 1, skipped=SKIPPED_IDS) == (2 * SKIPPED_IDS + 2000, 1000)
    last = MAX_PRODUCER_ID - SKIPPED_IDS
    stored = encode_producer_id_block(1, last - 999, last)
    await store.set(znodes.PRODUCER_ID_BLOCK, stored)
    with pytest.raises(KafkaError):
        await allocate_block(store, 1, skipped=SKIPPED_IDS)
    assert (await store.get(znodes.PRODUCER_ID_BLOCK))[0] == stored
    assert await allocate_block(store, 1) == (last + 1, 1000)


async def test_a_znode_that_was_emptied_is_not_a_new_one(store: EmbeddedStore) -> None:
    """Producer ids would be allocated twice."""
    await allocate_block(store, 1)
    stat = await store.set(znodes.PRODUCER_ID_BLOCK, b"")
    with pytest.raises(MalformedZnode, match=r"/latest_producer_id_block.*Write a block above"):
        await allocate_block(store, 1)
    assert (await store.get(znodes.PRODUCER_ID_BLOCK)) == (b"", stat)


async def test_block_taken_by_another_in_between(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create(znodes.PRODUCER_ID_BLOCK)
    original = store.set

    async def beaten(path: str, data: bytes, version: int = -1) -> object:
        monkeypatch.undo()
        await original(path, encode_producer_id_block(7, 0, 999), version)
        raise BadVersion(path)

    monkeypatch.setattr(store, "set", beaten)
    assert await allocate_block(store, 1) == ProducerIdBlock(1000, 1000)


async def test_the_last_block(store: EmbeddedStore) -> None:
    last = encode_producer_id_block(1, 0, MAX_PRODUCER_ID - 1000)
    await store.create(znodes.PRODUCER_ID_BLOCK, last)
    block = await allocate_block(store, 1)
    assert block.first + block.size - 1 == MAX_PRODUCER_ID
    with pytest.raises(KafkaError) as exhausted:
        await allocate_block(store, 1)
    assert exhausted.value.code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_by_api(cluster: Cluster) -> None:
    epoch = cluster.brokers[2].broker_epoch
    assert await cluster.controller.allocate_producer_ids(2, epoch) == ProducerIdBlock(0, 1000)
    with pytest.raises(KafkaError) as unknown:
        await cluster.controller.allocate_producer_ids(9, epoch)
    assert unknown.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(KafkaError) as stale:
        await cluster.controller.allocate_producer_ids(2, epoch - 1)
    assert stale.value.code == ErrorCode.STALE_BROKER_EPOCH
