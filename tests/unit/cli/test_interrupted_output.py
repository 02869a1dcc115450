"""A record that was not written to the output is not committed, nor acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.cli import group_member, share_member, zookeeper_consumer
from ottla.cli.reader import TopicReader
from ottla.cli.session import Session
from ottla.cli.share_session import AcknowledgeType, AcquiredRecord, SharePartition
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition

T0 = TopicPartition("t", 0)
RECORDS = [Record(offset, 0, 0, None, b"v", []) for offset in range(3)]


class Output:
    """Takes the place of standard output."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.buffer = self
        self.text = b""
        self._is_full = is_full

    def write(self, data: bytes) -> None:
        self.text += data

    def flush(self) -> None:
        if self._is_full:
            raise OSError(28, "No space left on device")


def interrupted_at(offset: int) -> Any:
    """Formats a record; Ctrl-C comes while it formats that one."""

    def show(_topic: str, _partition: int, record: Record) -> bytes:
        if record.offset == offset:
            raise KeyboardInterrupt
        return b"%d" % record.offset

    return show


def test_a_reader_has_not_read_what_was_interrupted() -> None:
    batch = build_batch([(0, None, b"v", None)] * 3)
    data = PartitionData(partition_index=0, records=batch)
    topic = FetchableTopicResponse(topic="t", partitions=[data])
    session = SimpleNamespace(
        call=lambda *_, **__: FetchResponse(responses=[topic]),
        leader=lambda _: SimpleNamespace(node_id=1),
    )
    reader = TopicReader(cast(Session, session), {T0: 0}, None)

    def read() -> None:
        for item, record in reader.records():
            with reader.processing(item, record):
                interrupted_at(1)("t", 0, record)

    with pytest.raises(KeyboardInterrupt):
        read()
    assert reader.positions == {T0: 1}


class Member:
    """Of a consumer group; its reader has the three records."""

    committed: dict[TopicPartition, int] | None = None

    def __init__(self, *_: object) -> None:
        Member.committed = None

    def join(self) -> list[TopicPartition]:
        return [T0]

    def is_current(self) -> bool:
        return True

    def commit(self, positions: dict[TopicPartition, int]) -> None:
        Member.committed = dict(positions)

    def leave(self) -> None:
        """Nothing to leave."""


class Reader(TopicReader):
    def one_round(self) -> Iterator[tuple[TopicPartition, Record]]:
        for record in RECORDS:
            self.positions[T0] = record.offset + 1
            yield T0, record


@pytest.mark.parametrize(("is_full", "committed"), [(False, {T0: 1}), (True, None)])
def test_a_member_of_a_group(
    monkeypatch: pytest.MonkeyPatch, is_full: bool, committed: dict[TopicPartition, int] | None
) -> None:
    monkeypatch.setattr("sys.stdout", Output(is_full=is_full))
    monkeypatch.setattr(group_member, "GroupMember", Member)
    monkeypatch.setattr(group_member, "TopicReader", Reader)
    monkeypatch.setattr(group_member, "offsets_at", lambda *_: {T0: 0})
    monkeypatch.setattr(group_member, "committed", lambda *_: {})

    session = SimpleNamespace(waiting_for_cluster=nullcontext)

    def follow() -> None:
        group_member.follow_as_member(
            cast(Session, session),
            *("g", "t", interrupted_at(1), lambda _: True, None),
            from_beginning=True,
            read_committed=False,
        )

    if is_full:
        with pytest.raises(OSError, match="No space left"):
            follow()
    else:
        follow()
    assert Member.committed == committed


class SharedMember:
    """Of a share group, with one fetch of the three records."""

    def __init__(self, *_: object) -> None:
        self.types: dict[int, AcknowledgeType] = {}
        self.acknowledged: dict[int, AcknowledgeType] = {}

    def join(self) -> None:
        """There is nothing to wait for."""

    def poll(self, _most: int) -> Any:
        where = SharePartition(b"t" * 16, 0)
        yield self, [AcquiredRecord(where, record, 1) for record in RECORDS]

    def set_type(self, item: AcquiredRecord, kind: AcknowledgeType) -> None:
        self.types[item.record.offset] = kind

    def acknowledge(self) -> int:
        self.acknowledged = dict(self.types)
        return 0

    def leave(self) -> None:
        """Nothing to leave."""


@pytest.mark.parametrize(("is_full", "acknowledged"), [(False, [0]), (True, [])])
def test_a_member_of_a_share_group(
    monkeypatch: pytest.MonkeyPatch, is_full: bool, acknowledged: list[int]
) -> None:
    member = SharedMember()
    monkeypatch.setattr("sys.stdout", Output(is_full=is_full))
    monkeypatch.setattr(share_member, "ShareMember", lambda *_: member)

    def consume() -> None:
        share_member.consume_shared(
            cast(Session, None),
            *("g", "t", interrupted_at(1), None, AcknowledgeType.ACCEPT),
            follow=True,
        )

    if is_full:
        with pytest.raises(OSError, match="No space left"):
            consume()
    else:
        consume()
    assert list(member.acknowledged) == acknowledged


class OldConsumer:
    """Of Kafka 0.8; commits its positions when it is closed."""

    def __init__(self, *_: object, **__: object) -> None:
        self.consumer_id = "c"
        self.positions = {T0: 0}

    def __enter__(self) -> OldConsumer:
        OldConsumer.committed = {}
        return self

    def __exit__(self, *_: object) -> None:
        OldConsumer.committed = dict(self.positions)

    def poll(self) -> list[tuple[TopicPartition, Record]]:
        self.positions[T0] = 3
        return [(T0, record) for record in RECORDS]

    committed: dict[TopicPartition, int]


@pytest.mark.parametrize(("is_full", "position"), [(False, 1), (True, 0)])
def test_a_consumer_of_zookeeper(
    monkeypatch: pytest.MonkeyPatch, is_full: bool, position: int
) -> None:
    monkeypatch.setattr("sys.stdout", Output(is_full=is_full))
    monkeypatch.setattr("ottla.cli.zookeeper_consumer.ZookeeperConsumer", OldConsumer)
    monkeypatch.setattr("ottla.cli.zookeeper_consumer.bootstrap_of", lambda _: "h:1")
    tree = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("ottla.cli.zookeeper_tree.KazooTree", lambda _: tree)
    session = cast(Session, SimpleNamespace(bootstrap=""))

    def consume() -> None:
        zookeeper_consumer.consume_in_group(
            session, "z", "g", "t", interrupted_at(1), None, from_beginning=True
        )

    if is_full:
        with pytest.raises(OSError, match="No space left"):
            consume()
    else:
        consume()
    assert OldConsumer.committed == {T0: position}
