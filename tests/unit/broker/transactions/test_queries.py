"""DescribeTransactions and ListTransactions."""

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_transactions import TopicData
from ottla.protocol.steps import run_at_once
from tests.unit.broker.transactions.helpers import ID, T0, T1, TIMEOUT_MS, U0, Setup

NOTHING: frozenset[str] = frozenset()
NO_PRODUCERS: frozenset[int] = frozenset()


def test_an_open_transaction_is_described() -> None:
    setup = Setup()
    producer = setup.ongoing(T1, U0, T0)
    described = setup.queries.describe(ID)
    assert (described.error_code, described.transactional_id) == (ErrorCode.NONE, ID)
    assert (described.producer_id, described.producer_epoch) == producer
    assert (described.transaction_state, described.transaction_timeout_ms) == (
        "Ongoing",
        TIMEOUT_MS,
    )
    assert described.transaction_start_time_ms == setup.timer.clock.now_ms()
    assert described.topics == [TopicData("t", [0, 1]), TopicData("u", [0])]


def test_without_a_transaction_there_is_no_start() -> None:
    setup = Setup()
    setup.producer()
    described = setup.queries.describe(ID)
    assert (described.transaction_state, described.transaction_start_time_ms) == ("Empty", -1)
    assert described.topics == []


def test_what_cannot_be_described() -> None:
    setup = Setup()
    assert setup.queries.describe("").error_code == ErrorCode.INVALID_REQUEST
    assert setup.queries.describe("x").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    setup.coordinator.on_elected(0, 1)
    assert setup.queries.describe("x").error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    listed = run_at_once(setup.queries.list_transactions(NOTHING, NO_PRODUCERS, -1))
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    setup.coordinator.on_resigned(0, 2)
    assert setup.queries.describe("x").error_code == ErrorCode.NOT_COORDINATOR
    setup.coordinator.shutdown()
    assert setup.queries.describe("x").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    listed = run_at_once(setup.queries.list_transactions(NOTHING, NO_PRODUCERS, -1))
    assert listed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("states", "producer_ids", "duration_ms", "found", "unknown"),
    [
        ([], [], -1, {"old", "new", "idle"}, []),
        (["Ongoing"], [], -1, {"old", "new"}, []),
        (["Ongoing", "ongoing"], [], -1, {"old", "new"}, ["ongoing"]),
        (["nonsense"], [], -1, set(), ["nonsense"]),
        (["PrepareEpochFence"], [], -1, set(), []),
        ([], [100], -1, {"old"}, []),
        (["Empty"], [100], -1, set(), []),
        (["Ongoing"], [], 1_000, {"old"}, []),
        (["Ongoing"], [], 5_000, set(), []),
        (["Ongoing"], [], 4_999, {"old"}, []),
    ],
)
def test_transactions_are_listed_by_state_producer_and_age(
    states: list[str],
    producer_ids: list[int],
    duration_ms: int,
    found: set[str],
    unknown: list[str],
) -> None:
    setup = Setup()
    setup.ongoing(T0, transactional_id="old")
    setup.timer.advance(5_000)
    setup.ongoing(T0, transactional_id="new")
    setup.producer("idle")
    listed = run_at_once(
        setup.queries.list_transactions(frozenset(states), frozenset(producer_ids), duration_ms)
    )
    assert listed.error_code == ErrorCode.NONE
    assert {state.transactional_id for state in listed.transaction_states} == found
    assert listed.unknown_state_filters == unknown
