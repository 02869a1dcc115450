"""A fetch of one partition without a session, handled at once, has the response that steps give."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.broker.handlers.records.fetch import FetchHandler
from ottla.broker.replication.partition import RackAwareReplicaSelector
from ottla.broker.requests.request_channel import DEFERRED
from ottla.protocol.codec import encoder
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.storage.producer.producer_entry import AppendOrigin
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC, TOPIC_ID
from tests.doubles.request_context import FakeContext, finished
from tests.doubles.storage_logs import NOW_MS, batch_of, marker, plain
from tests.unit.broker.handlers.scene import DataPath

RACKS = {1: "a", 2: "b", 3: "c"}


class Scene:
    """A partition with some history and perhaps some trouble, and the fetches of it."""

    def __init__(self, seed: int) -> None:
        self.random = chosen = random.Random(seed)
        self.disk = MemoryFileSystem()
        self.path = DataPath(
            file_system=self.disk,
            segment_bytes=chosen.choice([300, 2000, 1 << 20]),
            index_interval_bytes=chosen.choice([1, 100, 4096]),
        )
        self.path.racks = RACKS
        self.path.lead(epoch=2, is_new=True, replicas=[1, 2, 3], isr=[1, 2])
        self.partition, self.log = self.path.partition(), self.path.log()
        self.read_at_once: list[PartitionData] = []
        self._watch_reads()
        self._write()
        if chosen.random() < 0.3:
            self._look_for_near_replicas()
        self._trouble()

    def _watch_reads(self) -> None:
        read_one = self.path.manager.read_one

        def read(*given: Any) -> PartitionData | None:
            data = read_one(*given)
            if data is not None:
                self.read_at_once.append(data)
            return data

        self.path.manager.read_one = read  # type: ignore[method-assign]

    def _write(self) -> None:
        """Records and transactions, of which some are open or not committed."""
        chosen, log = self.random, self.log
        sequences = dict.fromkeys(range(1, 4), 0)
        for _ in range(chosen.randint(5, 30)):
            producer = chosen.randint(1, 3)
            kind = chosen.random()
            if kind < 0.5:
                self.path.append(plain(chosen.randint(1, 5), size=chosen.choice([1, 50, 500])))
            elif kind < 0.65:
                batch = batch_of(
                    2,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequences[producer],
                    transactional=True,
                )
                log.append(batch, leader_epoch=2, now_ms=NOW_MS)
                sequences[producer] += 2
            elif sequences[producer]:
                log.append(
                    marker(producer, committed=chosen.random() < 0.5),
                    leader_epoch=2,
                    now_ms=NOW_MS,
                    origin=AppendOrigin.COORDINATOR,
                )
            committed = chosen.choice([log.high_watermark + 1, log.log_end_offset])
            log.update_high_watermark(committed)

    def _look_for_near_replicas(self) -> None:
        self.path.manager.read_replica = RackAwareReplicaSelector(self.path.metadata)
        for follower in self.partition.followers.values():
            follower.log_end_offset = self.log.log_end_offset

    def _trouble(self) -> None:
        chosen, log, partition = self.random, self.log, self.partition
        troubles = {
            "deleted records": lambda: log.truncator.delete_records_before(log.high_watermark // 2),
            "remote records": lambda: log.offsets.advance_local_log_start(log.log_end_offset // 2),
            "shorter": lambda: log.truncator.truncate_to(log.log_end_offset // 2),
            "offline": lambda: setattr(partition, "offline", True),
            "gone": lambda: self.path.manager.remove_partition(partition.key),
            "follower": lambda: self.path.order(2, epoch=3, replicas=[1, 2]),
            "another topic": lambda: setattr(partition, "topic_id", b"z" * 16),
            "damage": self._damage,
            "none": lambda: None,
        }
        troubles[chosen.choice([*troubles, "none", "none", "none"])]()

    def _damage(self) -> None:
        names = [name for name in self.disk._live if name.endswith((".log", ".index"))]
        name = self.random.choice(names)
        content = bytearray(self.disk.content(name))
        for _ in range(min(5, len(content))):
            content[self.random.randrange(len(content))] ^= 0xFF
        self.disk.overwrite(name, bytes(content))

    def compare(self) -> None:
        """Send one request both ways."""
        chosen, end = self.random, self.log.log_end_offset
        version = chosen.randint(10, 17)
        by_id = version >= 13
        epoch = self.partition.leader_epoch
        row = FetchPartition(
            partition=chosen.choice([*[0] * 9, 1]),
            fetch_offset=chosen.choice([0, chosen.randint(-1, end + 1), max(0, end - 1)]),
            partition_max_bytes=chosen.choice([-1, 0, 1, 500, 1 << 20, (1 << 31) - 1]),
            current_leader_epoch=chosen.choice([*[-1, epoch] * 4, epoch - 1, epoch + 1]),
            last_fetched_epoch=-1 if version < 12 else chosen.choice([-1, -1, -1, epoch]),
        )
        topic = FetchTopic(
            "" if by_id else chosen.choice([*[TOPIC] * 9, "u"]),
            chosen.choice([*[TOPIC_ID] * 9, b"q" * 16]) if by_id else bytes(16),
            [row],
        )
        request = FetchRequest(
            topics=[topic],
            max_wait_ms=chosen.choice([0, 10]),
            min_bytes=chosen.choice([-1, 0, 1, 1, 2]),
            max_bytes=chosen.choice([-1, 0, 1, 1000, (1 << 31) - 1]),
            isolation_level=chosen.choice([0, 1]),
            rack_id="" if version < 11 else chosen.choice(["", "a", "b"]),
            session_epoch=-1,
        )
        handler = self.path.fetch
        at_once = self._outcome(handler.handle, request, version)
        assert at_once == self._outcome(handler._handle_many, request, version), request

    def _outcome(self, handle: Any, request: FetchRequest, version: int) -> tuple[Any, ...]:
        """The bytes of the response, and what else the fetch has changed."""
        statistics = self.path.manager.context.topics.get(TOPIC)
        before = statistics.sent_bytes, statistics.failed_fetches
        self.path.failed_directories.clear()
        context = FakeContext(1, version)
        response = finished(handle(context, request))
        is_deferred = response is DEFERRED
        if is_deferred:
            self.path.timer.advance(1000)
            (response,) = context.responses
        assert isinstance(response, FetchResponse)
        for topic in response.responses:
            for data in topic.partitions:
                if data.records:
                    data.records = data.records.read()  # type: ignore[union-attr]  # a FileSlice
        return (
            bytes(encoder(FetchResponse, version)(response)),
            is_deferred,
            context.throttle_time_ms,
            statistics.sent_bytes - before[0],
            statistics.failed_fetches - before[1],
            list(self.path.failed_directories),
        )


def test_the_scenes_are_handled_at_once() -> None:
    """Else the other test compares nothing."""
    read: list[PartitionData] = []
    for seed in range(40):
        scene = Scene(seed)
        for _ in range(20):
            scene.compare()
        read += scene.read_at_once
    assert sum(data.error_code == 0 for data in read) > 80
    assert sum(data.error_code != 0 for data in read) > 10
    assert any(data.aborted_transactions for data in read)


@pytest.mark.parametrize("_", range(5))
def test_both_ways_have_the_same_outcome(_: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    scene = Scene(seed)
    for _ in range(40):
        scene.compare()


def test_a_follower_takes_steps() -> None:
    """Its fetch says which records it has."""
    path = DataPath()
    path.lead(replicas=[1, 2])
    path.append(3)
    path.log().update_high_watermark(3)
    request = FetchRequest(
        replica_id=2,
        topics=[FetchTopic(TOPIC, bytes(16), [FetchPartition(0, fetch_offset=1)])],
        session_epoch=-1,
        max_bytes=1000,
    )
    finished(FetchHandler.handle(path.fetch, FakeContext(1, 12), request))  # type: ignore[arg-type]
    assert path.partition().followers[2].log_end_offset == 1
