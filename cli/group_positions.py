"""Committed offsets of a group: read and commit them without membership; delete groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import typer

from ottla.cli.completion import complete_groups
from ottla.cli.output import Failure, print_json, say
from ottla.cli.session import Session, check, explain
from ottla.protocol.client.operations import CoordinatorOf, Versions
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition


def all_committed(session: Session, group: str) -> dict[TopicPartition, tuple[int, str]]:
    """(offset, metadata) of every partition that the group has committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    response = session.call(
        OffsetFetchResponse, request, CoordinatorOf(group), versions=Versions(8)
    ).groups[0]
    check(response.error_code, f"group {group}")
    found: dict[TopicPartition, tuple[int, str]] = {}
    for topic in response.topics:
        for row in topic.partitions:
            check(row.error_code, f"group {group}")
            if row.committed_offset >= 0:
                partition = TopicPartition(topic.name, row.partition_index)
                found[partition] = (row.committed_offset, row.metadata or "")
    return found


def committed(
    session: Session, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The committed offsets of those of `partitions` that have one."""
    found = all_committed(session, group)
    return {item: found[item][0] for item in partitions if item in found}


def commit(session: Session, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits for a group without members; raises Failure if it has members."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for partition, offset in offsets.items():
        by_topic[partition.topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition.partition, committed_offset=offset, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(name=topic, partitions=rows)
            for topic, rows in by_topic.items()
        ],
    )
    response = session.call(OffsetCommitResponse, request, CoordinatorOf(group))
    for topic in response.topics:
        for row in topic.partitions:
            check(row.error_code, f"group {group}, {topic.name}-{row.partition_index}")


Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", show_default=False, autocompletion=complete_groups),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")]


def delete_groups(
    session: Session,
    groups: list[str],
    is_confirmed: bool,
    *,
    noun: str,
    contents: str,
    check_group: Callable[[str], object] = lambda group: None,
) -> None:
    """Deletes each group after a prompt that names what is lost; then raises Failure if one could
    not be deleted, or if `check_group` raised it."""
    groups = list(dict.fromkeys(groups))
    question = f"Delete {', '.join(groups)} with {contents}?"
    if not is_confirmed and not typer.confirm(question, err=True):
        raise Failure("nothing was deleted.")
    deleted, problems = [], []
    for group in groups:
        request = DeleteGroupsRequest(groups_names=[group])
        try:
            check_group(group)
            result = session.call(DeleteGroupsResponse, request, CoordinatorOf(group)).results[0]
            check(result.error_code, f"group {group}")
            deleted.append(group)
        except Failure as failure:
            problems.append(str(failure))
        except KafkaError as error:  # there is no coordinator
            problems.append(f"group {group}: {explain(error.code, error.message)}")
    if session.json:
        print_json({"deleted": deleted})
    else:
        for group in deleted:
            say(f"{noun} {group} deleted.")
    if problems:
        raise Failure(" ".join(problems))
