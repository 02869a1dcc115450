"""ACLs and SCRAM users: shown and changed where the broker has them."""

from __future__ import annotations

import hashlib
import os
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_client import NoResponse, check
from ottla.broker.observability.console.parameters import InvalidParameter
from ottla.broker.observability.console.settings_views import BROKER
from ottla.broker.security.authorization.acl_types import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
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
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
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

_SUPER_USERS, _EVERYONE = "super.users", "allow.everyone.if.no.acl.found"

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
        rules = await self._rules(viewer) if not no_acls else _NO_RULES
        wanted = search.lower()
        known = [row["principal"] for row in acls] + [f"User:{row['user']}" for row in users]
        known += rules["super_users"] or []
        is_principal = any(wanted in each.lower() for each in known)
        found = [row for row in acls if _is_found(row, wanted, is_principal=is_principal)]
        users = [row for row in users if wanted in row["user"].lower()]
        first = min(max(0, first), max(0, len(found) - 1)) // ROWS_ON_A_PAGE * ROWS_ON_A_PAGE
        return {
            "acls": found[first : first + ROWS_ON_A_PAGE],
            "total": len(found),
            "first": first,
            "page": ROWS_ON_A_PAGE,
            "no_acls": no_acls,
            **rules,
            "users": users[:ROWS_ON_A_PAGE],
            "no_users": no_users,
            "may_alter": viewer.may_on_cluster(Operation.ALTER),
            "words": {
                "resources": [each.name for each in ResourceType if each > ResourceType.ANY],
                "operations": [each.name for each in Operation if each > Operation.ANY],
                "mechanisms": list(HASHES),
            },
        }

    async def access(self, kind: str, name: str, viewer: Viewer) -> dict[str, Any]:
        """The ACLs that apply to one resource, as the authorizer matches them: with its name, with
        a prefix of it, and of the wildcard. Those that deny come first, as they decide first."""
        resource = _number(ResourceType, kind)
        if viewer.may_on_cluster(Operation.DESCRIBE):
            acls, no_acls = await self._acls(viewer, resource, PatternType.MATCH, name)
        else:
            acls, no_acls = [], "ACLs are not shown: they need an ACL for DESCRIBE on the cluster."
        acls.sort(key=lambda row: row["permission"] != Permission.DENY.name)
        return {
            "acls": acls[:ROWS_ON_A_PAGE],
            "total": len(acls),
            "no_acls": no_acls,
            **(await self._rules(viewer) if not no_acls else _NO_RULES),
        }

    async def _rules(self, viewer: Viewer) -> dict[str, Any]:
        """What the authorizers decide without ACLs: `super_users`, and whether `everyone` may use a
        resource that no ACL applies to; None where the viewer may not see settings."""
        if not viewer.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            return _NO_RULES
        names = [_SUPER_USERS, _EVERYONE]
        asked = {
            each: DescribeConfigsRequest([DescribeConfigsResource(BROKER, str(each), names)])
            for each in self._client.brokers()
        }
        gathered = await self._client.ask_each(viewer, asked, DescribeConfigsResponse)
        problems = list(gathered.problems)
        by_broker = {
            broker_id: {row.name: row.value or "" for each in response.results
                        for row in each.configs}
            for broker_id, response in sorted(gathered.responses.items())
        }  # fmt: skip
        if len({tuple(each.get(name) for name in names) for each in by_broker.values()}) > 1:
            problems.append(f"Brokers differ in {_SUPER_USERS} or {_EVERYONE}, see their settings.")
        users = {
            user.strip()
            for each in by_broker.values()
            for user in each.get(_SUPER_USERS, "").split(";")
        }
        return {
            "super_users": sorted(users - {""}),
            "everyone": any(each.get(_EVERYONE) == "true" for each in by_broker.values()),
            "problems": problems,
        }

    async def _acls(
        self,
        viewer: Viewer,
        resource_type: int = ResourceType.ANY,
        pattern: int = PatternType.ANY,
        name: str | None = None,
    ) -> tuple[list[dict[str, str]], str]:
        request = DescribeAclsRequest(
            resource_type_filter=resource_type,
            resource_name_filter=name,
            pattern_type_filter=pattern,
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


_NO_RULES: dict[str, Any] = {"super_users": None, "everyone": None, "problems": []}


def _is_found(row: dict[str, str], wanted: str, *, is_principal: bool) -> bool:
    """Whether a row has the words of a search, or applies to a name or principal like them."""
    if any(wanted in each.lower() for each in row.values()):
        return True
    name = row["name"].lower()
    if wanted.startswith(name) if row["pattern"] == PatternType.PREFIXED.name else name == WILDCARD:
        return True
    return is_principal and row["principal"] == WILDCARD_PRINCIPAL


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
            raise InvalidParameter("Enter a principal with its type, such as User:alice")


def _word(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in set(kind) else str(number)


def _number(kind: type[IntEnum], word: str) -> int:
    found = kind.__members__.get(word)
    if found is None or found.name in ("UNKNOWN", "ANY", "MATCH"):
        raise InvalidParameter(f"{word[:50]} is no {kind.__name__}")
    return found
