"""Validation of topic names; mirrors Kafka's ``org.apache.kafka.common.internals.Topic``."""

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
