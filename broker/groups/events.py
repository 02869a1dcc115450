"""What happened to each group, in words, kept in memory for the operator.

`ottla groups events GROUP` reads it: who joined, who left, who was fenced, and why.
"""

from collections import OrderedDict, deque
from typing import NamedTuple

MAX_EVENTS_PER_GROUP = 100  # some rebalances of a group of ten members
MAX_GROUPS = 1_000  # with the above about 20 MB at worst; the group quiet for longest goes first


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

    def of(self, group_id: str) -> list[GroupEvent]:
        """The history of one group, oldest first."""
        return list(self._groups.get(group_id, ()))
