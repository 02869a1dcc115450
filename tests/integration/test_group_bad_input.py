"""What clients of groups do wrong: Kafka's error code, a log line, and the group continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.message import Message
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.offset_commit import OffsetCommitResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.protocol.records.builder import build_batch
from tests.differential.group_requests import commit, fetch, join, offset_delete, prepare, sync
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.transcript import RawConnection, Transcript

DEADLINE_S = 60.0
OFFSETS_TOPIC = "__consumer_offsets"


class Talk:
    """One connection, and the broker's log."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._connection = RawConnection(broker.bootstrap, "careless")

    def ask(self, message: Message, version: int) -> Message:
        self._connection.send(message, version)
        return self._connection.receive()

    def commit_code(self, message: Message) -> int:
        response = self.ask(message, 7)
        assert isinstance(response, OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code

    def heartbeat_code(self, group: str, generation: int, member: str) -> int:
        response = self.ask(HeartbeatRequest(group, generation, member), 4)
        assert isinstance(response, HeartbeatResponse)
        return response.error_code

    def committed(self, group: str) -> int:
        response = self.ask(fetch(group, {"t": [0]}, 7), 7)
        assert isinstance(response, OffsetFetchResponse)
        assert response.error_code == ErrorCode.NONE
        return response.topics[0].partitions[0].committed_offset

    def lone_member(self, group: str, assignment: bytes = b"") -> str:
        """A stable group of one member, in generation 1."""
        joined = self.ask(join(group, session_ms=60_000, rebalance_ms=60_000), 3)
        assert isinstance(joined, JoinGroupResponse)
        synced = self.ask(sync(group, joined.member_id, 1, {joined.member_id: assignment}), 3)
        assert isinstance(synced, SyncGroupResponse)
        assert synced.error_code == ErrorCode.NONE
        return joined.member_id

    def wait_for_line(self, *parts: str) -> None:
        """Log lines go through a queue."""
        eventually(
            lambda: any(all(part in line for part in parts) for line in self.lines()),
            lambda: f"no line with {parts}:\n{self.broker.log()}",
        )

    def lines(self) -> list[str]:
        return self.broker.log().splitlines()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(
        tmp_path_factory.mktemp("careless"),
        offsets_topic_num_partitions=1,
        offset_metadata_max_bytes=100,
        group_initial_rebalance_delay_ms=0,
    ) as started:
        with Transcript(started.bootstrap) as transcript:
            prepare(transcript)
        yield started


@pytest.fixture
def talk(broker: BrokerProcess) -> Iterator[Talk]:
    made = Talk(broker)
    yield made
    made.close()


Mistake = Callable[[Talk, str, str], int]
"""Makes it, knowing the group and its member; the error code that came."""

MISTAKES: list[tuple[str, Mistake, int]] = [
    (
        "unknown member",
        lambda t, g, _: t.heartbeat_code(g, 1, "absent"),
        ErrorCode.UNKNOWN_MEMBER_ID,
    ),
    (
        "unknown member commits",
        lambda t, g, _: t.commit_code(commit(g, {("t", 0): 9}, "absent", 1)),
        ErrorCode.UNKNOWN_MEMBER_ID,
    ),
    (
        "stale generation",
        lambda t, g, m: t.heartbeat_code(g, 0, m),
        ErrorCode.ILLEGAL_GENERATION,
    ),
    (
        "stale generation commits",
        lambda t, g, m: t.commit_code(commit(g, {("t", 0): 9}, m, 0)),
        ErrorCode.ILLEGAL_GENERATION,
    ),
    (
        "oversized metadata",
        lambda t, g, m: t.commit_code(commit(g, {("t", 0): 9}, m, 1, metadata="x" * 101)),
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ),
    (
        "unknown partition",
        lambda t, g, m: t.commit_code(commit(g, {("t", 77): 9}, m, 1)),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
]


@pytest.mark.parametrize(("name", "mistake", "code"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_hurts_no_other_client(
    talk: Talk, name: str, mistake: Mistake, code: int
) -> None:
    group = name.replace(" ", "-")
    member = talk.lone_member(group)
    assert talk.commit_code(commit(group, {("t", 0): 5}, member, 1)) == ErrorCode.NONE
    assert mistake(talk, group, member) == code
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # that is returned before a group is asked
        talk.wait_for_line(f"group '{group}'", "careless", error_name(code))
    assert talk.committed(group) == 5
    assert talk.heartbeat_code(group, 1, member) == ErrorCode.NONE


def test_an_empty_group_id(talk: Talk) -> None:
    joined = talk.ask(join(""), 3)
    assert isinstance(joined, JoinGroupResponse)
    assert joined.error_code == ErrorCode.INVALID_GROUP_ID
    assert talk.heartbeat_code("", 1, "m") == ErrorCode.INVALID_GROUP_ID
    talk.wait_for_line("JoinGroup", "INVALID_GROUP_ID", "the group id is empty")
    # Consumers of old, that only commit, may have it.
    assert talk.commit_code(commit("", {("t", 0): 3})) == ErrorCode.NONE
    assert talk.committed("") == 3


def test_a_truncated_assignment_is_its_members_affair(talk: Talk, broker: BrokerProcess) -> None:
    member = talk.lone_member("truncated", b"\x00\x01\x00\x00\x00\x07\x00")
    described = talk.ask(DescribeGroupsRequest(["truncated"]), 4)
    assert isinstance(described, DescribeGroupsResponse)
    (found,) = described.groups[0].members
    assert bytes(found.member_assignment) == b"\x00\x01\x00\x00\x00\x07\x00"
    ottla = CommandLine(broker.bootstrap)
    shown = ottla.done("groups", "describe", "truncated", "--json").value
    assert (shown["state"], shown["members"][0]["partitions"]) == ("Stable", [])
    # What the group reads is known by its subscriptions: t is read, u is not.
    assert talk.commit_code(commit("truncated", {("t", 0): 5, ("u", 0): 5}, member, 1)) == 0
    response = repr(talk.ask(offset_delete("truncated", {"t": [0], "u": [0]}), 0))
    assert f"error_code={int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)}" in response
    assert talk.committed("truncated") == 5
    assert talk.heartbeat_code("truncated", 1, member) == ErrorCode.NONE


def produce_raw(broker: BrokerProcess, client_id: str, key: bytes | None, value: bytes) -> int:
    connection = RawConnection(broker.bootstrap, client_id)
    batch = build_batch([(time.time_ns() // 1_000_000, key, value, ())])
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(OFFSETS_TOPIC, [PartitionProduceData(0, batch)])],
    )
    connection.send(request, 7)
    response = connection.receive()
    connection.close()
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def test_foreign_bytes_in_the_offsets_topic(broker: BrokerProcess) -> None:
    talk = Talk(broker)
    assert talk.commit_code(commit("survivor", {("t", 0): 41})) == ErrorCode.NONE
    # Clients may not write there; Kafka's own admin client may, by its name.
    refused = produce_raw(broker, "anyone", b"foreign", b"bytes")
    assert refused == ErrorCode.INVALID_TOPIC_EXCEPTION
    for key in (b"foreign", b"", b"\x00\x01\x00", b"\x00\x01\x7f\xff", b"\x00\x02\x00\x05gro"):
        assert produce_raw(broker, "__admin_client", key, b"\xff" * 9) == ErrorCode.NONE
    talk.close()
    broker.restart()
    talk = Talk(broker)
    eventually(
        lambda: talk.heartbeat_code("survivor", 1, "m") == ErrorCode.UNKNOWN_MEMBER_ID,
        "the groups were not loaded",
    )
    assert talk.committed("survivor") == 41
    talk.wait_for_line("__consumer_offsets-0", "skipping a record")
    assert "Traceback" not in broker.log()
    talk.lone_member("afterwards")
    talk.close()
