"""Conversations about share groups (KIP-932), good and bad.

Left out is what Kafka fails at: a ShareFetch of an unknown topic id or partition gets
UNKNOWN_SERVER_ERROR for all topics, here with the error of that partition; a
DescribeShareGroupOffsets of a partition that does not exist gets no response within 30 seconds.
Access control and quotas are in share_access_scripts.py.

Each function is one conversation. They are held with Apache Kafka 4.3.1 and with Ottla, and the
responses must be the same. Every conversation uses a group of its own on topic t, which has one
partition with ten records in two batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import alter_share_group_offsets as altering
from ottla.protocol.messages import describe_share_group_offsets as describing
from ottla.protocol.messages import share_acknowledge as acknowledging
from ottla.protocol.messages import share_fetch as fetching
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.records.builder import build_batch
from tests.differential.group_requests import commit, join
from tests.doubles.eventually import eventually
from tests.doubles.transcript import Transcript

Script = Callable[[Transcript], None]

# Ids as clients make them: UUIDs in base64.
ONE = "AAAAAAAAAAAAAAAAAAAAAQ"
TWO = "AAAAAAAAAAAAAAAAAAAAAg"
ABSENT = "AAAAAAAAAAAAAAAAAAAAAw"
UNKNOWN_ID = b"u" * 16
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL = -1
RECORDS = 10
GROUP_RESOURCE = 32
# For fetches that get records: as long as the broker takes.
LONG_MS = 20_000
LOCK_MS = 1000  # the least that a broker can allow

Row = tuple[int, int, Sequence[int]]


def prepare(t: Transcript) -> None:
    """Topic t with its records; groups can be coordinated."""
    t.quietly(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)], timeout_ms=10_000), 5)
    learn_topics(t)
    for values in (range(6), range(6, RECORDS)):
        batch = build_batch([(1000, None, b"value-%d" % number, None) for number in values])
        data = TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])
        response = t.quietly(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    # Which creates __consumer_offsets.
    t.quietly(FindCoordinatorRequest(key_type=0, coordinator_keys=["ready"]), 4)
    begin(t, "ready")


def learn_topics(t: Transcript, name: str = "t") -> bytes:
    """The id of a topic, which the transcript shows by its name in capitals."""

    def found() -> bytes | None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        response = t.quietly(request, 12)
        assert isinstance(response, MetadataResponse)
        (topic,) = response.topics
        is_ready = topic.error_code == ErrorCode.NONE and topic.partitions[0].leader_id >= 0
        return topic.topic_id if is_ready else None

    topic_id = eventually(found, f"topic {name} has no leader")
    assert topic_id is not None
    t.topic_ids |= {topic_id: name.upper(), UNKNOWN_ID: "UNKNOWN"}
    return topic_id


def begin(t: Transcript, group: str, *members: str) -> bytes:
    """A group that begins with the first record, with these members; the id of topic t."""
    topic_id = learn_topics(t)
    _joined(t, group, ONE)
    t.quietly(beat(group, ONE, FINAL), 1)
    rows = [altering.AlterShareGroupOffsetsRequestPartition(0, 0)]
    topic = altering.AlterShareGroupOffsetsRequestTopic("t", rows)
    t.quietly(altering.AlterShareGroupOffsetsRequest(group, [topic]), 0)
    for member in members:
        _joined(t, group, member)
    return topic_id


def _joined(t: Transcript, group: str, member: str) -> None:
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        response = t.quietly(beat(group, member, epoch), 1)
        assert isinstance(response, ShareGroupHeartbeatResponse)
        if response.error_code == ErrorCode.NONE:
            epoch = response.member_epoch
        assignment = response.assignment
        return assignment is not None and bool(assignment.topic_partitions)

    eventually(is_assigned, f"{group}: no assignment")


def beat(group: str, member: str, epoch: int, topics: list[str] | None = None) -> Message:
    if epoch == 0 and topics is None:
        topics = ["t"]
    return ShareGroupHeartbeatRequest(group, member, epoch, subscribed_topic_names=topics)


def fetch(
    group: str | None,
    member: str | None,
    epoch: int,
    topic_id: bytes | None = None,
    *acknowledged: Row,
    partition: int = 0,
    max_records: int = 500,
    max_wait_ms: int = 1000,
    acquire_mode: int = 0,
) -> Message:
    """ShareFetch; without a topic id nothing is added to the session."""
    rows = [fetching.AcknowledgementBatch(*row[:2], list(row[2])) for row in acknowledged]
    topics = []
    if topic_id is not None:
        wanted = fetching.FetchPartition(partition, acknowledgement_batches=rows)
        topics = [fetching.FetchTopic(topic_id, [wanted])]
    return fetching.ShareFetchRequest(
        *(group, member, epoch, max_wait_ms, 1, 1 << 20, max_records, max_records),
        share_acquire_mode=acquire_mode,
        topics=topics,
    )


def acknowledge(
    group: str | None,
    member: str | None,
    epoch: int,
    topic_id: bytes | None = None,
    *acknowledged: Row,
    partition: int = 0,
    is_renew: bool = False,
) -> Message:
    rows = [acknowledging.AcknowledgementBatch(*row[:2], list(row[2])) for row in acknowledged]
    topics = []
    if topic_id is not None:
        wanted = acknowledging.AcknowledgePartition(partition, rows)
        topics = [acknowledging.AcknowledgeTopic(topic_id, [wanted])]
    return acknowledging.ShareAcknowledgeRequest(group, member, epoch, is_renew, topics)


def heartbeats(t: Transcript) -> None:
    group = "heartbeats"
    begin(t, group)
    for text, request in (
        ("no group", beat("", ONE, 0)),
        ("no member", beat(group, "", 0)),
        ("an epoch below -1", beat(group, ONE, -2)),
        ("no topics in the first heartbeat", ShareGroupHeartbeatRequest(group, ONE, 0)),
        ("an empty list of topics", beat(group, ONE, 0, [])),
        ("an empty rack", ShareGroupHeartbeatRequest(group, ONE, 0, "", ["t"])),
        ("a member that is not there", beat(group, ABSENT, 3)),
        ("a member that is not there leaves", beat(group, ABSENT, FINAL)),
        ("a group that is not there", beat("absent", ONE, 1)),
        ("leaving a group that is not there", beat("absent", ONE, FINAL)),
    ):
        t.say(text)
        t.ask(request, 1)
    joined = t.quietly(beat(group, ONE, 0), 1)
    assert isinstance(joined, ShareGroupHeartbeatResponse)
    t.say("an epoch ahead")
    t.ask(beat(group, ONE, joined.member_epoch + 7), 1)
    t.say("leaving")
    t.ask(beat(group, ONE, FINAL), 1)
    t.say("leaving again")
    t.ask(beat(group, ONE, FINAL), 1)


def sessions(t: Transcript) -> None:
    group = "sessions"
    topic_id = begin(t, group, ONE)
    for text, request in (
        ("fetch without a session", fetch(group, ONE, 1, topic_id)),
        ("the end of no session", fetch(group, ONE, FINAL)),
        ("acknowledge without a session", acknowledge(group, ONE, 1, topic_id, (0, 0, [ACCEPT]))),
        ("acknowledge opens no session", acknowledge(group, ONE, 0, topic_id, (0, 0, [ACCEPT]))),
        ("no group", fetch(None, ONE, 0, topic_id)),
        ("no member", fetch(group, "", 0, topic_id)),
        ("null member", fetch(group, None, 0, topic_id)),
        ("a long member id", fetch(group, "m" * 37, 0, topic_id)),
        ("first epoch with acknowledgements", fetch(group, ONE, 0, topic_id, (0, 0, [ACCEPT]))),
        ("the session opens", fetch(group, ONE, 0, topic_id, max_records=1)),
        ("an epoch ahead", fetch(group, ONE, 5)),
        ("an epoch again", fetch(group, ONE, 2)),
        ("the next epoch", fetch(group, ONE, 1)),
        ("an acknowledgement with a stale epoch", acknowledge(group, ONE, 1)),
        ("the end", acknowledge(group, ONE, FINAL, topic_id, (0, 5, [ACCEPT]))),
        ("after the end", fetch(group, ONE, 2)),
    ):
        t.say(text)
        t.ask(request, 1)


def acknowledgements(t: Transcript) -> None:
    group = "acknowledgements"
    topic_id = begin(t, group, ONE, TWO)
    t.quietly(fetch(group, TWO, 0, topic_id, max_records=1), 1, "two")
    t.quietly(acknowledge(group, TWO, 1, topic_id, (0, 5, [RELEASE])), 1, "two")
    t.say("the first batch")
    t.ask(fetch(group, ONE, 0, topic_id, max_records=1), 1)
    t.say("a record of another member")
    t.ask(acknowledge(group, TWO, 2, topic_id, (0, 0, [ACCEPT])), 1, "two")
    bad: list[tuple[str, Row]] = [
        ("not acquired", (6, 9, [ACCEPT])),
        ("beyond the end of the log", (50, 60, [ACCEPT])),
        ("more than is acquired", (3, 9, [ACCEPT])),
        ("first after last", (4, 2, [ACCEPT])),
        ("no type", (0, 1, [])),
        ("too few types", (0, 3, [ACCEPT, ACCEPT])),
        ("too many types", (0, 1, [ACCEPT, ACCEPT, ACCEPT])),
        ("no such type", (0, 0, [9])),
        ("a negative type", (0, 0, [-1])),
        ("a renewal without the flag", (0, 0, [RENEW])),
    ]
    epoch = 1
    for text, row in bad:
        t.say(text)
        t.ask(acknowledge(group, ONE, epoch, topic_id, row), 2)
        epoch += 1
    t.say("batches that are not in order")
    t.ask(acknowledge(group, ONE, epoch, topic_id, (2, 2, [ACCEPT]), (0, 0, [ACCEPT])), 1)
    t.say("with gaps, and of each type")
    rows: list[Row] = [(0, 0, [ACCEPT]), (2, 4, [REJECT, GAP, RELEASE])]
    t.ask(acknowledge(group, ONE, epoch + 1, topic_id, *rows), 1)
    t.say("twice")
    t.ask(acknowledge(group, ONE, epoch + 2, topic_id, (2, 3, [ACCEPT])), 1)
    t.say("below the start offset")
    t.ask(acknowledge(group, ONE, epoch + 3, topic_id, (0, 0, [ACCEPT])), 1)
    t.say("an unknown topic and an unknown partition")
    t.ask(acknowledge(group, ONE, epoch + 4, UNKNOWN_ID, (0, 0, [ACCEPT])), 1)
    t.ask(acknowledge(group, ONE, epoch + 5, topic_id, (0, 0, [ACCEPT]), partition=9), 1)
    t.say("what is left: the released record, then the second batch")
    t.ask(fetch(group, TWO, 3, topic_id, max_records=1), 1, "two")
    t.ask(fetch(group, TWO, 4, topic_id, max_records=1), 1, "two")


def deliveries(t: Transcript) -> None:
    group = "deliveries"
    topic_id = begin(t, group, ONE)
    t.ask(fetch(group, ONE, 0, topic_id, max_records=1), 1)
    epoch = 1
    last = 5
    for count in range(2, 6):
        t.say(f"released, and delivered with the count {count}")
        t.ask(acknowledge(group, ONE, epoch, topic_id, (0, last, [RELEASE])), 1)
        t.ask(fetch(group, ONE, epoch + 1, max_records=1), 1)
        epoch += 2
        last = 5 if count == 2 else 0  # records that were delivered often come alone
    t.say("released at the limit of deliveries, the record is not delivered again")
    t.ask(acknowledge(group, ONE, epoch, topic_id, (0, 0, [RELEASE])), 1)
    t.ask(fetch(group, ONE, epoch + 1, max_records=1), 1)


def record_limit(t: Transcript) -> None:
    group = "record-limit"
    topic_id = begin(t, group, ONE)
    t.say("no more records than wanted (KIP-1206)")
    t.ask(fetch(group, ONE, 0, topic_id, max_records=2, acquire_mode=1), 2)
    t.say("whole batches")
    t.ask(fetch(group, ONE, 1, max_records=2), 2)
    t.say("no records wanted")
    t.ask(fetch(group, ONE, 2, max_records=0), 2)
    t.say("all types in a fetch, which acquires nothing")
    rows: list[Row] = [(0, 1, [ACCEPT, REJECT]), (2, 5, [RELEASE])]
    t.ask(fetch(group, ONE, 3, topic_id, *rows, max_records=0), 2)


def renewals(t: Transcript) -> None:
    group = "renewals"
    topic_id = begin(t, group, ONE, TWO)
    t.say("acquired")
    t.ask(fetch(group, ONE, 0, topic_id), 1)
    t.say("renewed (KIP-1222)")
    t.ask(acknowledge(group, ONE, 1, topic_id, (0, 9, [RENEW]), is_renew=True), 2)
    t.say("a renewal by another member")
    t.quietly(fetch(group, TWO, 0, topic_id), 1, "two")
    t.ask(acknowledge(group, TWO, 1, topic_id, (0, 9, [RENEW]), is_renew=True), 2, "two")
    t.say("the end of the session releases what is acquired")
    t.ask(acknowledge(group, ONE, FINAL), 1)
    t.ask(fetch(group, TWO, 2), 1, "two")


def types_of_groups(t: Transcript) -> None:
    group = "types"
    begin(t, group, ONE)
    new = ConsumerGroupHeartbeatRequest(
        *(group, "c", 0),
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    for text, request, version in (
        ("a consumer joins a share group", new, 0),
        ("a classic member joins a share group", join(group), 9),
        ("a commit", commit(group, {("t", 0): 5}), 8),
        ("described as a classic group", DescribeGroupsRequest(groups=[group]), 5),
        ("described", ShareGroupDescribeRequest(["absent"]), 1),
        ("listed", ListGroupsRequest(["Stable"], ["share"]), 5),
        ("deleted with a member", DeleteGroupsRequest(groups_names=[group]), 2),
    ):
        t.say(text)
        t.ask(request, version)
    t.quietly(beat(group, ONE, FINAL), 1)
    t.say("deleted")
    t.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    t.say("described, when it is gone")
    t.ask(ShareGroupDescribeRequest([group]), 1)


def offsets(t: Transcript) -> None:
    group = "offsets"
    begin(t, group)

    def alter(name: str, partition: int, offset: int, of: str = group) -> Message:
        row = altering.AlterShareGroupOffsetsRequestPartition(partition, offset)
        topic = altering.AlterShareGroupOffsetsRequestTopic(name, [row])
        return altering.AlterShareGroupOffsetsRequest(of, [topic])

    def describe(of: str, *topics: tuple[str, list[int]]) -> Message:
        rows = [describing.DescribeShareGroupOffsetsRequestTopic(*each) for each in topics]
        wanted = describing.DescribeShareGroupOffsetsRequestGroup(of, rows or None)
        return describing.DescribeShareGroupOffsetsRequest([wanted])

    for text, request in (
        ("described", describe(group)),
        ("one partition", describe(group, ("t", [0]))),
        ("altered", alter("t", 0, 4)),
        ("described", describe(group)),
        ("altered beyond the end", alter("t", 0, 99)),
        ("altered, of a partition that is not there", alter("t", 9, 0)),
        ("altered, of a topic that is not there", alter("absent", 0, 0)),
    ):
        t.say(text)
        t.ask(request, 0)
    _joined(t, group, ONE)
    t.say("altered with a member")
    t.ask(alter("t", 0, 0), 0)
    for text, request in (
        ("described, of a topic that is not there", describe(group, ("absent", [0]))),
        ("described, of a group that is not there", describe("absent")),
        ("one partition of a group that is not there", describe("absent", ("t", [0]))),
        ("altered, of a new group and a topic that is not there", alter("absent", 0, 3, "new-1")),
        ("described", describe("new-1")),
        ("altered, of a new group", alter("t", 0, 3, "new-2")),
        ("described", describe("new-2")),
    ):
        t.say(text)
        t.ask(request, 0)
    t.say("groups that were created by their offsets")
    for created in ("new-1", "new-2"):
        t.ask(ShareGroupDescribeRequest([created]), 1)
    t.ask(DeleteGroupsRequest(groups_names=["new-2"]), 2)


def releases_with_a_fetch(t: Transcript) -> None:
    group = "releases"
    topic_id = begin(t, group, ONE)
    t.say("the first batch")
    t.ask(fetch(group, ONE, 0, topic_id, max_records=1, max_wait_ms=LONG_MS), 1)
    t.say("released: the fetch gets the second batch, as the release is being stored")
    again: Row = (0, 5, [RELEASE])
    t.ask(fetch(group, ONE, 1, topic_id, again, max_records=1, max_wait_ms=LONG_MS), 1)
    t.say("then the first one again")
    t.ask(fetch(group, ONE, 2, max_records=1, max_wait_ms=LONG_MS), 1)
    t.say("accepted and rejected with a fetch, of which one is refused")
    rows: list[Row] = [(0, 5, [ACCEPT]), (6, 20, [REJECT])]
    t.ask(fetch(group, ONE, 3, topic_id, *rows, max_wait_ms=100), 1)


def locks(t: Transcript) -> None:
    group = "locks"
    topic_id = begin(t, group, ONE, TWO)
    _set_lock(t, group, topic_id, LOCK_MS)
    t.say("acquired for a second")
    t.ask(fetch(group, ONE, 0, topic_id, max_wait_ms=LONG_MS), 1)
    t.say("the fetch of another member waits until the locks end")
    t.ask(fetch(group, TWO, 0, topic_id, max_wait_ms=LONG_MS, max_records=1), 1, "two")
    t.say("acknowledged after the end of the lock")
    t.ask(acknowledge(group, ONE, 1, topic_id, (0, 5, [ACCEPT])), 1)
    t.say("renewed after the end of the lock")
    t.ask(acknowledge(group, ONE, 2, topic_id, (0, 5, [RENEW]), is_renew=True), 2)
    t.say("released after the end of the lock, with records that no member has")
    t.ask(acknowledge(group, ONE, 3, topic_id, (0, 9, [RELEASE])), 1)
    t.say("the session of the other member ends: its records can be acquired at once")
    t.ask(acknowledge(group, TWO, FINAL), 1, "two")
    _set_lock(t, group, topic_id, 30_000)
    epoch = take(t, group, ONE, 0, topic_id)
    t.say("accepted, and again when the start offset is past them")
    t.ask(acknowledge(group, ONE, epoch, topic_id, (0, 5, [ACCEPT])), 1)
    t.ask(acknowledge(group, ONE, epoch + 1, topic_id, (0, 5, [REJECT])), 1)


def _set_lock(t: Transcript, group: str, topic_id: bytes, duration_ms: int) -> None:
    """Returns when the duration is in effect; ends the session of the member ONE."""
    setting = AlterableConfig("share.record.lock.duration.ms", 0, str(duration_ms))
    resource = AlterConfigsResource(GROUP_RESOURCE, group, [setting])
    t.ask(IncrementalAlterConfigsRequest([resource]), 1)
    eventually(
        lambda: _lock_ms(t, group, topic_id) == duration_ms, "the lock duration is not in effect"
    )


def take(
    t: Transcript,
    group: str,
    member: str,
    epoch: int,
    topic_id: bytes | None = None,
    *,
    max_records: int = 1,
    on: str = "main",
) -> int:
    """The fetch that gets records; returns the next epoch of the session.

    Kafka can respond early without records, while it loads a share partition or releases records.
    """
    mark = len(t.lines)

    def is_acquired() -> bool:
        nonlocal epoch
        del t.lines[mark:]
        request = fetch(
            group, member, epoch, topic_id, max_records=max_records, max_wait_ms=LONG_MS
        )
        response = t.ask(request, 1, on)
        epoch += 1
        assert isinstance(response, fetching.ShareFetchResponse)
        return any(
            partition.acquired_records
            for topic in response.responses
            for partition in topic.partitions
        )

    eventually(is_acquired, "no records")
    return epoch


def _lock_ms(t: Transcript, group: str, topic_id: bytes) -> int:
    """The lock duration that a response states; acquires nothing."""
    response = t.quietly(fetch(group, ONE, 0, topic_id, max_records=0, max_wait_ms=0), 1)
    t.quietly(fetch(group, ONE, FINAL), 1)
    assert isinstance(response, fetching.ShareFetchResponse)
    return response.acquisition_lock_timeout_ms


SCRIPTS: tuple[Script, ...] = (
    *(heartbeats, sessions, acknowledgements, deliveries, record_limit, renewals),
    *(types_of_groups, offsets, releases_with_a_fetch, locks),
)
