"""How many partitions fit into the znode of a topic."""

from ottla.controller.model import TopicState
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode, KafkaError

MAX_TOPIC_BYTES = 1_000_000
"""Of the znode of a topic, which has 16 bytes or more for each partition. Over one that is larger
ZooKeeper closes the connection (jute.maxbuffer), and the controller resigns."""


def encode_new_topic(name: str, state: TopicState) -> bytes:
    """The data of a topic that is created or gets partitions. Raises KafkaError if it is larger."""
    data = znodes.encode_topic(state)
    if len(data) > MAX_TOPIC_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{name}' has too many partitions for a znode of {MAX_TOPIC_BYTES} bytes.",
        )
    return data
