"""The store of one group's offsets."""

from ottla.broker.groups.offsets import CommittedOffset, GroupOffsets
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.helpers import T0, T1


def value(
    offset: int, at: int = 0, *, committed_ms: int = 0, expire_ms: int = -1
) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", committed_ms, expire_ms, at)


def test_a_later_record_wins_and_an_earlier_one_does_not() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(10, 5), 5)
    offsets.replay(T0, value(3, 4), 4)
    assert offsets.committed[T0].offset == 10
    offsets.replay(T0, value(2, 6), 6)
    assert offsets.committed[T0].offset == 2


def test_a_tombstone_removes_what_came_before_it() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(10, 5), 5)
    offsets.replay(T0, None, 4)
    assert T0 in offsets.committed
    offsets.replay(T0, None, 6)
    offsets.replay(T1, None, 7)
    assert not offsets


def test_a_transactions_offsets_count_when_it_commits() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(1, 1), 1)
    offsets.replay_transactional(7, T0, value(10, 2))
    offsets.replay_transactional(8, T0, value(20, 3))
    assert offsets.committed[T0].offset == 1
    assert offsets.is_unstable(T0)
    offsets.replay_marker(8, committed=False)
    offsets.replay_marker(7, committed=True)
    assert offsets.committed[T0].offset == 10
    assert not offsets.is_unstable(T0)


def test_a_transaction_does_not_undo_a_later_plain_commit() -> None:
    offsets = GroupOffsets()
    offsets.replay_transactional(7, T0, value(10, 2))
    offsets.replay(T0, value(50, 3), 3)
    offsets.replay_marker(7, committed=True)
    assert offsets.committed[T0].offset == 50


def test_a_tombstone_inside_a_transaction() -> None:
    offsets = GroupOffsets()
    offsets.replay_transactional(7, T0, value(10, 2))
    offsets.replay_transactional(7, T0, None)
    offsets.replay_transactional(9, T0, None)
    offsets.replay_marker(7, committed=True)
    assert not offsets


def test_what_is_under_way_is_unstable() -> None:
    offsets = GroupOffsets()
    offsets.begin([T0, T1])
    offsets.begin([T0])
    offsets.finish([T0, T1])
    assert offsets.is_unstable(T0)
    assert not offsets.is_unstable(T1)
    offsets.finish([T0])
    assert not offsets.is_unstable(T0)
    offsets.begin([T0], 7)
    assert offsets.is_unstable(T0)
    offsets.finish([T0], 7)
    assert not offsets


def test_expiry_counts_from_the_commit_or_from_the_moment_given() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(1, committed_ms=100), 0)
    offsets.replay(T1, value(1, committed_ms=200), 0)

    def expired(now_ms: int, base_ms: int | None = None) -> list[object]:
        return list(
            offsets.expired(now_ms, 50, base_timestamp_ms=base_ms, subscribed_topics=frozenset())
        )

    assert expired(149) == []
    assert expired(150) == [T0]
    assert expired(250) == [T0, T1]
    assert expired(250, base_ms=230) == []
    assert expired(280, base_ms=230) == [T0, T1]


def test_an_expiry_time_of_the_client_goes_first() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(1, committed_ms=0, expire_ms=1_000), 0)
    nothing: frozenset[str] = frozenset()
    assert offsets.expired(999, 1, base_timestamp_ms=0, subscribed_topics=nothing) == []
    assert offsets.expired(1_000, 9**9, base_timestamp_ms=0, subscribed_topics=nothing) == [T0]


def test_what_is_read_or_under_way_does_not_expire() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(1), 0)
    topics = frozenset(("t",))
    assert offsets.expired(9, 1, base_timestamp_ms=0, subscribed_topics=topics) == []
    offsets.begin([T0])
    assert offsets.expired(9, 1, base_timestamp_ms=0, subscribed_topics=frozenset()) == []


def test_which_partitions_have_offsets() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(1, 5), 5)
    offsets.replay_transactional(7, T1, value(2, 6))
    assert offsets.partitions() == {T0, T1}
    offsets.begin([TopicPartition("t", 2)])
    offsets.begin([TopicPartition("t", 3)], 7)
    assert offsets.partitions() == {TopicPartition("t", index) for index in range(4)}


def test_what_was_committed_before_a_record_of_the_log() -> None:
    offsets = GroupOffsets()
    offsets.replay(T0, value(1, 5), 5)
    offsets.replay_transactional(7, T1, value(2, 6))
    both = {T0, T1}
    assert sorted(offsets.before(both, 7)[0]) == [T0, T1]
    assert offsets.before(both, 6) == ([T0], False)
    assert offsets.before(both, 5) == ([], False)
    assert offsets.before({TopicPartition("other", 0)}, 7) == ([], False)
    # As long as another transaction is ongoing, it is not known what stays.
    offsets.replay_transactional(8, T0, value(3, 9))
    assert offsets.before({T0}, 7) == ([], True)
    offsets.replay_marker(8, committed=False)
    assert offsets.before({T0}, 7) == ([T0], False)
    for producer_id in (None, 9):
        offsets.begin([T0], producer_id)
        assert offsets.before({T0}, 7) == ([], True)
        offsets.finish([T0], producer_id)
    offsets.begin([T0])
    offsets.replay(T0, value(4, 10), 10)
    assert offsets.before({T0}, 7) == ([], False)
