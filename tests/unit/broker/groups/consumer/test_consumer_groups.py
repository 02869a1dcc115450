"""Groups of the new protocol (KIP-848): members, epochs, timers, offsets, loading."""

import pytest

from ottla.broker.groups.consumer.consumer_group import ConsumerGroupState
from ottla.broker.groups.consumer.member import MemberState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.consumer_helpers import Catalog, ConsumerSetup
from tests.unit.broker.groups.helpers import GROUP, T0, T1

SESSION_MS = 45_000


def test_a_lone_member_gets_everything() -> None:
    setup = ConsumerSetup()
    response = setup.enter("a")
    assert (response.member_id, response.member_epoch) == ("a", 1)
    assert setup.given(response) == {"t": {0, 1, 2, 3}}
    assert response.heartbeat_interval_ms == 5_000
    assert setup.consumer_group.state is ConsumerGroupState.STABLE
    assert setup.given(setup.beat("a", 1).value) is None


def test_partitions_move_only_when_they_were_revoked() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    second = setup.enter("b")
    assert (second.member_epoch, setup.given(second)) == (2, {})
    revoking = setup.beat("a", 1, owned={"t": {0, 1, 2, 3}}).value
    kept = setup.given(revoking)
    assert kept is not None
    assert revoking.member_epoch == 1
    assert len(kept["t"]) == 2
    assert setup.given(setup.beat("b", 2).value) is None
    assert setup.beat("a", 1, owned=kept).value.member_epoch == 2
    rest = setup.given(setup.beat("b", 2).value)
    assert rest == {"t": {0, 1, 2, 3} - kept["t"]}
    assert setup.consumer_group.state is ConsumerGroupState.STABLE


def test_a_silent_member_is_expired_and_its_partitions_go_to_others() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    setup.timer.advance(SESSION_MS - 1)
    assert not setup.beat("a", 1).value.error_code
    setup.timer.advance(SESSION_MS - 1)
    assert setup.consumer_group.members.keys() == {"a"}
    setup.timer.advance(1)
    assert setup.consumer_group.is_empty
    assert setup.beat("a", 1).value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert setup.coordinator.events.of(GROUP)[-1].kind == "expired"


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    setup = ConsumerSetup()
    setup.enter("a", timeout_ms=10_000)
    setup.enter("b")
    owned = {"t": {0, 1, 2, 3}}
    setup.beat("a", 1, owned=owned)
    setup.timer.advance(9_000)
    setup.beat("a", 1, owned=owned)
    assert setup.consumer_group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    setup.timer.advance(1_000)
    assert setup.consumer_group.members.keys() == {"b"}
    assert setup.given(setup.beat("b", 2).value) == owned


def test_new_partitions_and_new_topics_are_seen_with_the_next_heartbeat() -> None:
    catalog = Catalog(t=1)
    setup = ConsumerSetup(catalog=catalog)
    setup.enter("a", ["t", "later"])
    catalog.grow("t", 3)
    assert setup.given(setup.beat("a", 1, owned={"t": {0}}).value) == {"t": {0, 1, 2}}
    catalog.create("later", 2)
    response = setup.beat("a", 2, owned={"t": {0, 1, 2}}).value
    assert setup.given(response) == {"t": {0, 1, 2}, "later": {0, 1}}
    catalog.delete("t")
    response = setup.beat("a", 3, owned={"later": {0, 1}}).value
    assert setup.given(response) == {"later": {0, 1}}


def test_a_pattern_matches_whole_names_of_topics_now_and_later() -> None:
    catalog = Catalog(orders=1, orders_eu=1, reorders=1)
    setup = ConsumerSetup(catalog=catalog)
    response = setup.beat("a", 0, pattern="orders.*", owned={}, timeout_ms=1_000).value
    assert setup.given(response) == {"orders": {0}, "orders_eu": {0}}
    catalog.create("orders_us", 1)
    response = setup.beat("a", 1).value
    assert setup.given(response) == {"orders": {0}, "orders_eu": {0}, "orders_us": {0}}
    described = setup.describe_consumers().members[0]
    assert (described.subscribed_topic_regex, described.subscribed_topic_names) == ("orders.*", [])
    response = setup.beat("a", 2, pattern="", owned={}).value
    assert setup.given(response) == {}


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "[z-a]", "(a{1000}){1000}"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    setup = ConsumerSetup()
    response = setup.beat("a", 0, pattern=pattern, owned={}, timeout_ms=1_000).value
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert setup.found is None


