"""The events of each group, kept in memory for the operator.

`ottla groups events GROUP` shows them: members that joined, left or were fenced, rebalances, failed
requests, each with its reason. They travel as a value of DescribeConfigs (see
`ottla.broker.handlers.admin.describe_configs`) and begin when this coordinator loaded the group.
"""

import json
from collections import OrderedDict, deque
from typing import NamedTuple

MAX_EVENTS_PER_GROUP = 100  # several rebalances of a group of ten members
MAX_GROUPS = 1_000  # about 20 MB at most; the group without events for longest is evicted
MAX_TEXT_BYTES = 32_000  # old versions of DescribeConfigs have a two-byte length


class GroupEvent(NamedTuple):
    """One event; `generation` is the generation (or group epoch) at that time."""

    timestamp_ms: int
    kind: str  # joined, rejoined, left, expired, fenced, removed, rebalancing, stable, empty, ...
    generation: int
    member_id: str
    client_id: str
    client_host: str
    reason: str


class GroupEvents:
    """A bounded number of events of a bounded number of groups."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[GroupEvent]] = OrderedDict()

    def add(self, group_id: str, event: GroupEvent) -> None:
        events = self._groups.get(group_id)
        if events is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.popitem(last=False)
            events = self._groups[group_id] = deque(maxlen=MAX_EVENTS_PER_GROUP)
        else:
            self._groups.move_to_end(group_id)
        events.append(event)

    def add_to_known(self, group_id: str, event: GroupEvent) -> None:
        """As `add`, for events of clients: group ids that do not exist cannot evict others."""
        events = self._groups.get(group_id)
        if events is not None:
            events.append(event)

    def of(self, group_id: str) -> list[GroupEvent]:
        """Return the events of a group, oldest first."""
        return list(self._groups.get(group_id, ()))


def events_text(events: list[GroupEvent]) -> str:
    """Return the newest events that fit into MAX_TEXT_BYTES, as a JSON list in ASCII."""
    lines: list[str] = []
    size = 2
    for event in reversed(events):
        line = json.dumps(event._asdict())
        size += len(line) + 2
        if size > MAX_TEXT_BYTES:
            break
        lines.append(line)
    return f"[{', '.join(reversed(lines))}]"
