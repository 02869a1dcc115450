from __future__ import annotations

from ottla.broker.replication.coordinator_log import ReplicatedCoordinatorLog
from ottla.protocol.errors import ErrorCode
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.storage_logs import batch_of


class Scene(Replicas):
    def __init__(self) -> None:
        super().__init__()
        self.coordinator_log = ReplicatedCoordinatorLog(self.manager, TOPIC, lambda: 500)
        self.results: list[tuple[int, int]] = []

    def write(self, index: int = 0) -> None:
        self.coordinator_log.append(
            index, bytes(batch_of(2)), lambda code, offset: self.results.append((code, offset))
        )


def test_what_is_written_is_read_back() -> None:
    scene = Scene()
    scene.lead()
    scene.write()
    scene.write()
    assert scene.results == [(0, 0), (0, 2)]
    assert len(list(scene.coordinator_log.read_batches(0))) == 2
    assert len(list(scene.coordinator_log.read_batches(0, 2))) == 1
    assert scene.coordinator_log.log_end_offset(0) == 4


def test_what_is_appended_after_the_call_is_not_read() -> None:
    scene = Scene()
    scene.lead()
    scene.write()
    batches = scene.coordinator_log.read_batches(0)
    scene.write()
    assert len(list(batches)) == 1
    assert len(list(scene.coordinator_log.read_batches(0, 2))) == 1


def test_every_replica_is_waited_for() -> None:
    scene = Scene()
    scene.lead(replicas=[1, 2])
    scene.write()
    assert scene.results == []
    scene.timer.advance(501)
    assert scene.results == [(ErrorCode.REQUEST_TIMED_OUT, -1)]


def test_only_the_leader_writes() -> None:
    scene = Scene()
    scene.follow(2)
    scene.write()
    scene.write(1)
    assert scene.results == [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


def test_a_partition_that_is_not_here_is_empty() -> None:
    assert list(Scene().coordinator_log.read_batches(0)) == []
    assert Scene().coordinator_log.log_end_offset(0) == 0


def test_what_is_not_led_here_is_not_verified() -> None:
    assert Scene().coordinator_log.begin_verification(1, 5, 0, 0) is None