def test_a_pattern_takes_no_longer_than_its_name_is_long() -> None:
    """With backtracking this would not end."""
    setup = ConsumerSetup(catalog=Catalog(**{"a" * 200: 1}))
    response = setup.beat("a", 0, pattern="(a+)+b", owned={}, timeout_ms=1_000).value
    assert setup.given(response) == {}


def test_version_0_has_to_name_topics_and_need_not_name_itself() -> None:
    setup = ConsumerSetup()
    empty = setup.beat("a", 0, topics=[], owned={}, timeout_ms=1, version=0).value
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    unnamed = setup.beat("", 0, topics=["t"], owned={}, timeout_ms=1, version=1).value
    assert unnamed.error_code == ErrorCode.INVALID_REQUEST
    chosen = setup.beat("", 0, topics=["t"], owned={}, timeout_ms=1, version=0).value
    assert chosen.member_id is not None
    assert len(chosen.member_id) == 22
    assert not setup.beat("b", 0, topics=[], owned={}, timeout_ms=1, version=1).value.error_code


def test_group_consumer_max_size() -> None:
    setup = ConsumerSetup(group_consumer_max_size=1)
    setup.enter("a")
    second = setup.beat("b", 0, topics=["t"], owned={}, timeout_ms=1)
    assert second.value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not setup.beat("a", 1).value.error_code


def test_offsets_are_committed_by_members_that_are_up_to_date() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    assert setup.commit({T0: 5}, "a", 1, version=9).value == {T0: ErrorCode.NONE}
    assert setup.commit({T0: 6}, "a", 0, version=9).value == {T0: ErrorCode.STALE_MEMBER_EPOCH}
    assert setup.commit({T0: 6}, "b", 1, version=9).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert setup.commit({T0: 6}, "a", 1, version=8).value == {T0: ErrorCode.UNSUPPORTED_VERSION}
    in_transaction = setup.commit({T0: 6}, "a", 0, producer_id=7).value
    assert in_transaction == {T0: ErrorCode.ILLEGAL_GENERATION}
    commits = setup.coordinator.commits
    assert (
        run_at_once(commits.fetch(GROUP, [T0], member_id="a", member_epoch=1))[1][T0].value.offset
        == 5
    )
    assert run_at_once(commits.fetch(GROUP, [T0], member_id="a", member_epoch=0))[0] == (
        ErrorCode.STALE_MEMBER_EPOCH
    )
    assert setup.offset(T0) == 5


