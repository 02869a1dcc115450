"""No partition of a group has two owners at a time (KIP-848).

A member owns a partition from the response that assigns it until it has given it up, which takes it
some steps after it was told. The group is asked nothing: what counts is what members were told.

A coordinator that was replaced and does not know it yet answers heartbeats. So only responses of
the leader in the tree count, and a member counts as long as its session cannot have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import partition_for_key
from ottla.controller.tree import znodes
from ottla.protocol.client.operations import GROUP
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tests.simulation.cluster.groups import SharingConsumerMember
    from tests.simulation.cluster.world import World


class Owners:
    """The members of one group, and when each was last confirmed."""

    def __init__(self, world: World, group: str, session_seconds: float) -> None:
        self.world = world
        self.group = group
        self._session_seconds = session_seconds
        partition = partition_for_key(group, world.shape.internal_partitions)
        self._state_path = znodes.state_path(TopicPartition(GROUP_METADATA_TOPIC, partition))
        # By member: when the last request was sent that the coordinator answered.
        self._confirmed: dict[SharingConsumerMember, float] = {}

    def forget(self, member: SharingConsumerMember) -> None:
        """It owns nothing any more."""
        self._confirmed.pop(member, None)

    def answered(self, member: SharingConsumerMember, sent_at: float) -> None:
        """The coordinator confirmed a member with all that it owns now."""
        if not self._is_of_leader(member):
            return
        self._confirmed[member] = sent_at
        oldest = self.world.loop.now - self._session_seconds
        for other, confirmed_at in self._confirmed.items():
            if other is member or confirmed_at <= oldest:
                continue
            for partition in sorted(set(member.assigned) & set(other.owned)):
                self.world.complain(
                    f"{self.group}: partition {partition} is of {member.name}, and of {other.name}"
                )

    def _is_of_leader(self, member: SharingConsumerMember) -> bool:
        node = self.world.ensemble.tree.nodes.get(self._state_path)
        if node is None:
            return False
        state = znodes.decode_state(TopicPartition(GROUP_METADATA_TOPIC, 0), node.data, 0)
        return state.leader == member.client.state.coordinator(self.group, GROUP)
