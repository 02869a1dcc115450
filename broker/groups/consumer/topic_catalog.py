"""What groups that the broker assigns for have to know of the topics."""

from typing import NamedTuple, Protocol


class TopicDescription(NamedTuple):
    """A topic as far as assignors go. `racks` has the racks of the replicas by partition, and only
    partitions of which some are known."""

    topic_id: bytes
    name: str
    partition_count: int
    racks: dict[int, frozenset[str]]


class TopicCatalog(Protocol):
    """One consistent picture of the cluster at a time."""

    @property
    def version(self) -> object:
        """Another object as soon as anything may have changed."""
        ...

    def describe(self, name: str) -> TopicDescription | None:
        """None for a topic that does not exist."""
        ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics whose whole name a pattern matches; none for a pattern that is none."""
        ...
