"""What waits for each partition of a Produce request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.broker.replication.delayed_append import DelayedAppend
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse

Entry = tuple[Any, int, PartitionProduceResponse]


class Waiting(DelayedAppend[Entry]):
    """For offsets that a partition reaches."""

    __slots__ = ("checked",)

    checked: list[str]

    def _left(self, waiting: list[Entry]) -> list[Entry]:
        self.checked.append(waiting[0][0].key)
        return [entry for entry in waiting if entry[0].end < entry[1]]


def test_a_change_checks_its_own_partition_and_the_others_expire() -> None:
    first, second = (SimpleNamespace(key=key, end=0) for key in ("first", "second"))
    entries: list[Entry] = [
        (partition, offset, PartitionProduceResponse(0, 0, -1, -1, -1))
        for partition, offset in ((first, 1), (second, 1), (first, 2))
    ]
    calls: list[int] = []
    operation = Waiting(100, entries, lambda: calls.append(1))
    operation.checked = []
    assert not operation.try_complete()
    first.end = 1
    assert not operation.try_complete_for("first")
    second.end = 1
    assert not operation.try_complete_for("second")
    assert not operation.try_complete_for("second")
    assert operation.checked == ["first", "second", "first", "second"]
    operation.expire()
    assert calls == [1]
    codes = [response.error_code for _, _, response in entries]
    assert codes == [0, 0, ErrorCode.REQUEST_TIMED_OUT]
