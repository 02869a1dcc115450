"""Changes of groups: their offsets, after a dry run, and their deletion.

The offsets of a share group are its start offsets.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_client import check
from ottla.broker.observability.console.cluster_offsets import EARLIEST, LATEST, list_offsets
from ottla.broker.observability.console.groups_of_cluster import (
    MAX_OFFSETS,
    SHARE,
    GroupRow,
    committed_offsets,
    describe_groups,
)
from ottla.broker.observability.console.parameters import InvalidParameter
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.history import History
    from ottla.broker.observability.console.parameters import Parameters

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
        if not wanted or len(wanted) > MAX_OFFSETS:
            raise InvalidParameter(
                f"a reset is of 1 to {MAX_OFFSETS} partitions, and this would be of {len(wanted)}"
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
        """Commits `rows` as the dry run returned them; refused when the group has committed
        something since."""
        group = await self._group(given.text("group"), viewer)
        rows = given.rows("rows", MAX_OFFSETS)
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
        await self._history.sample()
        return {"done": f"{len(rows)} offsets of group {group.group} are reset."}

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
        """Where each partition goes: never beyond what the log has."""
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
            problems.append(f"{len(missing)} partitions are left out, such as {missing[0]}.")
        return after, list(dict.fromkeys(problems))
