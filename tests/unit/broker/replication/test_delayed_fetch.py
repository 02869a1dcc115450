from __future__ import annotations

from collections.abc import Iterable

import pytest

from ottla.broker.replication.delayed_fetch import DelayedFetch, FetchParams
from ottla.broker.replication.fetch_sessions import FetchItem, PartitionKey
from ottla.broker.replication.partition import READ_LOG_END, Partition
from ottla.protocol.messages.fetch import FetchPartition
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas


class Scene:
    """A follower waits for three empty partitions; `checked`: what was read."""

    def __init__(self, min_bytes: int, news: list[PartitionKey] | None = None) -> None:
        self.replicas = Replicas()
        self.checked: list[int] = []
        self.completed = 0
        #: What the response is made of; None: of all.
        self.read: list[PartitionKey] | None = []
        params = FetchParams(replica_id=2)
        params.isolation = READ_LOG_END
        params.min_bytes = min_bytes
        items: dict[PartitionKey, FetchItem] = {}
        for index in range(3):
            self.replicas.lead(index, replicas=[1, 2])
            row = FetchPartition(partition=index, current_leader_epoch=0, partition_max_bytes=1_000)
            items[TOPIC, index] = FetchItem(TOPIC, TOPIC_ID, row)
        self.fetch = DelayedFetch(
            params, items, self._partition, self._complete, changed=news, news=news
        )

    def _partition(self, key: PartitionKey) -> Partition | None:
        self.checked.append(key[1])
        return self.replicas.manager.partitions.get(key)

    def _complete(self, news: Iterable[PartitionKey] | None) -> None:
        self.completed += 1
        self.read = None if news is None else list(news)


@pytest.mark.parametrize("min_bytes", [1, 60])
def test_a_change_checks_its_own_partition_only(min_bytes: int) -> None:
    """A follower, or a consumer, waits for thousands."""
    scene = Scene(min_bytes)
    assert not scene.fetch.try_complete()
    assert scene.checked == [0, 1, 2]
    scene.replicas.append(1, index=1)
    scene.checked.clear()
    assert not scene.fetch.try_complete_for((TOPIC, 2))
    assert scene.fetch.try_complete_for((TOPIC, 1))
    assert scene.checked == [2, 1]
    assert scene.completed == 1


def test_min_bytes_are_those_of_all_partitions() -> None:
    scene = Scene(min_bytes=100)
    scene.replicas.append(1, index=1)
    for _ in range(3):
        assert not scene.fetch.try_complete_for((TOPIC, 1)), "it counts once"
        assert not scene.fetch.try_complete()
    scene.replicas.append(1, index=2)
    assert scene.fetch.try_complete_for((TOPIC, 2))


@pytest.mark.parametrize("min_bytes", [1, 100])
def test_a_partition_that_is_gone_completes_it(min_bytes: int) -> None:
    scene = Scene(min_bytes)
    del scene.replicas.manager.partitions[TOPIC, 1]
    assert scene.fetch.try_complete_for((TOPIC, 1))


@pytest.mark.parametrize("min_bytes", [1, 100])
def test_only_partitions_with_news_are_checked_and_read(min_bytes: int) -> None:
    scene = Scene(min_bytes, news=[(TOPIC, 2)])
    assert not scene.fetch.try_complete()
    assert scene.checked == [2]
    scene.replicas.append(1, index=0)
    scene.replicas.append(1, index=1)
    completed_by = next(i for i in range(2) if scene.fetch.try_complete_for((TOPIC, i)))
    assert completed_by == (0 if min_bytes == 1 else 1), "one record is less than 100 bytes"
    assert scene.read == [(TOPIC, index) for index in (2, *range(completed_by + 1))]


def test_after_the_delay_all_partitions_are_read() -> None:
    """Retention deletes records without a word to those who wait."""
    scene = Scene(min_bytes=1, news=[(TOPIC, 2)])
    scene.fetch.expire()
    assert scene.read is None
