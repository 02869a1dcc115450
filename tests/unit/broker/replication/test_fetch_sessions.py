from __future__ import annotations

from ottla.broker.replication.fetch_sessions import (
    FetchContext,
    FetchResult,
    FetchSessions,
    next_epoch,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from ottla.protocol.steps import run_at_once
from tests.doubles.manual_timer import ManualClock

NAMES = {b"1" * 16: "one", b"2" * 16: "two"}
IDS = {name: topic_id for topic_id, name in NAMES.items()}
VERSION = 12
WITH_IDS = 13


def request(
    *positions: tuple[str, int, int],
    session: tuple[int, int] = (0, 0),
    forget: tuple[tuple[str, int], ...] = (),
    version: int = VERSION,
) -> FetchRequest:
    """`positions` are (topic, partition, offset); `session` is (id, epoch)."""
    by_id = version >= WITH_IDS
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                "" if by_id else topic,
                IDS[topic] if by_id else bytes(16),
                [FetchPartition(partition=index, fetch_offset=offset)],
            )
            for topic, index, offset in positions
        ],
        forgotten_topics_data=[
            ForgottenTopic("" if by_id else topic, IDS[topic] if by_id else bytes(16), [index])
            for topic, index in forget
        ],
    )


class Cache:
    def __init__(self, slots: int = 10) -> None:
        self.clock = ManualClock()
        self.sessions = FetchSessions(slots, self.clock.now_ms)

    def context(
        self, fetch_request: FetchRequest, version: int = VERSION, follower: bool = False
    ) -> FetchContext:
        return run_at_once(self.sessions.context(fetch_request, version, NAMES, follower))

    def response(
        self,
        fetch_request: FetchRequest,
        version: int = VERSION,
        follower: bool = False,
        **fields: int | bytes | EpochEndOffset,
    ) -> tuple[int, int, list[tuple[str | None, int]]]:
        """(error, session id, the partitions in the response), with the same data for each."""
        context = self.context(fetch_request, version, follower)
        results: list[FetchResult] = [
            (item, data(item.partition, **fields)) for item in context.items
        ]
        error_code, session_id, sent = run_at_once(context.finish(results))
        return error_code, session_id, [(item.topic, item.partition) for item, _ in sent]

    def open(self, *positions: tuple[str, int, int], version: int = VERSION) -> int:
        code, session_id, _ = self.response(request(*positions, version=version), version)
        assert code == 0
        return session_id


def data(index: int, **fields: int | bytes | EpochEndOffset) -> PartitionData:
    values: dict[str, int | bytes | EpochEndOffset] = {
        "high_watermark": 5,
        "last_stable_offset": 5,
        "log_start_offset": 0,
        "records": b"",
        **fields,
    }
    return PartitionData(index, **values)  # type: ignore[arg-type]  # by name


BOTH = (("one", 0, 0), ("two", 1, 7))
ROWS = [("one", 0), ("two", 1)]


def test_without_a_session_everything_is_returned() -> None:
    cache = Cache()
    assert cache.response(request(*BOTH, session=(0, -1))) == (0, 0, ROWS)
    assert len(cache.sessions.cache) == 0


def test_epoch_0_opens_a_session_and_returns_everything() -> None:
    cache = Cache()
    code, session_id, rows = cache.response(request(*BOTH))
    assert (code, rows) == (0, ROWS)
    assert session_id > 0
    assert cache.sessions.cache.partitions == 2


def test_later_responses_hold_only_news() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    assert cache.response(request(session=(session_id, 1))) == (0, session_id, [])
    for epoch, news in enumerate(
        (
            {"high_watermark": 6},
            {"high_watermark": 6, "log_start_offset": 1},
            {"high_watermark": 6, "log_start_offset": 1, "last_stable_offset": 4},
            {"high_watermark": 6, "log_start_offset": 1, "last_stable_offset": 4, "records": b"x"},
        ),
        2,
    ):
        fetch_request = request(session=(session_id, epoch))
        assert cache.response(fetch_request, **news)[2] == ROWS, news


