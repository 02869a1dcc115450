"""What the controller's metrics show, under the meanings of Kafka's gauges of the same names.

Counted when asked: a scrape every few seconds is cheaper than keeping counters at every change,
and cannot drift. All are zero on a broker that is not the controller.
"""

from typing import NamedTuple

from ottla.controller.state.context import ControllerContext, ReplicaState


class ControllerGauges(NamedTuple):
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
    going = [
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
            state is not ReplicaState.DELETION_SUCCESSFUL for state in going
        ),
        topics_ineligible_to_delete_count=len(context.topics_ineligible_for_deletion),
        replicas_ineligible_to_delete_count=sum(
            state is ReplicaState.DELETION_INELIGIBLE for state in going
        ),
        reassigning_partitions_count=len(context.partitions_being_reassigned),
    )
