"""`ottla quotas`: quotas of users, client ids and addresses."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.output import Cell, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected
from ottla.cli.values import ValidateOption
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
)
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequestEntityData as AlterEntity,
)
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequestEntryData as AlterEntry,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

EXAMPLES = """\
  ottla quotas describe
  ottla quotas describe --client loader
  ottla quotas alter --client loader --set producer_byte_rate=1048576
  ottla quotas alter --user-default --set consumer_byte_rate=2097152
  ottla quotas alter --client loader --remove producer_byte_rate
"""

app = family("Describe and alter client quotas.", EXAMPLES)

# Every client, user or address that has no quota of its own.
DEFAULT = "<default>"
_EXACT, _DEFAULT_ONLY, _ANY = 0, 1, 2
QUOTAS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
TYPES = {"user": "user", "client": "client-id", "ip": "ip"}

UserOption = Annotated[str | None, typer.Option("--user", help="User.")]
ClientOption = Annotated[str | None, typer.Option("--client", help="Client id.")]
AddressOption = Annotated[str | None, typer.Option("--ip", help="IP address.")]
UserDefault = Annotated[bool, typer.Option("--user-default", help="Default of users.")]
ClientDefault = Annotated[bool, typer.Option("--client-default", help="Default of client ids.")]
AddressDefault = Annotated[bool, typer.Option("--ip-default", help="Default of IP addresses.")]


@app.command()
@connected
def describe(
    session: Session,
    user: UserOption = None,
    client: ClientOption = None,
    ip: AddressOption = None,
    user_default: UserDefault = False,
    client_default: ClientDefault = False,
    ip_default: AddressDefault = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Only quotas of exactly these kinds of names: user, client, ip; repeatable.",
        ),
    ] = None,
) -> None:
    """Describe quotas; without options all of them."""
    entity = entity_of(user, client, ip, user_default, client_default, ip_default)
    for kind in only or ():
        if kind not in TYPES:
            raise usage(f"--only {kind} is not one of {', '.join(TYPES)}.")
    components = [
        ComponentData(
            entity_type=kind,
            match_type=_DEFAULT_ONLY if name is None else _EXACT,
            match=name,
        )
        for kind, name in entity.items()
    ]
    components += [
        ComponentData(entity_type=TYPES[kind], match_type=_ANY, match=None)
        for kind in dict.fromkeys(only or ())
        if TYPES[kind] not in entity
    ]
    response = session.call(
        DescribeClientQuotasResponse,
        DescribeClientQuotasRequest(components=components, strict=bool(only)),
    )
    check(response.error_code, "quotas", response.error_message)
    rows: list[dict[str, Cell]] = []
    for entry in response.entries or []:
        names = {item.entity_type: item.entity_name or DEFAULT for item in entry.entity}
        rows.extend(
            {
                "user": names.get("user"),
                "client": names.get("client-id"),
                "ip": names.get("ip"),
                "quota": value.key,
                "limit": value.value,
            }
            for value in entry.values
        )
    if session.json:
        # JSON has no infinity, which brokers take for request_percentage.
        print_json([row | {"limit": None} if row["limit"] == math.inf else row for row in rows])
    else:
        columns = ["user", "client", "ip", "quota", "limit"]
        print_rows(rows, columns, empty="No quotas are set.")


@app.command()
@connected
def alter(
    session: Session,
    user: UserOption = None,
    client: ClientOption = None,
    ip: AddressOption = None,
    user_default: UserDefault = False,
    client_default: ClientDefault = False,
    ip_default: AddressDefault = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="producer_byte_rate=..., consumer_byte_rate=..., ..."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", help="Name of a quota; repeatable.")
    ] = None,
    validate_only: ValidateOption = False,
) -> None:
    """Set or remove quotas of a user, a client id, both, or an address."""
    entity = entity_of(user, client, ip, user_default, client_default, ip_default)
    if not entity:
        raise usage("name an entity: --user, --client, --ip, or one of the --...-default options.")
    # Brokers accept the removal of any name, and a mistyped one would seem to be removed.
    for name in remove or ():
        _check_name("--remove", name)
    operations = [_set_operation(text) for text in set_ or ()]
    operations += [OpData(key=name, value=0.0, remove=True) for name in remove or ()]
    if not operations:
        raise usage(
            "name a quota: --set producer_byte_rate=1048576, or --remove producer_byte_rate."
        )
    entry = AlterEntry(
        entity=[AlterEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=operations,
    )
    response = session.call(
        AlterClientQuotasResponse,
        AlterClientQuotasRequest(entries=[entry], validate_only=validate_only),
    )
    check(response.entries[0].error_code, "quotas", response.entries[0].error_message)
    changed = [operation.key for operation in operations]
    if session.json:
        print_json({"entity": entity, "changed": [] if validate_only else changed})
    else:
        say(f"{', '.join(changed)} {'would be accepted' if validate_only else 'done'}.")


def entity_of(
    user: str | None,
    client: str | None,
    ip: str | None,
    user_default: bool,
    client_default: bool,
    ip_default: bool,
) -> dict[str, str | None]:
    """Names by Kafka's entity types; None is the default of a type."""
    found: dict[str, str | None] = {}
    named = {"user": user, "client": client, "ip": ip}
    defaults = {"user": user_default, "client": client_default, "ip": ip_default}
    for kind, name in named.items():
        if name is not None and defaults[kind]:
            raise usage(f"--{kind} and --{kind}-default exclude each other.")
        if name is not None or defaults[kind]:
            found[TYPES[kind]] = name
    return found


def _check_name(option: str, name: str) -> None:
    if name not in QUOTAS:
        import difflib

        near = difflib.get_close_matches(name.lower(), QUOTAS, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise usage(f"{option} {name} is not one of {', '.join(QUOTAS)}{meant}")


def _set_operation(text: str) -> OpData:
    name, _, number = text.partition("=")
    _check_name("--set", name)
    try:
        return OpData(key=name, value=float(number), remove=False)
    except ValueError:
        raise usage(f"--set {text} is not name=number.") from None
