"""DescribeClientQuotas (48) and AlterClientQuotas (49), versions 0 and 1 (KIP-546).

The entity of a quota is a user, a client id, both together, or an IP address; a null name is the
default entity. Quotas are stored under `/config/users`, `/config/clients` and `/config/ips`, from
which every broker loads changes. Mirrors Kafka's `ZkAdminManager`.

Deviations: NaN, an unknown match type, and an exact match without a name are INVALID_REQUEST (Kafka
stores the first as 0 and fails on the others); host names are not resolved but rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.quotas.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    limit_of,
)
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    OpData,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_in_turns

if TYPE_CHECKING:
    from ottla.broker.config.dynamic_config import DynamicConfig, Properties
    from ottla.protocol.steps import Steps

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
EXACT, DEFAULT, ANY = 0, 1, 2

# The quotas of users and clients that are integers, and those that are not.
_LONGS = frozenset((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE))
_DOUBLES = frozenset((REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE))
_CLIENT_KEYS = _LONGS | _DOUBLES
_IP_KEYS = frozenset((CONNECTION_CREATION_RATE,))

# The tolerance for quotas that have to be integers.
_EPSILON = 1e-6
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1

# Entity type to name; None is the default entity.
Entity = dict[str, str | None]


class QuotaAdminHandlers:
    """Reads and writes quotas in the znode tree."""

    def __init__(self, dynamic_config: DynamicConfig) -> None:
        self._dynamic_config = dynamic_config

    # -- DescribeClientQuotas -------------------------------------------------------------------

    async def describe(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        wanted = _components(request.components)
        kinds = []
        if IP not in wanted:
            kinds += [znodes.ENTITY_USERS, znodes.ENTITY_CLIENTS]
        if not wanted.keys() & {USER, CLIENT_ID}:
            kinds.append(znodes.ENTITY_IPS)
        found: dict[str, Properties] = {}
        for kind in kinds:
            found.update(await self._dynamic_config.read_all(kind))
        return await run_in_turns(_described(found, wanted, request.strict))

    # -- AlterClientQuotas ----------------------------------------------------------------------

    async def alter(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> AlterClientQuotasResponse:
        # One row an entity, although all of its entries are carried out, as in Kafka.
        rows: dict[frozenset[tuple[str, str | None]], AlterClientQuotasResponseEntryData] = {}
        for entry in request.entries:
            # Of a type that is there twice the last one counts.
            entity = {part.entity_type: part.entity_name for part in entry.entity}
            code, message = ErrorCode.NONE, None
            try:
                await self._alter_one(entity, entry.ops, request.validate_only)
            except Exception as error:
                code, message = error_code(error), error_message(error)
            rows[frozenset(entity.items())] = AlterClientQuotasResponseEntryData(
                code,
                message,
                [AlterClientQuotasResponseEntityData(*part) for part in entity.items()],
            )
        return AlterClientQuotasResponse(entries=list(rows.values()))

    async def _alter_one(
        self, entity: Entity, operations: Sequence[OpData], validate_only: bool
    ) -> None:
        path = _path_of(entity)
        changes = _checked_changes(operations, IP in entity)
        if entity.get(IP, "") is None and changes.get(CONNECTION_CREATION_RATE) == "0":
            raise _invalid_request(
                f"{CONNECTION_CREATION_RATE}=0 for all addresses would lock out every client and "
                f"broker, and nobody could change it again"
            )
        if validate_only:
            return

        async def change(settings: dict[str, str]) -> dict[str, str]:
            for key, text in changes.items():
                if text is None:
                    settings.pop(key, None)
                else:
                    settings[key] = text
            return settings

        await self._dynamic_config.change(path, change)


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _components(components: Sequence[ComponentData]) -> dict[str, tuple[int, str | None]]:
    """(how to match, the name) by entity type."""
    wanted: dict[str, tuple[int, str | None]] = {}
    for component in components:
        kind = component.entity_type
        if kind == "":
            raise _invalid_request("Unexpected empty filter component entity type")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported"
            )
        if kind in wanted:
            raise _invalid_request(f"Duplicate {kind} filter component entity type")
        if component.match_type not in (EXACT, DEFAULT, ANY):
            raise _invalid_request(f"Unexpected match type: {component.match_type}")
        if component.match_type == EXACT and component.match is None:
            raise _invalid_request("Request specifies MATCH_TYPE_EXACT but no name to match")
        wanted[kind] = (component.match_type, component.match)
    if IP in wanted and len(wanted) > 1:
        raise _invalid_request(
            "Invalid entity filter component combination, IP filter component should not be used "
            "with user or clientId filter component."
        )
    return wanted


def _described(
    found: Mapping[str, Properties],
    wanted: Mapping[str, tuple[int, str | None]],
    strict: bool,
) -> Steps[DescribeClientQuotasResponse]:
    """The quotas of entities by path; users hold other settings, too."""
    entries = []
    for path, texts in found.items():
        yield
        entity = _entity_of(path)
        keys = _IP_KEYS if IP in entity else _CLIENT_KEYS
        values = [ValueData(key, limit_of(text)) for key, text in texts.items() if key in keys]
        if values and _matches(entity, wanted, strict):
            entries.append(EntryData([EntityData(*part) for part in entity.items()], values))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _matches(entity: Entity, wanted: Mapping[str, tuple[int, str | None]], strict: bool) -> bool:
    for kind, (how, name) in wanted.items():
        if kind not in entity:
            return False
        found = entity[kind]
        if (how == EXACT and found != name) or (how == DEFAULT and found is not None):
            return False
    return not strict or entity.keys() <= wanted.keys()


def _entity_of(path: str) -> Entity:
    """`users/u/clients/c` as an entity; names are percent-encoded in paths."""
    kinds = {znodes.ENTITY_USERS: USER, znodes.ENTITY_CLIENTS: CLIENT_ID, znodes.ENTITY_IPS: IP}
    parts = path.split("/")
    return {
        kinds[kind]: None if name == znodes.DEFAULT_ENTITY else znodes.desanitize(name)
        for kind, name in zip(parts[::2], parts[1::2], strict=True)
    }


def _path_of(entity: Entity) -> str:
    """Where the quotas of an entity are kept; INVALID_REQUEST for one that cannot have any."""
    if not entity:
        raise _invalid_request("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid_request(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid_request(f"Empty {kind} not supported")
    names = {kind: _encoded(name) for kind, name in entity.items()}
    if IP in names:
        if len(names) > 1:
            raise _invalid_request(
                "Invalid quota entity combination: an ip cannot be combined with others"
            )
        if entity[IP] is not None:
            _check_address(names[IP])
        return f"{znodes.ENTITY_IPS}/{names[IP]}"
    clients = f"{znodes.ENTITY_CLIENTS}/{names[CLIENT_ID]}" if CLIENT_ID in names else ""
    if USER not in names:
        return clients
    return f"{znodes.ENTITY_USERS}/{names[USER]}" + (f"/{clients}" if clients else "")


def _encoded(name: str | None) -> str:
    """A name in a path; sanitized, so that the name "<default>" is not the default entity."""
    return znodes.DEFAULT_ENTITY if name is None else znodes.sanitize(name)


def _check_address(text: str) -> None:
    import ipaddress

    try:
        # The encoded name, as in Kafka: no address of version 6 passes.
        ipaddress.ip_address(text)
    except ValueError:
        raise _invalid_request(f"{text} is not a valid IP address.") from None


def _checked_changes(operations: Sequence[OpData], is_ip: bool) -> dict[str, str | None]:
    """The new text by key; None for a quota that is removed."""
    known = _IP_KEYS if is_ip else _CLIENT_KEYS
    changes: dict[str, str | None] = {}
    for operation in operations:
        key = operation.key
        if operation.remove:
            changes[key] = None  # Whether or not there is such a quota.
        elif key in known:
            changes[key] = _text(key, operation.value)
        else:
            raise _invalid_request(f"Invalid configuration key {key}")
    return changes


def _text(key: str, value: float) -> str:
    """A quota in the format in which it is stored, which Kafka can read."""
    if math.isnan(value):
        raise _invalid_request(f"Configuration {key} must be a number")
    if key in _DOUBLES:
        return str(value).replace("inf", "Infinity")
    kind, largest = ("Int", _INT_MAX) if key in _IP_KEYS else ("Long", _LONG_MAX)
    # Truncated after adding the tolerance, as in Kafka: -1 is not an integer then, but 0 is.
    whole = int(min(max(value + _EPSILON, -largest - 1), largest))
    if abs(whole - value) > _EPSILON:
        raise _invalid_request(f"Configuration {key} must be a {kind} value")
    return str(whole)


def _describe_client_quotas_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    response.entries = None


def _alter_client_quotas_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    for entry in request.entries:
        entity = [
            AlterClientQuotasResponseEntityData(part.entity_type, part.entity_name)
            for part in entry.entity
        ]
        response.entries.append(AlterClientQuotasResponseEntryData(code, message, entity))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        QuotaAdminHandlers.describe,
        check=OnCluster("DESCRIBE_CONFIGS"),
        errors=_describe_client_quotas_errors,
    ),
    ApiRoute(
        ApiKey.ALTER_CLIENT_QUOTAS,
        QuotaAdminHandlers.alter,
        check=OnCluster("ALTER_CONFIGS"),
        errors=_alter_client_quotas_errors,
    ),
)
