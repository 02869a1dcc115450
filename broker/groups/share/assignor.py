"""The simple assignor of share groups: partitions are shared by as many members as it takes.

Mirrors the aims of Kafka's `SimpleAssignor`: every partition has a member, every member that can
have one has a partition, and the members are spread evenly. Which member gets which partition
follows from the sorted names, so that each coordinator computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.protocol.steps import Steps

Assignment = dict[bytes, list[int]]

_PER_STEP = 256


def assign(
    subscriptions: Mapping[str, frozenset[bytes]], partitions: Mapping[bytes, list[int]]
) -> Steps[dict[str, Assignment]]:
    """The partitions of each member, by topic id; in steps of about 0.1 ms.

    `subscriptions` has the topics of each member, `partitions` those of each topic.
    """
    result: dict[str, Assignment] = {member: {} for member in subscriptions}
    offset = done = 0
    for topic_id in sorted(partitions):
        members = sorted(each for each, topics in subscriptions.items() if topic_id in topics)
        indexes = sorted(partitions[topic_id])
        if not members or not indexes:
            continue
        for position in range(max(len(members), len(indexes))):
            member = members[(position + offset) % len(members)]
            result[member].setdefault(topic_id, []).append(indexes[position % len(indexes)])
            done += 1
            if not done % _PER_STEP:
                yield
        # The next topic begins with another member.
        offset += len(indexes)
        yield  # all members were read
    for member, topics in result.items():
        result[member] = {topic_id: sorted(rows) for topic_id, rows in topics.items()}
        yield
    return result
