"""ACLs and SCRAM users: shown and changed where the broker has them."""

from __future__ import annotations

import hashlib
import os
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_client import NoResponse, check
from ottla.broker.observability.console.parameters import InvalidParameter
from ottla.broker.security.authorization.acl_types import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.broker.security.sasl.scram_credentials import HASHES, MIN_ITERATIONS, TYPES
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.parameters import Parameters
    from ottla.broker.runtime.tasks import WorkerPool

ROWS_ON_A_PAGE = 200
MAX_PASSWORD_CHARACTERS = 200
MIN_PASSWORD_CHARACTERS = 8

_NUMBERS = {name: number for number, name in TYPES.items()}


class SecurityViews:
    """Asks this broker, which has the ACLs and users of the cluster; changes of users go to the
    controller."""

    def __init__(self, client: ClusterClient, workers: WorkerPool) -> None:
        self._client = client
        self._workers = workers

    async def shown(self, search: str, first: int, viewer: Viewer) -> dict[str, Any]:
        """A page of the ACLs and of the users; why there are none."""
        viewer.require_on_cluster(Operation.DESCRIBE)
        acls, no_acls = await self._acls(viewer)
        users, no_users = await self._users(viewer)
        wanted = search.lower()
        found = [row for row in acls if any(wanted in str(each).lower() for each in row.values())]
        users = [row for row in users if wanted in row["user"].lower()]
        first = min(max(0, first), max(0, len(found) - 1)) // ROWS_ON_A_PAGE * ROWS_ON_A_PAGE
        return {
            "acls": found[first : first + ROWS_ON_A_PAGE],
            "total": len(found),
            "first": first,
            "page": ROWS_ON_A_PAGE,
            "no_acls": no_acls,
            "users": users[:ROWS_ON_A_PAGE],
            "no_users": no_users,
            "may_alter": viewer.may_on_cluster(Operation.ALTER),
            "words": {
                "resources": [each.name for each in ResourceType if each > ResourceType.ANY],
                "operations": [each.name for each in Operation if each > Operation.ANY],
                "mechanisms": list(HASHES),
            },
            "problems": [],
        }

    async def _acls(self, viewer: Viewer) -> tuple[list[dict[str, str]], str]:
        request = DescribeAclsRequest(
            resource_type_filter=ResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        try:
            response = await self._client.ask(
                viewer, self._client.broker_id, request, DescribeAclsResponse
            )
        except KafkaError as error:
            return [], str(error)
        if response.error_code == ErrorCode.SECURITY_DISABLED:
            return [], "This broker has no authorizer (authorizer.class.name): all is allowed."
        check(response.error_code, response.error_message)
        rows = [
            {
                "principal": acl.principal,
                "permission": _word(Permission, acl.permission_type),
                "operation": _word(Operation, acl.operation),
                "resource": _word(ResourceType, resource.resource_type),
                "name": resource.resource_name,
                "pattern": _word(PatternType, resource.pattern_type),
                "host": acl.host,
            }
            for resource in response.resources
            for acl in resource.acls
        ]
        return sorted(rows, key=lambda row: (row["principal"], row["resource"], row["name"])), ""

    async def _users(self, viewer: Viewer) -> tuple[list[dict[str, Any]], str]:
        request = DescribeUserScramCredentialsRequest(None)
        try:
            response = await self._client.ask(
                viewer, self._client.broker_id, request, DescribeUserScramCredentialsResponse
            )
        except (KafkaError, NoResponse) as error:
            return [], str(error)
        if response.error_code:
            return [], response.error_message or "The broker returned no users."
        return [
            {
                "user": row.user,
                "mechanisms": [TYPES.get(each.mechanism, "?") for each in row.credential_infos],
            }
            for row in sorted(response.results, key=lambda row: row.user)
        ], ""

    async def create_acl(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        row = _Acl(given)
        creation = AclCreation(
            resource_type=row.resource,
            resource_name=row.name,
            resource_pattern_type=row.pattern,
            principal=row.principal,
            host=row.host,
            operation=row.operation,
            permission_type=row.permission,
        )
        response = await self._client.ask(
            viewer, self._client.broker_id, CreateAclsRequest([creation]), CreateAclsResponse
        )
        for result in response.results:
            check(result.error_code, result.error_message)
        return {"done": f"The ACL of {row.principal} is added."}

    async def delete_acl(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """Exactly one ACL: each field is given."""
        row = _Acl(given)
        wanted = DeleteAclsFilter(
            resource_type_filter=row.resource,
            resource_name_filter=row.name,
            pattern_type_filter=row.pattern,
            principal_filter=row.principal,
            host_filter=row.host,
            operation=row.operation,
            permission_type=row.permission,
        )
        response = await self._client.ask(
            viewer, self._client.broker_id, DeleteAclsRequest([wanted]), DeleteAclsResponse
        )
        count = 0
        for result in response.filter_results:
            check(result.error_code, result.error_message)
            count += len(result.matching_acls)
        if not count:
            raise InvalidParameter("there is no such ACL any more")
        return {"done": f"The ACL of {row.principal} is removed."}

    async def set_user(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """A new user, or a new password. Brokers store no password and are sent none."""
        name, mechanism = given.text("user"), given.text("mechanism")
        password = given.text("password")
        if not name or mechanism not in HASHES:
            raise InvalidParameter("user or mechanism is not valid")
        if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
            raise InvalidParameter(
                f"a password has {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters"
            )
        salt = os.urandom(16)
        salted = await self._workers.run(
            hashlib.pbkdf2_hmac, HASHES[mechanism], password.encode(), salt, MIN_ITERATIONS
        )
        upsertion = ScramCredentialUpsertion(
            name, _NUMBERS[mechanism], MIN_ITERATIONS, salt, salted
        )
        await self._alter(viewer, AlterUserScramCredentialsRequest([], [upsertion]))
        return {"done": f"User {name} can log in with {mechanism}."}

    async def delete_user(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """One mechanism of a user; the name is typed a second time."""
        name, mechanism = given.confirmed("user"), given.text("mechanism")
        if mechanism not in HASHES:
            raise InvalidParameter("mechanism is not valid")
        deletion = ScramCredentialDeletion(name, _NUMBERS[mechanism])
        await self._alter(viewer, AlterUserScramCredentialsRequest([deletion], []))
        return {"done": f"User {name} cannot log in with {mechanism} any more."}

    async def _alter(self, viewer: Viewer, request: AlterUserScramCredentialsRequest) -> None:
        response = await self._client.ask(
            viewer, self._client.controller(), request, AlterUserScramCredentialsResponse
        )
        for result in response.results:
            check(result.error_code, result.error_message)


class _Acl:
    """The fields of an ACL as words. Raises InvalidParameter."""

    def __init__(self, given: Parameters) -> None:
        self.resource = _number(ResourceType, given.text("resource"))
        self.pattern = _number(PatternType, given.text("pattern", "LITERAL"))
        self.operation = _number(Operation, given.text("operation"))
        self.permission = _number(Permission, given.text("permission", "ALLOW"))
        self.name = given.text("name")
        self.principal = given.text("principal")
        self.host = given.text("host", "*")
        if ":" not in self.principal:
            raise InvalidParameter("principal is not like User:alice")


def _word(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in set(kind) else str(number)


def _number(kind: type[IntEnum], word: str) -> int:
    found = kind.__members__.get(word)
    if found is None or found.name in ("UNKNOWN", "ANY", "MATCH"):
        raise InvalidParameter(f"{word[:50]} is no {kind.__name__}")
    return found
