"""Limits of topics: names as in Kafka's `internals.Topic`, and partitions that fit a znode."""

from ottla.controller.model import TopicState
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
"""The directory of a log is named after topic and partition; file systems allow 255 bytes."""

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def name_problem(name: str) -> str | None:
    """Why the name is invalid, with Kafka's message; None when it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed "
            f"length {MAX_NAME_LENGTH}"
        )
    if not _LEGAL.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            f"alphanumerics, '.', '_' and '-'"
        )
    return None


def metric_name(name: str) -> str:
    """The name in metrics, where '.' and '_' are the same; topics that share one collide."""
    return name.replace(".", "_")


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
