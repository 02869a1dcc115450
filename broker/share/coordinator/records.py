"""The records of `__share_group_state`, in the format of Kafka 4.3.

The first two bytes of a key are its type: 0 a ShareSnapshot, 1 a ShareUpdate. A snapshot holds the
whole state of a share partition, an update what changed since the record before it. A snapshot
without a value removes the state. Values begin with their version, 0.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ottla.broker.coordination.stored_records import UnreadableRecord
from ottla.broker.share.coordinator.state import ShareState
from ottla.broker.share.persister import SharePartitionKey, StateBatch, StateUpdate
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.stored import share_snapshot, share_update

SNAPSHOT = 0
UPDATE = 1
_VALUE_VERSION = 0

_SHORT = Struct(">h")
_VERSION = _SHORT.pack(_VALUE_VERSION)


class StateRecord(NamedTuple):
    """A record of one share partition: a snapshot, an update, or neither for a tombstone."""

    key: SharePartitionKey
    snapshot: ShareState | None = None
    update: StateUpdate | None = None


def snapshot_record(key: SharePartitionKey, state: ShareState) -> tuple[bytes, bytes]:
    value = share_snapshot.ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_timestamp_ms,
        write_timestamp=state.write_timestamp_ms,
        state_batches=[share_snapshot.StateBatch(*batch) for batch in state.batches],
    )
    return _snapshot_key(key), _VERSION + encoder(type(value), _VALUE_VERSION)(value)


def update_record(
    key: SharePartitionKey, state: ShareState, update: StateUpdate
) -> tuple[bytes, bytes]:
    """An update to `state`, which has it already."""
    stored_key = share_update.ShareUpdateKey(*key)
    value = share_update.ShareUpdateValue(
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=[share_update.StateBatch(*batch) for batch in update.batches],
    )
    return (
        _SHORT.pack(UPDATE) + encoder(type(stored_key), 0)(stored_key),
        _VERSION + encoder(type(value), _VALUE_VERSION)(value),
    )


def tombstone(key: SharePartitionKey) -> tuple[bytes, None]:
    return _snapshot_key(key), None


def _snapshot_key(key: SharePartitionKey) -> bytes:
    stored_key = share_snapshot.ShareSnapshotKey(*key)
    return _SHORT.pack(SNAPSHOT) + encoder(type(stored_key), 0)(stored_key)


def read_record(key: bytes, value: bytes | None) -> StateRecord | None:
    """Return the record; None for types of later versions. Raises UnreadableRecord."""
    if len(key) < 2:
        raise UnreadableRecord(f"the key {key!r} is truncated")
    kind: int = _SHORT.unpack_from(key)[0]
    try:
        if kind == SNAPSHOT:
            return _read_snapshot(key, value)
        if kind == UPDATE:
            return _read_update(key, value)
    except ProtocolError as problem:
        raise UnreadableRecord(f"the record with key {key[:64]!r}: {problem}") from None
    return None


def _read_snapshot(key: bytes, value: bytes | None) -> StateRecord:
    found, _ = decoder(share_snapshot.ShareSnapshotKey, 0)(key, 2)
    where = SharePartitionKey(found.group_id, found.topic_id, found.partition)
    if value is None:
        return StateRecord(where)
    _check_version(value)
    row, _ = decoder(share_snapshot.ShareSnapshotValue, _VALUE_VERSION)(value, 2)
    state = ShareState(
        row.snapshot_epoch,
        row.state_epoch,
        row.leader_epoch,
        row.start_offset,
        row.delivery_complete_count,
        row.create_timestamp,
        row.write_timestamp,
        tuple(_batch(batch) for batch in row.state_batches),
    )
    return StateRecord(where, snapshot=state)


def _read_update(key: bytes, value: bytes | None) -> StateRecord | None:
    found, _ = decoder(share_update.ShareUpdateKey, 0)(key, 2)
    if value is None:
        return None
    _check_version(value)
    row, _ = decoder(share_update.ShareUpdateValue, _VALUE_VERSION)(value, 2)
    update = StateUpdate(
        -1,
        row.leader_epoch,
        row.start_offset,
        row.delivery_complete_count,
        tuple(_batch(batch) for batch in row.state_batches),
    )
    where = SharePartitionKey(found.group_id, found.topic_id, found.partition)
    return StateRecord(where, update=update)


def _check_version(value: bytes) -> None:
    if len(value) < 2 or _SHORT.unpack_from(value)[0] != _VALUE_VERSION:
        raise UnreadableRecord(f"the value {value[:8]!r} has an unknown version")


def _batch(row: share_snapshot.StateBatch | share_update.StateBatch) -> StateBatch:
    return StateBatch(row.first_offset, row.last_offset, row.delivery_state, row.delivery_count)
