"""Members that join without topics, that join again with epoch 0, and commits with old epochs."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.groups.consumer.member import MemberState
from ottla.broker.groups.consumer.records import CURRENT_KEY, decode_record
from ottla.protocol.codec import decoder
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.stored.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentValue,
)
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.consumer_helpers import Catalog, ConsumerSetup
from tests.unit.broker.groups.helpers import GROUP

NOTHING_YET: list[dict[str, Any]] = [
    {"topics": []},
    {"topics": None, "pattern": "nothing.*"},
    {"topics": None, "pattern": ""},
    {"topics": ["missing"]},
]


@pytest.mark.parametrize("subscription", NOTHING_YET, ids=str)
def test_a_first_member_without_topics_gets_an_epoch(subscription: dict[str, Any]) -> None:
    """With epoch 0 its next heartbeat would be a join without its rebalance timeout."""
    setup = ConsumerSetup()
    response = setup.beat("a", 0, owned={}, timeout_ms=30_000, **subscription).value
    assert not response.error_code
    assert response.member_epoch >= 1
    assert setup.given(response) == {}
    again = setup.beat("a", response.member_epoch).value
    assert (again.error_code, again.member_epoch) == (0, response.member_epoch)
    other = ConsumerSetup(setup.log, setup.catalog)
    assert other.consumer_group.epoch == setup.consumer_group.epoch
    later = setup.beat("a", again.member_epoch, topics=["t"]).value
    assert later.member_epoch == again.member_epoch + 1
    assert setup.given(later) == {"t": {0, 1, 2, 3}}


def test_a_member_of_a_group_that_was_stored_with_epoch_0_gets_another() -> None:
    setup = ConsumerSetup()
    setup.enter("a", [])
    setup.beat("a", -1)
    setup.consumer_group.epoch = 0  # as earlier versions left it
    assert setup.enter("b", []).member_epoch == 1


def test_a_member_joins_again_in_every_state() -> None:
    setup = ConsumerSetup()
    assert setup.enter("a").member_epoch == 1
    lost = setup.enter("a")  # the response to the first request was lost
    assert (lost.member_epoch, setup.given(lost)) == (1, {"t": {0, 1, 2, 3}})
    setup.enter("b")
    setup.beat("a", 1, owned={"t": {0, 1, 2, 3}})
    assert setup.consumer_group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    fenced = setup.beat("a", 9, owned={"t": {0, 1, 2, 3}}).value
    assert fenced.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = setup.enter("a")  # it has abandoned its partitions
    assert again.member_epoch == 2
    kept = setup.given(again)
    assert kept is not None
    assert len(kept["t"]) == 2
    rest = setup.given(setup.beat("b", 2).value)
    assert rest == {"t": {0, 1, 2, 3} - kept["t"]}, "the partitions did not stand still"
    assert setup.consumer_group.members["b"].state is MemberState.STABLE


def test_a_member_that_waits_for_partitions_joins_again() -> None:
    setup = ConsumerSetup()
    setup.enter("a")
    setup.enter("b")
    assert setup.consumer_group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    again = setup.enter("b")
    assert (again.member_epoch, setup.given(again)) == (2, {})


def test_a_static_member_whose_first_response_was_lost_joins_again() -> None:
    setup = ConsumerSetup()
    first = setup.enter("a", instance_id="i")
    again = setup.enter("a", instance_id="i")
    assert again.member_epoch == first.member_epoch
    assert setup.given(again) == {"t": {0, 1, 2, 3}}


def test_another_process_with_the_instance_id_is_refused() -> None:
    setup = ConsumerSetup()
    setup.enter("a", instance_id="i")
    refused = setup.beat("b", 0, topics=["t"], owned={}, instance_id="i", timeout_ms=30_000).value
    assert refused.error_code == ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_rolls_from_the_classic_protocol_within_its_session() -> None:
    setup = ConsumerSetup(group_consumer_migration_policy="bidirectional")
    joined = setup.join("", instance_id="i", version=5).value
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\2\xff\xff\xff\xff"
    setup.sync(
        joined.member_id, joined.generation_id, {joined.member_id: assignment}, instance_id="i"
    )
    response = setup.enter("n", instance_id="i")
    assert setup.given(response) == {"t": {0, 1, 2, 3}}
    assert setup.consumer_group.members.keys() == {"n"}
    assert setup.heartbeat(joined.member_id, joined.generation_id, "i") == (
        ErrorCode.FENCED_INSTANCE_ID
    )


def _rebalanced() -> tuple[ConsumerSetup, set[int], set[int], int]:
    """Return a group of a and b, what a has kept and given away, and the epoch of a before."""
    setup = ConsumerSetup()
    setup.enter("a")
    setup.enter("b")
    kept = setup.given(setup.beat("a", 1, owned={"t": {0, 1, 2, 3}}).value)
    assert kept is not None
    assert setup.beat("a", 1, owned=kept).value.member_epoch == 2
    return setup, kept["t"], {0, 1, 2, 3} - kept["t"], 1


def test_an_old_epoch_commits_the_partitions_that_stayed() -> None:
    setup, kept, given_away, old = _rebalanced()
    offsets = {TopicPartition("t", index): 7 for index in range(4)}
    found = setup.commit(offsets, "a", old, version=9).value
    assert {each.partition for each, error in found.items() if not error} == kept
    assert {each.partition for each, error in found.items() if error} == given_away
    assert set(found.values()) == {0, ErrorCode.STALE_MEMBER_EPOCH}
    for each in offsets:
        assert (setup.offset(each) == 7) == (each.partition in kept)
    # The present epoch commits all, as in Kafka; one that is not there yet commits nothing.
    assert set(setup.commit(offsets, "a", 2, version=9).value.values()) == {0}
    late = setup.commit(offsets, "a", 3, version=9).value
    assert set(late.values()) == {ErrorCode.STALE_MEMBER_EPOCH}


def test_an_old_epoch_in_a_transaction() -> None:
    setup, kept, given_away, old = _rebalanced()
    offsets = {TopicPartition("t", index): 7 for index in range(4)}
    found = setup.commit(offsets, "a", old, producer_id=5).value
    assert {each.partition for each, error in found.items() if not error} == kept
    assert {found[TopicPartition("t", each)] for each in given_away} == {
        ErrorCode.ILLEGAL_GENERATION
    }


def test_a_partition_that_came_back_is_not_committed_with_the_epoch_before() -> None:
    setup, _, given_away, old = _rebalanced()
    setup.beat("b", -1)
    back = setup.beat("a", 2, owned={}).value
    assert setup.given(back) == {"t": {0, 1, 2, 3}}
    offsets = {TopicPartition("t", index): 7 for index in given_away}
    assert set(setup.commit(offsets, "a", old, version=9).value.values()) == {
        ErrorCode.STALE_MEMBER_EPOCH
    }


def _current_records(setup: ConsumerSetup) -> list[ConsumerGroupCurrentMemberAssignmentValue]:
    decode = decoder(ConsumerGroupCurrentMemberAssignmentValue, 0)
    return [
        decode(value, 2)[0]
        for record in setup.log.records(0)
        if (key := record.key) is not None and key[1] == CURRENT_KEY
        if (value := record.value) is not None
    ]


def test_the_records_have_an_epoch_for_each_partition() -> None:
    setup, *_ = _rebalanced()
    setup.beat("b", 2)
    rows = [
        row
        for record in _current_records(setup)
        for row in (*record.assigned_partitions, *record.partitions_pending_revocation)
    ]
    assert rows
    for row in rows:
        assert row.assignment_epochs is not None
        assert len(row.assignment_epochs) == len(row.partitions)
    last = _current_records(setup)[-1]  # of b
    assert last.assigned_partitions[0].assignment_epochs == [2, 2]
    assert ConsumerSetup(setup.log, setup.catalog).consumer_group.members == (
        setup.consumer_group.members
    )


def test_records_of_kafka_before_4_3_get_the_epoch_of_the_member() -> None:
    """A record of version 3.9: member epoch 5, topic 1 with the partitions 0 and 1."""
    key = b"\0\x08\0\1g\0\1a"
    value = bytes.fromhex("000000000005000000040002" + "00" * 15 + "01")
    value += bytes.fromhex("030000000000000001000100")
    record = decode_record(key, value)
    setup = ConsumerSetup(catalog=Catalog(t=2))
    setup.enter("a")
    setup.consumer_group.replay(record)
    member = setup.consumer_group.members["a"]
    topic_id = (1).to_bytes(16)
    assert [member.assignment_epoch(topic_id, index) for index in (0, 1, 2)] == [5, 5, None]
    assert record.group_id == GROUP
