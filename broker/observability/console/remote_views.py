"""What the console shows of a topic in remote storage (KIP-405): what its brokers report.

A broker reports its counts and the lag of what it leads under a key of its own
(`ottla.broker.remote`). Brokers of Kafka have no such key, and show nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.admin.describe_configs import BROKER_REMOTE
from ottla.broker.observability.console.settings_views import broker_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient


async def remote_state(
    client: ClusterClient, viewer: Viewer, topic: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """The sums of one topic; None if no broker has it in remote storage. And what fails, or who did
    not respond."""
    reports, problems = await broker_texts(client, viewer, client.brokers(), BROKER_REMOTE)
    problems += [
        f"Remote storage of broker {broker_id}: {report['problem']}."
        for broker_id, report in reports.items()
        if report["problem"]
    ]
    return summed(report["topics"].get(topic) for report in reports.values()), problems


def summed(reports: Iterable[dict[str, float] | None]) -> dict[str, float] | None:
    """The reports of all brokers as one."""
    total: dict[str, float] = {}
    for report in reports:
        for name, value in (report or {}).items():
            total[name] = total.get(name, 0) + value
    return total or None
