"""The gauges of the controller, with the meaning of Kafka's gauges of the same names.

They are computed at each scrape, which is cheaper than counters that are updated at each change.
All are zero on a broker that is not the active controller.
"""

from collections.abc import Generator
from typing import NamedTuple

from ottla.controller.state.context import ControllerContext, ReplicaState

# About 0.5 ms of computing.
_PARTITIONS_IN_A_STEP = 512


class ControllerGauges(NamedTuple):
    """Kafka's gauges of KafkaController, in snake case."""

    active_controller_count: int = 0
    active_broker_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    topics_to_delete_count: int = 0
    replicas_to_delete_count: int = 0
    topics_ineligible_to_delete_count: int = 0
    replicas_ineligible_to_delete_count: int = 0
    reassigning_partitions_count: int = 0


def collect_gauges(context: ControllerContext, *, is_active: bool) -> ControllerGauges:
    """All gauges at once; `gauge_steps` does not hold the event loop."""
    steps = gauge_steps(context, is_active=is_active)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            gauges: ControllerGauges = end.value
            return gauges


def gauge_steps(
    context: ControllerContext, *, is_active: bool
) -> Generator[None, None, ControllerGauges]:
    """Computes the gauges; the context may change between two steps."""
    if not is_active:
        return ControllerGauges()
    offline = imbalance = 0
    for number, partition in enumerate(list(context.partition_states)):
        if not number % _PARTITIONS_IN_A_STEP:
            yield
        offline += context.is_offline(partition)
        imbalance += context.is_imbalanced(partition)
    to_delete = [
        context.replica_states.get(replica)
        for topic in context.topics_to_delete
        for replica in context.replicas_of(topic)
    ]
    return ControllerGauges(
        active_controller_count=1,
        active_broker_count=len(context.brokers),
        offline_partitions_count=offline,
        preferred_replica_imbalance_count=imbalance,
        global_topic_count=len(context.assignments),
        global_partition_count=len(context.leadership),
        topics_to_delete_count=len(context.topics_to_delete),
        replicas_to_delete_count=sum(
            state is not ReplicaState.DELETION_SUCCESSFUL for state in to_delete
        ),
        topics_ineligible_to_delete_count=len(context.topics_ineligible_for_deletion),
        replicas_ineligible_to_delete_count=sum(
            state is ReplicaState.DELETION_INELIGIBLE for state in to_delete
        ),
        reassigning_partitions_count=len(context.partitions_being_reassigned),
    )