def test_an_error_is_returned_and_so_is_its_end() -> None:
    cache = Cache()
    session_id = cache.open(("one", 0, 0))
    rows = [("one", 0)]
    assert cache.response(request(session=(session_id, 1)), error_code=6)[2] == rows
    assert cache.response(request(session=(session_id, 2)), error_code=6)[2] == rows
    assert cache.response(request(session=(session_id, 3)))[2] == rows, "it is over"
    assert cache.response(request(session=(session_id, 4)))[2] == []


def test_a_preferred_replica_is_news() -> None:
    cache = Cache()
    session_id = cache.open(("one", 0, 0))
    response = cache.response(request(session=(session_id, 1)), preferred_read_replica=3)
    assert response[2] == [("one", 0)]


def test_positions_change_partitions_are_added_and_removed() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    requests = [
        request(("one", 0, 8), session=(session_id, 1)),
        request(("one", 0, 9), ("one", 5, 1), session=(session_id, 2)),
        request(session=(session_id, 3), forget=(("two", 1),)),
    ]
    positions = [
        [(item.topic, item.partition, item.fetch_offset) for item in cache.context(each).items]
        for each in requests
    ]
    assert positions == [
        [("one", 0, 8), ("two", 1, 7)],
        [("one", 0, 9), ("two", 1, 7), ("one", 5, 1)],
        [("one", 0, 9), ("one", 5, 1)],
    ]


def test_offsets_are_returned_again_after_a_change_of_the_leader_epoch() -> None:
    """The follower ignores a response to a fetch with another leader epoch, and nothing may be
    appended for a long time."""
    cache = Cache()
    session_id = cache.open(("one", 0, 5))
    returned = []
    for epoch, leader_epoch in enumerate((0, 0, 1, 1), 1):
        fetch_request = request(("one", 0, 5), session=(session_id, epoch))
        fetch_request.topics[0].partitions[0].current_leader_epoch = leader_epoch
        returned.append(len(cache.response(fetch_request)[2]))
    assert returned == [1, 0, 1, 0], "the first one had no leader epoch"


def test_offsets_are_returned_again_after_a_diverging_epoch() -> None:
    """The follower takes only the epoch of that response, and truncates. Nothing may be appended
    for a long time, and it has to learn the high watermark and the log start offset."""
    cache = Cache()
    session_id = cache.open(("one", 0, 5))
    diverging = EpochEndOffset(epoch=0, end_offset=5)
    news = {"high_watermark": 6, "log_start_offset": 2}
    row = [("one", 0)]
    fetch_request = request(session=(session_id, 1))
    assert cache.response(fetch_request, diverging_epoch=diverging, **news)[2] == row
    assert cache.response(request(session=(session_id, 2)), **news)[2] == row
    assert cache.response(request(session=(session_id, 3)), **news)[2] == []


def test_who_got_records_is_read_last_next_time() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    context = cache.context(request(session=(session_id, 1)))
    item, _ = context.items
    run_at_once(context.finish([(item, data(item.partition, records=b"x"))]))
    again = cache.context(request(session=(session_id, 2)))
    assert [item.topic for item in again.items] == ["two", "one"]


def test_an_unknown_session_and_a_wrong_epoch() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    unknown = cache.response(request(session=(session_id + 1, 1)))
    assert unknown == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])
    wrong = cache.response(request(session=(session_id, 2)))
    assert wrong == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, [])
    assert cache.response(request(session=(session_id, 1)))[0] == 0, "the session itself lives on"


def test_names_and_ids_do_not_mix_in_one_session() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    response = cache.response(request(session=(session_id, 1), version=WITH_IDS), WITH_IDS)
    assert response[0] == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_topic_id_that_becomes_known_later_gets_its_name() -> None:
    cache = Cache()
    fetch_request = request(("one", 0, 0), version=WITH_IDS)
    context = run_at_once(cache.sessions.context(fetch_request, WITH_IDS, {}, False))
    (item,) = context.items
    assert (item.topic, item.topic_id) == (None, IDS["one"])
    _, session_id, _ = run_at_once(context.finish([(item, data(0, error_code=100))]))
    later = cache.context(request(session=(session_id, 1), version=WITH_IDS), WITH_IDS)
    assert [item.topic for item in later.items] == ["one"]


