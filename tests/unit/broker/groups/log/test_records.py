"""The bytes of `__consumer_offsets`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.classic.group import Group, GroupState
from ottla.broker.groups.classic.member import Member
from ottla.broker.groups.log.records import (
    GroupKey,
    OffsetKey,
    UnreadableRecord,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.messages.stored.group_metadata import GroupMetadataValue, MemberMetadata
from ottla.protocol.messages.stored.offset_commit import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition

NOW = 1_800_000_000_000
names = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
indexes = st.integers(-(2**31), 2**31 - 1)


# Bytes that Apache Kafka 3.9.1 wrote.


def test_an_offset_as_kafka_writes_it() -> None:
    key = b"\x00\x01\x00\x0beos-group-0\x00\x01t\x00\x00\x00\x00"
    value = (
        b"\x00\x03\x00\x00\x00\x00\x00\x00\x00\x05\xff\xff\xff\xff\x00\x04note"
        b"\x00\x00\x01\xa1\xfd6\x95\xe8"
    )
    committed = CommittedOffset(5, -1, "note", 0x1A1FD3695E8)
    assert offset_key("eos-group-0", TopicPartition("t", 0)) == key
    assert offset_value(committed) == value
    assert read_key(key) == OffsetKey("eos-group-0", TopicPartition("t", 0))
    assert read_offset_value(value, -1) == committed


def test_a_group_as_kafka_writes_it() -> None:
    key = b"\x00\x02\x00\x08eos-live"
    member_id = "client-e3a39870-24b4-4db7-b5d8-b080bad36b7f"
    head = (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x01\x00\x05range\x00\x2b"
        + member_id.encode()
        + b"\x00\x00\x01\xa1\xfd6\x99\x02\x00\x00\x00\x01"
    )
    group = Group("eos-live", 0x1A1FD369902, GroupState.STABLE)
    group.generation_id = 1
    group.protocol_name = "range"
    group.add(
        Member(member_id, None, "client", "/127.0.0.1", 10, 20, "consumer", (("range", b"x"),)),
        None,
    )
    assert group_key("eos-live") == key
    assert read_key(key) == GroupKey("eos-live")
    assert run_at_once(group_value(group, {member_id: b"a"})).startswith(head)


# Against the codec of the stored messages.


@given(names, names, indexes)
def test_offset_keys(group: str, topic: str, index: int) -> None:
    key = offset_key(group, TopicPartition(topic, index))
    assert key == b"\x00\x01" + encoder(OffsetCommitKey, 1)(OffsetCommitKey(group, topic, index))
    assert read_key(key) == OffsetKey(group, TopicPartition(topic, index))
    assert read_key(b"\x00\x00" + key[2:]) == read_key(key)


@given(numbers, indexes, names, numbers)
def test_offset_values(offset: int, epoch: int, metadata: str, timestamp: int) -> None:
    committed = CommittedOffset(offset, epoch, metadata, timestamp)
    data = offset_value(committed)
    assert decoder(OffsetCommitValue, 3)(data, 2)[0] == OffsetCommitValue(
        offset, epoch, metadata, timestamp
    )
    assert read_offset_value(data, 7) == committed._replace(appended_at=7)


def test_an_expiry_time_is_written_in_version_1() -> None:
    committed = CommittedOffset(5, 9, "m", NOW, NOW + 1)
    data = offset_value(committed)
    assert data[:2] == b"\x00\x01"
    assert read_offset_value(data, 0) == CommittedOffset(5, -1, "m", NOW, NOW + 1, 0)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("metadata", ["", "note"])
def test_every_version_of_an_offset_is_read(version: int, metadata: str) -> None:
    message = OffsetCommitValue(5, 2, metadata, NOW, NOW + 1 if version == 1 else -1)
    data = version.to_bytes(2) + encoder(OffsetCommitValue, version)(message)
    found = read_offset_value(data, 3)
    assert (found.offset, found.metadata, found.appended_at) == (5, metadata, 3)
    assert found.leader_epoch == (2 if version >= 3 else -1)
    assert found.expire_timestamp_ms == (NOW + 1 if version == 1 else -1)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_every_version_of_a_group_is_read(version: int) -> None:
    message = GroupMetadataValue(
        "consumer",
        4,
        "range",
        "b",
        NOW if version >= 2 else -1,
        [
            MemberMetadata(
                "a", "i" if version >= 3 else None, "c", "/h", 11 if version else -1, 22, b"s", b"x"
            ),
            MemberMetadata("b", None, "c", "/h", 33 if version else -1, 44, b"t", b"y"),
        ],
    )
    data = version.to_bytes(2) + encoder(GroupMetadataValue, version)(message)
    group = run_at_once(read_group_value("g", data, NOW + 9))
    assert group.state is GroupState.STABLE
    assert (group.generation_id, group.protocol_name, group.leader_id) == (4, "range", "b")
    assert group.state_timestamp_ms == (NOW if version >= 2 else -1)
    member = group.members["a"]
    assert (member.session_timeout_ms, member.assignment) == (22, b"x")
    assert member.rebalance_timeout_ms == (11 if version else 22)
    assert member.protocols == (("range", b"s"),)
    assert group.static_members == ({"i": "a"} if version >= 3 else {})


def test_a_group_without_members_is_empty() -> None:
    message = GroupMetadataValue("consumer", 4, None, None, NOW, [])
    data = b"\x00\x03" + encoder(GroupMetadataValue, 3)(message)
    group = run_at_once(read_group_value("g", data, NOW))
    assert (group.state, group.leader_id, group.protocol_name) == (GroupState.EMPTY, None, None)
    assert group.subscribed_topics == frozenset()
    assert run_at_once(group_value(group, {})) == data


def test_a_large_group_pauses_between_members() -> None:
    members = [
        MemberMetadata(f"m{each}", None, "c", "/h", 33, 44, b"s%d" % each, b"a%d" % each)
        for each in range(200)
    ]
    message = GroupMetadataValue("consumer", 4, "range", "m7", NOW, members)
    data = b"\x00\x03" + encoder(GroupMetadataValue, 3)(message)
    reading = read_group_value("g", data, NOW)
    pauses = sum(1 for _ in iter(lambda: next(reading, reading), reading))
    assert pauses > 3
    group = run_at_once(read_group_value("g", data, NOW))
    writing = group_value(group, {each.member_id: each.assignment for each in members})
    assert run_at_once(writing) == data
    assert list(group.members) == [each.member_id for each in members]


# Foreign bytes.


@pytest.mark.parametrize("version", [3, 8, 15, -1, 32_767])
def test_keys_of_other_protocols_are_nothing_to_us(version: int) -> None:
    assert read_key(version.to_bytes(2, signed=True) + b"anything") is None


@given(st.binary(max_size=40))
def test_foreign_keys_are_refused_with_a_reason(key: bytes) -> None:
    with suppress(UnreadableRecord):  # and nothing else
        read_key(key)


@given(st.binary(max_size=60))
def test_foreign_values_are_refused_with_a_reason(value: bytes) -> None:
    for version in range(6):
        data = version.to_bytes(2) + value
        for read in (
            lambda d: read_offset_value(d, 0),
            lambda d: run_at_once(read_group_value("g", d, NOW)),
        ):
            with suppress(UnreadableRecord):
                read(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x05" + bytes(30), b"\x00\x03\x00", b"\xff\xff" + bytes(40)]
)
def test_truncated_and_unknown_values(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        read_offset_value(data, 0)
    with pytest.raises(UnreadableRecord):
        run_at_once(read_group_value("g", data, NOW))
