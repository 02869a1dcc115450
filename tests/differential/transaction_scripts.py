"""Conversations about transactions, good and bad, in every version of every request.

Held with Apache Kafka and with Ottla; the responses must be the same. Every conversation uses
transactional ids of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.differential import group_requests
from tests.differential.group_requests import commit, fetch, join, sync, until
from tests.doubles.transcript import Transcript

Script = Callable[[Transcript], None]
Producer = tuple[int, int]

TIMEOUT_MS = 60_000


def prepare(t: Transcript) -> None:
    """Topics, and a first producer id: Kafka's broker requests its block of them then."""
    group_requests.prepare(t)
    until(t, InitProducerIdRequest(None), 0, lambda response: "error_code=0" in repr(response))


def init(
    t: Transcript,
    transactional_id: str | None,
    version: int = 5,
    timeout_ms: int = TIMEOUT_MS,
    producer: Producer = (-1, -1),
) -> Producer:
    """Ask until nothing is in the way any more, note the last response."""
    request = InitProducerIdRequest(transactional_id, timeout_ms, *producer)
    if transactional_id:
        until(t, describe(transactional_id), 0, is_settled)
    response = t.ask(request, version)
    assert isinstance(response, InitProducerIdResponse)
    return response.producer_id, response.producer_epoch


def is_settled(response: Message) -> bool:
    return "'Prepare" not in repr(response)