def test_commits_in_transactions_of_producers_that_send_no_member() -> None:
    """Older producers, and those that have the group id only. A part of a member is checked."""
    setup = ConsumerSetup()
    setup.enter("a")
    assert setup.commit({T0: 6}, producer_id=7).value == {T0: ErrorCode.NONE}
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert setup.offset() == 6
    unknown = {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert setup.commit({T0: 7}, instance_id="i", producer_id=7).value == unknown
    assert setup.commit({T0: 7}, generation_id=1, producer_id=7).value == unknown
    assert setup.commit({T0: 7}).value == unknown  # outside of transactions


def test_another_coordinator_finds_what_this_one_had() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    setup.enter("b", instance_id="i")
    setup.beat("a", 1, owned={"t": {0, 1, 2, 3}})
    setup.beat("b", -2, instance_id="i")
    setup.commit({T1: 9}, "a", 1, version=9)
    before = setup.consumer_group
    other = ConsumerSetup(setup.log, setup.catalog)
    after = other.consumer_group
    for name in ("members", "static_members", "targets", "topics", "owners", "epoch", "state"):
        assert getattr(after, name) == getattr(before, name), name
    assert other.offset(T1) == 9
    other.timer.advance(SESSION_MS)
    assert other.consumer_group.is_empty


def test_a_broker_without_the_setting_leaves_such_groups_alone() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    setup.commit({T0: 5}, "a", 1, version=9)
    records = len(setup.log.records(0))
    other = ConsumerSetup(setup.log, group_coordinator_rebalance_protocols=frozenset(("classic",)))
    assert other.coordinator.consumers is None
    assert other.offset(T0) == 5
    assert len(setup.log.records(0)) == records


def test_changes_wait_for_the_one_before() -> None:
    setup = ConsumerSetup()
    setup.log.hold = True
    first = setup.beat("a", 0, topics=["t"], owned={}, timeout_ms=1_000)
    second = setup.beat("b", 0, topics=["t"], owned={}, timeout_ms=1_000)
    assert first.is_pending
    assert second.is_pending
    assert setup.found is None
    setup.log.commit_one()
    assert first.value.member_epoch == 1
    assert second.is_pending
    setup.log.commit_one()
    assert second.value.member_epoch == 2


def test_an_append_that_failed_changes_nothing() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    response = setup.beat("b", 0, topics=["t"], owned={}, timeout_ms=1_000).value
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert setup.consumer_group.members.keys() == {"a"}
    assert setup.consumer_group.epoch == 1
    assert setup.enter("b").member_epoch == 2


def test_an_append_that_came_through_late_counts() -> None:
    """The next coordinator would find the member in the log, so this one knows it, too."""
    setup = ConsumerSetup()
    setup.log.hold = True
    joining = setup.beat("a", 0, topics=["t"], owned={}, timeout_ms=1_000)
    setup.log.time_out_all(ErrorCode.REQUEST_TIMED_OUT)
    assert joining.value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    setup.log.hold = False
    assert setup.consumer_group.members.keys() == {"a"}
    assert setup.enter("a").member_epoch == 1
    setup.timer.advance(SESSION_MS)
    assert setup.consumer_group.is_empty


def test_queued_requests_fail_when_the_coordinator_resigns() -> None:
    setup = ConsumerSetup()
    setup.log.hold = True
    first = setup.beat("a", 0, topics=["t"], owned={}, timeout_ms=1_000)
    second = setup.beat("b", 0, topics=["t"], owned={}, timeout_ms=1_000)
    setup.coordinator.on_resigned(0, 1)
    setup.log.commit_all()
    assert first.value.error_code == ErrorCode.NOT_COORDINATOR
    assert second.value.error_code == ErrorCode.NOT_COORDINATOR


def test_deleting_and_expiring() -> None:
    setup = ConsumerSetup(offsets_retention_ms=1_000)
    results: list[dict[str, int]] = []
    setup.enter("a")
    setup.commit({T0: 5, TopicPartition("old", 0): 6}, "a", 1, version=9)
    setup.coordinator.admin.delete_groups([GROUP], results.append)
    assert results.pop() == {GROUP: ErrorCode.NON_EMPTY_GROUP}
    setup.timer.clock.advance(2_000)
    setup.coordinator.tick(setup.timer.clock.now_ms())
    assert setup.consumer_group.offsets.committed.keys() == {T0}
    setup.beat("a", -1)
    assert setup.consumer_group.state is ConsumerGroupState.EMPTY
    setup.coordinator.tick(setup.timer.clock.now_ms())
    assert not setup.consumer_group.offsets
    setup.coordinator.tick(setup.timer.clock.now_ms())
    assert setup.coordinator.partitions.find(GROUP) is None
    assert ConsumerSetup(setup.log).coordinator.partitions.find(GROUP) is None


def test_a_deleted_group_takes_its_offsets_along() -> None:
    setup = ConsumerSetup()
    results: list[dict[str, int]] = []
    setup.enter("a")
    setup.commit({T0: 5}, "a", 1, version=9)
    setup.beat("a", -1)
    setup.coordinator.admin.delete_groups([GROUP], results.append)
    assert results == [{GROUP: ErrorCode.NONE}]
    assert setup.coordinator.partitions.find(GROUP) is None
    assert ConsumerSetup(setup.log).coordinator.partitions.find(GROUP) is None


def test_listed_with_its_kind_and_state() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    admin = setup.coordinator.admin
    for states, types, is_found in (
        ([], [], True),
        (["stable"], ["Consumer"], True),
        ([], ["classic"], False),
        (["Empty"], [], False),
    ):
        assert bool(run_at_once(admin.list_groups(states, types))[1]) is is_found
    assert admin.describe(GROUP).group_state == "Dead"
    assert "Reconciling" in setup.coordinator.states
