"""Consumer groups with real clients: sharing, rebalancing, committing, surviving a restart."""

import time
from pathlib import Path

from tests.compat.clients.model import Client, GroupMember, Outgoing, Row
from tests.doubles.broker_process import start_broker

PARTITIONS = 4
DEADLINE_S = 90.0


def numbered(first: int, count: int) -> list[Outgoing]:
    return [
        Outgoing(b"%d" % number, b"value-%d" % number, [], number % PARTITIONS)
        for number in range(first, first + count)
    ]


def poll_until(members: list[GroupMember], rows: list[Row], count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < count and time.monotonic() < deadline:
        for member in members:
            rows.extend(member.poll(0.2))


def wait_for_everything(member: GroupMember) -> None:
    """Polls until the member has all partitions, or for long enough."""
    deadline = time.monotonic() + DEADLINE_S
    while len(member.assignment()) < PARTITIONS and time.monotonic() < deadline:
        member.poll(0.2)


def keys(rows: list[Row]) -> list[int]:
    return sorted(int(row.key or b"-1") for row in rows)


def test_group_reads_everything_once(
    client: Client, bootstrap: str, topic: str, group: str
) -> None:
    client.create_topic(bootstrap, topic, PARTITIONS)
    client.produce(bootstrap, topic, numbered(0, 400))
    member = client.join(bootstrap, group, topic)
    rows: list[Row] = []
    poll_until([member], rows, 400)
    assert member.assignment() == set(range(PARTITIONS))
    member.close()
    assert keys(rows) == list(range(400))


def test_committed_offsets_are_where_the_next_member_starts(
    client: Client, bootstrap: str, topic: str, group: str
) -> None:
    client.create_topic(bootstrap, topic, PARTITIONS)
    client.produce(bootstrap, topic, numbered(0, 100))
    first = client.join(bootstrap, group, topic)
    rows: list[Row] = []
    poll_until([first], rows, 100)
    first.commit()
    first.close()
    client.produce(bootstrap, topic, numbered(100, 60))
    second = client.join(bootstrap, group, topic)
    later: list[Row] = []
    poll_until([second], later, 60)
    second.close()
    assert keys(later) == list(range(100, 160))


def test_two_members_share_and_one_takes_over(
    client: Client, bootstrap: str, topic: str, group: str
) -> None:
    client.create_topic(bootstrap, topic, PARTITIONS)
    first = client.join(bootstrap, group, topic)
    rows: list[Row] = []
    wait_for_everything(first)
    deadline = time.monotonic() + DEADLINE_S
    second = client.join(bootstrap, group, topic)
    while time.monotonic() < deadline:
        first.poll(0.1)
        second.poll(0.1)
        if len(first.assignment()) == 2 and len(second.assignment()) == 2:
            break
    assert first.assignment() | second.assignment() == set(range(PARTITIONS))
    assert not first.assignment() & second.assignment()

    client.produce(bootstrap, topic, numbered(0, 200))
    poll_until([first, second], rows, 200)
    assert keys(rows) == list(range(200))
    first.commit()
    second.commit()

    second.close()
    wait_for_everything(first)
    assert first.assignment() == set(range(PARTITIONS))
    first.close()


def test_continues_at_its_position_after_a_broker_restart(
    client: Client, tmp_path: Path, topic: str, group: str
) -> None:
    with start_broker(tmp_path) as broker:
        client.create_topic(broker.bootstrap, topic, PARTITIONS)
        client.produce(broker.bootstrap, topic, numbered(0, 80))
        member = client.join(broker.bootstrap, group, topic)
        rows: list[Row] = []
        poll_until([member], rows, 80)
        member.commit()
        member.close()
        broker.restart()
        client.produce(broker.bootstrap, topic, numbered(80, 40))
        member = client.join(broker.bootstrap, group, topic)
        later: list[Row] = []
        poll_until([member], later, 40)
        member.close()
        assert keys(later) == list(range(80, 120))


def test_continues_at_its_position_after_kill_nine(
    client: Client, tmp_path: Path, topic: str, group: str
) -> None:
    with start_broker(tmp_path) as broker:
        client.create_topic(broker.bootstrap, topic, PARTITIONS)
        client.produce(broker.bootstrap, topic, numbered(0, 80))
        member = client.join(broker.bootstrap, group, topic)
        rows: list[Row] = []
        poll_until([member], rows, 80)
        member.commit()
        broker.kill()
        broker.restart()
        client.produce(broker.bootstrap, topic, numbered(80, 40))
        poll_until([member], rows, 120)
        member.close()
        assert keys(rows) == list(range(120))
        assert keys(client.consume(broker.bootstrap, topic, PARTITIONS, 120)) == list(range(120))
