"""The history of groups."""

import json

import pytest

from ottla.broker.groups.events import (
    MAX_EVENTS_PER_GROUP,
    MAX_GROUPS,
    MAX_TEXT_BYTES,
    GroupEvent,
    GroupEvents,
    events_text,
)
from ottla.protocol.errors import KafkaError
from tests.unit.broker.groups.helpers import GROUP, Setup


def event(number: int) -> GroupEvent:
    return GroupEvent(number, "joined", 1, "m", "c", "/h", "")


def test_a_groups_history_is_bounded() -> None:
    events = GroupEvents()
    for number in range(2 * MAX_EVENTS_PER_GROUP):
        events.add("g", event(number))
    assert [found.timestamp_ms for found in events.of("g")] == list(
        range(MAX_EVENTS_PER_GROUP, 2 * MAX_EVENTS_PER_GROUP)
    )
    assert events.of("unknown") == []


def test_the_group_quiet_for_longest_is_forgotten() -> None:
    events = GroupEvents()
    for number in range(MAX_GROUPS):
        events.add(f"g{number}", event(number))
    events.add("g0", event(1))
    events.add("new", event(1))
    assert len(events.of("g0")) == 2
    assert events.of("g1") == []


def test_events_of_joins_leaves_and_fencing_have_reasons() -> None:
    setup = Setup()
    first, second = setup.stable_group(2, instances=True)
    setup.join(instance_id="i1", reason="restarted")
    setup.leave((first, "i0"))
    events = [
        (found.kind, found.member_id, found.reason) for found in setup.coordinator.events.of(GROUP)
    ]
    assert ("joined", first, "not provided") in events
    assert any(kind == "fenced" and member == second for kind, member, _ in events)
    assert any(kind == "rejoined" and why == "restarted" for kind, _, why in events)
    assert ("left", first, "not provided") in events
    assert events[-1][0] == "rebalancing"
    assert all(
        found.client_host in ("", "/127.0.0.1") for found in setup.coordinator.events.of(GROUP)
    )


def test_the_text_keeps_the_newest_that_fit() -> None:
    events = [event(number)._replace(reason="é" * 200) for number in range(100)]
    text = events_text(events)
    assert len(text.encode()) <= MAX_TEXT_BYTES
    shown = [GroupEvent(**found) for found in json.loads(text)]
    assert shown == events[-len(shown) :]
    assert 10 < len(shown) < 100
    assert events_text([]) == "[]"


def test_the_coordinator_returns_the_history_of_its_own_groups() -> None:
    setup = Setup()
    (member,) = setup.stable_group(1)
    found = json.loads(setup.coordinator.history(GROUP))
    assert (found[0]["kind"], found[0]["member_id"]) == ("joined", member)
    setup.coordinator.on_resigned(0)
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        setup.coordinator.history(GROUP)
