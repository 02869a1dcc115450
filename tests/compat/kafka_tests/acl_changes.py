"""ACLs that the authorizer of a test changes: Ottla asks the JVM of the test to do it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.security import acls
from ottla.broker.handlers.security.acls import AclAdminHandlers
from ottla.broker.security.authorization.acl_types import (
    RESOURCE_NAMES,
    PatternType,
    ResourceType,
)
from ottla.controller.tree.znodes_security import AclResource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from tests.compat.kafka_tests.plugins import request_of

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext
    from ottla.protocol.messages.create_acls import CreateAclsRequest
    from ottla.protocol.messages.delete_acls import DeleteAclsRequest

_UNKNOWN = "the filter contains unknown elements"


class OwnAclChanges:
    """Has ACLs created and deleted by the authorizer of a test, which writes them to ZooKeeper. The
    request waits for it, no other one does."""

    def __init__(self, port: int, properties: str) -> None:
        """The port of the JVM, and the settings file by which it knows this broker."""
        self._port = port
        self._properties = properties

    def install(self) -> None:
        """Each CreateAcls and DeleteAcls is the authorizer's from now on."""
        own = self

        async def create(
            handlers: AclAdminHandlers, context: RequestContext, request: CreateAclsRequest
        ) -> CreateAclsResponse:
            return await own._create(handlers, context, request)

        async def delete(
            handlers: AclAdminHandlers, context: RequestContext, request: DeleteAclsRequest
        ) -> DeleteAclsResponse:
            return await own._delete(handlers, context, request)

        AclAdminHandlers.create = create  # type: ignore[method-assign]
        AclAdminHandlers.delete = delete  # type: ignore[method-assign]

    async def _ask(self, what: str, context: RequestContext, rows: list[list[object]]) -> Any:
        """A connection for each question: the authorizer may complete them in any order."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            question = [what, self._properties, request_of(context), rows]
            writer.write(json.dumps(question).encode() + b"\n")
            return json.loads(await reader.readline())
        finally:
            writer.close()

    async def _create(
        self, handlers: AclAdminHandlers, context: RequestContext, request: CreateAclsRequest
    ) -> CreateAclsResponse:
        """What the broker finds invalid does not get to the authorizer."""
        results = [
            AclCreationResult(ErrorCode.INVALID_REQUEST if problem else 0, problem)
            for problem in map(acls._problem, request.creations)
        ]
        valid = [index for index, result in enumerate(results) if not result.error_code]
        rows: list[list[object]] = [
            [
                each.resource_type,
                each.resource_name,
                each.resource_pattern_type,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            ]
            for each in (request.creations[index] for index in valid)
        ]
        for index, error in zip(valid, await self._ask("create_acls", context, rows), strict=True):
            if error is not None:
                results[index] = AclCreationResult(*error)
        await _read_again(handlers, rows)
        return CreateAclsResponse(results=results)

    async def _delete(
        self, handlers: AclAdminHandlers, context: RequestContext, request: DeleteAclsRequest
    ) -> DeleteAclsResponse:
        results = [
            DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, _UNKNOWN)
            if acls._filter(each).is_unknown
            else DeleteAclsFilterResult(error_message=None)
            for each in request.filters
        ]
        valid = [index for index, result in enumerate(results) if not result.error_code]
        filters: list[list[object]] = [
            [
                each.resource_type_filter,
                each.resource_name_filter,
                each.pattern_type_filter,
                each.principal_filter,
                each.host_filter,
                each.operation,
                each.permission_type,
            ]
            for each in (request.filters[index] for index in valid)
        ]
        changed: list[list[object]] = []
        results = await self._ask("delete_acls", context, filters)
        for index, (error, matched) in zip(valid, results, strict=True):
            if error is not None:
                results[index] = DeleteAclsFilterResult(*error)
            for failure, *acl in matched:
                code, message = failure or (0, None)
                results[index].matching_acls.append(DeleteAclsMatchingAcl(code, message, *acl))
                changed.append(acl)
        await _read_again(handlers, changed)
        return DeleteAclsResponse(filter_results=results)


async def _read_again(handlers: AclAdminHandlers, rows: list[list[Any]]) -> None:
    """What was changed is in force on this broker when the client gets its response."""
    assert handlers._store is not None
    await handlers._store._load(
        AclResource(
            acls._PATTERN_NAMES[PatternType(pattern)], RESOURCE_NAMES[ResourceType(kind)], name
        )
        for kind, name, pattern, *_ in rows
    )
