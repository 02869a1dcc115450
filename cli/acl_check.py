"""Why a principal may do something or not: the ACLs and settings that decide it.

The same rules as in the broker decide (`AclRules`), on the ACLs that it returns.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.config.rules import parse_super_users
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import (
    IMPLIED_BY,
    OPERATION_NAMES,
    PERMISSION_NAMES,
    RESOURCE_NAMES,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.cli.acl_words import Resource, row, word
from ottla.cli.output import Cell
from ottla.cli.session import Session, check
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

_BROKER = 4
_SUPER_USERS, _ALLOW_EVERYONE = "super.users", "allow.everyone.if.no.acl.found"

Rows = list[dict[str, Cell]]


class Decision(NamedTuple):
    """`deciding` are the ACLs because of which it is so, `other` the rest of the resource's."""

    is_allowed: bool
    reason: str
    deciding: Rows
    other: Rows


def describe_acls(
    session: Session, resource: Resource | None, pattern: PatternType, principal: str | None
) -> Rows:
    """The ACLs that fit, as rows of a table, sorted."""
    response = session.call(
        DescribeAclsResponse,
        DescribeAclsRequest(
            ResourceType.ANY if resource is None else resource.kind,
            None if resource is None else resource.name,
            pattern,
            principal,
            None,
            Operation.ANY,
            Permission.ANY,
        ),
    )
    check(response.error_code, "acls", response.error_message)
    rows = [
        row(
            found.resource_type,
            found.resource_name,
            found.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for found in response.resources
        for acl in found.acls
    ]
    return sorted(rows, key=lambda each: [str(cell) for cell in each.values()])


def check_access(
    session: Session, principal: str, host: str, operation: Operation, resource: Resource
) -> Decision:
    """Decides as a broker of the cluster does. `host` "" is an address that no ACL names."""
    rows = describe_acls(session, resource, PatternType.MATCH, None)
    mine = [each for each in rows if _is_for(each, principal, host)]
    settings = _authorizer_settings(session)
    if principal in parse_super_users(settings.get(_SUPER_USERS) or ""):
        return Decision(True, f"{principal} is in super.users of the broker", [], rows)
    name = f"{word(ResourceType, resource.kind)} {resource.name}"
    everyone = (settings.get(_ALLOW_EVERYONE) or "") == "true"
    rules = _rules(rows)
    allowed = rules.allows(
        principal, host, operation, resource.kind, resource.name, without_acls=everyone
    )
    if not rows:
        verb = "allows" if allowed else "does not allow"
        reason = f"{name} has no ACL, and {_ALLOW_EVERYONE}={str(everyone).lower()} {verb} it"
        if not settings:
            reason += "; this user may not read the settings super.users and " + _ALLOW_EVERYONE
        return Decision(allowed, reason, [], [])
    denying = _with(mine, Permission.DENY, (operation, Operation.ALL))
    including = {*IMPLIED_BY.get(operation, (operation,)), Operation.ALL}
    allowing = _with(mine, Permission.ALLOW, tuple(including))
    if denying:
        return Decision(
            allowed, "an ACL denies it, which wins over all that allow it", denying, rows
        )
    if allowing:
        return Decision(allowed, "an ACL allows it", allowing, rows)
    reason = f"no ACL of {name} allows {word(Operation, operation)} to {principal}"
    if not settings:
        reason += "; it may be in super.users, which this user may not read"
    return Decision(allowed, reason, [], rows)


def _authorizer_settings(session: Session) -> dict[str, str | None]:
    """Empty if this user may not read them."""
    broker = str(session.broker_ids()[0])
    wanted = DescribeConfigsResource(_BROKER, broker, [_SUPER_USERS, _ALLOW_EVERYONE])
    response = session.call(
        DescribeConfigsResponse,
        DescribeConfigsRequest([wanted]),
        session.node(int(broker)),
    )
    [result] = response.results
    if result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return {}
    check(result.error_code, "settings of the authorizer", result.error_message)
    return {each.name: each.value for each in result.configs}


def _is_for(acl: dict[str, Cell], principal: str, host: str) -> bool:
    return acl["principal"] in (principal, WILDCARD_PRINCIPAL) and acl["host"] in (host, WILDCARD)


def _with(acls: Rows, permission: Permission, operations: tuple[Operation, ...]) -> Rows:
    names = {word(Operation, each) for each in operations}
    wanted = word(Permission, permission)
    return [each for each in acls if each["permission"] == wanted and each["operation"] in names]


def _rules(rows: Rows) -> AclRules:
    operations = {word(Operation, each): name for each, name in OPERATION_NAMES.items()}
    permissions = {word(Permission, each): name for each, name in PERMISSION_NAMES.items()}
    kinds = {word(ResourceType, each): name for each, name in RESOURCE_NAMES.items()}
    by_resource: dict[AclResource, list[Acl]] = {}
    for each in rows:
        cells = {name: str(cell) for name, cell in each.items()}
        pattern = (
            PREFIXED if cells["pattern"] == word(PatternType, PatternType.PREFIXED) else LITERAL
        )
        resource = AclResource(pattern, kinds[cells["resource"]], cells["name"])
        acl = Acl(
            cells["principal"],
            permissions.get(cells["permission"], ""),
            operations.get(cells["operation"], ""),
            cells["host"],
        )
        by_resource.setdefault(resource, []).append(acl)
    rules = AclRules()
    for resource, acls in by_resource.items():
        rules.replace(resource, acls)
    return rules
