"""OffsetDelete."""

import pytest

from ottla.broker.handlers.groups.offset_delete import OffsetDeleteHandler
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tests.doubles.request_context import Asked
from tests.unit.broker.groups.helpers import T0, Setup
from tests.unit.broker.handlers.fake_metadata import Metadata


@pytest.fixture
def setup() -> Setup:
    made = Setup()
    made.stable_group()
    made.commit({T0: 1}, group_id="simple")
    return made


@pytest.fixture
def handler(setup: Setup) -> OffsetDeleteHandler:
    return OffsetDeleteHandler(setup.coordinator.admin, Metadata(t=2))


def offset_delete(group_id: str, **topics: list[int]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id,
        [
            OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(n) for n in indexes])
            for name, indexes in topics.items()
        ],
    )


def test_offsets_are_deleted(setup: Setup, handler: OffsetDeleteHandler) -> None:
    request = offset_delete("simple", t=[0, 7], nowhere=[0])
    response = Asked(handler.handle, request, 0).response(OffsetDeleteResponse)
    assert response.error_code == ErrorCode.NONE
    assert {
        (topic.name, row.partition_index): row.error_code
        for topic in response.topics
        for row in topic.partitions
    } == {("t", 0): 0, ("t", 7): 3, ("nowhere", 0): 3}
    assert setup.coordinator.partitions.find("simple") is None


def test_the_groups_error_stands_alone(handler: OffsetDeleteHandler) -> None:
    request = offset_delete("unknown", t=[0], nowhere=[0])
    response = Asked(handler.handle, request, 0).response(OffsetDeleteResponse)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
