"""One step of a member towards its target (KIP-848), as a pure function.

A member first gives back what is not its own any more; only then it gets to the target's epoch and
takes what nobody else has. So no partition is ever with two members.
"""

from collections.abc import Callable

from ottla.broker.groups.consumer.member import Assignment, ConsumerMember, MemberState, overlaps

IsFree = Callable[[bytes, int], bool]
"""Whether no other member has a partition, or has still to give it back."""


class FencedMember(Exception):
    """The member has to give up everything and join anew."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    is_free: IsFree,
    owned: Assignment | None,
) -> ConsumerMember:
    """The member after this step, the same object when there is nothing to do.

    `owned` is what the member says that it has; None when it did not say.
    """
    if member.state is MemberState.STABLE:
        if member.epoch == target_epoch:
            return member
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(owned, member.revoking):
            return member
        # One epoch on: the target may have changed meanwhile, and more has to go.
        return _advance(member, member.epoch + 1, target_epoch, target, is_free, owned)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _advance(member, member.epoch, target_epoch, target, is_free, owned)
    if owned is None or owned:
        raise FencedMember("its state was written by a later version")
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
    """Who does not say what it has may have everything."""
    return owned is None or overlaps(owned, partitions)


def _union(one: Assignment, other: Assignment) -> Assignment:
    return {
        topic_id: one.get(topic_id, frozenset()) | other.get(topic_id, frozenset())
        for topic_id in dict.fromkeys((*one, *other))
    }
