"""The metadata of topics that server-side assignors need."""

from typing import NamedTuple, Protocol

from ottla.protocol.steps import Steps


class TopicDescription(NamedTuple):
    """A topic. `racks` has the racks of the replicas by partition, without the partitions of which
    no rack is known."""

    topic_id: bytes
    name: str
    partition_count: int
    racks: dict[int, frozenset[str]]


class TopicCatalog(Protocol):
    """A consistent view of the cluster."""

    @property
    def version(self) -> object:
        """Changes whenever the metadata may have changed."""
        ...

    def describe(self, name: str) -> TopicDescription | None:
        """None for a topic that does not exist."""
        ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics whose whole name a regular expression matches; none for an invalid one."""
        ...

    def matching_in_steps(self, pattern: str) -> Steps[frozenset[str]]:
        """As `matching`; what matches at the end. Without a pause if that is known already."""
        ...
