"""A client's view of the cluster: brokers, leaders, controller and coordinators.

Filled from responses, never by itself; an entry found to be stale is removed and requested again.
Memory is bounded by `MAX_CACHED_TOPICS`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

DEFAULT_PORT = 9092

# Topics whose leaders are kept; a client of more topics looks the evicted ones up again.
MAX_CACHED_TOPICS = 10_000
MAX_CACHED_COORDINATORS = 10_000


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Leader(NamedTuple):
    """Who leads a partition; the epoch is -1 when the broker is too old to tell."""

    node_id: int
    epoch: int


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[Address]:
    """The addresses of `bootstrap.servers`: "host:port" entries, separated by commas.

    A listener name in front ("PLAINTEXT://") is skipped, a missing port is 9092. Raises
    ValueError.
    """
    entries = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [_parse_address(entry.strip()) for entry in entries if entry.strip()]
    if not addresses:
        raise ValueError("bootstrap.servers names no broker, one host:port at least is needed")
    return addresses


def _parse_address(entry: str) -> Address:
    text = entry.rpartition("://")[2]
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon:
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"bootstrap.servers entry {entry!r} is not host:port")
    return Address(host, int(port))


class ClusterState:
    """The picture; a plain value, changed only by its own methods."""

    def __init__(self, bootstrap: list[Address]) -> None:
        self.bootstrap = bootstrap
        self.brokers: dict[int, Address] = {}
        self.racks: dict[int, str | None] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.topic_ids: dict[str, bytes] = {}
        self._partitions: dict[str, dict[int, Leader]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def update(self, response: MetadataResponse) -> None:
        """Take over the brokers and topics of a Metadata response."""
        if response.brokers:
            self.brokers = {row.node_id: Address(row.host, row.port) for row in response.brokers}
            self.racks = {row.node_id: row.rack for row in response.brokers}
        self.controller_id = response.controller_id
        if response.cluster_id is not None:
            self.cluster_id = response.cluster_id
        for topic in response.topics:
            if topic.name is not None:
                self._update_topic(topic.name, topic)

    def _update_topic(self, name: str, topic: MetadataResponseTopic) -> None:
        self.forget_topic(name)
        if topic.error_code != ErrorCode.NONE:
            return
        while len(self._partitions) >= MAX_CACHED_TOPICS:
            self.forget_topic(next(iter(self._partitions)))
        self._partitions[name] = {
            row.partition_index: Leader(row.leader_id, row.leader_epoch)
            for row in topic.partitions
            if row.leader_id >= 0
        }
        if topic.topic_id != ZERO_UUID:
            self.topic_ids[name] = topic.topic_id

    def leader(self, partition: TopicPartition) -> Leader | None:
        """The leader as last heard of, None when not known."""
        return self._partitions.get(partition.topic, {}).get(partition.partition)

    def coordinator(self, key: str, key_type: int) -> int | None:
        return self._coordinators.get((key_type, key))

    def set_coordinator(self, key: str, key_type: int, node_id: int, address: Address) -> None:
        while len(self._coordinators) >= MAX_CACHED_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]
        self.brokers[node_id] = address  # the broker may have moved since the last metadata
        self._coordinators[key_type, key] = node_id

    def forget_topic(self, topic: str) -> None:
        self._partitions.pop(topic, None)
        self.topic_ids.pop(topic, None)

    def forget_coordinator(self, key: str, key_type: int) -> None:
        self._coordinators.pop((key_type, key), None)

    def forget_controller(self) -> None:
        self.controller_id = -1

    def candidates(self) -> list[Address]:
        """The addresses for a request to any broker: known brokers, then bootstrap addresses."""
        return list(dict.fromkeys([*self.brokers.values(), *self.bootstrap]))
