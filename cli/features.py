"""`ottla features`: API versions and features of the brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.output import Cell, print_json, print_rows, say
from ottla.cli.session import Session, connected
from ottla.protocol.client.operations import Node
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.registry import API

app = family("List API versions and features of the brokers.")


@app.command()
@connected
def features(
    session: Session,
    broker: Annotated[int, typer.Option("--broker", help="Only this broker; -1: all.")] = -1,
    apis: Annotated[
        bool, typer.Option("--apis", help="Also list each API with its versions.")
    ] = False,
) -> None:
    """List the features and the API versions of each broker.

    \b
    Examples:
      ottla features
      ottla features --apis --json
    """
    ids = [broker] if broker >= 0 else session.broker_ids()
    rows: list[dict[str, Cell]] = []
    values = []
    for broker_id in ids:
        request = ApiVersionsRequest(client_software_name="ottla-cli", client_software_version="1")
        response = session.call(ApiVersionsResponse, request, Node(broker_id))
        known = [row for row in response.api_keys if row.api_key in API]
        lines: list[dict[str, Cell]] = [
            {
                "broker": broker_id,
                "api": API[row.api_key].name,
                "key": row.api_key,
                "versions": f"{row.min_version}-{row.max_version}",
            }
            for row in known
        ]
        finalized = {row.name: row.max_version_level for row in response.finalized_features}
        feature_rows: list[dict[str, Cell]] = [
            {
                "feature": row.name,
                "supported": f"{row.min_version}-{row.max_version}",
                "finalized": finalized.get(row.name),
            }
            for row in response.supported_features
        ]
        values.append(
            {
                "broker": broker_id,
                "apis": lines,
                "features": feature_rows,
                "finalized_features_epoch": response.finalized_features_epoch,
            }
        )
        rows.extend(lines)
        if not session.json:
            supported = ", ".join(
                f"{row['feature']} {row['supported']} (finalized: {row['finalized'] or 'off'})"
                for row in feature_rows
            )
            count = len(response.api_keys)
            say(f"broker {broker_id}: {count} APIs, features: {supported or 'none'}")
    if session.json:
        print_json(values)
    elif apis:
        say("")
        print_rows(rows, ["broker", "key", "api", "versions"])
