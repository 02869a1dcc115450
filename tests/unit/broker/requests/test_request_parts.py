from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.requests.request_context import HandlerEntry
from ottla.broker.requests.request_parts import (
    MAX_UNDIVIDED_ELEMENTS,
    PART_ELEMENTS,
    Items,
    Part,
    items_of,
    merge,
    parts_of,
)
from ottla.protocol.message import Message
from ottla.protocol.messages import offset_fetch as offsets
from ottla.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.registry import API
from tests.doubles.api_routes import entry_of, whole_table


def items_in(request: Message) -> Items | None:
    return items_of(entry_of(request.API_KEY).items, request)


def parts(request: Message) -> list[Part]:
    items = items_in(request)
    assert items is not None
    return [part for part in parts_of(request, items) if part is not None]


@pytest.mark.parametrize(
    "entry", [each for each in whole_table() if each.items], ids=lambda each: each.name
)
def test_the_fields_exist(entry: HandlerEntry) -> None:
    for items in entry.items:
        assert hasattr(API[entry.api_key].request(), items.request_field)
        assert hasattr(API[entry.api_key].response(), items.response_field)


def test_null_and_empty_lists_mean_something_and_are_not_divided() -> None:
    assert items_in(MetadataRequest(None)) is None
    assert items_in(MetadataRequest([])) is None


def test_equal_topics_of_metadata_are_one() -> None:
    request = MetadataRequest([MetadataRequestTopic(name="a") for _ in range(100_000)])
    (part,) = parts(request)
    assert len(getattr(part.request, "topics")) == 1  # noqa: B009  # its type is Message


def test_equal_items_stay_together_where_they_are_an_error() -> None:
    names = [f"{number}" for number in range(PART_ELEMENTS)]
    request = AlterConfigsRequest([AlterConfigsResource(2, name) for name in [*names, "0", "0"]])
    found = [[each.resource_name for each in part.request.resources] for part in parts(request)]  # type: ignore[attr-defined]
    assert found[0][:3] == ["0", "0", "1"]
    assert sum(map(len, found)) == PART_ELEMENTS + 1


def test_steps_without_a_part_are_bounded() -> None:
    request = MetadataRequest([MetadataRequestTopic(name=f"{number}") for number in range(5000)])
    items = items_in(request)
    assert items is not None
    assert list(parts_of(request, items))[:4] == [None] * 4


def test_items_with_too_many_elements_are_marked() -> None:
    configs = [AlterableConfig("name", "value")] * (MAX_UNDIVIDED_ELEMENTS + 1)
    resources = [AlterConfigsResource(2, "long", configs), AlterConfigsResource(2, "short")]
    assert [part.is_too_long for part in parts(AlterConfigsRequest(resources))] == [True, False]
    assignments = [CreatableReplicaAssignment(0, [1] * MAX_UNDIVIDED_ELEMENTS)]
    topics = [CreatableTopic("long", -1, -1, assignments, []), CreatableTopic("short", 1, 1)]
    assert [part.is_too_long for part in parts(CreateTopicsRequest(topics))] == [True, False]


def respond(request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                topic.name,
                [
                    ListOffsetsPartitionResponse(each.partition_index, offset=each.timestamp)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_the_responses_to_parts_make_up_that_to_the_whole() -> None:
    topics = [
        ListOffsetsTopic(
            f"t{number}", [ListOffsetsPartition(each, timestamp=each) for each in rows]
        )
        for number, rows in enumerate([range(3), range(1000), range(0), range(200), range(60)])
    ]
    request = ListOffsetsRequest(topics=topics)
    merged: Any = None
    items = items_in(request)
    assert items is not None
    for part in parts(request):
        assert isinstance(part.request, ListOffsetsRequest)
        assert sum(1 + len(each.partitions) for each in part.request.topics) <= PART_ELEMENTS + 1
        response = respond(part.request)
        if merged is None:
            merged = response
        else:
            merge(merged, response, items, part.depth)
    assert merged == respond(request)


def test_groups_of_topics_of_partitions() -> None:
    def topic(name: str, count: int) -> offsets.OffsetFetchRequestTopics:
        return offsets.OffsetFetchRequestTopics(name, list(range(count)))

    request = offsets.OffsetFetchRequest(
        groups=[
            offsets.OffsetFetchRequestGroup("many", topics=[topic("a", 3), topic("b", 1000)]),
            offsets.OffsetFetchRequestGroup("all", topics=None),
            offsets.OffsetFetchRequestGroup("wide", topics=[topic(f"{n}", 1) for n in range(300)]),
        ]
    )
    items = items_in(request)
    assert items is not None
    merged: Any = None
    for part in parts(request):
        assert isinstance(part.request, offsets.OffsetFetchRequest)
        response = offsets.OffsetFetchResponse(
            groups=[
                offsets.OffsetFetchResponseGroup(
                    group.group_id,
                    [
                        offsets.OffsetFetchResponseTopics(
                            each.name,
                            [
                                offsets.OffsetFetchResponsePartitions(index)
                                for index in each.partition_indexes
                            ],
                        )
                        for each in group.topics or ()
                    ],
                )
                for group in part.request.groups
            ]
        )
        if merged is None:
            merged = response
        else:
            merge(merged, response, items, part.depth)
    found = [
        (group.group_id, [(each.name, len(each.partitions)) for each in group.topics])
        for group in merged.groups
    ]
    assert found == [
        ("many", [("a", 3), ("b", 1000)]),
        ("all", []),
        ("wide", [(f"{n}", 1) for n in range(300)]),
    ]


def test_the_first_error_of_a_part_stays() -> None:
    from ottla.protocol.messages.offset_delete import OffsetDeleteResponse

    (items,) = entry_of(47).items
    response = OffsetDeleteResponse()
    for code in (0, 30, 16):
        merge(response, OffsetDeleteResponse(code), items, 0)
    assert response.error_code == 30
