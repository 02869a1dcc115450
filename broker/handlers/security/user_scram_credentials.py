"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51), version 0 (KIP-554).

A user has at most one credential for each mechanism, stored under `/config/users`, from which every
broker loads it. Only the controller changes credentials. Mirrors Kafka's `ZkAdminManager`, with its
messages. Requests have salted passwords, never plain ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.security.sasl.scram_credentials import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    TYPES,
    decode_credential,
    encode_credential,
    from_salted_password,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import UnreadableConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_in_turns

if TYPE_CHECKING:
    from ottla.broker.config.dynamic_config import DynamicConfig, Properties
    from ottla.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
        AlterUserScramCredentialsResult,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )
    from ottla.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
        DescribeUserScramCredentialsResult,
    )
    from ottla.protocol.steps import Steps

    _Change = ScramCredentialUpsertion | ScramCredentialDeletion

_NUMBERS = {name: number for number, name in TYPES.items()}
_NO_NAME = "Username must not be empty"
_UNFORESEEN = "The server experienced an unexpected error when processing the request."


class UserCredentialHandlers:
    """Reads and writes credentials in the znode tree."""

    def __init__(self, dynamic_config: DynamicConfig, is_controller: Callable[[], bool]) -> None:
        self._dynamic_config = dynamic_config
        self._is_controller = is_controller

    # -- DescribeUserScramCredentials -----------------------------------------------------------

    async def describe(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        from ottla.protocol.messages.describe_user_scram_credentials import (
            DescribeUserScramCredentialsResponse,
        )

        if not request.users:
            entities = await self._dynamic_config.read_all(znodes.ENTITY_USERS)
            return await run_in_turns(_all_described(entities))
        requested = Counter(user.name for user in request.users)
        results = []
        for user, times in requested.items():
            if not user:
                result = _described(user, ErrorCode.RESOURCE_NOT_FOUND, _NO_NAME)
            elif times > 1:
                result = _described(
                    user,
                    ErrorCode.DUPLICATE_RESOURCE,
                    "Cannot describe SCRAM credentials for the same user twice in a single "
                    f"request: {user}",
                )
            else:
                result = await self._describe_stored(user)
            results.append(result)
        return DescribeUserScramCredentialsResponse(results=results)

    async def _describe_stored(self, user: str) -> DescribeUserScramCredentialsResult:
        try:
            properties = await self._dynamic_config.read(_entity(user))
        except UnreadableConfig as error:
            return _described(user, error_code(error), str(error))
        return _describe(user, properties) or _described(
            user,
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {user}",
        )

    # -- AlterUserScramCredentials --------------------------------------------------------------

    async def alter(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        from ottla.protocol.messages.alter_user_scram_credentials import (
            AlterUserScramCredentialsResponse,
            AlterUserScramCredentialsResult,
        )

        if not self._is_controller():
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        rejected = _illegal(request)
        changes: dict[str, list[_Change]] = {}
        requested_changes: list[_Change] = [*request.upsertions, *request.deletions]
        for change in requested_changes:
            if change.name not in rejected:
                changes.setdefault(change.name, []).append(change)
        rows = [
            AlterUserScramCredentialsResult(user, code, message)
            for user, (code, message) in rejected.items()
        ]
        for user, wanted in changes.items():
            if len({change.mechanism for change in wanted}) < len(wanted):
                message = "A user credential cannot be altered twice in the same request"
                rows.append(
                    AlterUserScramCredentialsResult(user, ErrorCode.DUPLICATE_RESOURCE, message)
                )
            else:
                rows.append(await self._alter_user(user, wanted))
        return AlterUserScramCredentialsResponse(results=rows)

    async def _alter_user(
        self, user: str, wanted: list[_Change]
    ) -> AlterUserScramCredentialsResult:
        from ottla.protocol.messages.alter_user_scram_credentials import (
            AlterUserScramCredentialsResult,
        )

        async def change(properties: Properties) -> Properties:
            if not _apply(properties, wanted):
                raise KafkaError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
            return properties

        try:
            # The quotas of the user are in the same znode.
            await self._dynamic_config.change(_entity(user), change)
        except Exception as error:
            return AlterUserScramCredentialsResult(
                user, error_code(error), error_message(error) or _UNFORESEEN
            )
        return AlterUserScramCredentialsResult(user)


def _entity(user: str) -> str:
    return f"{znodes.ENTITY_USERS}/{znodes.sanitize(user)}"


def _described(user: str, code: int, message: str) -> DescribeUserScramCredentialsResult:
    from ottla.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsResult,
    )

    return DescribeUserScramCredentialsResult(user, code, message)


def _describe(user: str, properties: Properties) -> DescribeUserScramCredentialsResult | None:
    """None when the user has no credential."""
    from ottla.protocol.messages.describe_user_scram_credentials import (
        CredentialInfo,
        DescribeUserScramCredentialsResult,
    )

    mechanisms = [name for name in TYPES.values() if name in properties]
    if not mechanisms:
        return None
    try:
        infos = [
            CredentialInfo(_NUMBERS[name], decode_credential(properties[name]).iterations)
            for name in mechanisms
        ]
    except ValueError:
        return _described(user, ErrorCode.UNKNOWN_SERVER_ERROR, _UNFORESEEN)
    return DescribeUserScramCredentialsResult(user, credential_infos=infos)


def _all_described(found: Mapping[str, Properties]) -> Steps[DescribeUserScramCredentialsResponse]:
    from ottla.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsResponse,
    )

    results = []
    for path, properties in found.items():
        yield
        name = path.partition("/")[2]
        if "/" not in name and name != znodes.DEFAULT_ENTITY:
            result = _describe(znodes.desanitize(name), properties)
            if result is not None:
                results.append(result)
    results.sort(key=attrgetter("user"))
    return DescribeUserScramCredentialsResponse(results=results)


