"""What happened in the cluster: changes of its state, and the log lines of its brokers.

The lines of other brokers come by DescribeConfigs, as the events of groups do: a broker of Ottla
with a console returns them for the key `ottla.broker.events` of itself, others know no such key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.broker.security.authorization.acl_types import Operation
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.cluster_events import ClusterEvents
    from ottla.broker.observability.console.event_log import EventLog

_BROKER = 4
_KEY = "ottla.broker.events"
# On one page.
MAX_ROWS = 200


class EventViews:
    """Merges events of all sources by time."""

    def __init__(self, client: ClusterClient, own: EventLog, changes: ClusterEvents) -> None:
        self._client = client
        self._own = own
        self._changes = changes

    async def shown(self, search: str, viewer: Viewer) -> dict[str, Any]:
        """The newest events whose text or source contains `search`, in any case."""
        viewer.require_on_cluster(Operation.DESCRIBE)
        broker_id = self._client.broker_id
        rows = [{**row, "broker": None} for row in self._changes.rows()]
        rows += [{**row, "broker": broker_id} for row in self._own.lines()]
        problems: list[str] = []
        if viewer.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            more, problems = await self._others(viewer)
            rows += more
        elif len(self._client.brokers()) > 1:
            problems = ["Lines of other brokers need an ACL for DESCRIBE_CONFIGS on the cluster."]
        wanted = search.lower()
        found = [row for row in rows if wanted in f"{row['text']} {row['from']}".lower()]
        found.sort(key=lambda row: -int(row["time_ms"]))
        return {"events": found[:MAX_ROWS], "problems": problems}

    async def _others(self, viewer: Viewer) -> tuple[list[dict[str, Any]], list[str]]:
        others = [each for each in self._client.brokers() if each != self._client.broker_id]
        requests = {
            each: DescribeConfigsRequest([DescribeConfigsResource(_BROKER, str(each), [_KEY])])
            for each in others
        }
        gathered = await self._client.ask_each(viewer, requests, DescribeConfigsResponse)
        rows: list[dict[str, Any]] = []
        silent = []
        for broker_id, response in sorted(gathered.responses.items()):
            (found,) = response.results
            if found.error_code or not found.configs:
                silent.append(str(broker_id))
                continue
            rows += [
                {**row, "broker": broker_id} for row in json.loads(found.configs[0].value or "[]")
            ]
        problems = list(gathered.problems)
        if silent:
            problems.append(
                f"There are no log lines of broker {', '.join(silent[:20])}: only brokers of Ottla "
                "with a console have them. Changes of the cluster are shown."
            )
        return rows, problems
