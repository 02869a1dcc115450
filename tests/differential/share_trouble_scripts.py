"""Conversations about share groups (KIP-932) while records, topics, groups and settings change; see
`share_scripts`.

`SLOW_SCRIPTS` are held with brokers whose share coordinator waits WRITE_MS before it appends, so
that locks end while an acknowledgement is stored.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import alter_share_group_offsets as altering
from ottla.protocol.messages import delete_share_group_offsets as deleting
from ottla.protocol.messages import describe_share_group_offsets as describing
from ottla.protocol.messages import share_fetch as fetching
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from ottla.protocol.records.builder import build_batch
from tests.differential.group_requests import commit
from tests.differential.share_scripts import (
    ACCEPT,
    FINAL,
    GROUP_RESOURCE,
    ONE,
    REJECT,
    RELEASE,
    RENEW,
    TWO,
    Script,
    acknowledge,
    beat,
    begin,
    learn_topics,
    take,
)
from tests.differential.share_scripts import fetch as fetch_of
from tests.differential.transaction_scripts import add, is_settled
from tests.differential.transaction_scripts import describe as describe_transaction
from tests.doubles.eventually import eventually
from tests.doubles.transcript import Transcript

#: Longer than the locks of `locks_that_end_during_acknowledgements`, which are longer than a
#: machine takes for two requests.
WRITE_MS = 9000
_SHORT_LOCK_MS = 4000


def start(t: Transcript, group: str, topic: str, *members: str) -> bytes:
    """A group on a new topic with ten records in two batches, from the first one; the topic id."""
    t.quietly(CreateTopicsRequest(topics=[CreatableTopic(topic, 1, 1)], timeout_ms=10_000), 5)
    topic_id = learn_topics(t, topic)
    for values in (range(6), range(6, 10)):
        produce(t, topic, build_batch([(1000, None, b"%d" % each, None) for each in values]))
    join_topic(t, group, topic, ONE)
    t.quietly(beat(group, ONE, FINAL), 1)
    t.quietly(alter(group, topic, 0), 0)
    for member in members:
        join_topic(t, group, topic, member)
    return topic_id


def produce(t: Transcript, topic: str, batch: bytes, transactional_id: str | None = None) -> None:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])

    def is_stored() -> bool:
        response = t.quietly(ProduceRequest(transactional_id, -1, 10_000, [data]), 9)
        assert isinstance(response, ProduceResponse)
        return response.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    eventually(is_stored, "the records are not stored")


def join_topic(t: Transcript, group: str, topic: str, member: str) -> None:
    """Until the member has a partition."""
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        response = t.quietly(beat(group, member, epoch, [topic] if epoch == 0 else None), 1)
        assert isinstance(response, ShareGroupHeartbeatResponse)
        if response.error_code == ErrorCode.NONE:
            epoch = response.member_epoch
        assignment = response.assignment
        return assignment is not None and bool(assignment.topic_partitions)

    eventually(is_assigned, f"{group}: no assignment")


def alter(group: str, topic: str, offset: int) -> Message:
    row = altering.AlterShareGroupOffsetsRequestPartition(0, offset)
    wanted = altering.AlterShareGroupOffsetsRequestTopic(topic, [row])
    return altering.AlterShareGroupOffsetsRequest(group, [wanted])


def describe(group: str, *topics: str) -> Message:
    rows = [describing.DescribeShareGroupOffsetsRequestTopic(each, [0]) for each in topics]
    wanted = describing.DescribeShareGroupOffsetsRequestGroup(group, rows or None)
    return describing.DescribeShareGroupOffsetsRequest([wanted])


def set_group(t: Transcript, group: str, **settings: object) -> None:
    rows = [
        AlterableConfig(name.replace("_", "."), 0, str(value)) for name, value in settings.items()
    ]
    resource = AlterConfigsResource(GROUP_RESOURCE, group, rows)
    t.ask(IncrementalAlterConfigsRequest([resource]), 1)


def delete_records(t: Transcript, topic: str, offset: int) -> None:
    rows = [DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])]
    t.ask(DeleteRecordsRequest(rows, 10_000), 2)


def deleted_records(t: Transcript) -> None:
    group = "deleted-records"
    topic_id = start(t, group, "d", ONE, TWO)
    t.say("the first batch")
    epoch = take(t, group, ONE, 0, topic_id)
    t.say("records within it are deleted, and the member accepts all")
    delete_records(t, "d", 3)
    t.ask(acknowledge(group, ONE, epoch, topic_id, (0, 5, [ACCEPT])), 1)
    t.say("the second batch, of which records are deleted and the others released")
    epoch = take(t, group, ONE, epoch + 1)
    delete_records(t, "d", 8)
    t.ask(acknowledge(group, ONE, epoch, topic_id, (6, 9, [RELEASE])), 1)
    take(t, group, TWO, 0, topic_id)
    t.say("all are deleted: nothing is left, and the release of them is accepted")
    delete_records(t, "d", 10)
    t.ask(acknowledge(group, TWO, FINAL, topic_id, (8, 9, [RELEASE])), 1)


def isolation(t: Transcript) -> None:
    """Three records of an aborted transaction, two of one that is committed, and an open one."""
    topic_id = start(t, "committed", "x", ONE)
    join_topic(t, "uncommitted", "x", ONE)
    t.quietly(beat("uncommitted", ONE, FINAL), 1)
    t.quietly(alter("uncommitted", "x", 10), 0)
    join_topic(t, "uncommitted", "x", ONE)
    name = "share-isolation"
    for sequence, count, is_committed in ((0, 3, False), (0, 2, True), (2, 1, None)):
        if sequence == 0:
            producer = _producer(t, name)
        t.quietly(add(name, producer, {"x": [0]}), 3)
        rows = [(1000, None, b"value", None)] * count
        batch = build_batch(
            rows,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        produce(t, "x", batch, name)
        if is_committed is not None:
            t.quietly(EndTxnRequest(name, *producer, is_committed), 3)
            eventually(lambda: _is_settled(t, name), "the transaction does not end")
    set_group(t, "committed", share_isolation_level="read_committed")
    t.say("the records before the transactions, then those of the committed one")
    epoch = take(t, "committed", ONE, 0, topic_id)
    t.ask(acknowledge("committed", ONE, epoch, topic_id, (0, 5, [ACCEPT])), 1)
    epoch = take(t, "committed", ONE, epoch + 1)
    for _ in range(3):
        t.ask(fetch_of("committed", ONE, epoch, max_wait_ms=500), 1)
        epoch += 1
    t.say("all of them, with a group that reads uncommitted records")
    take(t, "uncommitted", ONE, 0, topic_id)
    t.ask(fetch_of("uncommitted", ONE, FINAL), 1)
    t.quietly(EndTxnRequest(name, *producer, False), 3)


def _producer(t: Transcript, name: str) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    # Which creates __transaction_state.
    t.quietly(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)

    def is_ready() -> bool:
        response = t.quietly(InitProducerIdRequest(name, 60_000, -1, -1), 4)
        assert isinstance(response, InitProducerIdResponse)
        found.append((response.producer_id, response.producer_epoch))
        return response.error_code == ErrorCode.NONE

    eventually(is_ready, "no producer id")
    return found[-1]


def _is_settled(t: Transcript, name: str) -> bool:
    response = t.quietly(describe_transaction(name), 0)
    return is_settled(response) and "'Complete" in repr(response)


def settings_that_change(t: Transcript) -> None:
    group = "settings"
    topic_id = begin(t, group, ONE)
    epoch = take(t, group, ONE, 0, topic_id)
    t.say("renewals are turned off")
    set_group(t, group, share_renew_acknowledge_enable="false")
    t.ask(acknowledge(group, ONE, epoch, topic_id, (0, 5, [RENEW]), is_renew=True), 2)
    t.say("the limit of deliveries is lowered, and the records are released")
    set_group(t, group, share_delivery_count_limit=2)
    t.ask(acknowledge(group, ONE, epoch + 1, topic_id, (0, 5, [RELEASE])), 1)
    epoch = take(t, group, ONE, epoch + 2)
    for name, value in (
        ("share_delivery_count_limit", 1),
        ("share_delivery_count_limit", 11),
        ("share_record_lock_duration_ms", 100),
        ("share_isolation_level", "none"),
        ("share_auto_offset_reset", "by_duration:1"),
        ("share_heartbeat_interval_ms", 1),
        ("share_session_timeout_ms", 1),
        ("share_partition_max_record_locks", 1),
        ("share_partition_max_record_locks", 1_000_000),
        ("share_absent", 1),
    ):
        t.say(f"{name} {value}")
        set_group(t, group, **{name: value})


def groups_of_other_types(t: Transcript) -> None:
    learn_topics(t)
    t.say("a share member joins a group of consumers")
    new = ConsumerGroupHeartbeatRequest(
        *("other-types", "c", 0),
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    joined = t.quietly(new, 0)
    assert isinstance(joined, ConsumerGroupHeartbeatResponse)
    t.ask(beat("other-types", ONE, 0), 1)
    t.ask(alter("other-types", "t", 0), 0)
    t.ask(describe("other-types", "t"), 0)
    t.say("a share member joins a group that has committed offsets only")
    t.quietly(commit("offsets-only", {("t", 0): 5}), 8)
    t.ask(beat("offsets-only", ONE, 0), 1)
    t.say("a fetch of a group that does not exist")
    topic_id = learn_topics(t)
    t.ask(fetch_of("no-such-group", ONE, 0, topic_id, max_wait_ms=500), 1)


def offsets_that_are_invalid(t: Transcript) -> None:
    group = "invalid-offsets"
    begin(t, group)
    for offset in (-1, -5):
        t.say(f"altered to {offset}")
        t.ask(alter(group, "t", offset), 0)
        t.ask(describe(group), 0)


def a_reset_with_a_session(t: Transcript) -> None:
    """The member leaves the group, and its session with the leader of the partition goes on."""
    group = "reset"
    topic_id = begin(t, group, ONE)
    epoch = take(t, group, ONE, 0, topic_id)
    t.quietly(beat(group, ONE, FINAL), 1)
    t.say("the offsets of the empty group are reset")
    t.ask(alter(group, "t", 6), 0)
    t.say("records that were acquired before are accepted")
    t.ask(acknowledge(group, ONE, epoch, topic_id, (0, 5, [ACCEPT])), 1)
    t.say("then those of the new start offset are fetched")
    take(t, group, ONE, epoch + 1)
    t.say("the group is deleted: there is nothing to store to")
    t.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    t.ask(describe(group, "t"), 0)


def a_topic_that_is_deleted(t: Transcript) -> None:
    group = "deleted-topic"
    start(t, group, "gone", ONE)
    t.quietly(beat(group, ONE, FINAL), 1)
    t.say("the group has an offset")
    t.ask(describe(group), 0)
    rows = deleting.DeleteShareGroupOffsetsRequest(
        group, [deleting.DeleteShareGroupOffsetsRequestTopic("t")]
    )
    t.say("offsets of a topic that the group never read are deleted")
    t.ask(rows, 0)
    t.quietly(DeleteTopicsRequest([DeleteTopicState("gone")], timeout_ms=10_000), 6)

    def is_empty() -> bool:
        response = t.quietly(describe(group), 0)
        assert isinstance(response, describing.DescribeShareGroupOffsetsResponse)
        return not response.groups[0].topics

    eventually(is_empty, "the group has an offset of a deleted topic")
    t.say("the topic is deleted, and so is the state of the group")
    t.ask(describe(group), 0)


def locks_that_end_during_acknowledgements(t: Transcript) -> None:
    group = "slow"
    topic_id = begin(t, group, ONE, TWO)
    set_group(t, group, share_record_lock_duration_ms=_SHORT_LOCK_MS)
    response = t.quietly(fetch_of(group, ONE, 0, topic_id, max_records=0, max_wait_ms=0), 1)
    assert isinstance(response, fetching.ShareFetchResponse)
    t.quietly(fetch_of(group, ONE, FINAL), 1)
    t.say("both batches are acquired")
    epoch = take(t, group, ONE, 0, topic_id, max_records=500)
    t.say("the first one is accepted, which takes longer than the locks")
    t.send(acknowledge(group, ONE, epoch, topic_id, (0, 3, [ACCEPT]), (4, 5, [REJECT])), 1)
    t.say("the locks of the second one end: another member gets it, and nothing of the first")
    other = take(t, group, TWO, 0, topic_id, on="two")
    t.receive()
    t.say("accepted again, by a member that has it not any more")
    t.send(acknowledge(group, ONE, epoch + 1, topic_id, (6, 9, [ACCEPT])), 1)
    t.receive()
    t.say("the other member accepts while its locks end, too: nothing is left")
    other = take(t, group, TWO, other, on="two")
    t.send(acknowledge(group, TWO, other, topic_id, (6, 9, [ACCEPT])), 1, "two")
    t.receive("two")
    t.ask(fetch_of(group, TWO, other + 1, max_wait_ms=500), 1, "two")
    t.ask(describe(group, "t"), 1)


SCRIPTS: tuple[Script, ...] = (
    *(deleted_records, isolation, settings_that_change, groups_of_other_types),
    *(offsets_that_are_invalid, a_reset_with_a_session, a_topic_that_is_deleted),
)
SLOW_SCRIPTS: tuple[Script, ...] = (locks_that_end_during_acknowledgements,)
