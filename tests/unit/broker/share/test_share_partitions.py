import pytest

from ottla.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    ShareFetchItem,
    ShareFetchParams,
    ShareFetchResult,
)
from ottla.broker.share.share_partition import Acknowledgement
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.replicas import TOPIC, run_now
from tests.unit.broker.share.scene import KEY, ShareScene

ACCEPT, RENEW = 1, 4


def fetched(scene: ShareScene, member: str = "m", max_records: int = 500) -> ShareFetchResult:
    results: list[ShareFetchResult] = []
    params = ShareFetchParams("g", member, 0, 1, 1 << 20, max_records, 500, False)
    DelayedShareFetch(
        params,
        [ShareFetchItem(KEY, TOPIC)],
        scene.shares,
        scene.clock,
        lambda: True,
        lambda topic: True,
        results.extend,
    ).force_complete()
    (result,) = results
    return result


def acknowledge(scene: ShareScene, first: int, last: int, kind: int, member: str = "m") -> None:
    run_now(scene.shares.acknowledge(KEY, TOPIC, member, [Acknowledgement(first, last, [kind])]))


def test_records_are_acquired_and_accepted() -> None:
    scene = ShareScene()
    scene.append(3)
    assert fetched(scene).acquired == [(0, 2, 1)]
    assert fetched(scene, "other").acquired == []
    acknowledge(scene, 0, 2, ACCEPT)
    assert scene.persister.states[KEY] == dict.fromkeys(range(3), (2, 1))


def test_the_default_of_a_group_without_state_is_the_end() -> None:
    scene = ShareScene(share_auto_offset_reset="latest")
    scene.append(3)
    assert fetched(scene).acquired == []
    scene.append(2)
    assert fetched(scene).acquired == [(3, 4, 1)]


def test_a_lock_ends_and_the_delivery_count_is_stored() -> None:
    scene = ShareScene(share_record_lock_duration_ms="1000")
    scene.append(2)
    fetched(scene)
    scene.timer.advance(998)
    assert fetched(scene, "other").acquired == []
    scene.timer.advance(2)
    assert scene.persister.states[KEY] == dict.fromkeys(range(2), (0, 1))
    assert fetched(scene, "other").acquired == [(0, 1, 2)]
    with pytest.raises(KafkaError):
        acknowledge(scene, 0, 1, ACCEPT)


def test_a_failed_write_keeps_the_records_with_the_member() -> None:
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError):
        acknowledge(scene, 0, 1, ACCEPT)
    acknowledge(scene, 0, 1, ACCEPT)


def test_a_shorter_lock_duration_is_in_effect_for_the_next_lock() -> None:
    """While a longer lock is held, whose end comes later."""
    scene = ShareScene()
    scene.append(1)
    fetched(scene)
    scene.configs["share.record.lock.duration.ms"] = "1000"
    scene.append(1)
    fetched(scene)
    scene.timer.advance(1001)
    assert fetched(scene, "other").acquired == [(1, 1, 2)]
    scene.timer.advance(29_000)
    assert fetched(scene, "other").acquired == [(0, 0, 2), (1, 1, 3)]


def test_renewals_that_are_turned_off_are_refused_at_once() -> None:
    scene = ShareScene()
    scene.append(1)
    fetched(scene)
    scene.configs["share.renew.acknowledge.enable"] = "false"
    with pytest.raises(KafkaError) as refused:
        acknowledge(scene, 0, 0, RENEW)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE


def test_a_delivery_limit_that_is_lowered_is_in_effect_for_the_next_release() -> None:
    scene = ShareScene()
    scene.append(1)
    fetched(scene)
    scene.configs["share.delivery.count.limit"] = "1"
    run_now(scene.shares.release("m", "g"))
    assert scene.persister.states[KEY] == {0: (4, 1)}


@pytest.mark.parametrize("code", [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_fenced_write_reads_the_state_again(code: int) -> None:
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    scene.persister.next_error = code
    with pytest.raises(KafkaError) as found:
        acknowledge(scene, 0, 1, ACCEPT)
    assert found.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(scene.shares) == 0
    assert fetched(scene).acquired == [(0, 1, 1)]


def test_a_group_that_was_deleted_reads_the_state_again() -> None:
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    scene.persister.next_error = ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError):
        acknowledge(scene, 0, 1, ACCEPT)
    assert len(scene.shares) == 0


def test_a_share_partition_without_state() -> None:
    """`KafkaShareConsumer` fails at INVALID_REQUEST; after this error it fetches again."""
    scene = ShareScene()
    scene.append(1)
    scene.persister.next_error = ErrorCode.INVALID_REQUEST
    assert fetched(scene).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    scene.timer.advance(200)
    assert fetched(scene).acquired == [(0, 0, 1)]


def test_a_start_offset_beyond_the_log_waits_for_records() -> None:
    """An unclean election truncated the log: `KafkaShareConsumer` fails at OFFSET_OUT_OF_RANGE."""
    scene = ShareScene()
    scene.append(1)
    scene.persister.start_offsets[KEY] = 3
    for _ in range(2):
        found = fetched(scene)
        assert (found.error_code, found.acquired) == (ErrorCode.NONE, [])
        scene.append(1)
    scene.append(2)
    assert fetched(scene).acquired == [(3, 4, 1)]


def test_a_new_leader_epoch_reads_the_state_again() -> None:
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    acknowledge(scene, 0, 0, ACCEPT)
    scene.lead(epoch=5)
    assert fetched(scene, "other").acquired == [(1, 1, 1)]


@pytest.mark.parametrize("is_announced", [False, True])
def test_the_same_leader_in_the_next_epoch_keeps_the_locks(is_announced: bool) -> None:
    """A follower was shut down: as in Kafka no other member gets what one has acquired."""
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    for _ in range(2):
        partition = scene.lead(epoch=scene.partition().leader_epoch + 1)
        if is_announced:
            scene.shares.on_new_leader_epoch([partition])
        else:
            assert fetched(scene, "other").acquired == []
    acknowledge(scene, 0, 0, ACCEPT)
    assert scene.persister.writes[-1].leader_epoch == scene.partition().leader_epoch
    assert fetched(scene, "other").acquired == []


def test_a_share_partition_that_cannot_be_loaded() -> None:
    scene = ShareScene()
    scene.append(1)
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fetched(scene).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(scene).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    scene.timer.advance(200)
    assert fetched(scene).acquired == [(0, 0, 1)]


def test_a_member_leaves() -> None:
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    run_now(scene.shares.release("m", "g"))
    assert fetched(scene, "other").acquired == [(0, 1, 2)]


def test_share_partitions_are_dropped() -> None:
    scene = ShareScene()
    scene.append(2)
    fetched(scene)
    scene.shares.drop_partitions([("other", 0)])
    assert len(scene.shares) == 1
    scene.shares.drop_partitions([(TOPIC, 0)])
    assert len(scene.shares) == 0
    fetched(scene)
    scene.shares.drop_group("g")
    assert len(scene.shares) == 0


def test_an_acknowledgement_without_a_fetch_loads_nothing() -> None:
    scene = ShareScene()
    scene.append(1)
    with pytest.raises(KafkaError) as refused:
        acknowledge(scene, 0, 0, ACCEPT)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(scene.shares) == 0
