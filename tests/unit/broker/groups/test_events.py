"""The history of groups."""

from broker.groups.events import MAX_EVENTS_PER_GROUP, MAX_GROUPS, GroupEvent, GroupEvents
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


def test_who_joined_left_and_was_fenced_and_why() -> None:
    setup = Setup()
    first, second = setup.stable_group(2, instances=True)
    setup.join(instance_id="i1", reason="restarted")
    setup.leave((first, "i0"))
    told = [
        (found.kind, found.member_id, found.reason) for found in setup.coordinator.events.of(GROUP)
    ]
    assert ("joined", first, "not provided") in told
    assert any(kind == "fenced" and member == second for kind, member, _ in told)
    assert any(kind == "rejoined" and why == "restarted" for kind, _, why in told)
    assert ("left", first, "not provided") in told
    assert told[-1][0] == "rebalancing"
    assert all(
        found.client_host in ("", "/127.0.0.1") for found in setup.coordinator.events.of(GROUP)
    )
