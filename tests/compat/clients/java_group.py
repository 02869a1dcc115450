"""A group of Java consumers: a topic, its members, and what they say they own and have read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tests.doubles.eventually import eventually
from tests.doubles.kafka_clients import (
    DEADLINE_S,
    VerifiableConsumer,
    client_library,
    verifiable_produce,
)

PARTITIONS = 6
# The shortest that a broker allows, for a member whose crash is waited for.
CRASH_SESSION_MS = 6_000
LONG_SESSION_MS = 60_000


class JavaGroup:
    """A topic and the members of a group that reads it."""

    def __init__(self, version: str, strategy: str, bootstrap: str, directory: Path) -> None:
        self.library = client_library(version)
        self.bootstrap = bootstrap
        self.name = f"java-{uuid.uuid4().hex[:8]}"
        self.members: list[VerifiableConsumer] = []
        self._gone: list[VerifiableConsumer] = []
        self._strategy = strategy
        self._directory = directory
        self._started = 0
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.create_topics([NewTopic(self.name, PARTITIONS, 1)]).values():
            done.result(60)

    def start(
        self, *, session_timeout_ms: int = LONG_SESSION_MS, instance_id: str | None = None
    ) -> VerifiableConsumer:
        self._started += 1
        member = VerifiableConsumer(
            *(self.library, self.bootstrap, self.name, self.name),
            self._directory / f"member-{self._started}",
            strategy=self._strategy,
            session_timeout_ms=session_timeout_ms,
            instance_id=instance_id,
        )
        self.members.append(member)
        return member

    def end(self, member: VerifiableConsumer, *, crash: bool) -> None:
        self.members.remove(member)
        self._gone.append(member)
        if crash:
            member.kill()
        else:
            member.leave()

    def produce(self, prefix: int, count: int = 120) -> set[str]:
        output = self._directory / f"producer-{prefix}"
        return verifiable_produce(
            self.library, self.bootstrap, self.name, output, prefix=prefix, count=count
        )

    def look(self) -> None:
        for member in self.members + self._gone:
            member.look()

    def is_shared(self) -> bool:
        """Every partition has one owner, and who could have one has at least one."""
        self.look()
        owned = [partition for member in self.members for partition in member.partitions]
        idle = sum(not member.partitions for member in self.members)
        return sorted(owned) == list(range(PARTITIONS)) and idle == max(
            0, len(self.members) - PARTITIONS
        )

    def wait_until_shared(self) -> None:
        eventually(self.is_shared, self.story, seconds=DEADLINE_S)

    def story(self) -> str:
        return "\n".join(
            f"{member.partitions}\n{member.output()[-1500:]}" for member in self.members
        )

    def read(self) -> set[str]:
        self.look()
        return {value for member in self.members + self._gone for value in member.values}

    def committed(self) -> int:
        """The sum of the committed offsets."""
        with BlockingClient(self.bootstrap) as client:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.name, topics=None)])
            response = client.call_coordinator(self.name, request)
        assert isinstance(response, OffsetFetchResponse)
        return sum(
            row.committed_offset for topic in response.groups[0].topics for row in topic.partitions
        )

    def close(self) -> None:
        for member in self.members:
            member.kill()


@contextmanager
def java_group_of(
    version: str, strategy: str, bootstrap: str, directory: Path
) -> Iterator[JavaGroup]:
    """No process is left behind."""
    group = JavaGroup(version, strategy, bootstrap, directory)
    try:
        yield group
    finally:
        group.close()


def join_leave_and_crash(group: JavaGroup) -> None:
    """The scenario; nothing is lost, and all is committed in the end."""
    stays = group.start()
    crashes = group.start(session_timeout_ms=CRASH_SESSION_MS)
    sent = group.produce(1)
    group.wait_until_shared()
    leaves = group.start()
    group.wait_until_shared()
    eventually(lambda: group.read() >= sent, group.story, seconds=DEADLINE_S)
    group.end(leaves, crash=False)
    group.wait_until_shared()
    group.end(crashes, crash=True)
    group.wait_until_shared()
    assert group.members == [stays]
    sent |= group.produce(2)
    eventually(lambda: group.read() >= sent, group.story, seconds=DEADLINE_S)
    eventually(lambda: group.committed() == len(sent), group.story, seconds=DEADLINE_S)
    assert group.read() == sent
