"""Events of the cluster: changes of its state, and the log lines of its brokers.

Each broker, of Ottla or Kafka, gets the state in UpdateMetadata requests of the controller;
`ClusterEvents` compares one state with the next. The lines of other brokers come by
DescribeConfigs: a broker of Ottla with a console returns them for the key `ottla.broker.events`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.handlers.admin.describe_configs import BROKER_EVENTS
from ottla.broker.observability.console.settings_views import broker_texts
from ottla.broker.security.authorization.acl_types import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.broker.cluster.metadata_cache import (
        MetadataCache,
        MetadataSnapshot,
        TopicMetadata,
    )
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.event_log import EventLog


# On one page.
MAX_ROWS = 200
# Lines with the same text, at most so far apart, are one event: of several brokers, or repeated.
SAME_EVENT_MS = 10_000
MAX_ALIKE = 3


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
        events = merged(found)
        return {
            "events": events[:MAX_ROWS],
            "more": max(0, len(events) - MAX_ROWS),
            "problems": problems,
        }

    async def _others(self, viewer: Viewer) -> tuple[list[dict[str, Any]], list[str]]:
        others = [each for each in self._client.brokers() if each != self._client.broker_id]
        found, problems = await broker_texts(self._client, viewer, others, BROKER_EVENTS)
        rows = [{**row, "broker": broker_id} for broker_id in found for row in found[broker_id]]
        named = " ".join(problems)
        silent = [
            str(each) for each in others if each not in found and f"roker {each} " not in named
        ]
        if silent:
            problems.append(
                f"There are no log lines of broker {', '.join(silent[:20])}: only brokers of Ottla "
                "with a console have them. Changes of the cluster are shown."
            )
        return rows, problems


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each event, the newest first, with the `brokers` that logged it and the `count`
    of its lines; the cluster's own have no broker. Of lines that differ only in what they name, as
    partitions, MAX_ALIKE are shown; the last has the number of the others (`alike`)."""
    events: list[dict[str, Any]] = []
    latest: dict[tuple[str, str, bool], dict[str, Any]] = {}
    kinds: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: -int(row["time_ms"])):
        key = (row["text"], row["level"], row["broker"] is None)
        event = latest.get(key)
        if event is None or event["first_ms"] - row["time_ms"] > SAME_EVENT_MS:
            latest[key] = event = {**row, "brokers": [], "count": 0, "alike": 0}
            named = (row["level"], row["from"], row.get("kind") or row["text"])
            kind = kinds.setdefault(named, [])
            if kind and kind[-1]["first_ms"] - row["time_ms"] > SAME_EVENT_MS:
                kind.clear()
            if len(kind) < MAX_ALIKE:
                kind.append(event)
                events.append(event)
            else:
                kind[-1]["alike"] += 1
        event["first_ms"] = row["time_ms"]
        event["count"] += 1
        if row["broker"] is not None and row["broker"] not in event["brokers"]:
            event["brokers"] = sorted([*event["brokers"], row["broker"]])
    return events


MAX_EVENTS = 1000
# Lines of one comparison.
MAX_LINES = 50
# Partitions that a line names.
MAX_NAMED = 3
# A wait for the next state ends after so long, and begins again.
_WAIT_MS = 60_000

_INFO, _WARNING, _ERROR = map(logging.getLevelName, (logging.INFO, logging.WARNING, logging.ERROR))


class ClusterEvents:
    """The newest differences. Loop only."""

    def __init__(self) -> None:
        self._known: MetadataSnapshot | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)

    async def follow(self, metadata: MetadataCache, now_ms: Callable[[], int]) -> None:
        """Note each new state, until it is cancelled."""
        while True:
            self.note(metadata.snapshot, now_ms())
            await metadata.wait_until(lambda found: found is not self._known, _WAIT_MS)

    def note(self, snapshot: MetadataSnapshot, now_ms: int) -> None:
        """Compare with the state of the last call. Topics that did not change are the same
        objects, so that it costs a look at each topic."""
        known, self._known = self._known, snapshot
        if known is None or known is snapshot:
            return
        lines = [*_of_brokers(known, snapshot), *_of_topics(known, snapshot)]
        if len(lines) > MAX_LINES:
            more = len(lines) - MAX_LINES
            lines[MAX_LINES:] = [(_INFO, f"{more} more changes at the same time")]
        for level, text in lines:
            self._events.append(
                {"time_ms": now_ms, "level": level, "from": "cluster", "text": text}
            )

    def rows(self) -> list[dict[str, Any]]:
        """The newest first."""
        return list(reversed(self._events))


