"""Groups on the console: lists, details, and changes of their offsets.

Offsets are changed after a dry run, and groups can be deleted. The offsets of a share group
(KIP-932) are its start offsets. Leaders of its partitions report records in flight, their locks and
deliveries under a key of their own (`ottla.group.shares`); brokers of Kafka have neither the key
nor share groups.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.handlers.admin.describe_configs import GROUP, GROUP_SHARES
from ottla.broker.observability.console.cluster_client import (
    EARLIEST,
    LATEST,
    MAX_LISTED,
    NoResponse,
    check,
    list_offsets,
)
from ottla.broker.observability.console.groups_of_cluster import (
    MAX_GROUP_OFFSETS,
    SHARE,
    GroupRow,
    GroupView,
    MemberRow,
    committed_offsets,
    describe_groups,
)
from ottla.broker.observability.console.history import WITHOUT_MEMBERS, Lag
from ottla.broker.observability.console.parameters import InvalidParameter
from ottla.broker.observability.console.topics import page_start
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.history import History
    from ottla.broker.observability.console.parameters import Parameters


GROUPS_ON_A_PAGE = 50
# Points of the line in the list; the page of a group gets them all.
POINTS_IN_LIST = 60
# Partitions of one member on the page.
MAX_ASSIGNED = 200
MAX_OFFSETS = 1000
MAX_EVENTS = 200
# Groups that are named before a topic is deleted.
MAX_NAMED = 5

_GROUP_RESOURCE = 32
_EVENTS = "ottla.group.events"


class _Bounds(NamedTuple):
    """The first offset of a partition, and its end."""

    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


class _Bare(NamedTuple):
    """As `Lag`, of an assigned partition without a committed offset."""

    end: int | None
    records: int | None = None
    seconds: float | None = None
    committed: None = None
    is_at_least: bool = False


class GroupViews:
    """Lists and describes groups."""

    def __init__(self, client: ClusterClient, history: History) -> None:
        self._client = client
        self._history = history

    async def listed(
        self, search: str, first: int, viewer: Viewer, *, by_lag: bool = False
    ) -> dict[str, Any]:
        """A page of the groups whose ids contain `search`; `by_lag` those with the greatest lag
        first, and those that are not measured last. A `first` beyond the end gives the last page.
        """
        history = self._history
        await history.fresh()
        wanted = search.lower()
        names = [name for name in history.groups if wanted in name.lower()]
        if by_lag:
            lags = {name: history.lag(name) for name in names}
            names.sort(key=lambda name: -1 if (lag := lags[name]) is None else lag, reverse=True)
        first = page_start(first, len(names), GROUPS_ON_A_PAGE)
        shown = [history.groups[name] for name in names[first : first + GROUPS_ON_A_PAGE]]
        await history.fresh(each.group for each in shown)
        described, problems = await describe_groups(self._client, viewer, shown)
        bare = await self._bare(shown, described, viewer)
        return {
            "total": len(names),
            "first": first,
            "page": GROUPS_ON_A_PAGE,
            "lacks": self._lacks(viewer),
            "groups": [self._row(each, described.get(each.group), bare, viewer) for each in shown],
            "problems": list(dict.fromkeys([*problems, *history.problems])),
        }

    async def of_topic(self, topic: str, viewer: Viewer) -> dict[str, Any]:
        """The groups that have committed offsets in a topic, for whoever deletes it: the names of
        the first, and whether they disappear with the topic, as a classic group without members
        does with its last offset. Of groups that no sample has (`unknown`) nothing is known."""
        viewer.require(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        history = self._history
        await history.fresh()
        rows = []
        unknown = 0
        async for name, group in over(sorted(history.groups.items())):
            unknown += not history.is_sampled(name)
            topics = {each.topic for each in history.lags(name)}
            if topic not in topics:
                continue
            has_members = group.state not in WITHOUT_MEMBERS
            is_last = topics == {topic} and not has_members and group.kind == "classic"
            rows.append({"group": name, "has_members": has_members, "disappears": is_last})
        # Those that somebody uses are the ones to know of.
        rows.sort(key=itemgetter("has_members"), reverse=True)
        return {
            "groups": rows[:MAX_NAMED],
            "total": len(rows),
            "unknown": unknown,
            "are_all": history.has_all_groups and not self._lacks(viewer),
        }

    async def _bare(
        self, groups: Iterable[GroupRow], views: Mapping[str, GroupView], viewer: Viewer
    ) -> dict[TopicPartition, _Bounds]:
        """The offsets of assigned partitions for which nothing is committed."""
        wanted = dict.fromkeys(
            each
            for group in groups
            if group.kind != SHARE and group.group in views
            for member in views[group.group].members
            for each in member.partitions
            if each not in self._history.lags(group.group)
        )
        if not wanted:
            return {}
        partitions = list(wanted)[:MAX_LISTED]
        ends, starts = await asyncio.gather(
            list_offsets(self._client, viewer, partitions, LATEST),
            list_offsets(self._client, viewer, partitions, EARLIEST),
        )
        return {
            each: _Bounds(starts.found[each], ends.found[each])
            for each in partitions
            if each in starts.found and each in ends.found
        }

    def _uncounted(
        self, group: GroupRow, members: list[MemberRow], empty: Container[TopicPartition] = ()
    ) -> int:
        """The partitions whose records are not in the lag: their end is not known, or a member has
        them and nothing is committed, unless they are `empty`. Of a share group they have no start
        offset yet."""
        lags = self._history.lags(group.group)
        count = sum(lag.records is None for lag in lags.values())
        if group.kind != SHARE and self._history.is_sampled(group.group):
            assigned = {each for member in members for each in member.partitions}
            count += sum(each not in empty for each in assigned - lags.keys())
        return count

    @staticmethod
    def _lacks(viewer: Viewer) -> str:
        """Which right the viewer lacks to see all groups; with DESCRIBE on the cluster it has it,
        as in Kafka's ListGroups."""
        if viewer.may_on_cluster(Operation.DESCRIBE):
            return ""
        return f"{viewer.lacks(ResourceType.GROUP, 'groups')[:-1]}, or on the cluster for all."

    def _row(
        self,
        group: GroupRow,
        view: GroupView | None,
        bare: Mapping[TopicPartition, _Bounds],
        viewer: Viewer,
    ) -> dict[str, Any]:
        history = self._history
        empty = {each for each, bounds in bare.items() if bounds.is_empty}
        uncounted = 0 if view is None else self._uncounted(group, view.members, empty)
        records, age = history.lag(group.group), history.lag_seconds(group.group)
        if records is None and view is not None and history.is_sampled(group.group):
            assigned = [each for member in view.members for each in member.partitions]
            if not uncounted and any(each in empty for each in assigned):
                records, age = 0, 0.0
        topics = sorted({partition.topic for partition in history.lags(group.group)})
        return {
            "group": group.group,
            "type": group.kind,
            "coordinator": group.coordinator,
            "state": group.state if view is None else view.state,
            "members": None if view is None else len(view.members),
            "topics": [each for each in topics if viewer.may_describe_topic(each)][:20],
            "uncounted": uncounted,
            "records": records,
            "lag": history.lag_points(group.group)[-POINTS_IN_LIST:],
            "lag_seconds": age,
            "lag_at_least": history.is_at_least(group.group),
        }

    async def one(self, group_id: str, viewer: Viewer) -> dict[str, Any]:
        """One group: members with their assignments, offsets with lag, the lag of the last hour,
        what happened; of a share group, its records in flight (`share`)."""
        viewer.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        history = self._history
        await history.fresh([group_id])
        group = await history.find_group(group_id)
        if group is not None and not history.is_sampled(group_id):
            await history.sample()
        if group is None:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"No broker coordinates a group {group_id[:249]}."
            )
        described, problems = await describe_groups(self._client, viewer, [group])
        view = described.get(group_id)
        bare = await self._bare([group], described, viewer)
        share = None
        if group.kind == SHARE:
            share, more = await share_state(self._client, viewer, group_id)
            problems = [*problems, *more]
        events, reason = await self._events(group, viewer)
        members = [] if view is None else view.members
        pace = history.pace(group_id)
        if not all(
            viewer.may_describe_topic(each.topic) for one in members for each in one.partitions
        ):
            problems = [*problems, viewer.lacks(ResourceType.TOPIC, "topics")]
        return {
            **self._row(group, view, bare, viewer),
            "protocol": "" if view is None else view.protocol,
            "member_rows": [_member(each, viewer) for each in members],
            "offsets": self._offsets(group_id, members, bare, viewer, is_share=group.kind == SHARE),
            "lag": history.lag_points(group_id),
            "pace": None if not members or pace is None else pace._asdict(),
            "share": share,
            "events": events,
            "no_events": reason,
            "may": {
                "read": viewer.may(Operation.READ, ResourceType.GROUP, group_id),
                "delete": viewer.may(Operation.DELETE, ResourceType.GROUP, group_id),
            },
            "problems": problems,
        }

    def _offsets(
        self,
        group_id: str,
        members: list[MemberRow],
        bare: Mapping[TopicPartition, _Bounds],
        viewer: Viewer,
        *,
        is_share: bool = False,
    ) -> list[dict[str, Any]]:
        """Committed offsets, and assigned partitions without one, whose lag is known only if they
        are empty: it is 0 wherever their consumers begin."""
        owners = {
            partition: member.client or member.member
            for member in members
            for partition in member.partitions
        }
        lags = self._history.lags(group_id)
        rows: list[tuple[TopicPartition, Lag | _Bare]] = list(lags.items())
        for partition in () if is_share else owners.keys() - lags.keys():
            bounds = bare.get(partition)
            is_empty = bounds is not None and bounds.is_empty
            rows.append((partition, _Bare(bounds and bounds.end, *((0, 0.0) if is_empty else ()))))
        return [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": lag.committed,
                "end_offset": lag.end,
                "lag": lag.records,
                "lag_seconds": lag.seconds,
                "lag_at_least": lag.is_at_least,
                "owner": owners.get(partition),
            }
            for partition, lag in sorted(rows, key=itemgetter(0))[:MAX_OFFSETS]
            if viewer.may_describe_topic(partition.topic)
        ]

    async def _events(self, group: GroupRow, viewer: Viewer) -> tuple[list[dict[str, Any]], str]:
        """The events that its coordinator noted, newest first, and why there are none."""
        if not await self._client.is_ottla(group.coordinator):
            return [], f"Broker {group.coordinator}, its coordinator, is Kafka and keeps no events."
        request = DescribeConfigsRequest(
            [DescribeConfigsResource(_GROUP_RESOURCE, group.group, [_EVENTS])]
        )
        try:
            response = await self._client.ask(
                viewer, group.coordinator, request, DescribeConfigsResponse
            )
        except (NoResponse, KafkaError) as problem:
            return [], str(problem)
        (found,) = response.results
        if found.error_code or not found.configs:
            return [], found.error_message or "The coordinator returned no events."
        events = json.loads(found.configs[0].value or "[]")
        return [
            {
                "time_ms": event["timestamp_ms"],
                "kind": event["kind"],
                "generation": event["generation"],
                "member": event["member_id"],
                "reason": event["reason"],
            }
            for event in reversed(events[-MAX_EVENTS:])
        ], ""


