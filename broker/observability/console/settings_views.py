"""Settings on the console: of topics and of each broker. Values of secrets are left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_client import NoResponse, check
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient

TOPIC = 2
BROKER = 4

MASK = "(hidden)"

_SOURCES = {
    1: "topic",
    2: "broker, at run time",
    3: "cluster, at run time",
    4: "at start",
    5: "default",
}


async def described(
    client: ClusterClient, viewer: Viewer, kind: int, name: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The settings of a topic, or of a broker by its id, and why there are none."""
    broker_id = client.broker_id if kind == TOPIC else int(name)
    of = (ResourceType.TOPIC, name) if kind == TOPIC else (ResourceType.CLUSTER, CLUSTER_NAME)
    missing = viewer.missing(Operation.DESCRIBE_CONFIGS, *of)
    if missing:
        return [], [f"Settings are not shown: {missing}."]
    request = DescribeConfigsRequest(
        [DescribeConfigsResource(kind, name, None)], include_documentation=True
    )
    try:
        response = await client.ask(viewer, broker_id, request, DescribeConfigsResponse)
        (found,) = response.results
        check(found.error_code, found.error_message)
    except NoResponse as problem:
        return [], [str(problem)]
    return [_setting(row) for row in found.configs], []


async def broker_texts(
    client: ClusterClient, viewer: Viewer, brokers: Iterable[int], key: str
) -> tuple[dict[int, Any], list[str]]:
    """The JSON values that brokers of Ottla return for a key of their own, by broker; others are
    left out. And a sentence for each broker that did not respond, or refused."""
    requests = {
        each: DescribeConfigsRequest([DescribeConfigsResource(BROKER, str(each), [key])])
        for each in brokers
    }
    gathered = await client.ask_each(viewer, requests, DescribeConfigsResponse)
    found = {}
    problems = list(gathered.problems)
    for broker_id, response in sorted(gathered.responses.items()):
        (result,) = response.results
        if result.error_code:
            why = result.error_message or error_name(result.error_code)
            problems.append(f"Broker {broker_id} did not return {key}: {why.rstrip('.')}.")
        elif result.configs:
            found[broker_id] = json.loads(result.configs[0].value or "null")
    return found, problems


async def settings(client: ClusterClient, viewer: Viewer, broker_id: int) -> dict[str, Any]:
    """The settings of a broker, with where each comes from."""
    viewer.require_on_cluster(Operation.DESCRIBE_CONFIGS)
    brokers = client.brokers()
    chosen = client.broker_id if broker_id < 0 else broker_id
    if chosen not in brokers:
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"There is no broker {chosen} in the cluster now."
        )
    rows, problems = await described(client, viewer, BROKER, str(chosen))
    return {"broker_id": chosen, "brokers": brokers, "settings": rows, "problems": problems}


# Of a page that loses its broker.
MAX_CONSOLES = 10


async def consoles(client: ClusterClient, viewer: Viewer) -> dict[str, Any]:
    """Where other brokers have their consoles, as far as it is known.

    `console_host` is empty for all addresses of a machine. `console_port` is None where the viewer
    may not see settings, and for a port that the broker chose itself.
    """
    viewer.require_on_cluster(Operation.DESCRIBE)
    snapshot = client.metadata.snapshot
    others = [each for each in sorted(snapshot.brokers) if each != client.broker_id]
    others = [each for each in others if snapshot.brokers[each].endpoints][:MAX_CONSOLES]
    found: dict[int, dict[str, str]] = {}
    if viewer.may_on_cluster(Operation.DESCRIBE_CONFIGS):
        names = [_ENABLED, _ADDRESS]
        requests = {
            each: DescribeConfigsRequest([DescribeConfigsResource(BROKER, str(each), names)])
            for each in others
        }
        gathered = await client.ask_each(viewer, requests, DescribeConfigsResponse)
        for broker_id, response in gathered.responses.items():
            found[broker_id] = {
                row.name: row.value or "" for result in response.results for row in result.configs
            }
    rows = []
    for each in others:
        values = found.get(each, {})
        if values.get(_ENABLED, "true") != "true":
            continue
        host, _, port = values.get(_ADDRESS, "").rpartition(":")
        is_known = port.isdecimal() and int(port) > 0
        endpoint = next(iter(snapshot.brokers[each].endpoints.values()))
        rows.append(
            {
                "id": each,
                "host": endpoint.host,
                "console_host": "" if host in _EVERYWHERE else host,
                "console_port": int(port) if is_known else None,
            }
        )
    return {"consoles": rows}


_ENABLED, _ADDRESS = "ottla.console.enable", "ottla.metrics.address"
_EVERYWHERE = ("0.0.0.0", "::", "[::]")


def _setting(row: DescribeConfigsResourceResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": MASK if row.is_sensitive else row.value,
        "source": _SOURCES.get(row.config_source, "default"),
        "read_only": row.read_only,
        "documentation": row.documentation,
    }
