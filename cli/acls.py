"""`ottla acls`: who may do what, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.broker.security.authorization.acl_types import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.cli.acl_check import Rows, check_access, describe_acls
from ottla.cli.acl_words import (
    COLUMNS,
    ClusterOption,
    GroupOption,
    Resource,
    TokenOption,
    TopicOption,
    TransactionalIdOption,
    UserOption,
    operations_of,
    principal_of,
    required,
    resource_of,
    row,
)
from ottla.cli.app import family
from ottla.cli.output import FAILED, Failure, print_fields, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

EXAMPLES = """\
  ottla acls list
  ottla acls list --topic orders --matching
  ottla acls add --allow User:alice --operation read --topic orders
  ottla acls add --allow User:alice --operation write --topic team- --prefixed
  ottla acls add --deny User:bob -o all --topic orders --host 10.0.0.1
  ottla acls remove --principal User:alice --topic orders --yes
  ottla acls check User:alice --operation read --topic orders
"""

app = family("List, add, remove and check access control lists.", EXAMPLES)

_PERMISSIONS = {"": Permission.ANY, "allow": Permission.ALLOW, "deny": Permission.DENY}

PrincipalOption = Annotated[
    str | None, typer.Option("--principal", help="Only of this principal, such as User:alice.")
]
OperationOption = Annotated[
    list[str] | None,
    typer.Option("--operation", "-o", help="read, write, describe, ...; repeatable."),
]
HostOption = Annotated[
    list[str] | None, typer.Option("--host", help="IP address; any without it; repeatable.")
]
PrefixedOption = Annotated[
    bool, typer.Option("--prefixed", help="The name stands for all names that begin with it.")
]


@app.command("list")
@connected
def list_acls(
    session: Session,
    principal: PrincipalOption = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    delegation_token: TokenOption = None,
    user: UserOption = None,
    matching: Annotated[
        bool,
        typer.Option("--matching", help="Also prefixes and '*' that stand for the name."),
    ] = False,
    prefixed: Annotated[bool, typer.Option("--prefixed", help="Only ACLs of prefixes.")] = False,
) -> None:
    """List ACLs; without options all of them."""
    if matching and prefixed:
        raise usage("choose one of --matching and --prefixed.")
    resource = resource_of(topic, group, transactional_id, cluster, delegation_token, user)
    pattern = PatternType.MATCH if matching else PatternType.ANY
    pattern = PatternType.PREFIXED if prefixed else pattern
    who = None if principal is None else principal_of(principal)
    rows = describe_acls(session, resource, pattern, who)
    if session.json:
        print_json(rows)
    else:
        print_rows(rows, COLUMNS, empty="No ACLs.")


@app.command()
@connected
def add(
    session: Session,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Principal that may; repeatable.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="Principal that may not; repeatable.")
    ] = None,
    operation: OperationOption = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    delegation_token: TokenOption = None,
    user: UserOption = None,
    prefixed: PrefixedOption = False,
    host: HostOption = None,
) -> None:
    """Add ACLs: one for each principal, operation and host."""
    resource = required(
        resource_of(topic, group, transactional_id, cluster, delegation_token, user)
    )
    subjects = [(principal_of(each), Permission.ALLOW) for each in allow or ()]
    subjects += [(principal_of(each), Permission.DENY) for each in deny or ()]
    if not subjects:
        raise usage("name a principal: --allow User:alice or --deny User:alice.")
    operations = operations_of(operation or ())
    if not operations:
        raise usage("name an operation: --operation read.")
    creations = [
        AclCreation(
            resource.kind,
            resource.name,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            principal,
            address,
            each,
            permission,
        )
        for principal, permission in subjects
        for each in operations
        for address in host or ["*"]
    ]
    response = session.call(CreateAclsResponse, CreateAclsRequest(creations), Controller())
    for result in response.results:
        check(result.error_code, "acls", result.error_message)
    rows = [
        row(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in creations
    ]
    _print_changed(session, rows, "added")


@app.command()
@connected
def remove(
    session: Session,
    principal: PrincipalOption = None,
    operation: OperationOption = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    delegation_token: TokenOption = None,
    user: UserOption = None,
    prefixed: PrefixedOption = False,
    host: HostOption = None,
    permission: Annotated[
        str, typer.Option("--permission", help="Only ACLs that allow or that deny: allow, deny.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")
    ] = False,
) -> None:
    """Remove the ACLs of a resource or a principal."""
    resource = resource_of(topic, group, transactional_id, cluster, delegation_token, user)
    if resource is None and principal is None:
        raise usage("name a resource or --principal: all ACLs are not removed at once.")
    if permission not in _PERMISSIONS:
        raise usage(f"--permission {permission} is not allow or deny.")
    who = None if principal is None else principal_of(principal)
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    addresses: list[str | None] = [*host] if host else [None]
    filters = [
        _filter(resource, pattern, who, address, each, _PERMISSIONS[permission])
        for each in operations_of(operation or ()) or [Operation.ANY]
        for address in addresses
    ]
    about = " and ".join(
        each for each in (who and f"of {who}", resource and f"on {resource.name}") if each
    )
    if not yes and not typer.confirm(f"Remove the ACLs {about}?", err=True):
        raise Failure("nothing was removed.")
    response = session.call(DeleteAclsResponse, DeleteAclsRequest(filters), Controller())
    found = [each for result in response.filter_results for each in result.matching_acls]
    rows = [
        row(
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in found
        if each.error_code == ErrorCode.NONE
    ]
    left = [] if resource is None else describe_acls(session, resource, pattern, None)
    # Also if others could not be removed.
    _print_changed(session, rows, "removed", left)
    for result in response.filter_results:
        check(result.error_code, "acls", result.error_message)
    for each in found:
        check(each.error_code, f"ACL on {each.resource_name}", each.error_message)


def _filter(
    resource: Resource | None,
    pattern: PatternType,
    principal: str | None,
    host: str | None,
    operation: Operation,
    permission: Permission,
) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        ResourceType.ANY if resource is None else resource.kind,
        None if resource is None else resource.name,
        # Without a name, --prefixed alone narrows what is removed.
        PatternType.ANY if resource is None and pattern is PatternType.LITERAL else pattern,
        principal,
        host,
        operation,
        permission,
    )


def _print_changed(session: Session, rows: Rows, verb: str, left: Rows | None = None) -> None:
    """`left` are the ACLs that the resource still has, which Kafka's tool prints, too."""
    if session.json:
        print_json({verb: rows} if left is None else {verb: rows, "left": left})
        return
    print_rows(rows, COLUMNS)
    say(f"{len(rows)} ACL{'' if len(rows) == 1 else 's'} {verb}.")
    if left:
        say("\nACLs that the resource still has:")
        print_rows(left, COLUMNS)


@app.command("check")
@connected
def check_command(
    session: Session,
    principal: Annotated[str, typer.Argument(help="User:alice", show_default=False)],
    operation: Annotated[
        str, typer.Option("--operation", "-o", help="read, write, ...", show_default=False)
    ],
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    delegation_token: TokenOption = None,
    user: UserOption = None,
    host: Annotated[str, typer.Option("--host", help="IP address of the client.")] = "",
) -> None:
    """Say whether a principal may do something, and which ACLs decide it. Exit code 1 if not."""
    resource = required(
        resource_of(topic, group, transactional_id, cluster, delegation_token, user)
    )
    [wanted] = operations_of([operation])
    found = check_access(session, principal_of(principal), host, wanted, resource)
    if session.json:
        print_json(
            {
                "allowed": found.is_allowed,
                "reason": found.reason,
                "deciding": found.deciding,
                "other": found.other,
            }
        )
    else:
        print_fields({"allowed": found.is_allowed, "reason": found.reason})
        if found.deciding:
            say("")
            print_rows(found.deciding, COLUMNS)
        elif found.other:
            say("\nACLs of the resource, none of which applies:")
            print_rows(found.other, COLUMNS)
    if not found.is_allowed:
        raise typer.Exit(FAILED)
