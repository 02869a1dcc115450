"""What every client adapter offers, so that one scenario runs with each real client unchanged."""

from typing import NamedTuple, Protocol

Header = tuple[str, bytes | None]


class Row(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Outgoing(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None = None


class GroupMember(Protocol):
    """One consumer of a group; poll returns what arrived within the time, maybe nothing."""

    def poll(self, timeout_s: float) -> list[Row]: ...
    def assignment(self) -> set[int]: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Client(Protocol):
    name: str

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: list[Outgoing],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Send and wait until every record is acknowledged (or sent, with acks 0)."""
        ...

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Row]:
        """Assign all partitions, read from the beginning until `count` rows are there."""
        ...

    def join(
        self, bootstrap: str, group: str, topic: str, *, auto_commit: bool = False
    ) -> GroupMember: ...

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None: ...
