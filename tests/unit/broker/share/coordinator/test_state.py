import random
from itertools import pairwise

import pytest

from ottla.broker.share.coordinator.state import combined, first_state
from ottla.broker.share.persister import StateBatch, StateUpdate

B = StateBatch


@pytest.mark.parametrize(
    ("stored", "changed", "start_offset", "expected"),
    [
        ([], [B(0, 9, 2, 1)], 0, [B(0, 9, 2, 1)]),
        ([B(0, 9, 0, 1)], [B(3, 4, 2, 2)], 0, [B(0, 2, 0, 1), B(3, 4, 2, 2), B(5, 9, 0, 1)]),
        ([B(3, 4, 2, 2)], [B(0, 9, 0, 1)], 0, [B(0, 2, 0, 1), B(3, 4, 2, 2), B(5, 9, 0, 1)]),
        ([B(0, 4, 2, 1)], [B(5, 9, 2, 1)], 0, [B(0, 9, 2, 1)]),
        ([B(0, 9, 2, 1)], [], 5, [B(5, 9, 2, 1)]),
        ([B(0, 9, 2, 1)], [], 10, []),
        ([B(0, 9, 0, 1)], [B(0, 9, 2, 1)], 0, [B(0, 9, 2, 1)]),
    ],
)
def test_combined(stored: list[B], changed: list[B], start_offset: int, expected: list[B]) -> None:
    assert list(combined(stored, changed, start_offset)) == expected


def test_combined_is_the_highest_of_each_offset() -> None:
    source = random.Random(1)

    def batches() -> list[B]:
        found, offset = [], 0
        while offset < 30:
            first = offset + source.randint(0, 4)
            offset = first + source.randint(1, 8)
            found.append(B(first, offset - 1, source.choice((0, 2, 4)), source.randint(1, 3)))
        return found

    for _ in range(500):
        stored, changed = batches(), batches()
        start_offset = source.randint(0, 20)
        expected: dict[int, tuple[int, int]] = {}
        for first, last, state, count in stored + changed:
            for offset in range(max(first, start_offset), last + 1):
                expected[offset] = max(expected.get(offset, (-1, -1)), (count, state))
        found = combined(stored, changed, start_offset)
        rows = {at: (b.delivery_count, b.state) for b in found for at in range(b[0], b[1] + 1)}
        assert rows == expected
        assert all(a.last_offset < b.first_offset for a, b in pairwise(found))


def test_an_update() -> None:
    state = first_state(3, 0, 1000, 7)
    changed = state.updated(StateUpdate(3, 5, 2, 1, (B(2, 4, 2, 1),)))
    assert (changed.leader_epoch, changed.start_offset, changed.delivery_complete_count) == (
        5,
        2,
        1,
    )
    kept = changed.updated(StateUpdate(3, 4, -1, 0, ()))
    assert (kept.leader_epoch, kept.start_offset, kept.batches) == (5, 2, (B(2, 4, 2, 1),))
