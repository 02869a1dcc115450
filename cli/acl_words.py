"""The words of `ottla acls`: resources, operations and principals on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple

import typer

from ottla.broker.security.authorization.acl_types import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.cli.output import Cell, usage

TopicOption = Annotated[str | None, typer.Option("--topic", help="Topic; '*' for all.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="Group; '*' for all.")]
TransactionalIdOption = Annotated[
    str | None, typer.Option("--transactional-id", help="Transactional id; '*' for all.")
]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
TokenOption = Annotated[str | None, typer.Option("--delegation-token", help="Id of a token.")]
UserOption = Annotated[
    str | None, typer.Option("--user", help="User whose tokens the ACL is about: User:alice.")
]


class Resource(NamedTuple):
    kind: ResourceType
    name: str


def resource_of(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    delegation_token: str | None,
    user: str | None,
) -> Resource | None:
    """The one resource that the options name; None without any. Raises Failure."""
    named = {
        ResourceType.TOPIC: topic,
        ResourceType.GROUP: group,
        ResourceType.TRANSACTIONAL_ID: transactional_id,
        ResourceType.CLUSTER: CLUSTER_NAME if cluster else None,
        ResourceType.DELEGATION_TOKEN: delegation_token,
        ResourceType.USER: user,
    }
    found = [Resource(kind, name) for kind, name in named.items() if name is not None]
    if len(found) > 1:
        raise usage("name one resource only.")
    return found[0] if found else None


def required(resource: Resource | None) -> Resource:
    if resource is None:
        raise usage(
            "name a resource: --topic, --group, --transactional-id, --cluster, "
            "--delegation-token or --user."
        )
    return resource


def principal_of(text: str) -> str:
    """Raises Failure for a name without a type."""
    if ":" not in text:
        raise usage(f"{text} is no principal; write it as User:{text}.")
    return text


def operations_of(names: Sequence[str]) -> list[Operation]:
    """Operations by names in any case, with - for _, and as Kafka writes them: IdempotentWrite.

    Raises Failure.
    """
    usable = [each for each in Operation if each > Operation.ANY]
    known = {each.name: each for each in usable}
    found = []
    for name in names:
        words = name if name.isupper() else re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)
        operation = known.get(words.upper().replace("-", "_"))
        if operation is None:
            names_of_all = ", ".join(each.lower().replace("_", "-") for each in known)
            raise usage(f"--operation {name} is not one of {names_of_all}.")
        found.append(operation)
    return found


def word(kind: type[IntEnum], number: int) -> str:
    """The name of a number on the wire, as it is written on the command line."""
    return kind(number).name.lower().replace("_", "-") if number in set(kind) else str(number)


def row(
    kind: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> dict[str, Cell]:
    """An ACL as a row of a table."""
    return {
        "resource": word(ResourceType, kind),
        "name": name,
        "pattern": word(PatternType, pattern),
        "principal": principal,
        "host": host,
        "operation": word(Operation, operation),
        "permission": word(Permission, permission),
    }


COLUMNS = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
