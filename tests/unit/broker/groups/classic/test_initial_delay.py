"""The delay before the first rebalance of a group, `group.initial.rebalance.delay.ms`."""

import pytest

from ottla.broker.groups.classic.group import GroupState
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.groups.helpers import Setup


def test_the_first_rebalance_waits_for_latecomers() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    first = setup.join()
    setup.timer.advance(2_999)
    assert first.is_pending
    setup.timer.advance(1)
    assert first.value.generation_id == 1


def test_every_latecomer_adds_a_delay_up_to_the_rebalance_timeout() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    responses = [setup.join(rebalance_timeout_ms=7_000)]
    setup.timer.advance(1_000)
    responses.append(setup.join(rebalance_timeout_ms=7_000))
    setup.timer.advance(2_000)  # 3 s: extended by the second member
    responses.append(setup.join(rebalance_timeout_ms=7_000))
    setup.timer.advance(3_000)  # 6 s: extended by the third, for what is left of 7 s
    assert all(response.is_pending for response in responses)
    setup.timer.advance(1_000)
    assert [response.value.generation_id for response in responses] == [1, 1, 1]
    assert len(responses[0].value.members) == 3


def test_a_delayed_group_does_not_wait_for_pending_members() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    setup.join(version=4)
    first = setup.join()
    setup.timer.advance(3_000)
    assert first.value.error_code == ErrorCode.NONE


def test_an_emptied_group_delays_again() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    first = setup.join()
    setup.timer.advance(3_000)
    setup.leave((first.value.member_id, None))
    again = setup.join()
    assert again.is_pending
    setup.timer.advance(3_000)
    assert again.value.generation_id == 3


def test_all_may_leave_during_the_delay() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    first = setup.join()
    (member_id,) = setup.group().members
    setup.leave((member_id, None))
    assert first.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    setup.timer.advance(3_000)
    assert setup.group().state is GroupState.EMPTY


def test_a_delay_of_one_millisecond_is_a_delay() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=1)
    first = setup.join()
    assert first.is_pending
    setup.timer.advance(1)
    assert first.value.generation_id == 1


def test_a_delay_is_extended_once_for_each_latecomer() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    first = setup.join()
    setup.timer.advance(1_000)
    setup.join()
    setup.timer.advance(4_999)
    assert first.is_pending
    setup.timer.advance(1)
    assert len(first.value.members) == 2


@pytest.mark.parametrize("rebalance_timeout_ms", [1_000, 3_000])
def test_a_delay_is_not_extended_beyond_the_rebalance_timeout(rebalance_timeout_ms: int) -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    first = setup.join(rebalance_timeout_ms=rebalance_timeout_ms)
    setup.timer.advance(1_000)
    setup.join(rebalance_timeout_ms=rebalance_timeout_ms)
    setup.timer.advance(2_000)
    assert len(first.value.members) == 2


def test_a_latecomer_at_the_end_of_the_rebalance_timeout_adds_nothing() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    first = setup.join(rebalance_timeout_ms=5_000)
    setup.timer.advance(1_000)
    setup.join(rebalance_timeout_ms=5_000)
    setup.timer.advance(3_000)  # 4 s, in the extension of 2 s
    setup.join(rebalance_timeout_ms=5_000)
    assert first.is_pending
    setup.timer.advance(1_000)
    assert len(first.value.members) == 3


def test_a_delay_is_extended_by_the_last_millisecond() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    responses = [setup.join(rebalance_timeout_ms=3_001)]
    setup.timer.advance(1_000)
    responses.append(setup.join(rebalance_timeout_ms=3_001))
    setup.timer.advance(2_000)
    assert all(response.is_pending for response in responses)
    setup.timer.advance(1)
    assert len(responses[0].value.members) == 2