Line = tuple[str, str]


class _Change(NamedTuple):
    """Leader and ISR of a partition before and after."""

    old_leader: int
    leader: int
    old_isr: tuple[int, ...]
    isr: tuple[int, ...]


def _of_brokers(old: MetadataSnapshot, new: MetadataSnapshot) -> list[Line]:
    lines = []
    if old.controller_id != new.controller_id:
        level = _INFO if new.controller_id >= 0 else _ERROR
        now = f"broker {new.controller_id}" if new.controller_id >= 0 else "none"
        lines.append((level, f"Controller changed from broker {old.controller_id} to {now}"))
    for broker_id in sorted(new.brokers.keys() - old.brokers.keys()):
        lines.append((_INFO, f"Broker {broker_id} registered"))
    for broker_id in sorted(old.brokers.keys() - new.brokers.keys()):
        lines.append((_WARNING, f"Broker {broker_id} is not registered any more"))
    return lines


def _of_topics(old: MetadataSnapshot, new: MetadataSnapshot) -> list[Line]:
    if old.topics is new.topics:
        return []
    lines: list[Line] = []
    changes: dict[_Change, list[str]] = {}
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is None:
            count = _partitions(len(topic.partitions), "")
            lines.append((_INFO, f"Topic {name} created with {count}"))
        elif before is not topic:
            lines.extend(_of_topic(before, topic, changes))
        if len(lines) > 2 * MAX_EVENTS:
            break  # more are not kept anyway
    lines.extend(_line(*each) for each in changes.items())
    lines.extend((_INFO, f"Topic {name} deleted") for name in old.topics if name not in new.topics)
    return lines


def _of_topic(
    old: TopicMetadata, new: TopicMetadata, changes: dict[_Change, list[str]]
) -> list[Line]:
    """Lines of one topic. Changes of leaders and ISRs are added to `changes`: what happened to many
    partitions in the same way is one event."""
    lines: list[Line] = []
    added = len(new.partitions) - len(old.partitions)
    if added > 0:
        lines.append((_INFO, f"Topic {new.name} got {_partitions(added, 'more ')}"))
    for index, state in new.partitions.items():
        before = old.partitions.get(index)
        if before is None or before == state:
            continue
        name = f"{new.name}-{index}"
        if before.replicas != state.replicas:
            text = f"{_ids(before.replicas)} to {_ids(state.replicas)}"
            lines.append((_INFO, f"Replicas of {name} changed from {text}"))
        change = _Change(
            before.leader, state.leader, tuple(sorted(before.isr)), tuple(sorted(state.isr))
        )
        if change.leader != change.old_leader or change.isr != change.old_isr:
            changes.setdefault(change, []).append(name)
    return lines


def _line(change: _Change, names: list[str]) -> Line:
    """Leader and ISR of partitions that changed in the same way."""
    many = len(names) > 1
    subject = f"{len(names)} partitions" if many else f"Partition {names[0]}"
    level, text = _INFO, ""
    if change.leader != change.old_leader:
        if change.leader < 0:
            level = _ERROR
            verb = "have" if many else "has"
            text = f"{subject} {verb} no leader, the last was broker {change.old_leader}"
        else:
            last = f"broker {change.old_leader}" if change.old_leader >= 0 else "none"
            verb = "are" if many else "is"
            text = f"{subject} {verb} led by broker {change.leader}, before by {last}"
    if change.isr != change.old_isr:
        is_less = len(change.isr) < len(change.old_isr)
        if is_less and level == _INFO:
            level = _WARNING
        isr = "; ISR" if text else f"ISR of {subject if many else names[0]}"
        verb = "shrank" if is_less else "grew"
        text += f"{isr} {verb} from {_ids(change.old_isr)} to {_ids(change.isr)}"
    if not many:
        return level, text
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return level, f"{text} ({', '.join(names[:MAX_NAMED])}{more})"


def _partitions(count: int, word: str) -> str:
    return f"{count} {word}partition{'' if count == 1 else 's'}"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers)) or "none"
