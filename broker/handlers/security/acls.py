"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 0 to 3 (KIP-11, 140, 290).

Without an authorizer every response is SECURITY_DISABLED, as in Kafka. Deviations: a request with
elements of later versions fails with INVALID_REQUEST (Kafka closes the connection), and so does ANY
or MATCH in a creation.

A filter without a name is compared with every ACL of the cluster, with pauses if there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.security.authorization.acl_rules import AclFilter
from ottla.broker.security.authorization.acl_types import (
    CLUSTER_NAME,
    OPERATION_NAMES,
    OPERATIONS,
    PERMISSION_NAMES,
    PERMISSIONS,
    RESOURCE_NAMES,
    RESOURCES,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_in_turns

if TYPE_CHECKING:
    from ottla.broker.security.authorization.acl_rules import AclRules
    from ottla.broker.security.authorization.acl_store import AclStore
    from ottla.protocol.steps import Steps

NO_AUTHORIZER = "No Authorizer is configured on this broker; set authorizer.class.name"

_PATTERNS = {LITERAL: PatternType.LITERAL, PREFIXED: PatternType.PREFIXED}
_PATTERN_NAMES = {pattern: name for name, pattern in _PATTERNS.items()}


class AclAdminHandlers:
    """Reads ACLs from memory and changes them in the znode tree."""

    def __init__(self, rules: AclRules, store: AclStore | None) -> None:
        """`store` is None on a broker without an authorizer."""
        self._rules = rules
        self._store = store

    def describe(
        self, context: RequestContext, request: DescribeAclsRequest
    ) -> Steps[DescribeAclsResponse]:
        if self._store is None:
            return DescribeAclsResponse(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
            )
        wanted = _filter(request)
        if wanted.is_unknown:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the filter contains unknown elements")
        response = DescribeAclsResponse(error_message=None)
        found = yield from self._rules.find(wanted)
        for resource, acls in found:
            yield
            response.resources.append(
                DescribeAclsResource(
                    RESOURCES[resource.resource_type],
                    resource.name,
                    _PATTERNS[resource.pattern_type],
                    [
                        AclDescription(
                            acl.principal,
                            acl.host,
                            OPERATIONS.get(acl.operation, Operation.UNKNOWN),
                            PERMISSIONS.get(acl.permission_type, Permission.UNKNOWN),
                        )
                        for acl in acls
                    ],
                )
            )
        return response

    async def create(
        self, context: RequestContext, request: CreateAclsRequest
    ) -> CreateAclsResponse:
        if self._store is None:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        results = [AclCreationResult(error_message=None) for _ in request.creations]
        wanted: dict[AclResource, list[tuple[int, Acl]]] = {}
        for index, creation in enumerate(request.creations):
            problem = _problem(creation)
            if problem is not None:
                results[index] = AclCreationResult(ErrorCode.INVALID_REQUEST, problem)
                continue
            resource = AclResource(
                _PATTERN_NAMES[PatternType(creation.resource_pattern_type)],
                RESOURCE_NAMES[ResourceType(creation.resource_type)],
                creation.resource_name,
            )
            wanted.setdefault(resource, []).append((index, _acl(creation)))
        for resource, listed in wanted.items():
            new = frozenset(acl for _, acl in listed)
            try:
                await self._store.update(resource, new.union)
            except Exception as error:
                code, message = error_code(error), error_message(error)
                for index, _ in listed:
                    results[index] = AclCreationResult(code, message)
        return CreateAclsResponse(results=results)

    async def delete(
        self, context: RequestContext, request: DeleteAclsRequest
    ) -> DeleteAclsResponse:
        if self._store is None:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        response = DeleteAclsResponse()
        for wanted in request.filters:
            response.filter_results.append(await self._delete_matching(_filter(wanted)))
        return response

    async def _delete_matching(self, wanted: AclFilter) -> DeleteAclsFilterResult:
        assert self._store is not None
        if wanted.is_unknown:
            return DeleteAclsFilterResult(
                ErrorCode.INVALID_REQUEST, "the filter contains unknown elements"
            )
        result = DeleteAclsFilterResult(error_message=None)
        for resource, acls in await run_in_turns(self._rules.find(wanted)):
            deleted = frozenset(acls)
            code, message = int(ErrorCode.NONE), None
            try:
                await self._store.update(resource, _without(deleted))
            except Exception as error:
                code, message = error_code(error), error_message(error)
            result.matching_acls.extend(_deleted(resource, deleted, code, message))
        return result


def _without(deleted: frozenset[Acl]) -> Callable[[frozenset[Acl]], frozenset[Acl]]:
    return lambda held: held - deleted


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


def _deleted(
    resource: AclResource, acls: Iterable[Acl], code: int, message: str | None
) -> list[DeleteAclsMatchingAcl]:
    return [
        DeleteAclsMatchingAcl(
            code,
            message,
            RESOURCES[resource.resource_type],
            resource.name,
            _PATTERNS[resource.pattern_type],
            acl.principal,
            acl.host,
            OPERATIONS.get(acl.operation, Operation.UNKNOWN),
            PERMISSIONS.get(acl.permission_type, Permission.UNKNOWN),
        )
        for acl in acls
    ]


def _acl(creation: AclCreation) -> Acl:
    return Acl(
        creation.principal,
        PERMISSION_NAMES[Permission(creation.permission_type)],
        OPERATION_NAMES[Operation(creation.operation)],
        creation.host,
    )


def _problem(creation: AclCreation) -> str | None:
    """The error message for an invalid ACL; None for a valid one."""
    kinds, operations = set(ResourceType), set(Operation)
    if (
        creation.resource_type not in kinds - {ResourceType.UNKNOWN, ResourceType.ANY}
        or creation.resource_pattern_type not in _PATTERN_NAMES
        or creation.operation not in operations - {Operation.UNKNOWN, Operation.ANY}
        or creation.permission_type not in (Permission.ALLOW, Permission.DENY)
    ):
        return "ACL binding contains unknown elements"
    name = creation.resource_name
    if creation.resource_type == ResourceType.CLUSTER and name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not name:
        return "Invalid empty resource name"
    if "/" in name:
        return f"ACL binding contains invalid resource name: {name}"
    if ":" not in creation.principal:
        return f"{creation.principal!r} is not a principal; use User:{creation.principal}"
    return None


def _create_acls_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    response.results = [AclCreationResult(code, message) for _ in request.creations]


def _delete_acls_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    response.filter_results = [DeleteAclsFilterResult(code, message) for _ in request.filters]


ROUTES = (
    ApiRoute(ApiKey.DESCRIBE_ACLS, AclAdminHandlers.describe, check=OnCluster("DESCRIBE")),
    ApiRoute(
        ApiKey.CREATE_ACLS,
        AclAdminHandlers.create,
        check=OnCluster("ALTER"),
        errors=_create_acls_errors,
    ),
    ApiRoute(
        ApiKey.DELETE_ACLS,
        AclAdminHandlers.delete,
        check=OnCluster("ALTER"),
        errors=_delete_acls_errors,
    ),
)