def _member(member: MemberRow, viewer: Viewer) -> dict[str, Any]:
    """Partitions by topic, as far as the viewer may describe the topics."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in member.partitions[:MAX_ASSIGNED]:
        by_topic.setdefault(topic, []).append(index)
    return {
        "member": member.member,
        "instance": member.instance,
        "client": member.client,
        "host": member.host,
        "assigned": len(member.partitions),
        "assignment": {
            topic: indexes
            for topic, indexes in by_topic.items()
            if viewer.may_describe_topic(topic)
        },
    }


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


_MAX_OFFSET = (1 << 63) - 1

Offsets = dict[TopicPartition, int]


class GroupActions:
    """The group must have no members, as with Kafka's tools."""

    def __init__(self, client: ClusterClient, history: History) -> None:
        self._client = client
        self._history = history

    async def plan_reset(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """The dry run: what a reset would commit, and the committed offsets now.

        `to` is earliest, latest, offset, time or shift, with `amount` for the last three; `topic`
        empty means all topics that the group has committed."""
        group = await self._group(given.text("group"), viewer)
        topic = given.text("topic", "")
        before = await self._committed(group, viewer)
        if topic:
            viewer.require(Operation.DESCRIBE, ResourceType.TOPIC, topic)
            known = self._client.metadata.snapshot.topics.get(topic)
            if known is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic[:249]}."
                )
            wanted = [TopicPartition(topic, index) for index in sorted(known.partitions)]
        else:
            wanted = sorted(before)
        if not wanted or len(wanted) > MAX_GROUP_OFFSETS:
            raise InvalidParameter(
                f"a reset is of 1 to {MAX_GROUP_OFFSETS} partitions; this would be of {len(wanted)}"
            )
        after, problems = await self._targets(given, wanted, before, viewer)
        views, _ = await describe_groups(self._client, viewer, [group])
        state = views[group.group].state if group.group in views else group.state
        return {
            "group": group.group,
            "state": state,
            "rows": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "before": before.get(each),
                    "after": after[each],
                }
                for each in wanted
                if each in after
            ],
            "problems": problems,
        }

    async def reset(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """Commit `rows` as the dry run returned them; refused when the group has committed
        something since."""
        group = await self._group(given.text("group"), viewer)
        rows = given.rows("rows", MAX_GROUP_OFFSETS)
        if not rows:
            raise InvalidParameter("there are no rows")
        before = await self._committed(group, viewer)
        offsets: Offsets = {}
        for row in rows:
            partition = TopicPartition(row.text("topic"), row.exact("partition", 0, (1 << 31) - 1))
            expected = row.number("before", -1, -1, _MAX_OFFSET)  # null: nothing is committed
            if before.get(partition, -1) != expected:
                raise InvalidParameter(
                    f"the group has committed another offset of {partition} since the dry run; "
                    "make a new one"
                )
            offsets[partition] = row.exact("after", 0, _MAX_OFFSET)
        if group.kind == SHARE:
            await self._alter(group, offsets, viewer)
        else:
            await self._commit(group, offsets, viewer)
        self._history.forget_pace(group.group)
        await self._history.sample()
        count = "1 offset" if len(rows) == 1 else f"{len(rows)} offsets"
        verb = "is" if len(rows) == 1 else "are"
        return {"done": f"{count} of group {group.group} {verb} reset."}

    async def _commit(self, group: GroupRow, offsets: Offsets, viewer: Viewer) -> None:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic_name, index), offset in offsets.items():
            row = OffsetCommitRequestPartition(index, offset, committed_metadata="")
            topics.setdefault(topic_name, []).append(row)
        request = OffsetCommitRequest(
            group_id=group.group,
            topics=[OffsetCommitRequestTopic(name, each) for name, each in topics.items()],
        )
        response = await self._client.ask(viewer, group.coordinator, request, OffsetCommitResponse)
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    raise KafkaError(
                        each.error_code, f"Group {group.group} has members: stop them first."
                    )
                check(each.error_code)

    async def _alter(self, group: GroupRow, offsets: Offsets, viewer: Viewer) -> None:
        """The state of the records from the start offsets on is lost."""
        topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
        for (topic_name, index), offset in offsets.items():
            row = AlterShareGroupOffsetsRequestPartition(index, offset)
            topics.setdefault(topic_name, []).append(row)
        request = AlterShareGroupOffsetsRequest(
            group.group, [AlterShareGroupOffsetsRequestTopic(*each) for each in topics.items()]
        )
        response = await self._client.ask(
            viewer, group.coordinator, request, AlterShareGroupOffsetsResponse
        )
        if response.error_code == ErrorCode.NON_EMPTY_GROUP:
            raise KafkaError(
                response.error_code, f"Group {group.group} has members: stop them first."
            )
        check(response.error_code)
        for topic in response.responses:
            for each in topic.partitions:
                check(each.error_code)

    async def delete(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """The name is typed a second time."""
        group = await self._group(given.confirmed("group"), viewer)
        request = DeleteGroupsRequest([group.group])
        response = await self._client.ask(viewer, group.coordinator, request, DeleteGroupsResponse)
        for row in response.results:
            if row.error_code == ErrorCode.NON_EMPTY_GROUP:
                raise KafkaError(
                    row.error_code, f"Group {group.group} has members: stop them first."
                )
            check(row.error_code)
        await self._history.sample()
        return {"done": f"Group {group.group} is deleted."}

    async def _group(self, name: str, viewer: Viewer) -> GroupRow:
        viewer.require(Operation.DESCRIBE, ResourceType.GROUP, name)
        found = await self._history.find_group(name)
        if found is None:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"No broker coordinates a group {name[:249]}."
            )
        return found

    async def _committed(self, group: GroupRow, viewer: Viewer) -> Offsets:
        found, problems = await committed_offsets(self._client, viewer, [group])
        if group.group not in found:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                problems[0] if problems else "The coordinator returned no offsets.",
            )
        return found[group.group]

    async def _targets(
        self, given: Parameters, wanted: list[TopicPartition], before: Offsets, viewer: Viewer
    ) -> tuple[Offsets, list[str]]:
        """The new offset of each partition, within the offsets of the log."""
        way = given.text("to")
        ends, starts = await asyncio.gather(
            list_offsets(self._client, viewer, wanted, LATEST),
            list_offsets(self._client, viewer, wanted, EARLIEST),
        )
        problems = [*ends.problems, *starts.problems]
        target: Offsets
        if way == "latest":
            target = ends.found
        elif way == "earliest":
            target = starts.found
        elif way == "offset":
            target = dict.fromkeys(wanted, given.exact("amount", 0, _MAX_OFFSET))
        elif way == "shift":
            by = given.exact("amount", -_MAX_OFFSET, _MAX_OFFSET)
            target = {each: offset + by for each, offset in before.items()}
        elif way == "time":
            when = given.exact("amount", 0, _MAX_OFFSET)
            found = await list_offsets(self._client, viewer, wanted, when)
            problems += found.problems
            target = {
                each: offset if offset >= 0 else ends.found.get(each, -1)
                for each, offset in found.found.items()
            }
        else:
            raise InvalidParameter("to is not earliest, latest, offset, shift or time")
        after = {
            each: max(starts.found[each], min(offset, ends.found[each]))
            for each, offset in target.items()
            if each in starts.found and each in ends.found
        }
        missing = [each for each in wanted if each not in after]
        if missing:
            problems.append(
                f"{missing[0]} is left out."
                if len(missing) == 1
                else f"{len(missing)} partitions are left out, such as {missing[0]}."
            )
        return after, list(dict.fromkeys(problems))
