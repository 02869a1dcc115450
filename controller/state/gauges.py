"""The gauges of the controller, with the meaning of Kafka's gauges of the same names.

They are computed at each scrape, which is cheaper than counters that are updated at each change.
All are zero on a broker that is not the active controller.
"""

from typing import NamedTuple

from ottla.controller.state.context import ControllerContext, ReplicaState


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
    if not is_active:
        return ControllerGauges()
    to_delete = [
        context.replica_states.get(replica)
        for topic in context.topics_to_delete
        for replica in context.replicas_of(topic)
    ]
    return ControllerGauges(
        active_controller_count=1,
        active_broker_count=len(context.brokers),
        offline_partitions_count=context.offline_partition_count(),
        preferred_replica_imbalance_count=context.preferred_replica_imbalance_count(),
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
