"""Embedded brokers for tests: the public names. Every module below it is private.

    from ottla.testing import Broker

    with Broker(num_partitions=3) as broker:  # or `async with`
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The pytest fixtures `kafka_broker`, `kafka_topic`, `kafka_broker_factory` and `kafka_cluster` need
no import: pytest loads them once Ottla is installed. docs/testing.md describes all of it.
"""

from ottla.broker.config.errors import ConfigError
from ottla.broker.net.listener import PortInUse
from ottla.broker.server.start_checks import DirectoryUnwritable
from ottla.broker.testing.cluster import Cluster
from ottla.broker.testing.embedded import Broker
from ottla.broker.testing.faults import Fault, Faults
from ottla.broker.testing.names import ApiName, ErrorName
from ottla.controller.tree.store import ZooKeeperUnreachable
from ottla.protocol.errors import KafkaError
from ottla.storage.errors import DirectoryInUse

__all__ = [
    "ApiName",
    "Broker",
    "Cluster",
    "ConfigError",
    "DirectoryInUse",
    "DirectoryUnwritable",
    "ErrorName",
    "Fault",
    "Faults",
    "KafkaError",
    "PortInUse",
    "ZooKeeperUnreachable",
]
