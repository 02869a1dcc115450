"""Groups that change their protocol while members are in them (KIP-848)."""

from typing import Any

from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.consumer_helpers import ConsumerSetup
from tests.unit.broker.groups.helpers import T0

PROTOCOLS = (("range", encode_subscription(Subscription(["t"]))),)
ALL = [TopicPartition("t", index) for index in range(4)]


def classic_setup(policy: str = "bidirectional", **more: Any) -> tuple[ConsumerSetup, str]:
    """A stable classic group of one member that has all four partitions."""
    setup = ConsumerSetup(group_consumer_migration_policy=policy, **more)
    member = setup.join(protocols=PROTOCOLS).value.member_id
    setup.sync(member, 1, {member: encode_assignment(Assignment(ALL))})
    setup.commit({T0: 5}, member, 1)
    return setup, member


def partitions_of(response: bytes) -> set[int]:
    return {partition.partition for partition in decode_assignment(response).partitions}


def test_a_member_of_the_new_protocol_upgrades_the_group() -> None:
    setup, old = classic_setup()
    assert setup.enter("new").member_epoch == 2
    assert setup.offset(T0) == 5
    group = setup.consumer_group
    assert group.members.keys() == {old, "new"}
    assert setup.heartbeat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    # The old one joins: it has to give back two partitions first, and joins again for that.
    joined = setup.join(old, protocols=PROTOCOLS).value
    assert joined.leader == ""
    synced = setup.sync(old, joined.generation_id).value
    kept = partitions_of(synced.assignment)
    assert len(kept) == 2
    owned = [TopicPartition("t", index) for index in sorted(kept)]
    again = (("range", encode_subscription(Subscription(["t"], owned_partitions=owned))),)
    assert setup.join(old, protocols=again).value.generation_id == 2
    assert partitions_of(setup.sync(old, 2).value.assignment) == kept
    assert setup.given(setup.beat("new", 2).value) == {"t": {0, 1, 2, 3} - kept}
    assert setup.heartbeat(old, 2) == ErrorCode.NONE
    assert setup.commit({T0: 6}, old, 2).value == {T0: ErrorCode.NONE}
    # With the generation before it commits what it has kept since then (KIP-1251).
    found = setup.commit(dict.fromkeys(ALL, 7), old, 1).value
    assert {each.partition for each, error in found.items() if not error} == kept
    assert set(found.values()) == {ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION}


def test_the_last_of_the_new_protocol_downgrades_it() -> None:
    setup, old = classic_setup()
    setup.enter("new")
    assert setup.beat("new", -1).value.member_epoch == -1
    assert setup.found is None
    assert setup.group().members.keys() == {old}
    assert setup.offset(T0) == 5
    joined = setup.join(old, protocols=PROTOCOLS).value
    assert joined.leader == old
    # Another coordinator finds a classic group, too.
    assert ConsumerSetup(setup.log).group().members.keys() == {old}


def test_the_policy_is_heeded() -> None:
    setup, old = classic_setup("downgrade")
    rejected = setup.beat("new", 0, topics=["t"], owned={}, timeout_ms=1_000).value
    assert rejected.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert setup.group().members.keys() == {old}
    assert setup.heartbeat(old, 1) == ErrorCode.NONE
    setup, old = classic_setup("upgrade")
    setup.enter("new")
    setup.beat("new", -1)
    assert setup.consumer_group.members.keys() == {old}


def test_a_group_of_another_kind_stays_what_it_is() -> None:
    setup = ConsumerSetup(group_consumer_migration_policy="bidirectional")
    setup.join(protocol_type="connect")
    rejected = setup.beat("new", 0, topics=["t"], owned={}, timeout_ms=1_000).value
    assert rejected.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_upgrade_that_is_not_stored_leaves_the_classic_group() -> None:
    setup, old = classic_setup()
    setup.log.hold = True
    response = setup.beat("new", 0, topics=["t"], owned={}, timeout_ms=1_000)
    setup.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    setup.log.hold = False
    assert response.value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert setup.group().members.keys() == {old}
    assert setup.heartbeat(old, 1) == ErrorCode.NONE
    assert setup.offset(T0) == 5
    assert setup.enter("new").member_epoch == 2


def test_what_is_committed_during_an_upgrade_is_not_lost() -> None:
    setup, old = classic_setup()
    setup.log.hold = True
    commit = setup.commit({T0: 6}, old, 1)
    transactional = setup.commit({ALL[1]: 7}, old, 1, producer_id=9)
    setup.beat("new", 0, topics=["t"], owned={}, timeout_ms=1_000)
    setup.log.commit_one()
    setup.log.commit_one()
    setup.coordinator.on_transaction_completed(9, 0, committed=True)
    setup.log.commit_all()
    assert commit.value == {T0: ErrorCode.NONE}
    assert transactional.value == {ALL[1]: ErrorCode.NONE}
    assert setup.found is not None
    assert setup.offset(T0) == 6
    assert setup.offset(ALL[1]) == 7


def test_a_classic_member_that_is_silent_goes_and_its_waiting_ends() -> None:
    setup, old = classic_setup()
    setup.enter("new")
    setup.timer.advance(10_000)  # its own session timeout
    assert setup.consumer_group.members.keys() == {"new"}
    assert setup.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_has_its_rebalance_timeout_to_join_again() -> None:
    setup, old = classic_setup()
    setup.enter("new")
    for _ in range(12):
        setup.heartbeat(old, 1)
        setup.beat("new", 2)
        setup.timer.advance(5_000)
    assert setup.consumer_group.members.keys() == {"new"}
    events = [event.reason for event in setup.coordinator.events.of("g")]
    assert "failed to rejoin within the rebalance timeout" in events


def test_a_classic_member_leaves_a_consumer_group() -> None:
    setup, old = classic_setup()
    setup.enter("new")
    assert setup.leave((old, None), ("unknown", None)) == (
        ErrorCode.NONE,
        [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID],
    )
    assert setup.consumer_group.members.keys() == {"new"}


def test_an_empty_consumer_group_becomes_a_classic_one_and_back() -> None:
    setup = ConsumerSetup()  # no policy is needed for that
    setup.enter("new")
    setup.commit({T0: 5}, "new", 1, version=9)
    setup.beat("new", -1)
    assert setup.join(protocols=PROTOCOLS).value.generation_id == 1
    assert setup.group().members
    assert setup.offset(T0) == 5
    setup.leave((next(iter(setup.group().members)), None))
    assert setup.enter("new").member_epoch == 1
    assert setup.offset(T0) == 5
    assert ConsumerSetup(setup.log).consumer_group.members.keys() == {"new"}