def test_a_request_that_overtakes_its_predecessor_makes_it_invalid() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    first = cache.context(request(session=(session_id, 1)))
    second = cache.context(request(session=(session_id, 2)))
    assert run_at_once(first.finish([]))[0] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert run_at_once(second.finish([]))[0] == 0


def test_forgetting_everything_ends_the_session() -> None:
    cache = Cache()
    session_id = cache.open(("one", 0, 0))
    fetch_request = request(session=(session_id, 1), forget=(("one", 0),))
    assert cache.response(fetch_request) == (0, 0, [])
    assert len(cache.sessions.cache) == 0


def test_a_full_request_replaces_the_session() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    _, other, _ = cache.response(request(*BOTH, session=(session_id, 0)))
    assert other not in (0, session_id)
    assert len(cache.sessions.cache) == 1
    cache.response(request(*BOTH, session=(other, -1)))
    assert len(cache.sessions.cache) == 0


def test_a_throttled_response_keeps_the_session() -> None:
    cache = Cache()
    session_id = cache.open(*BOTH)
    assert cache.context(request(session=(session_id, 1))).throttled() == (0, session_id)
    assert cache.context(request(*BOTH, session=(0, -1))).throttled() == (0, 0)


def test_a_full_cache_makes_no_room_for_the_same_kind() -> None:
    cache = Cache(slots=1)
    cache.open(*BOTH)
    assert cache.open(*BOTH) == 0
    assert cache.sessions.cache.evictions_total == 0


def test_a_session_not_used_for_long_goes() -> None:
    cache = Cache(slots=1)
    first = cache.open(*BOTH)
    cache.clock.advance(120_001)
    assert cache.open(("one", 0, 0)) != 0
    assert cache.sessions.cache.get(first) is None
    assert cache.sessions.cache.evictions_total == 1


def test_an_old_session_in_use_goes_only_for_a_larger_one() -> None:
    cache = Cache(slots=1)
    first = cache.open(("one", 0, 0), ("one", 1, 0))
    cache.clock.advance(120_001)
    cache.response(request(session=(first, 1)))
    assert cache.open(("one", 0, 0)) == 0
    assert cache.open(("one", 0, 0), ("one", 1, 0), ("one", 2, 0)) != 0
    assert cache.sessions.cache.get(first) is None


def test_followers_push_out_consumers() -> None:
    cache = Cache(slots=1)
    cache.open(*BOTH)
    _, session_id, _ = cache.response(request(("one", 0, 0)), follower=True)
    assert session_id != 0
    assert cache.open(*BOTH) == 0


def test_the_last_of_two_positions_counts() -> None:
    context = Cache().context(request(("one", 0, 1), ("one", 0, 2), session=(0, -1)))
    assert [item.fetch_offset for item in context.items] == [2]


def test_epochs_wrap_to_1() -> None:
    assert next_epoch(0) == 1
    assert next_epoch(0x7FFFFFFF) == 1


def test_two_requests_of_one_session_do_not_both_get_its_changes() -> None:
    """The second comes while the first one pauses."""
    sessions = FetchSessions(10, lambda: 0)

    def request(session_id: int, epoch: int, count: int) -> FetchRequest:
        rows = [FetchPartition(partition=index) for index in range(count)]
        topics = [FetchTopic("t", partitions=rows)]
        return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)

    full = run_at_once(sessions.context(request(0, 0, 3), 12, {}, False))
    results = [(item, PartitionData(item.partition)) for item in full.items]
    _, session_id, _ = run_at_once(full.finish(results))
    first = sessions.context(request(session_id, 1, 3), 12, {}, False)
    next(first)
    second = run_at_once(sessions.context(request(session_id, 2, 0), 12, {}, False))
    code, *_ = run_at_once(run_at_once(first).finish([]))
    assert code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert run_at_once(second.finish([]))[0] == ErrorCode.NONE
