"""Which names a topic may have, as Kafka's org.apache.kafka.common.internals.Topic."""

from collections.abc import Iterable

MAX_NAME_LENGTH = 249
"""A log directory is named after topic and partition and must stay below 255 bytes."""

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def name_problem(name: str) -> str | None:
    """What is wrong with the name, in Kafka's words; None when it is legal."""
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


def colliding(name: str, others: Iterable[str]) -> list[str]:
    """Other topics whose metrics would get the same name: '.' and '_' look the same there."""
    if "." not in name and "_" not in name:
        return []
    unified = name.replace(".", "_")
    return [other for other in others if other != name and other.replace(".", "_") == unified]
