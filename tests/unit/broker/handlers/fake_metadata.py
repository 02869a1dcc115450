"""The metadata of a cluster for handlers."""

from ottla.broker.cluster.metadata_cache import (
    BrokerEndpoint,
    BrokerMetadata,
    MetadataSnapshot,
    PartitionMetadata,
    TopicMetadata,
)


class Metadata:
    """Brokers 1 and 2; topics with so many partitions, led by broker 1."""

    def __init__(self, **topics: int) -> None:
        brokers = {
            number: BrokerMetadata(
                number, {"PLAINTEXT": BrokerEndpoint("127.0.0.1", 9_090 + number, 0)}, None
            )
            for number in (1, 2)
        }
        known = {
            name: TopicMetadata(
                name,
                bytes(16),
                {n: PartitionMetadata(n, 1, 0, [1], [1], [], 0, 0) for n in range(count)},
            )
            for name, count in topics.items()
        }
        self.snapshot = MetadataSnapshot(brokers, known, {}, (1, 1))

    def set_leader(self, topic: str, index: int, leader: int) -> None:
        partitions = self.snapshot.topics[topic].partitions
        partitions[index] = partitions[index]._replace(leader=leader)
