"""CreateDelegationToken (38), versions 0 to 3, RenewDelegationToken (39) and ExpireDelegationToken
(40), versions 0 to 2, DescribeDelegationToken (41), versions 0 to 3 (KIP-48, KIP-373).

Only clients that authenticated without a token may send them. Without `delegation.token.secret.key`
they fail with DELEGATION_TOKEN_AUTH_DISABLED. Mirrors Kafka's `KafkaApis`.

A client may create any number of tokens: their description pauses between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import (
    ANONYMOUS,
    Principal,
    RequestContext,
)
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.security.sasl.delegation_tokens import DelegationTokens
    from ottla.controller.tree.znodes_security import TokenInformation
    from ottla.protocol.messages.create_delegation_token import (
        CreateDelegationTokenRequest,
        CreateDelegationTokenResponse,
    )
    from ottla.protocol.messages.describe_delegation_token import (
        DescribedDelegationToken,
        DescribeDelegationTokenRequest,
        DescribeDelegationTokenResponse,
    )
    from ottla.protocol.messages.expire_delegation_token import (
        ExpireDelegationTokenRequest,
        ExpireDelegationTokenResponse,
    )
    from ottla.protocol.messages.renew_delegation_token import (
        RenewDelegationTokenRequest,
        RenewDelegationTokenResponse,
    )
    from ottla.protocol.steps import Steps

# The first version with the requester of a token, besides its owner (KIP-373).
_REQUESTER_SINCE = 3

Allows = Callable[[RequestContext, Operation, ResourceType, str], bool]


class DelegationTokenHandlers:
    """Authorizes the requests and hands them to `DelegationTokens`."""

    def __init__(self, tokens: DelegationTokens, allows: Allows) -> None:
        self._tokens = tokens
        self._allows = allows

    async def create(
        self, context: RequestContext, request: CreateDelegationTokenRequest
    ) -> CreateDelegationTokenResponse:
        from ottla.protocol.messages.create_delegation_token import CreateDelegationTokenResponse

        requester = owner = context.principal
        if request.owner_principal_name:
            owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
        response = CreateDelegationTokenResponse(
            principal_type=owner.principal_type,
            principal_name=owner.name,
            issue_timestamp_ms=-1,
            expiry_timestamp_ms=-1,
            max_timestamp_ms=-1,
        )
        if context.header.api_version >= _REQUESTER_SINCE:
            response.token_requester_principal_type = requester.principal_type
            response.token_requester_principal_name = requester.name
        try:
            renewers = self._check_creation(context, request, owner)
            token = await self._tokens.create(
                str(owner), str(requester), renewers, request.max_lifetime_ms
            )
        except KafkaError as error:
            response.error_code = error.code
            return response
        response.issue_timestamp_ms = token.issued_ms
        response.expiry_timestamp_ms = token.expires_ms
        response.max_timestamp_ms = token.max_lifetime_ends_ms
        response.token_id = token.token_id
        response.hmac = self._tokens.hmac(token.token_id)
        return response

    def _check_creation(
        self, context: RequestContext, request: CreateDelegationTokenRequest, owner: Principal
    ) -> list[str]:
        """The renewers. Raises KafkaError."""
        _require_authentication_without_token(context)
        if owner != context.principal and not self._allows(
            context, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
        ):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        if any(renewer.principal_type != "User" for renewer in request.renewers):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
        return [str(principal) for principal in _principals(request.renewers)]

    async def renew(
        self, context: RequestContext, request: RenewDelegationTokenRequest
    ) -> RenewDelegationTokenResponse:
        from ottla.protocol.messages.renew_delegation_token import RenewDelegationTokenResponse

        try:
            _require_authentication_without_token(context)
            end_ms = await self._tokens.renew(
                str(context.principal), request.hmac, request.renew_period_ms
            )
        except KafkaError as error:
            return RenewDelegationTokenResponse(error.code, -1)
        return RenewDelegationTokenResponse(ErrorCode.NONE, end_ms)

    async def expire(
        self, context: RequestContext, request: ExpireDelegationTokenRequest
    ) -> ExpireDelegationTokenResponse:
        from ottla.protocol.messages.expire_delegation_token import ExpireDelegationTokenResponse

        try:
            _require_authentication_without_token(context)
            end_ms = await self._tokens.expire(
                str(context.principal), request.hmac, request.expiry_time_period_ms
            )
        except KafkaError as error:
            return ExpireDelegationTokenResponse(error.code, -1)
        return ExpireDelegationTokenResponse(ErrorCode.NONE, end_ms)

    def describe(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> Steps[DescribeDelegationTokenResponse]:
        from ottla.protocol.messages.describe_delegation_token import (
            DescribeDelegationTokenResponse,
        )

        try:
            _require_authentication_without_token(context)
        except KafkaError as error:
            return DescribeDelegationTokenResponse(error.code)
        if not self._tokens.is_enabled:
            return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        owners = None
        if request.owners is not None:
            owners = {str(principal) for principal in _principals(request.owners)}
        with_requester = context.header.api_version >= _REQUESTER_SINCE
        found = []
        # A token that is removed at a pause is described all the same, as if it were removed later.
        for token in self._tokens.all():
            yield
            if self._is_shown(context, token, owners):
                found.append(self._described(token, with_requester))
        return DescribeDelegationTokenResponse(tokens=found)

    def _is_shown(
        self, context: RequestContext, token: TokenInformation, owners: set[str] | None
    ) -> bool:
        """Whether a token is requested, and the client owns it or is authorized to describe it."""
        involved = {token.owner, token.requester, *token.renewers}
        if owners is not None and not owners & involved:
            return False
        if str(context.principal) in involved:
            return True
        describe, of_user = Operation.DESCRIBE, Operation.DESCRIBE_TOKENS
        return self._allows(
            context, describe, ResourceType.DELEGATION_TOKEN, token.token_id
        ) or self._allows(context, of_user, ResourceType.USER, token.owner)

    def _described(self, token: TokenInformation, with_requester: bool) -> DescribedDelegationToken:
        from ottla.protocol.messages.describe_delegation_token import (
            DescribedDelegationToken,
            DescribedDelegationTokenRenewer,
        )

        owner_type, _, owner_name = token.owner.partition(":")
        requester_type, _, requester_name = token.requester.partition(":")
        renewers = (renewer.partition(":") for renewer in token.renewers)
        return DescribedDelegationToken(
            principal_type=owner_type,
            principal_name=owner_name,
            token_requester_principal_type=requester_type if with_requester else "",
            token_requester_principal_name=requester_name if with_requester else "",
            issue_timestamp=token.issued_ms,
            expiry_timestamp=token.expires_ms,
            max_timestamp=token.max_lifetime_ends_ms,
            token_id=token.token_id,
            hmac=self._tokens.hmac(token.token_id),
            renewers=[DescribedDelegationTokenRenewer(kind, name) for kind, _, name in renewers],
        )


def _principals(rows: Iterable[Any]) -> list[Principal]:
    """The principals of rows, which have the same two fields in several requests."""
    return [Principal(row.principal_type, row.principal_name) for row in rows]


def _require_authentication_without_token(context: RequestContext) -> None:
    """Rejects clients that are not authenticated, or with a token, as in Kafka."""
    connection = context.connection
    protocol = connection.listener.security_protocol
    by_token = connection.sasl is not None and connection.sasl.is_token
    without_name = protocol == "SSL" and context.principal == ANONYMOUS
    if by_token or protocol == "PLAINTEXT" or without_name:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


ROUTES = (
    ApiRoute(ApiKey.CREATE_DELEGATION_TOKEN, DelegationTokenHandlers.create, check="unchecked"),
    ApiRoute(ApiKey.RENEW_DELEGATION_TOKEN, DelegationTokenHandlers.renew, check="unchecked"),
    ApiRoute(ApiKey.EXPIRE_DELEGATION_TOKEN, DelegationTokenHandlers.expire, check="unchecked"),
    ApiRoute(ApiKey.DESCRIBE_DELEGATION_TOKEN, DelegationTokenHandlers.describe, check="unchecked"),
)
