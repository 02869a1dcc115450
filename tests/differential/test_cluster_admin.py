"""Reassignments, growth, features, elections: what one broker refuses, the other refuses too."""

import pytest

from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.differential.asking import Pair

pytestmark = pytest.mark.kafka

TOPIC = "administered"
BROKER_LOGGER = 8
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture(scope="module", autouse=True)
def topic(pair: Pair) -> None:
    made = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    pair.compare(CreateTopicsRequest(topics=[made], timeout_ms=10_000), [7])


def move(name: str, partition: int, replicas: list[int] | None) -> ReassignableTopic:
    return ReassignableTopic(
        name=name, partitions=[ReassignablePartition(partition_index=partition, replicas=replicas)]
    )


MOVES = {
    "nothing": [],
    "to where it is": [move(TOPIC, 0, [0])],
    "to an unknown broker": [move(TOPIC, 0, [7])],
    "to no broker": [move(TOPIC, 0, [])],
    "twice to one": [move(TOPIC, 0, [0, 0])],
    "to a negative id": [move(TOPIC, 0, [-1])],
    "no such partition": [move(TOPIC, 9, [0])],
    "no such topic": [move("not-there", 0, [0])],
    "cancel what does not move": [move(TOPIC, 0, None)],
    "cancel what is not there": [move("not-there", 0, None)],
    "good and bad": [move(TOPIC, 1, [0]), move("not-there", 0, [0])],
}


@pytest.mark.parametrize("case", MOVES)
def test_reassignments(pair: Pair, case: str) -> None:
    request = AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=MOVES[case])
    pair.compare(request, [0], ignore=["error_message"])


@pytest.mark.parametrize("names", [None, [], [TOPIC], ["not-there"]])
def test_what_is_being_reassigned(pair: Pair, names: list[str] | None) -> None:
    topics = names and [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 9]) for name in names
    ]
    pair.compare(ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=topics), [0])


GROWTH = {
    "no such topic": CreatePartitionsTopic(name="not-there", count=3, assignments=None),
    "fewer": CreatePartitionsTopic(name=TOPIC, count=1, assignments=None),
    "as many": CreatePartitionsTopic(name=TOPIC, count=2, assignments=None),
    "none": CreatePartitionsTopic(name=TOPIC, count=0, assignments=None),
    "to no broker": CreatePartitionsTopic(
        name=TOPIC, count=3, assignments=[CreatePartitionsAssignment(broker_ids=[7])]
    ),
    "too few places": CreatePartitionsTopic(
        name=TOPIC, count=4, assignments=[CreatePartitionsAssignment(broker_ids=[0])]
    ),
    "other replication": CreatePartitionsTopic(
        name=TOPIC, count=3, assignments=[CreatePartitionsAssignment(broker_ids=[0, 7])]
    ),
    "good": CreatePartitionsTopic(
        name=TOPIC, count=3, assignments=[CreatePartitionsAssignment(broker_ids=[0])]
    ),
}


@pytest.mark.parametrize("case", GROWTH)
def test_partitions_checked_only(pair: Pair, case: str) -> None:
    request = CreatePartitionsRequest(topics=[GROWTH[case]], timeout_ms=10_000, validate_only=True)
    pair.compare(request, range(4), ignore=["error_message"])


@pytest.mark.parametrize("version", range(3))
def test_records_to_delete_that_are_not_there(pair: Pair, version: int) -> None:
    for name, partition, offset in ((TOPIC, 0, 5), (TOPIC, 0, -2), (TOPIC, 9, 0), ("none", 0, 0)):
        row = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=[row])], timeout_ms=5_000
        )
        pair.compare(request, [version])


@pytest.mark.parametrize("version", range(3))
def test_elections_of_all_partitions(pair: Pair, version: int) -> None:
    for rows in (None, [], [TopicPartitions(topic=TOPIC, partitions=[0, 1, 9])]):
        request = ElectLeadersRequest(topic_partitions=rows, timeout_ms=5_000)
        pair.compare(request, [version], ignore=["error_message"])


@pytest.mark.parametrize("version", range(2))
def test_features(pair: Pair, version: int) -> None:
    for updates in (
        [],
        [FeatureUpdateKey(feature="no.such", max_version_level=1)],
        [FeatureUpdateKey(feature="", max_version_level=1)],
    ):
        request = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=updates)
        pair.compare(request, [version], ignore=["error_message"])


LEVELS = {
    "no such logger": ("no.such.logger", SET, "DEBUG"),
    "no such level": ("root", SET, "LOUD"),
    "append": ("root", APPEND, "DEBUG"),
    "the root is not taken away": ("root", DELETE, None),
}


@pytest.mark.parametrize("case", LEVELS)
@pytest.mark.parametrize("broker", ["0", "7", "", "x"])
def test_levels_of_loggers(pair: Pair, case: str, broker: str) -> None:
    name, operation, value = LEVELS[case]
    change = AlterableConfig(name=name, config_operation=operation, value=value)
    resource = AlterConfigsResource(
        resource_type=BROKER_LOGGER, resource_name=broker, configs=[change]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    pair.compare(request, range(2), ignore=["error_message"])
    asked = DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name=broker, configuration_keys=["root"]
    )
    pair.compare(
        DescribeConfigsRequest(resources=[asked]), range(1, 5), ignore=["error_message", "value"]
    )
