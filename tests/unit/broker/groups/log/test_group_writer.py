"""Changes of one group, one after the other; a defect in one does not hold the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from ottla.broker.coordination.ports import AppendResult
from ottla.broker.groups.log.group_writer import Change, GroupWriter
from ottla.broker.groups.log.partition import GroupPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.steps import TurnQueue

GROUP = "g"


class Partition:
    """The only partition, whose appends complete at once or by `complete`."""

    def __init__(self) -> None:
        self.home = GroupPartition(0, 0, lambda: 0)
        self.is_slow = False
        self.waiting: list[AppendResult] = []

    def check(self, group_id: str, *, allow_empty: bool) -> int:
        return ErrorCode.NONE

    def home_of(self, group_id: str) -> GroupPartition:
        return self.home

    def append(
        self, partition: GroupPartition, records: Sequence[object], on_result: AppendResult
    ) -> None:
        if self.is_slow:
            self.waiting.append(on_result)
        else:
            on_result(ErrorCode.NONE, 0)

    def complete(self) -> None:
        self.waiting.pop(0)(ErrorCode.NONE, 0)


def fails(_: int) -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("where", ["step", "result", "replay"])
def test_a_defect_in_one_change_does_not_hold_the_next_ones(
    where: str, is_slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    partition = Partition()
    partition.is_slow = is_slow
    unused = cast("Any", partition)
    writer = GroupWriter(unused, unused, lambda: 0, lambda _: None, TurnQueue(lambda _: None))
    codes: list[int] = []
    responses: list[int] = []

    def first(code: int) -> Change:
        codes.append(code)
        if where == "step" and not code:
            fails(code)
        if where == "replay":
            return Change([(cast("bytes", None), None)], responses.append)
        return Change([], fails if where == "result" else responses.append)

    writer.submit(GROUP, first)
    writer.submit(GROUP, lambda _: Change([], responses.append))
    while partition.waiting:
        partition.complete()
    assert responses == [ErrorCode.NONE]
    assert not writer.is_busy(GROUP)
    assert f"Unexpected error in a change of group {GROUP}" in caplog.text
    assert codes == ([0, ErrorCode.UNKNOWN_SERVER_ERROR] if where == "step" else [0])
