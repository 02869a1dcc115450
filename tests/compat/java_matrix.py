"""Every strategy of the Java consumers of 3.9 and the newest 4.x. Not part of `make test`:

python -m pytest tests/compat/java_matrix.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.clients.java_group import (
    CRASH_SESSION_MS,
    LONG_SESSION_MS,
    JavaGroup,
    java_group_of,
    join_leave_and_crash,
)
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.kafka_clients import DEADLINE_S, NEW, OLD

STRATEGIES = ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
ALL = [(version, strategy) for version in (OLD, NEW) for strategy in STRATEGIES]

OF_THE_BROKER = {
    "group_consumer_min_session_timeout_ms": CRASH_SESSION_MS,
    "group_consumer_session_timeout_ms": CRASH_SESSION_MS,
    "group_consumer_min_heartbeat_interval_ms": 500,
    "group_consumer_heartbeat_interval_ms": 500,
}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_groups_of_the_new_protocol(version: str, assignor: str, tmp_path: Path) -> None:
    with (
        start_broker(tmp_path, **OF_THE_BROKER) as broker,
        java_group_of(version, assignor, broker.bootstrap, tmp_path) as made,
    ):
        join_leave_and_crash(made)


@pytest.fixture(params=ALL, ids="-".join)
def group(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Iterator[JavaGroup]:
    with java_group_of(*request.param, bootstrap, tmp_path) as made:
        yield made


def test_members_join_leave_and_crash(group: JavaGroup) -> None:
    join_leave_and_crash(group)


def test_a_static_member_crashes_and_is_back(group: JavaGroup) -> None:
    first = group.start(instance_id="first")
    second = group.start(instance_id="second")
    group.wait_until_shared()
    before = second.partitions.copy()
    assignments = first.assignments
    group.end(second, crash=True)
    back = group.start(instance_id="second")
    eventually(
        lambda: group.is_shared() and back.partitions == before, group.story, seconds=DEADLINE_S
    )
    sent = group.produce(1)
    eventually(lambda: group.read() >= sent, group.story, seconds=DEADLINE_S)
    assert first.assignments == assignments  # no other member was disturbed


def test_ten_members(group: JavaGroup) -> None:
    for number in range(10):
        group.start(session_timeout_ms=CRASH_SESSION_MS if number % 2 else LONG_SESSION_MS)
    group.wait_until_shared()
    sent = group.produce(1)
    eventually(lambda: group.read() >= sent, group.story, seconds=DEADLINE_S)
    for number, member in enumerate(list(group.members)):
        if number % 3 < 2 and number < 9:
            group.end(member, crash=bool(number % 2))
    group.wait_until_shared()
    sent |= group.produce(2)
    eventually(lambda: group.read() >= sent, group.story, seconds=DEADLINE_S)
    assert group.read() == sent
