"""One step of the reconciliation of a member with its target assignment (KIP-848).

A member first revokes partitions that are not in its target. Then it moves to the target epoch and
gets the partitions that no other member owns. So a partition never has two owners. Mirrors
`CurrentAssignmentBuilder`.
"""

from collections.abc import Callable

from ottla.broker.groups.consumer.member import Assignment, ConsumerMember, MemberState, overlaps

IsFree = Callable[[bytes, int], bool]
"""Whether no other member owns a partition or has still to revoke it."""


class FencedMember(Exception):
    """The member has to abandon all its partitions and rejoin."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    is_free: IsFree,
    owned: Assignment | None,
) -> ConsumerMember:
    """The member after this step; the same object when nothing changes.

    `owned` are the partitions in the request; None when the request does not list them.
    """
    if member.state is MemberState.STABLE:
        if member.epoch == target_epoch:
            return member
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(owned, member.revoking):
            return member
        # The next epoch; the target may have changed, so more partitions may have to be revoked.
        return _advance(member, member.epoch + 1, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if owned is None or owned:
        raise FencedMember("The state of the member was written by a later version.")
    return _advance(member, target_epoch, target_epoch, target, is_free, owned)


def _advance(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    is_free: IsFree,
    owned: Assignment | None,
) -> ConsumerMember:
    kept: Assignment = {}
    revoked: Assignment = {}
    added: Assignment = {}
    waits = False
    for topic_id in dict.fromkeys((*target, *member.assigned)):
        wanted = target.get(topic_id, frozenset())
        has = member.assigned.get(topic_id, frozenset())
        missing = wanted - has
        free = frozenset(index for index in missing if is_free(topic_id, index))
        waits = waits or free != missing
        for part, indexes in ((kept, has & wanted), (revoked, has - wanted), (added, free)):
            if indexes:
                part[topic_id] = indexes
    if revoked and _still_has(owned, revoked):
        return member.with_epoch(epoch)._replace(
            state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoked
        )
    return member.with_epoch(target_epoch)._replace(
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        assigned=_union(kept, added),
        revoking={},
    )


def _still_has(owned: Assignment | None, partitions: Assignment) -> bool:
    """A member that does not list its partitions may own all of them."""
    return owned is None or overlaps(owned, partitions)


def _union(one: Assignment, other: Assignment) -> Assignment:
    return {
        topic_id: one.get(topic_id, frozenset()) | other.get(topic_id, frozenset())
        for topic_id in dict.fromkeys((*one, *other))
    }
