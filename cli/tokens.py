"""`ottla tokens`: delegation tokens of a cluster (KIP-48)."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import typer

from ottla.cli.acl_words import principal_of
from ottla.cli.app import family
from ottla.cli.output import Cell, print_fields, print_json, print_rows, say, time_text, usage
from ottla.cli.passwords import read_password
from ottla.cli.session import Session, check, connected
from ottla.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
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

EXAMPLES = """\
  ottla tokens list
  ottla tokens create --hours 24 --renewer User:scheduler
  ottla tokens renew --hmac-file token.hmac --hours 24
  ottla tokens expire --hmac-file token.hmac
"""

app = family("List, create, renew and expire delegation tokens.", EXAMPLES)

_HOUR_MS = 3_600_000

HmacFileOption = Annotated[
    str,
    typer.Option("--hmac-file", help="File with the HMAC in base64; else a prompt or stdin."),
]


@app.command("list")
@connected
def list_tokens(
    session: Session,
    owner: Annotated[
        list[str] | None, typer.Option("--owner", help="Only of this principal; repeatable.")
    ] = None,
) -> None:
    """List the tokens that this user owns, renews or is authorized to describe; not their HMACs."""
    owners = None
    if owner:
        owners = [DescribeDelegationTokenOwner(*_principal(each)) for each in owner]
    response = session.call(DescribeDelegationTokenResponse, DescribeDelegationTokenRequest(owners))
    check(response.error_code, "tokens")
    rows: list[dict[str, Cell]] = [
        {
            "token": each.token_id,
            "owner": f"{each.principal_type}:{each.principal_name}",
            "renewers": [
                f"{renewer.principal_type}:{renewer.principal_name}" for renewer in each.renewers
            ],
            "expires": time_text(each.expiry_timestamp),
            "ends": time_text(each.max_timestamp),
        }
        for each in response.tokens
    ]
    if session.json:
        print_json(rows)
    else:
        columns = ("token", "owner", "renewers", "expires", "ends")
        print_rows(rows, columns, empty="No tokens.")


@app.command()
@connected
def create(
    session: Session,
    owner: Annotated[
        str, typer.Option("--owner", help="Principal that logs in with it; else this user.")
    ] = "",
    renewer: Annotated[
        list[str] | None, typer.Option("--renewer", help="May renew it; repeatable.")
    ] = None,
    hours: Annotated[
        int | None, typer.Option("--hours", help="Longest lifetime; else the broker's.", min=1)
    ] = None,
) -> None:
    """Create a token and print its id and HMAC: user name and password of a SCRAM login."""
    owner_type, owner_name = _principal(owner) if owner else (None, None)
    response = session.call(
        CreateDelegationTokenResponse,
        CreateDelegationTokenRequest(
            owner_type,
            owner_name,
            [CreatableRenewers(*_principal(each)) for each in renewer or ()],
            _milliseconds(hours),
        ),
    )
    check(response.error_code, "token")
    fields: dict[str, Cell] = {
        "token": response.token_id,
        "hmac": base64.b64encode(bytes(response.hmac)).decode(),
        "owner": f"{response.principal_type}:{response.principal_name}",
        "expires": time_text(response.expiry_timestamp_ms),
        "ends": time_text(response.max_timestamp_ms),
    }
    if session.json:
        print_json(fields)
    else:
        print_fields(fields)


@app.command()
@connected
def renew(
    session: Session,
    hmac_file: HmacFileOption = "",
    hours: Annotated[
        int | None, typer.Option("--hours", help="From now; else the broker's period.", min=1)
    ] = None,
) -> None:
    """Renew a token."""
    response = session.call(
        RenewDelegationTokenResponse,
        RenewDelegationTokenRequest(_hmac(hmac_file), _milliseconds(hours)),
    )
    check(response.error_code, "token")
    _print_end(session, response.expiry_timestamp_ms)


@app.command()
@connected
def expire(
    session: Session,
    hmac_file: HmacFileOption = "",
    hours: Annotated[
        int | None, typer.Option("--hours", help="From now; else at once.", min=1)
    ] = None,
) -> None:
    """Expire a token, at once or after some hours."""
    response = session.call(
        ExpireDelegationTokenResponse,
        ExpireDelegationTokenRequest(_hmac(hmac_file), _milliseconds(hours)),
    )
    check(response.error_code, "token")
    _print_end(session, response.expiry_timestamp_ms)


def _print_end(session: Session, timestamp_ms: int) -> None:
    if session.json:
        print_json({"expires": time_text(timestamp_ms)})
    else:
        say(f"The token expires at {time_text(timestamp_ms)}.")


def _milliseconds(hours: int | None) -> int:
    """-1 leaves it to the broker, or means at once."""
    return -1 if hours is None else hours * _HOUR_MS


def _principal(text: str) -> tuple[str, str]:
    kind, _, name = principal_of(text).partition(":")
    return kind, name


def _hmac(path: str) -> bytes:
    text = read_password(path, "the token (its HMAC)", option="--hmac-file", confirm=False)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise usage("the HMAC is not in base64.") from None
