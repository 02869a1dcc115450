"""A broker for tests: the public names. docs/testing.md shows them; everything else is private.

    from ottla.testing import Broker

    with Broker(num_partitions=3) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The pytest fixtures `kafka_broker`, `kafka_topic` and `kafka_broker_factory` are there by themselves
once Ottla is installed.
"""

from ottla.broker.testing.embedded import Broker
from ottla.broker.testing.faults import Fault, Faults

__all__ = ["Broker", "Fault", "Faults"]
