"""UpdateFeatures and AlterPartitionReassignments: what each version has in its response."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.handlers.cluster.partition_reassignments import PartitionReassignmentHandlers
from ottla.broker.handlers.cluster.update_features import UpdateFeaturesHandler
from ottla.controller.admin.features import FeatureUpdate
from ottla.controller.errors import OK, ApiError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.request_context import Asked


class Controller:
    """Accepts the feature f only, and remembers how it was asked."""

    def __init__(self) -> None:
        self.options: dict[str, bool] = {}

    async def update_features(
        self, updates: list[FeatureUpdate], **options: bool
    ) -> dict[str, ApiError]:
        self.options = options
        refused = ApiError(ErrorCode.INVALID_REQUEST, "not supported")
        return {each.feature: OK if each.feature == "f" else refused for each in updates}

    async def alter_partition_reassignments(
        self, targets: dict[TopicPartition, object], **options: bool
    ) -> dict[TopicPartition, ApiError]:
        self.options = options
        return dict.fromkeys(targets, OK)


def respond(controller: Controller, version: int, *names: str) -> UpdateFeaturesResponse:
    handler = UpdateFeaturesHandler(controller)  # type: ignore[arg-type] # the method it calls
    rows = [FeatureUpdateKey(name, 1) for name in names]
    asked = Asked(handler.handle, UpdateFeaturesRequest(feature_updates=rows), version)
    return asked.response(UpdateFeaturesResponse)


@pytest.mark.parametrize("version", [0, 1])
def test_older_versions_have_a_row_for_each_feature(version: int) -> None:
    controller = Controller()
    response = respond(controller, version, "f", "g")
    assert response.error_code == 0
    assert [row.error_code for row in response.results] == [0, ErrorCode.INVALID_REQUEST]
    assert controller.options["is_all_or_nothing"] is False


def test_version_2_succeeds_or_fails_as_a_whole() -> None:
    controller = Controller()
    response = respond(controller, 2, "f")
    assert (response.error_code, response.error_message, response.results) == (0, None, [])
    assert controller.options["is_all_or_nothing"] is True
    response = respond(controller, 2, "f", "g")
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert str(response.error_message).endswith("had an error: g: not supported")


@pytest.mark.parametrize(("version", "allowed"), [(0, True), (1, True), (1, False)])
def test_reassignments_that_keep_the_number_of_replicas(version: int, allowed: bool) -> None:
    controller: Any = Controller()
    topics = [ReassignableTopic("t", [ReassignablePartition(0, [1])])]
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allowed, topics=topics
    )
    asked = Asked(PartitionReassignmentHandlers(controller).alter, request, version)
    response = asked.response(AlterPartitionReassignmentsResponse)
    assert response.allow_replication_factor_change is allowed
    assert controller.options == {"may_change_count": allowed}