def describe(*transactional_ids: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(list(transactional_ids))


def add(
    transactional_id: str, producer: Producer, topics: dict[str, list[int]]
) -> AddPartitionsToTxnRequest:
    """Versions 0 to 3."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name, found) for name, found in topics.items()
        ],
    )


def add_transaction(
    transactional_id: str,
    producer: Producer,
    topics: dict[str, list[int]],
    *,
    verify_only: bool = False,
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id,
        *producer,
        verify_only,
        [AddPartitionsToTxnTopic(name, found) for name, found in topics.items()],
    )


def txn_offsets(
    transactional_id: str,
    group: str,
    producer: Producer,
    offsets: dict[tuple[str, int], int],
    *,
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = "",
) -> TxnOffsetCommitRequest:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            TxnOffsetCommitRequestPartition(index, offset, -1, metadata)
        )
    return TxnOffsetCommitRequest(
        transactional_id,
        group,
        *producer,
        generation,
        member_id,
        instance,
        [TxnOffsetCommitRequestTopic(name, rows) for name, rows in topics.items()],
    )


def end(transactional_id: str, producer: Producer, committed: bool) -> EndTxnRequest:
    return EndTxnRequest(transactional_id, *producer, committed)


# Conversations.


def producer_ids_in_every_version(t: Transcript) -> None:
    for version in range(6):
        t.say(f"InitProducerId v{version}")
        init(t, None, version)
        init(t, "", version)
        init(t, f"init-{version}", version, timeout_ms=0)
        init(t, f"init-{version}", version, timeout_ms=-1)
        init(t, f"init-{version}", version, timeout_ms=900_001)
        producer = init(t, f"init-{version}", version)
        init(t, f"init-{version}", version)
        if version >= 3:
            init(t, f"init-{version}", version, producer=producer)
            producer = init(t, f"init-{version}", version)
            t.say("the same epoch counted up, asked twice")
            init(t, f"init-{version}", version, producer=producer)
            init(t, f"init-{version}", version, producer=producer)
            init(t, f"init-{version}", version, producer=(producer[0], 0))
            init(t, f"init-{version}", version, producer=(producer[0] + 100_000, 0))
            init(t, f"init-{version}", version, producer=(producer[0], -1))
            init(t, f"init-{version}", version, producer=(-1, 5))
            init(t, f"init-{version}", version, producer=(producer[0], 32_767))
            t.say("an unknown transactional id with a producer id")
            init(t, f"init-new-{version}", version, producer=(5, 3))
        init(t, None, version, timeout_ms=-1)
    t.say("merely idempotent, with an id")
    init(t, None, 5, producer=(7, 7))


def a_transaction_in_every_version(t: Transcript) -> None:
    for version in range(5):
        name = f"txn-{version}"
        add_version = min(version, 3)
        t.say(f"a transaction, EndTxn v{version}")
        producer = init(t, name)
        t.ask(describe(name), 0)
        t.ask(end(name, producer, True), version)
        t.ask(add(name, producer, {"t": [0, 1]}), add_version)
        t.ask(describe(name), 0)
        t.ask(add(name, producer, {"t": [1]}), add_version)
        t.ask(add(name, producer, {"t": [0], "nowhere": [0], "u": [5]}), add_version)
        t.ask(add(name, producer, {}), add_version)
        t.ask(ListTransactionsRequest(["Ongoing"]), 0)
        t.say("mistakes")
        for other in ((producer[0], producer[1] + 1), (producer[0] + 9, 0), (-1, -1)):
            t.ask(add(name, other, {"t": [0]}), add_version)
            t.ask(AddOffsetsToTxnRequest(name, *other, "g"), version)
            t.ask(end(name, other, True), version)
        for unknown in ("unknown", ""):
            t.ask(add(unknown, producer, {"t": [0]}), add_version)
            t.ask(AddOffsetsToTxnRequest(unknown, *producer, "g"), version)
            t.ask(end(unknown, producer, False), version)
        t.say("commit, again, abort")
        t.ask(end(name, producer, True), version)
        until(t, describe(name), 0, is_settled)
        t.ask(describe(name), 0)
        t.ask(end(name, producer, True), version)
        t.ask(end(name, producer, False), version)
        t.say("another one, aborted")
        t.ask(add(name, producer, {"u": [0]}), add_version)
        t.ask(end(name, producer, False), version)
        until(t, describe(name), 0, is_settled)
        t.ask(end(name, producer, False), version)
        t.ask(end(name, producer, True), version)
        t.ask(describe(name), 0)
        t.say("a producer starts while a transaction is open: it is aborted and fenced")
        t.ask(add(name, producer, {"u": [0]}), add_version)
        response = t.ask(InitProducerIdRequest(name, TIMEOUT_MS), 5)
        assert isinstance(response, InitProducerIdResponse)
        assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        until(t, describe(name), 0, is_settled)
        t.ask(describe(name), 0)
        for_old = t.ask(end(name, producer, True), version)
        assert for_old is not None
        t.ask(add(name, producer, {"u": [0]}), add_version)
        init(t, name)
        t.ask(end(name, producer, True), version)
        t.ask(AddOffsetsToTxnRequest(name, *producer, "g"), version)


def for_brokers(t: Transcript) -> None:
    for version in (4, 5):
        first = init(t, "batch-1")
        second = init(t, "batch-2")
        t.say(f"AddPartitionsToTxn v{version}: several at once")
        t.ask(
            AddPartitionsToTxnRequest(
                transactions=[
                    add_transaction("batch-1", first, {"t": [0], "u": [0]}),
                    add_transaction("batch-2", second, {"nowhere": [0], "u": [0]}),
                    add_transaction("unknown", second, {"u": [0]}),
                    add_transaction("", second, {"u": [0]}),
                ]
            ),
            version,
        )
        t.say("verify only")
        t.ask(
            AddPartitionsToTxnRequest(
                transactions=[
                    add_transaction("batch-1", first, {"t": [0, 1]}, verify_only=True),
                    add_transaction("batch-2", second, {"u": [0]}, verify_only=True),
                    add_transaction("unknown", second, {"u": [0]}, verify_only=True),
                    add_transaction("", second, {"u": [0]}, verify_only=True),
                ]
            ),
            version,
        )
        for wrong in ((first[0], first[1] + 1), (first[0] + 50, 0)):
            t.ask(
                AddPartitionsToTxnRequest(
                    transactions=[add_transaction("batch-1", wrong, {"t": [0]}, verify_only=True)]
                ),
                version,
            )
        t.ask(describe("batch-1", "batch-2"), 0)
        t.ask(end("batch-1", first, True), 4)
        until(t, describe("batch-1"), 0, is_settled)
        t.ask(
            AddPartitionsToTxnRequest(
                transactions=[add_transaction("batch-1", first, {"t": [0]}, verify_only=True)]
            ),
            version,
        )
    t.say("markers written by hand")
    for version in (0, 1):
        t.ask(WriteTxnMarkersRequest([]), version)
        t.ask(
            WriteTxnMarkersRequest(
                [
                    WritableTxnMarker(
                        first[0],
                        first[1],
                        False,
                        [
                            WritableTxnMarkerTopic("nowhere", [0]),
                            WritableTxnMarkerTopic("t", [9]),
                        ],
                        0,
                    )
                ]
            ),
            version,
        )
        t.ask(
            WriteTxnMarkersRequest(
                [
                    WritableTxnMarker(
                        first[0],
                        first[1],
                        True,
                        [
                            WritableTxnMarkerTopic("nowhere", [0]),
                            WritableTxnMarkerTopic("t", [0]),
                            WritableTxnMarkerTopic("u", [0]),
                        ],
                        0,
                    )
                ]
            ),
            version,
        )


def offsets_in_a_transaction(t: Transcript) -> None:
    for version in range(5):
        name = f"eos-{version}"
        group = f"eos-group-{version}"
        t.say(f"offsets in a transaction, TxnOffsetCommit v{version}")
        producer = init(t, name)
        t.ask(txn_offsets(name, group, producer, {("t", 0): 5}), version)
        t.ask(AddOffsetsToTxnRequest(name, *producer, group), min(version, 4))
        t.ask(
            txn_offsets(
                name,
                group,
                producer,
                {("t", 0): 5, ("t", 9): 5, ("nowhere", 0): 1},
                metadata="note",
            ),
            version,
        )
        t.ask(txn_offsets(name, group, producer, {("t", 1): 5}, metadata=None), version)
        t.ask(txn_offsets(name, group, producer, {("t", 1): 5}, metadata="m" * 4_097), version)
        t.ask(txn_offsets(name, group, producer, {}), version)
        t.ask(txn_offsets(name, "", producer, {("t", 0): 5}), version)
        t.ask(fetch(group, {"t": [0, 1]}, 7), 7)
        t.ask(fetch(group, {"t": [0, 1], "u": [0]}, 7, stable=True), 7)
        t.ask(fetch(group, None, 8, stable=True), 8)
        t.say("a plain commit beside it")
        t.ask(commit(group, {("u", 0): 1}), 7)
        t.ask(fetch(group, {"u": [0]}, 7, stable=True), 7)
        if version >= 3:
            t.say("a member of a group that has none")
            t.ask(
                txn_offsets(name, group, producer, {("t", 0): 6}, member_id="absent", generation=1),
                version,
            )
            t.ask(txn_offsets(name, group, producer, {("t", 0): 6}, generation=1), version)
            t.ask(txn_offsets(name, group, producer, {("t", 0): 6}, instance="i"), version)
        t.say("committed")
        t.ask(end(name, producer, True), 4)
        until(t, describe(name), 0, is_settled)
        until(t, fetch(group, {"t": [0]}, 7, stable=True), 7, is_stable)
        t.ask(fetch(group, None, 7, stable=True), 7)
        t.say("the next transaction is aborted")
        t.ask(AddOffsetsToTxnRequest(name, *producer, group), min(version, 4))
        t.ask(txn_offsets(name, group, producer, {("t", 0): 99}), version)
        t.ask(end(name, producer, False), 4)
        until(t, describe(name), 0, is_settled)
        until(t, fetch(group, {"t": [0]}, 7, stable=True), 7, is_stable)
        t.ask(fetch(group, {"t": [0]}, 7, stable=True), 7)
        t.say("and what comes after the end")
        t.ask(txn_offsets(name, group, producer, {("t", 0): 100}), version)
    t.say("from a member of a live group")
    group = "eos-live"
    response = t.ask(join(group), 3)
    assert isinstance(response, JoinGroupResponse)
    member = response.member_id
    producer = init(t, "eos-live")
    t.ask(AddOffsetsToTxnRequest("eos-live", *producer, group), 3)
    t.ask(txn_offsets("eos-live", group, producer, {("t", 0): 1}), 2)
    t.ask(
        txn_offsets("eos-live", group, producer, {("t", 0): 2}, member_id=member, generation=1),
        3,
    )
    t.ask(sync(group, member, 1, {member: b""}), 3)
    t.ask(
        txn_offsets("eos-live", group, producer, {("t", 0): 3}, member_id=member, generation=1),
        3,
    )
    t.ask(
        txn_offsets("eos-live", group, producer, {("t", 0): 4}, member_id=member, generation=2),
        3,
    )
    t.ask(txn_offsets("eos-live", group, producer, {("t", 0): 5}, member_id="x"), 3)
    t.ask(end("eos-live", producer, True), 3)
    until(t, fetch(group, {"t": [0]}, 7, stable=True), 7, is_stable)
    t.ask(fetch(group, {"t": [0]}, 7, stable=True), 7)


def is_stable(response: Message) -> bool:
    return f"error_code={ErrorCode.UNSTABLE_OFFSET_COMMIT}" not in repr(response)


def listing(t: Transcript) -> None:
    producer = init(t, "listed")
    t.ask(add("listed", producer, {"t": [0]}), 3)
    for version in (0, 1):
        t.say(f"ListTransactions v{version}")
        mine = [producer[0]]
        t.ask(ListTransactionsRequest([], mine), version)
        t.ask(ListTransactionsRequest(["Ongoing"], mine), version)
        t.ask(ListTransactionsRequest(["Ongoing", "Nonsense", "ongoing"], mine), version)
        t.ask(ListTransactionsRequest(["Nonsense"], mine), version)
        t.ask(ListTransactionsRequest(["PrepareEpochFence", "Dead"], mine), version)
        t.ask(ListTransactionsRequest(["Empty"], mine), version)
        t.ask(ListTransactionsRequest([], [-1]), version)
    t.ask(ListTransactionsRequest([], mine, 1_000_000), 1)
    t.ask(ListTransactionsRequest([], mine, -5), 1)
    t.ask(describe("listed", "unknown", "", "listed"), 0)
    t.ask(describe(), 0)
    t.ask(end("listed", producer, False), 3)
    until(t, describe("listed"), 0, is_settled)


def time_outs(t: Transcript) -> None:
    t.say("a transaction that is open for too long is aborted by the broker")
    producer = init(t, "slow", timeout_ms=100)
    t.ask(add("slow", producer, {"t": [0]}), 3)
    until(t, describe("slow"), 0, lambda response: "CompleteAbort" in repr(response))
    t.ask(describe("slow"), 0)
    t.ask(end("slow", producer, True), 3)
    t.ask(add("slow", producer, {"t": [0]}), 3)
    t.say("the producer requests another epoch")
    init(t, "slow", producer=producer)
    init(t, "slow")


SCRIPTS: tuple[Script, ...] = (
    producer_ids_in_every_version,
    a_transaction_in_every_version,
    for_brokers,
    offsets_in_a_transaction,
    listing,
    time_outs,
)
