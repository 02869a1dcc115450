"""The words of access control: numbers on the wire, names in the znode tree.

An ACL is a line (who, from where, which operation, allowed or denied) attached to a resource
pattern. Names in the tree are Kafka's own ("TransactionalId", "IdempotentWrite").
"""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """An operation on a resource; `AclOperation` of Kafka."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceType(IntEnum):
    """What it is done to; `ResourceType` of Kafka."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a name is compared; MATCH and ANY are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """`AclPermissionType` of Kafka."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def _tree_name(constant: str) -> str:
    return "".join(part.capitalize() for part in constant.split("_"))


OPERATION_NAMES = {operation: _tree_name(operation.name) for operation in Operation}
RESOURCE_NAMES = {kind: _tree_name(kind.name) for kind in ResourceType}
PERMISSION_NAMES = {permission: _tree_name(permission.name) for permission in Permission}
OPERATIONS = {name: operation for operation, name in OPERATION_NAMES.items()}
RESOURCES = {name: kind for kind, name in RESOURCE_NAMES.items()}
PERMISSIONS = {name: permission for permission, name in PERMISSION_NAMES.items()}

CLUSTER_NAME = "kafka-cluster"
"""The only name of the resource type CLUSTER."""

WILDCARD = "*"
"""As a host: any; as a literal resource name: every one."""

WILDCARD_PRINCIPAL = "User:*"

# Being allowed one of these is being allowed the one on the left.
IMPLIED_BY: dict[Operation, tuple[Operation, ...]] = {
    Operation.DESCRIBE: (
        Operation.DESCRIBE,
        Operation.READ,
        Operation.WRITE,
        Operation.DELETE,
        Operation.ALTER,
    ),
    Operation.DESCRIBE_CONFIGS: (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
}

SUPPORTED_OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
}
"""What "authorized operations" of a response may contain, by resource."""