def _illegal(request: AlterUserScramCredentialsRequest) -> dict[str, tuple[int, str]]:
    """Error code and message of users with invalid changes. One invalid change of a user rejects
    all of them."""
    from ottla.protocol.messages.alter_user_scram_credentials import ScramCredentialUpsertion

    found: dict[str, tuple[int, str]] = {}
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    for change in changes:
        if not change.name:
            found[change.name] = (ErrorCode.UNACCEPTABLE_CREDENTIAL, _NO_NAME)
        elif change.mechanism not in TYPES:
            message = "Unknown SCRAM mechanism"
            found[change.name] = (ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
        elif isinstance(change, ScramCredentialUpsertion):
            if change.iterations > MAX_ITERATIONS:
                found[change.name] = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
            elif change.iterations < MIN_ITERATIONS:
                found[change.name] = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    return found


def _apply(properties: Properties, wanted: list[_Change]) -> bool:
    """Applies changes to the settings of a user; False when one deletes a missing credential."""
    from ottla.protocol.messages.alter_user_scram_credentials import ScramCredentialUpsertion

    for change in wanted:
        mechanism = TYPES[change.mechanism]
        if isinstance(change, ScramCredentialUpsertion):
            if not change.salted_password:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)  # As Kafka: no key is empty.
            credential = from_salted_password(
                mechanism, change.salted_password, change.salt, change.iterations
            )
            properties[mechanism] = encode_credential(credential)
        elif properties.pop(mechanism, None) is None:
            return False
    return True


def _describe_user_scram_credentials_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    from ottla.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsResult,
    )

    for _ in request.users or ():
        response.results.append(DescribeUserScramCredentialsResult("", code, message))


def _alter_user_scram_credentials_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    from ottla.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsResult

    for user in sorted({change.name for change in (*request.deletions, *request.upsertions)}):
        response.results.append(AlterUserScramCredentialsResult(user, code, message))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        UserCredentialHandlers.describe,
        check=OnCluster("DESCRIBE"),
        errors=_describe_user_scram_credentials_errors,
    ),
    ApiRoute(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        UserCredentialHandlers.alter,
        check=OnCluster("ALTER"),
        errors=_alter_user_scram_credentials_errors,
    ),
)
