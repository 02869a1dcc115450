"""Which partitions a topic has by the znode tree."""

from __future__ import annotations

import pytest

from ottla.broker.coordination.znodes import existing_partitions
from ottla.controller.model import ReplicaAssignment, TopicState
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znodes import MalformedZnode

TOPIC = znodes.encode_topic(
    TopicState(None, {0: ReplicaAssignment((1,)), 2: ReplicaAssignment((2,))})
)


@pytest.mark.parametrize(
    ("nodes", "partitions"),
    [
        ({}, set()),
        ({znodes.topic_path("t"): TOPIC}, {0, 2}),
        ({znodes.topic_path("u"): TOPIC}, set()),
        ({znodes.topic_path("t"): TOPIC, znodes.delete_topic_path("t"): b""}, set()),
    ],
)
async def test_partitions_of_topics_that_stay(
    nodes: dict[str, bytes], partitions: set[int]
) -> None:
    store = EmbeddedStore()
    await store.connect()
    try:
        for path, data in nodes.items():
            await store.create(path, data, make_parents=True)
        assert await existing_partitions(store, "t") == partitions
    finally:
        await store.close()


async def test_what_cannot_be_read_is_an_error() -> None:
    store = EmbeddedStore()
    await store.connect()
    try:
        await store.create(znodes.topic_path("t"), b"not JSON", make_parents=True)
        with pytest.raises(MalformedZnode):
            await existing_partitions(store, "t")
    finally:
        await store.close()
    with pytest.raises(StoreError):
        await existing_partitions(store, "t")
