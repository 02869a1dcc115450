"""What happened to each group, in words, kept in memory for the operator.

`ottla groups events GROUP` reads it: who joined, who left, who was fenced, and why. It gets there
as a value of DescribeConfigs (see `ottla.broker.handlers.admin.describe_configs`): the history is
that of the group's coordinator since it became so.
"""

import json
from collections import OrderedDict, deque
from typing import NamedTuple

MAX_EVENTS_PER_GROUP = 100  # some rebalances of a group of ten members
MAX_GROUPS = 1_000  # with the above about 20 MB at worst; the group quiet for longest goes first
MAX_TEXT_BYTES = 32_000  # the older versions of DescribeConfigs have two bytes for a length


class GroupEvent(NamedTuple):
    """One line of a group's history; `generation` is the one when it happened."""

    timestamp_ms: int
    kind: str  # joined, rejoined, left, expired, fenced, removed, rebalancing, stable, empty, ...
    generation: int
    member_id: str
    client_id: str
    client_host: str
    reason: str


class GroupEvents:
    """A bounded history per group, bounded in groups too."""

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
        """As `add`, for what outsiders do: made-up groups must not push out real ones."""
        events = self._groups.get(group_id)
        if events is not None:
            events.append(event)

    def of(self, group_id: str) -> list[GroupEvent]:
        """The history of one group, oldest first."""
        return list(self._groups.get(group_id, ()))


def events_text(events: list[GroupEvent]) -> str:
    """As many of these events as fit, the newest, as a JSON list of objects in ASCII."""
    lines: list[str] = []
    size = 2
    for event in reversed(events):
        line = json.dumps(event._asdict())
        size += len(line) + 2
        if size > MAX_TEXT_BYTES:
            break
        lines.append(line)
    return f"[{', '.join(reversed(lines))}]"
