"""The bytes of `__transaction_state`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.coordination.stored_records import UnreadableRecord
from ottla.broker.transactions.records import (
    read_key,
    read_value,
    transaction_key,
    transaction_value,
)
from ottla.broker.transactions.state import TransactionState, TransactionValue
from ottla.protocol.codec import encoder
from ottla.protocol.messages.stored.transaction_log import PartitionsSchema, TransactionLogValue
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.transactions.helpers import T0, T1, U0

S = TransactionState
TIME = 0x1A1FD369091

# What Apache Kafka 3.9.1 wrote.
EMPTY = (
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\xea`\x00\xff\xff\xff\xff"
    b"\x00\x00\x01\xa1\xfd6\x90\x91\xff\xff\xff\xff\xff\xff\xff\xff"
)
ONGOING = (
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x17\x00\x00\x00\x00\xea`\x01\x00\x00\x00\x01"
    b"\x00\x01u\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01\xa1\xfd6\x90\x91"
    b"\x00\x00\x01\xa1\xfd6\x90\x90"
)
COMPLETE = (
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x17\x00\x00\x00\x00\xea`\x04\x00\x00\x00\x00"
    b"\x00\x00\x01\xa1\xfd6\x90\x91\x00\x00\x01\xa1\xfd6\x90\x90"
)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (EMPTY, TransactionValue(S.EMPTY, 2, 0, 60_000, update_timestamp_ms=TIME)),
        (
            ONGOING,
            TransactionValue(S.ONGOING, 23, 0, 60_000, frozenset((U0,)), TIME - 1, TIME),
        ),
        (
            COMPLETE,
            TransactionValue(S.COMPLETE_COMMIT, 23, 0, 60_000, frozenset(), TIME - 1, TIME),
        ),
    ],
)
def test_values_as_kafka_writes_them(data: bytes, value: TransactionValue) -> None:
    assert transaction_value(value) == data
    assert read_value("x", data) == value


def test_a_key_as_kafka_writes_it() -> None:
    assert transaction_key("init-0") == b"\x00\x00\x00\x06init-0"
    assert read_key(b"\x00\x00\x00\x06init-0") == "init-0"


@given(
    st.sampled_from([state for state in S if state is not S.EMPTY]),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 32_767),
    st.integers(1, 2**31 - 1),
    st.frozensets(
        st.builds(TopicPartition, st.sampled_from(["t", "u", "v"]), st.integers(0, 50)), max_size=9
    ),
)
def test_what_is_written_is_read(
    state: TransactionState,
    producer_id: int,
    epoch: int,
    timeout_ms: int,
    partitions: frozenset[TopicPartition],
) -> None:
    value = TransactionValue(state, producer_id, epoch, timeout_ms, partitions, 5, 6)
    assert read_value("x", transaction_value(value)) == value


def test_version_1_is_read() -> None:
    stored = TransactionLogValue(7, 1, 1_000, S.ONGOING, [PartitionsSchema("t", [0, 1])], 9, 8)
    data = b"\x00\x01" + encoder(TransactionLogValue, 1)(stored)
    assert read_value("x", data).partitions == {T0, T1}


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x02" + bytes(50), ONGOING[:-1], EMPTY[:16] + b"\x09" + EMPTY[17:]]
)
def test_foreign_values_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="transactional id x"):
        read_value("x", data)


def test_keys_of_other_versions_are_nothing_to_us() -> None:
    assert read_key(b"\x00\x01\x00\x01x") is None


@given(st.binary(max_size=40))
def test_foreign_bytes_raise_nothing_else(data: bytes) -> None:
    with suppress(UnreadableRecord):
        read_key(data)
    with suppress(UnreadableRecord):
        read_value("x", b"\x00\x00" + data)
