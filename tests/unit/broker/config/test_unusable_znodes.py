"""Znodes that cannot be used: each of them is read again, however many there are."""

from __future__ import annotations

from functools import partial

import pytest

from ottla.broker.config import unusable_znodes
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.controller.tree.store import ConnectionLost


class Tree:
    """Znodes that their reader finds damaged until they are in `repaired`."""

    def __init__(self, count: int) -> None:
        self.unusable = UnusableZnodes()
        self.reads: list[str] = []
        self.repaired: set[str] = set()
        self.is_away = False
        for number in range(count):
            self.report(f"/acl/{number}")

    def report(self, path: str) -> None:
        self.unusable.report(path, f"{path} is garbage", "nothing is allowed", self.reader(path))

    def reader(self, path: str) -> partial[object]:
        return partial(self.read, path)

    async def read(self, path: str) -> None:
        self.reads.append(path)
        if self.is_away:
            raise ConnectionLost(path)
        if path in self.repaired:
            self.unusable.repaired(path)
        else:
            self.report(path)


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unusable_znodes, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(unusable_znodes, "READ_AT_ONCE", 4)


@pytest.mark.usefixtures("_few")
async def test_those_beyond_the_limit_are_read_again_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree = Tree(10)
    assert (tree.unusable.count, list(tree.unusable.found)) == (10, ["/acl/0", "/acl/1", "/acl/2"])
    assert len(caplog.records) == 10
    for _ in range(5):
        await tree.unusable.look()
    assert tree.reads == [f"/acl/{number}" for number in [*range(10), *range(10)]]
    assert len(caplog.records) == 10  # each is named once
    tree.repaired = {"/acl/0", "/acl/9"}
    for _ in range(3):
        await tree.unusable.look()
    assert tree.unusable.count == 8
    assert len(tree.unusable.found) == 3  # another one has the place


@pytest.mark.usefixtures("_few")
async def test_a_tree_that_is_away_is_asked_once() -> None:
    tree = Tree(10)
    tree.is_away = True
    await tree.unusable.look()
    assert len(tree.reads) == 1
    assert tree.unusable.count == 10
