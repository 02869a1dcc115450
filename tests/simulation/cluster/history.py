"""What clients know, and what must therefore be in the logs: the oracles of the simulation."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.topics import TopicPartition


class Transaction:
    """One transaction: what was sent in it and how it ended, as far as its client knows."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: list[tuple[int, bytes]] = []
        self.outcome = "unknown"

    def wrote(self, partition: int, values: list[bytes]) -> None:
        self.values.extend((partition, value) for value in values)

    def committed(self) -> None:
        self.outcome = "committed"

    def aborted(self) -> None:
        self.outcome = "aborted"


class Kept(NamedTuple):
    """One record of a log as a consumer sees it."""

    offset: int
    value: bytes
    visible: bool  # to read_committed


class History:
    """Notes of all clients of a simulation."""

    def __init__(self) -> None:
        self._acknowledged: dict[tuple[str, int], dict[int, bytes]] = {}
        self._written: dict[tuple[str, int], set[bytes]] = {}
        self._consumed: dict[tuple[str, int], dict[int, bytes]] = {}
        self._read: dict[tuple[str, int], dict[int, bytes]] = {}
        self._once: dict[str, None] = {}
        self.transactions: list[Transaction] = []
        self._offsets: dict[str, int] = {}
        #: The least offset of each partition, by group and partition, of groups that share them.
        self.shared_offsets: dict[tuple[str, str], int] = {}
        self._sent_offsets: dict[tuple[str, str], set[int]] = {}

    def sends_once(self, producer: str) -> None:
        """The records of this producer must not be doubled."""
        self._once[producer] = None

    def acknowledged(self, topic: str, partition: int, offset: int, values: list[bytes]) -> None:
        """acks=all was acknowledged: from now on these are at these offsets."""
        known = self._acknowledged.setdefault((topic, partition), {})
        known.update((offset + each, value) for each, value in enumerate(values))

    def acknowledged_in(self, topic: str, partition: int) -> dict[int, bytes]:
        """What was acknowledged, by offset."""
        return self._acknowledged.get((topic, partition), {})

    def written(self, topic: str, partition: int, values: list[bytes]) -> None:
        """They are somewhere."""
        self._written.setdefault((topic, partition), set()).update(values)

    def consumed(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        """A read_committed consumer got it."""
        self._consumed.setdefault((topic, partition), {})[offset] = value

    def read(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        """A read_uncommitted consumer got it: it is committed, if not its transaction."""
        self._read.setdefault((topic, partition), {})[offset] = value

    def begin(self, _producer: str, topic: str) -> Transaction:
        transaction = Transaction(topic)
        self.transactions.append(transaction)
        return transaction

    def offset_sent(self, group: str, topic: str, partition: int, number: int) -> None:
        """A commit is sent, with an outcome that may stay unknown."""
        key = group, str(TopicPartition(topic, partition))
        self._sent_offsets.setdefault(key, set()).add(number)

    def may_appear(self, key: tuple[str, str], number: int | None, known: int | None) -> bool:
        """Whether the coordinator may find this offset in its log, with `known` in memory.

        A commit whose append times out is in the log, and not in memory until the next load
        (Kafka: `GroupMetadata.failPendingOffsetWrite`). It was sent, later than the one in memory,
        and never acknowledged.
        """
        least = max(self.shared_offsets.get(key, -1), self._offsets.get(key[0], -1))
        return (
            number is not None
            and number > (-1 if known is None else known)
            and number > least
            and number in self._sent_offsets.get(key, ())
        )

    def offset_committed(self, producer: str, position: int) -> None:
        self._offsets[f"group-{producer}"] = position

    def offset_committed_in(self, group: str, topic: str, partition: int, number: int) -> None:
        key = group, str(TopicPartition(topic, partition))
        self.shared_offsets[key] = max(number, self.shared_offsets.get(key, 0))

    @property
    def committed_offsets(self) -> dict[str, int]:
        """The least offset that each group must have."""
        return self._offsets

    def check(self, topic: str, partition: int, kept: list[Kept]) -> list[str]:
        """What is wrong with the log of a partition, from its start, when all is quiet."""
        complaints: list[str] = []
        where = f"{topic}-{partition}"
        by_offset = {each.offset: each.value for each in kept}
        for offset, value in self._acknowledged.get((topic, partition), {}).items():
            if by_offset.get(offset) != value:
                complaints.append(
                    f"{where}: {value!r} was acknowledged at offset {offset}, where there is "
                    f"{by_offset.get(offset)!r}"
                )
                break
        for offset, value in self._read.get((topic, partition), {}).items():
            if by_offset.get(offset) != value:
                complaints.append(
                    f"{where}: a consumer got {value!r} at offset {offset}, where there is "
                    f"{by_offset.get(offset)!r}"
                )
                break
        visible_at = {each.offset: each.value for each in kept if each.visible}
        for offset, value in self._consumed.get((topic, partition), {}).items():
            if visible_at.get(offset) != value:
                complaints.append(
                    f"{where}: a read_committed consumer got {value!r} at offset {offset}, where "
                    f"there is {visible_at.get(offset)!r} for it"
                )
                break
        present = {each.value for each in kept}
        lost = sorted(self._written.get((topic, partition), set()) - present)
        if lost:
            complaints.append(f"{where}: {lost[0]!r} was written and is gone")
        complaints += self._check_doubles(where, kept)
        complaints += self._check_order(where, kept)
        complaints += self._check_transactions(topic, partition, kept)
        return complaints

    def _check_doubles(self, where: str, kept: list[Kept]) -> list[str]:
        seen: dict[bytes, int] = {}
        for each in kept:
            if each.value in seen and each.value.split(b":")[0].decode() in self._once:
                return [f"{where}: {each.value!r} is at offsets {seen[each.value]}, {each.offset}"]
            seen[each.value] = each.offset
        return []

    def _check_order(self, where: str, kept: list[Kept]) -> list[str]:
        last: dict[bytes, int] = {}
        for each in kept:
            producer, number = each.value.split(b":")
            if producer.decode() not in self._once:
                continue
            if int(number) < last.get(producer, 0):
                return [f"{where}: {each.value!r} comes after {last[producer]}"]
            last[producer] = int(number)
        return []

    def _check_transactions(self, topic: str, partition: int, kept: list[Kept]) -> list[str]:
        visible = {each.value for each in kept if each.visible}
        where = f"{topic}-{partition}"
        for transaction in self.transactions:
            if transaction.topic != topic:
                continue
            for index, value in transaction.values:
                if index != partition:
                    continue
                if transaction.outcome == "committed" and value not in visible:
                    return [f"{where}: {value!r} was committed and read_committed misses it"]
                if transaction.outcome == "aborted" and value in visible:
                    return [f"{where}: {value!r} was aborted and read_committed shows it"]
        return []

    def check_atomic(self, visible: set[bytes]) -> list[str]:
        """Of a transaction whose end is unknown, all or nothing is visible."""
        for transaction in self.transactions:
            if transaction.outcome == "unknown" and transaction.values:
                shown = [value in visible for _, value in transaction.values]
                if any(shown) and not all(shown):
                    values = [value for _, value in transaction.values]
                    return [f"a part of the transaction of {values} is visible: {shown}"]
        return []
