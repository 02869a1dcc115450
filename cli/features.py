"""`ottla features`: API versions and features of the brokers, and their finalized levels."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.output import Cell, Failure, print_json, print_rows, say, usage
from ottla.cli.session import Session, connected
from ottla.controller.admin.features import SAFE_DOWNGRADE, UPGRADE
from ottla.protocol.client.operations import Controller, Node, Versions
from ottla.protocol.errors import error_name
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.registry import API

#: How long brokers may take to read what was set.
SETTLE_SECONDS = 5.0

app = family("List API versions and features of the brokers.")


@app.command()
@connected
def features(
    session: Session,
    broker: Annotated[int, typer.Option("--broker", help="Only this broker; -1: all.")] = -1,
    apis: Annotated[
        bool, typer.Option("--apis", help="Also list each API with its versions.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=LEVEL: finalize this level first; 0 is off."),
    ] = None,
) -> None:
    """List the features and the API versions of each broker.

    \b
    Examples:
      ottla features
      ottla features --apis --json
      ottla features --set transaction.version=1
    """
    wanted = _set_levels(session, changes) if changes else {}
    _await_levels(session, wanted)
    ids = [broker] if broker >= 0 else session.broker_ids()
    rows: list[dict[str, Cell]] = []
    values = []
    for broker_id in ids:
        response = session.call(ApiVersionsResponse, _api_versions(), Node(broker_id))
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


def _set_levels(session: Session, changes: list[str]) -> dict[str, int]:
    """Raise or lower the finalized levels, at the controller. Returns them."""
    wanted: dict[str, int] = {}
    for change in changes:
        name, _, level = change.partition("=")
        if not name or not level.isdecimal():
            raise usage(f"--set {change} is not NAME=LEVEL, such as transaction.version=2")
        wanted[name] = int(level)
    found = session.call(ApiVersionsResponse, _api_versions())
    before = {row.name: row.max_version_level for row in found.finalized_features}
    updates = [
        FeatureUpdateKey(
            name, level, upgrade_type=SAFE_DOWNGRADE if level < before.get(name, 0) else UPGRADE
        )
        for name, level in wanted.items()
        if level != before.get(name, 0)
    ]
    if not updates:
        return wanted
    request = UpdateFeaturesRequest(feature_updates=updates)
    response = session.call(UpdateFeaturesResponse, request, Controller(), versions=Versions(1))
    if response.error_code:
        raise Failure(response.error_message or error_name(response.error_code))
    for row in response.results:
        if row.error_code:
            raise Failure(f"{row.feature}: {row.error_message or error_name(row.error_code)}")
    return wanted


def _await_levels(session: Session, wanted: dict[str, int]) -> None:
    """Wait a moment until all brokers have read the levels; a broker that has not is listed so."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while wanted and time.monotonic() < deadline:
        for broker_id in session.broker_ids():
            response = session.call(ApiVersionsResponse, _api_versions(), Node(broker_id))
            found = {row.name: row.max_version_level for row in response.finalized_features}
            if any(found.get(name, 0) != level for name, level in wanted.items()):
                break
        else:
            return
        time.sleep(0.1)


def _api_versions() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="ottla-cli", client_software_version="1")
