"""What the console shows of a share group (KIP-932): what its partitions' leaders report.

A leader reports records in flight, their locks and deliveries under a key of its own
(`ottla.group.shares`). Brokers of Kafka have no such key; a cluster with share groups has none of
them.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.admin.describe_configs import GROUP, GROUP_SHARES
from ottla.protocol.errors import error_name
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient

_COUNTS = ("delivered", "redelivered", "expired_locks")
# Rows on the page; the sums are of all that the brokers report.
MAX_ROWS = 500


async def share_state(
    client: ClusterClient, viewer: Viewer, group_id: str
) -> tuple[dict[str, Any], list[str]]:
    """Sums and rows of the share partitions of one group, and who did not respond."""
    request = DescribeConfigsRequest([DescribeConfigsResource(GROUP, group_id, [GROUP_SHARES])])
    gathered = await client.ask_each(
        viewer, dict.fromkeys(client.brokers(), request), DescribeConfigsResponse
    )
    problems = list(gathered.problems)
    reports = {}
    for broker_id, response in sorted(gathered.responses.items()):
        (result,) = response.results
        if result.error_code or not result.configs:
            problems.append(
                f"Broker {broker_id} reports no share partitions: {error_name(result.error_code)}."
            )
        else:
            reports[broker_id] = json.loads(result.configs[0].value or "{}")
    return summed(reports, viewer.may_describe_topic), problems


def summed(reports: dict[int, dict[str, Any]], may_describe: Any) -> dict[str, Any]:
    """The reports of all brokers as one."""
    rows = [
        {**row, "broker": broker_id}
        for broker_id, report in reports.items()
        for row in report["partitions"]
        if may_describe(row["topic"])
    ]
    rows.sort(key=lambda row: (row["topic"], row["partition"]))
    counts: Counter[str] = Counter()
    acknowledged: Counter[str] = Counter()
    for report in reports.values():
        found = report["counts"]
        if found is not None:
            counts.update({name: found[name] for name in _COUNTS})
            acknowledged.update(found["acknowledged"])
    return {
        "in_flight": sum(row.get("in_flight", 0) for row in rows),
        "locked": sum(row.get("locked", 0) for row in rows),
        "oldest_lock_ms": _most(row.get("oldest_lock_ms") for row in rows),
        **{name: counts[name] for name in _COUNTS},
        "acknowledged": dict(acknowledged),
        "rows": rows[:MAX_ROWS],
    }


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
